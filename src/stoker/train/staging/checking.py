# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What keeps a module's layers from being in stages, found before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stoker.train import torch_private
from stoker.train.ring.torch_private import ignored_names
from stoker.train.staging.graphs import StagedGraph
from stoker.train.staging.states import why_not
from stoker.train.staging.weights import StagedWeight, places_of, stages_of

_OPTIONS = {
    "find_unused_parameters": "all weights have a stage whose gradients go back in each pass",
    "mixed_precision": "stages have the precision of the program",
    "delay_all_reduce_named_params": "no gradients are exchanged",
    "device_mesh": "it has tensors in shares already",
    "param_to_hook_all_reduce": "no gradients are exchanged",
}
"""Options of DDP that layers in stages can't have, and why."""


def check_options(kind: type, options: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` for a class of DDP of the program's own, and for options that stages can't follow."""
    if kind is not DistributedDataParallel:
        raise ValueError(f"`{kind.__name__}` must be torch's DistributedDataParallel itself for layers to be in stages")
    for name, why in _OPTIONS.items():
        if options.get(name):
            raise ValueError(f"`{name}` must not be set for layers to be in stages, got {options[name]}: {why}")


def check_module(module: nn.Module, early: Iterable[Optimizer], by_parameter: tuple[type[Optimizer], ...]) -> None:
    """Raises ``ValueError`` for what a graph of a module would leave out, and for optimizers that can't train it."""
    name = type(module).__name__
    if ignored_names(module):
        raise ValueError("`module` must have no weights that DDP ignores for its layers to be in stages")
    if torch_private.is_compiled(module):
        raise ValueError("`module` must not be compiled for its layers to be in stages, got one of torch.compile")
    for path, each in module.named_modules():
        if torch_private.has_hooks(each):
            raise ValueError(
                f"`{path or name}` must be without hooks for layers to be in stages: a graph has its operations alone"
            )
        if isinstance(each, nn.SyncBatchNorm):
            raise ValueError(
                f"`{path}` must be a BatchNorm of one rank for layers to be in stages, got a SyncBatchNorm"
            )
    devices: set[str] = set()
    for path, parameter in module.named_parameters():
        devices.add(str(parameter.device))
        # In a trace they have no values.
        if type(parameter) is not nn.Parameter and not isinstance(parameter, torch_private.FakeTensor):
            raise ValueError(f"`{path}` must be a plain weight to be in a stage, got {type(parameter).__name__}")
        if torch_private.is_hooked(parameter):
            raise ValueError(f"`{path}` must be without hooks to be in a stage, where it has gradients of all batches")
    if len(devices) != 1:
        raise ValueError(f"`module` must be on one device for its layers to be in stages, got {len(devices)}")
    for optimizer in early:
        if reason := why_not(optimizer, by_parameter):
            raise ValueError(reason)


def check_cuts(module: nn.Module, cuts: Sequence[str], ranks: int) -> None:
    """Raises ``ValueError`` for cuts that do not make as many stages as there are ranks."""
    if len(cuts) != ranks - 1:
        raise ValueError(f"`cuts` must name {ranks - 1} modules for {ranks} ranks, got {len(cuts)}")
    names = dict(module.named_modules())
    for path in cuts:
        if not path or path not in names:
            raise ValueError(f"`{path}` must be a module inside the model to be cut there, got no module of that path")


def check_graph(graph: StagedGraph, options: Mapping[str, Any], device: str) -> None:
    """Raises ``ValueError`` for what would differ from DDP."""
    changed = sorted(name for names in graph.written for name in names)
    if changed and options.get("broadcast_buffers") is False:
        raise ValueError(
            f"`{changed[0]}` must be that of the first rank's batches for layers to be in stages; leave "
            "broadcast_buffers as it is"
        )
    if graph.draws and device != "cpu":
        raise ValueError(
            f"`module` must draw no random numbers on {device} for its layers to be in stages: generators go from "
            "stage to stage on the CPU alone"
        )


def placed(module: nn.Module, graph: StagedGraph) -> dict[str, StagedWeight]:
    """The weights of a module and the stages of each.

    Raises:
        ValueError: a trained weight is not used.
    """
    found: dict[str, StagedWeight] = {}
    stages = stages_of(module, graph.weights)
    for name, (parameter, places) in places_of(module).items():
        if not stages[name] and parameter.requires_grad:
            raise ValueError(f"`{name}` must be used in a forward pass to be in a stage, or be frozen, and is not")
        found[name] = StagedWeight(name, parameter, places, stages[name] or (0,))
    return found


def check_stages(module: nn.Module, graph: StagedGraph, weights: Mapping[str, StagedWeight]) -> None:
    """Raises ``ValueError`` for a call that uses a weight in a stage that does not keep it."""
    for name, stages in stages_of(module, graph.weights).items():
        if not set(stages) <= set(weights[name].stages):
            raise ValueError(
                f"`{name}` must be used where the first batch used it, in stages {weights[name].stages}, got {stages}"
            )
