# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""Splits layers of a model over the ranks that share its batches, and leaves all others to DDP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stoker.train.program.reducers import left_out
from stoker.train.ring.torch_private import timeout_s
from stoker.train.ring.transport import GroupAssembly
from stoker.train.splitting import norms
from stoker.train.splitting.layers import SplitEmbedding, SplitKind, SplitLayer, SplitLinear
from stoker.train.splitting.optimizers import SplitStates
from stoker.train.splitting.parts import SplitParts, split_models
from stoker.train.splitting.planning import check, chosen, pairs_of
from stoker.train.splitting.samples import SampleExchange
from stoker.train.state import optimizers
from stoker.train.state.leaving import watch
from stoker.train.state.service import PartService

DEFAULT_ROWS = 256
"""Rows of a rank's batch that a choice reckons with where the program says nothing."""


def split(
    model: nn.Module,
    mesh: DeviceMesh | dist.ProcessGroup | None = None,
    plan: Mapping[str, str] | None = None,
    *,
    rows: int = DEFAULT_ROWS,
    by_element: Sequence[type[Optimizer]] = (),
    **options: Any,
) -> DistributedDataParallel:
    """Splits linear layers and tables over the ranks and puts the rest of a model into DDP.

    A rank holds a part of a split layer's weights, gradients and optimizer state, and computes that part for the
    samples of all ranks: activations are exchanged instead of gradients. Losses are those of DDP, to rounding. Of a
    column split, in one ``Sequential`` with a row split and only activation functions between them, nothing is
    exchanged in between. With P ranks, K rows on each, M inputs and N outputs a rank sends in a step, in elements:
    2 (P - 1) K (M + N/P) for a column split, 2 (P - 1) K (N + M/P) for a row split, 2 (P - 1) K (M + N) for a
    pair with M inputs and N outputs, less what the gradient of an input takes that needs none; for a table, of K
    lookups those that go to other ranks: a number of 8 bytes and two rows for each.

    Args:
        model: not in DDP yet, before its optimizer has a state; on all ranks alike. It is changed.
        mesh: the ranks, as a mesh of one dimension or a process group; None for all ranks.
        plan: ``column`` or ``row`` for paths of ``Linear`` modules, ``table`` for those of ``Embedding`` modules; None
            to split those that send fewer bytes so.
        rows: of a rank's batch, with which that choice reckons.
        by_element: classes of optimizers, besides those of ``torch.optim``, of which the program knows that each
            element of a weight depends on its own gradients alone.
        options: for ``DistributedDataParallel``.

    Returns:
        DDP around the model; its weights begin as those of rank 0. Passes with gradients and ``clip_grad_norm_`` are
        collective. A rank alone may evaluate under ``torch.no_grad()`` and call ``state_dict()`` of the model and of
        its optimizer, which have whole tensors; loading takes them, on all ranks.

    Raises:
        ValueError: a path or a method of the plan does not fit, or nothing would be left to DDP.
        RuntimeError: this torch computes norms of gradients in a way that is not known.
        TypeError: later, if an optimizer is not known to work by element.
        ExchangeError: the ranks can't connect; later, if they do different things, or one is gone.

    Note:
        Each rank serves its parts from a thread until its program ends, and waits there until no other rank wants them.
    """
    group = _group_of(mesh)
    ranks = dist.get_process_group_ranks(group)
    found = chosen(model, len(ranks), rows) if plan is None else cast("dict[str, SplitKind]", dict(plan))
    check(model, found, len(ranks))
    layers = {path: model.get_submodule(path) for path in found}
    if found:
        norms.install()
        split_models.add(model)  # what serves replicas may ask while the constructor runs
    with left_out(parameters_of(layers, found)):
        ddp = DistributedDataParallel(model, process_group=group, **options)
    if not found:
        return ddp
    replace_layers(model, layers, found, parts_of(group, by_element))
    # Ranks that have ended answer DDP's collectives there, and none of a split layer.
    ddp.join_hook = _no_join
    return ddp


def parts_of(group: dist.ProcessGroup, by_element: Sequence[type[Optimizer]] = ()) -> SplitParts:
    """What will hold this rank's parts, and serves them. Collective.

    Args:
        group: DDP's, which gets a sibling.
        by_element: classes of optimizers that the program vouches for.
    """
    own: Any = dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True)
    exchange = SampleExchange(own)
    parts = SplitParts(exchange, by_element)
    parts.kept, parts.states = group, SplitStates(parts)
    optimizers.add(parts.states)
    limit_s = timeout_s(group)
    parts.service = PartService(GroupAssembly(own), parts, timeout_s=limit_s)
    exchange.version = parts.version
    watch.add(parts.service, limit_s)
    return parts


def replace_layers(
    model: nn.Module, layers: Mapping[str, nn.Module], plan: Mapping[str, SplitKind], parts: SplitParts
) -> None:
    """Puts split layers in the places of whole ones, whose parameters are cut."""
    pairs = pairs_of(model, plan)
    for path, layer in layers.items():
        made: SplitLayer
        if isinstance(layer, nn.Embedding):
            made = SplitEmbedding(layer, path, parts)
        else:
            made = SplitLinear(cast("nn.Linear", layer), plan[path], path, parts, pairs.get(path))
        parent, _, name = path.rpartition(".")
        model.get_submodule(parent).register_module(name, made)


def parameters_of(layers: Mapping[str, nn.Module], plan: Mapping[str, SplitKind]) -> list[nn.Parameter]:
    """Trained parameters that are cut: weights, and the biases of column splits."""
    found: list[nn.Parameter] = []
    for path, layer in layers.items():
        held = dict(layer.named_parameters(recurse=False))
        found += [each for name, each in held.items() if name == "weight" or plan[path] == "column"]
    return [parameter for parameter in found if parameter.requires_grad]


def _no_join(**_: Any) -> Any:
    raise ValueError("`join` must not be used with split layers, which need all ranks; make the batches even")


def _group_of(mesh: DeviceMesh | dist.ProcessGroup | None) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("`split` must find a process group, got none; call torch.distributed.init_process_group first")
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            raise ValueError(f"`mesh` must have one dimension, got {mesh.ndim}; name one of them, as `mesh['data']`")
        return mesh.get_group()
    return mesh if mesh is not None else cast("Any", dist.group).WORLD
