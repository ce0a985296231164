# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""Reducers of ``DistributedDataParallel`` without some of its weights, or all; and one that is made again.

Torch decides in the constructor which weights a module exchanges. So another module is constructed around the same
layers, with the arguments that the program gave and the weights frozen that are to be left out; the program's module
then takes its state over, and stays the same object, with its hooks and modes. No private name is needed.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.train import torch_private

_STANDS_FOR_ALL = "stoker_stands_for_all"
"""A parameter that DDP is made with in the place of all others: it wants one."""
_SYNC = "init_sync"
"""The constructor's argument for DDP's own copy, asked for by name."""
_MODES = ("training", "require_backward_grad_sync", "require_forward_param_sync")
"""State that a program or one of its contexts may have changed."""
_BARRED = {
    "static_graph": "DDP has a static graph",
    "find_unused_parameters": "DDP looks for unused weights: a split layer is used by all ranks or by none",
    "skip_all_reduce_unused_params": "DDP looks for unused weights: a split layer is used by all ranks or by none",
    "mixed_precision": "DDP keeps its weights in two precisions",
    "delay_all_reduce_named_params": "DDP exchanges some weights later",
    "device_mesh": "DDP has a mesh of devices",
}
"""Arguments with which a reducer is not made again, and why, as a part of a sentence."""

_arguments: weakref.WeakKeyDictionary[DistributedDataParallel, dict[str, Any]] = weakref.WeakKeyDictionary()
_remade: list[DistributedDataParallel] = []
"""Filled while a module is constructed here: what sees the constructor is to leave that one alone."""


@contextmanager
def left_out(weights: Iterable[nn.Parameter]) -> Generator[None]:
    """Within it, DDP's constructor copies these weights from its first rank, and leaves them out of what it exchanges.

    Frozen weights are what it does that with.
    """
    trained = [each for each in weights if each.requires_grad]
    for each in trained:
        each.requires_grad_(False)
    try:
        yield
    finally:
        for each in trained:
            each.requires_grad_(True)


@contextmanager
def all_left_out(module: nn.Module) -> Generator[None]:
    """The same for all weights of a module, where what it keeps is exchanged otherwise."""
    weights = list(module.parameters())
    module.register_parameter(_STANDS_FOR_ALL, nn.Parameter(weights[0].detach().new_zeros(1)))
    try:
        with left_out(weights):
            yield
    finally:
        torch_private.take_parameter(module, _STANDS_FOR_ALL)


def forget_weights(ddp: DistributedDataParallel, weights: Iterable[nn.Parameter]) -> None:
    """Takes weights out of DDP's own lists: it would keep their memory when its module has others in their place."""
    old = {id(each) for each in weights}
    for own in vars(ddp).values():
        if isinstance(own, list):
            own[:] = [each for each in own if id(each) not in old]


def note_arguments(ddp: DistributedDataParallel, arguments: Mapping[str, Any]) -> None:
    """Keeps what a module is constructed with, by the names of the constructor."""
    _arguments[ddp] = {name: value for name, value in arguments.items() if value is not ddp and name != "module"}


def is_remaking() -> bool:
    """Whether a constructor that runs is called from here."""
    return bool(_remade)


def why_not(ddp: DistributedDataParallel) -> str:
    """Why a module's reducer can't be made again, as a part of a sentence; empty if it can."""
    given = _arguments.get(ddp)
    if given is None:
        return "DDP was made before stoker could see it"
    return next((why for name, why in _BARRED.items() if given.get(name)), "")


def made_again(ddp: DistributedDataParallel, without: Iterable[nn.Parameter]) -> DistributedDataParallel:
    """A module around the same layers, with a separate reducer. Not collective where torch can leave its copy out.

    Args:
        ddp: the program's; :func:`why_not` has nothing against it.
        without: weights that its reducer is not to have.
    """
    arguments = {**_arguments[ddp], "module": ddp.module}
    if _SYNC in inspect.signature(DistributedDataParallel.__init__).parameters:
        arguments[_SYNC] = False
    _remade.append(ddp)
    try:
        with left_out(without), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the program has had them
            return DistributedDataParallel(**arguments)
    finally:
        _remade.pop()


def take_over(ddp: DistributedDataParallel, made: DistributedDataParallel) -> None:
    """Gives a program's module the reducer of one that was made again, which is of no use afterwards."""
    own = {*vars(nn.Module()), *_MODES}
    vars(ddp).update({name: value for name, value in vars(made).items() if name not in own})
