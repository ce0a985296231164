# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The units of a module, and what keeps its weights from being sharded: found before anything is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stoker.train import torch_private
from stoker.train.ring.torch_private import ignored_names
from stoker.train.sharding.early import copies_of, lists_with
from stoker.train.sharding.weight_states import why_not

_OPTIONS = {
    "find_unused_parameters": "FSDP2 exchanges gradients of the same weights on all ranks",
    "mixed_precision": "FSDP2 has its own",
    "delay_all_reduce_named_params": "FSDP2 exchanges all gradients alike",
    "device_mesh": "it has tensors in shares already",
    "param_to_hook_all_reduce": "FSDP2 exchanges all gradients alike",
}
"""Options of DDP that sharded weights can't have, and why."""


def check_options(kind: type, options: dict[str, Any]) -> None:
    """Raises ``ValueError`` for a class of DDP of the program's own, and for options that FSDP2 can't follow."""
    if kind is not DistributedDataParallel:
        raise ValueError(f"`{kind.__name__}` must be torch's DistributedDataParallel itself for weights to be sharded")
    for name, why in _OPTIONS.items():
        if options.get(name):
            raise ValueError(f"`{name}` must not be set for weights to be sharded, got {options[name]}: {why}")


def check_weights(module: nn.Module, units: Sequence[str]) -> None:
    """Raises ``ValueError`` for weights that FSDP2 does not take, and for units that are none."""
    if ignored_names(module):
        raise ValueError("`module` must have no weights that DDP ignores for its weights to be sharded")
    if torch_private.is_compiled(module):
        raise ValueError("`module` must not be compiled for its weights to be sharded, got one of torch.compile")
    devices: set[str] = set()
    for name, parameter in module.named_parameters():
        devices.add(str(parameter.device))
        if not parameter.dim():
            raise ValueError(f"`{name}` must have rows for weights to be sharded, got a weight without dimensions")
        # In a trace they have no values.
        if type(parameter) is not nn.Parameter and not isinstance(parameter, torch_private.FakeTensor):
            raise ValueError(f"`{name}` must be a plain weight to be sharded, got {type(parameter).__name__}")
        if not parameter.is_contiguous():
            raise ValueError(f"`{name}` must be contiguous to be sharded, got strides {tuple(parameter.stride())}")
        if torch_private.is_hooked(parameter):
            raise ValueError(f"`{name}` must be without hooks for weights to be sharded, which have other gradients")
    for path, each in module.named_modules():
        if isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and each.sparse:
            raise ValueError(f"`{path}` must have dense gradients for weights to be sharded, got sparse=True")
    if len(devices) != 1:
        raise ValueError(f"`module` must be on one device for weights to be sharded, got {len(devices)}")
    names = dict(module.named_modules())
    for path in units:
        if not path or path not in names:
            raise ValueError(f"`{path}` must be a module inside the model to be a unit, got no module of that path")
    _check_ties(names, units)


def check_program(module: nn.Module, early: Sequence[Optimizer], by_element: tuple[type[Optimizer], ...]) -> None:
    """Raises ``ValueError`` for what a program has made already and can't use with sharded weights."""
    for optimizer in early:
        if reason := why_not(optimizer, by_element):
            raise ValueError(reason)
    if copies_of(module):
        raise ValueError(
            f"`{type(module).__name__}` must have no copy in the program for its weights to be sharded: what computes "
            "with both, as an average of weights does, would meet parts of one"
        )
    if count := lists_with(module.parameters(), early):
        raise ValueError(
            f"`{type(module).__name__}` must be the only holder of its weights for them to be sharded, got {count} "
            "lists of the program with some; ask DistributedDataParallel for them instead"
        )


def _check_ties(names: dict[str, nn.Module], units: Sequence[str]) -> None:
    """A weight that two modules use is gathered with the innermost unit of both."""
    held: dict[int, str] = {}
    by_depth = sorted(units, key=lambda path: -path.count("."))
    for path, each in names.items():
        unit = next((unit for unit in by_depth if path == unit or path.startswith(f"{unit}.")), "")
        for name, parameter in each.named_parameters(recurse=False):
            if held.setdefault(id(parameter), unit) != unit:
                raise ValueError(
                    f"`{path}.{name}` must not be shared with another unit for weights to be sharded; leave "
                    f"`{unit or held[id(parameter)]}` out of the units"
                )


def blocks_of(module: nn.Module) -> list[str]:
    """Paths of what a model repeats: modules of lists and of sequences in it, with weights that nobody else uses."""
    shared = _shared_weights(module)
    found: list[str] = []
    for path, each in module.named_modules():
        parent = module.get_submodule(path.rpartition(".")[0]) if path else None
        is_item = isinstance(parent, (nn.ModuleList, nn.Sequential, nn.ModuleDict))
        if not is_item or isinstance(each, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
            continue
        if any(path.startswith(f"{other}.") for other in found):
            continue
        weights = list(each.parameters())
        if weights and not any(id(weight) in shared for weight in weights):
            found.append(path)
    return found


def _shared_weights(module: nn.Module) -> set[int]:
    """Weights that have two names."""
    counts = Counter(id(each) for _, each in module.named_parameters(remove_duplicate=False))
    return {number for number, count in counts.items() if count > 1}
