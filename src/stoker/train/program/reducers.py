# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""Makes the reducer of a ``DistributedDataParallel`` again, without some of its weights, or with them.

Torch decides in the constructor which weights a module exchanges. So another module is constructed around the same
layers, with the arguments that the program gave and the weights frozen that are to be left out; the program's module
then takes its state over, and stays the same object, with its hooks and modes. No private name is needed.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

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
    with ExitStack() as after, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program has had them
        for parameter in without:
            if parameter.requires_grad:
                parameter.requires_grad_(False)
                after.callback(parameter.requires_grad_, True)
        _remade.append(ddp)
        after.callback(_remade.pop)
        return DistributedDataParallel(**arguments)


def take_over(ddp: DistributedDataParallel, made: DistributedDataParallel) -> None:
    """Gives a program's module the reducer of one that was made again, which is of no use afterwards."""
    own = {*vars(nn.Module()), *_MODES}
    vars(ddp).update({name: value for name, value in vars(made).items() if name not in own})
