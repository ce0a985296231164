# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""Weights, gradients and optimizer states in shares (FSDP2), inside the constructor of ``DistributedDataParallel``.

The program keeps its DDP object, its module, names and ``no_sync``. A pass for training is collective; one without
gradients and state dicts are affairs of one rank, which fetches what others hold.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stoker.train import torch_private
from stoker.train.program.reducers import all_left_out, forget_weights
from stoker.train.ring.torch_private import timeout_s
from stoker.train.ring.transport import GroupAssembly
from stoker.train.sharding import norms
from stoker.train.sharding.checking import blocks_of, check_options, check_program, check_weights
from stoker.train.sharding.early import optimizers_with, put_in_place
from stoker.train.sharding.passes import ShardedPasses
from stoker.train.sharding.reducing import set_collectives
from stoker.train.sharding.refusing import refuse_together
from stoker.train.sharding.weight_states import WeightStates
from stoker.train.sharding.wholes import ShardedWeight, ShardedWeights
from stoker.train.state import optimizers
from stoker.train.state.leaving import watch
from stoker.train.state.service import PartService

Construct = Callable[..., None]


def shard_weights(
    module: nn.Module, group: dist.ProcessGroup | None = None, *, units: Sequence[str] | None = None,
    reshard: bool | Sequence[str] = True, keeps_fetched: bool = True, by_element: Sequence[type[Optimizer]] = (),
    **options: Any,
) -> DistributedDataParallel:  # fmt: skip
    """Shards a module over ranks and returns a ``DistributedDataParallel`` around it. Collective.

    Args:
        module: whole, alike on all ranks; its optimizers may be there already.
        group: of the ranks; None for all.
        units: paths of modules whose weights are gathered and freed together; None for the blocks of the module.
        reshard: whether a unit's weights are freed behind its forward pass and gathered again for its backward pass, or
            the units of which that is so.
        keeps_fetched: whether a rank that evaluates alone keeps whole weights from one pass to the next.
        by_element: classes of optimizers, besides those of ``torch.optim``, of which the program knows that each
            element of a weight depends on its own gradients alone.
        options: for ``DistributedDataParallel``.

    Raises:
        ValueError: the module, the program or an option can't be sharded; nothing is changed.
        ExchangeError: the ranks can't connect.
    """
    ddp = DistributedDataParallel.__new__(DistributedDataParallel)
    construct_sharded(
        DistributedDataParallel.__init__, ddp, module, {**options, "process_group": group}, units=units,
        reshard=reshard, keeps_fetched=keeps_fetched, by_element=by_element,
    )  # fmt: skip
    return ddp


def construct_sharded(
    original: Construct, ddp: DistributedDataParallel, module: nn.Module, options: dict[str, Any], *,
    units: Sequence[str] | None = None, reshard: bool | Sequence[str] = True, keeps_fetched: bool = True,
    by_element: Sequence[type[Optimizer]] = (),
) -> WeightShards:  # fmt: skip
    """What a constructor of ``DistributedDataParallel`` does where the weights of its module are sharded. Collective.

    Args:
        original: torch's constructor.
        ddp: the object that is constructed.
        module: its module.
        options: the constructor's other arguments, by name.
        units: as for :func:`shard_weights`.
        reshard: likewise.
        keeps_fetched: likewise.
        by_element: likewise.

    Raises:
        ValueError: the module, the program or an option can't be sharded; nothing is changed.
    """
    paths = blocks_of(module) if units is None else list(units)
    early = check_before(ddp, module, options, paths, by_element)
    with all_left_out(module):
        original(ddp, module, **options)
    shards = WeightShards(ddp, paths, reshard, keeps_fetched=keeps_fetched, by_element=tuple(by_element))
    shards.serve(early)
    return shards


def check_before(
    ddp: DistributedDataParallel, module: nn.Module, options: dict[str, Any], units: Sequence[str],
    by_element: Sequence[type[Optimizer]] = (),
) -> list[Optimizer]:  # fmt: skip
    """The optimizers that train a module's weights already. Collective.

    Raises:
        ValueError: a rank can't shard them; on all ranks.
    """
    early: list[Optimizer] = []
    try:
        check_options(type(ddp), options)
        check_weights(module, units)
        early = optimizers_with(module.parameters())
        check_program(module, early, tuple(by_element))
        trouble = ""
    except ValueError as error:
        trouble = str(error)
    refuse_together(trouble, options.get("process_group"))
    return early


class WeightShards:
    """One sharded module of a program; see :func:`shard_weights`.

    Args:
        ddp: made around the whole module.
        units: paths.
        reshard: as for :func:`shard_weights`.
        keeps_fetched: likewise.
        by_element: likewise.
    """

    def __init__(
        self, ddp: DistributedDataParallel, units: Sequence[str], reshard: bool | Sequence[str], *,
        keeps_fetched: bool, by_element: tuple[type[Optimizer], ...],
    ) -> None:  # fmt: skip
        untyped = cast("Any", ddp)
        self._ddp, self._module = ddp, cast("nn.Module", untyped.module)
        self._units, self._reshard, self._by_element = list(units), reshard, by_element
        self._keeps_fetched = keeps_fetched
        self._group: dist.ProcessGroup = untyped.process_group
        self._syncs_buffers = bool(untyped.broadcast_buffers)
        self._buffers_are_due, self._fetched_buffers_at = True, -1
        self.weights: ShardedWeights
        self._passes: ShardedPasses
        self._states: WeightStates
        self._handles: list[Any] = []

    def serve(self, early: Sequence[Optimizer]) -> None:
        """Shards the weights, in early optimizers as well, and begins to serve them. Collective."""
        module = self._module
        device = next(module.parameters()).device.type
        mesh = DeviceMesh.from_group(self._group, device)
        names: dict[int, str] = {}
        places: dict[str, list[tuple[nn.Module, str]]] = {}
        whole: dict[str, nn.Parameter] = {}
        for path, owner in module.named_modules():
            for name, parameter in owner.named_parameters(recurse=False):
                first = names.setdefault(id(parameter), f"{path}.{name}" if path else name)
                whole[first] = parameter
                places.setdefault(first, []).append((owner, name))
        forget_weights(self._ddp, whole.values())
        hooks = _fully_shard(module, self._units, mesh, self._reshard)
        sharded = {
            name: ShardedWeight(name, getattr(*its[0]), tuple(whole[name].shape), tuple(its))
            for name, its in places.items()
        }
        self.weights = ShardedWeights(mesh, sharded)
        self.weights.kept = self._group
        self.weights.buffers = dict(module.named_buffers())
        for optimizer in early:
            put_in_place(optimizer, {whole[name]: each for name, each in sharded.items()}, self.weights)
        self._passes = ShardedPasses(self.weights, keeps=self._keeps_fetched)
        for owner, replaced in hooks:
            torch_private.wrap_hooks(owner, replaced, self._passes.resting_before, self._passes.resting_behind)
        units = [module.get_submodule(path) for path in self._units] + [module]
        self._passes.watch(module, _by_unit(sharded, units))
        limit_s = timeout_s(self._group)
        self.weights.service = PartService(GroupAssembly(self._group), self.weights, timeout_s=limit_s)
        watch.add(self.weights.service, limit_s)
        self._states = WeightStates(self.weights, self._group, self._by_element)
        optimizers.add(self._states)
        for optimizer in early:
            optimizers.see(optimizer, "load")
        self._states.watch_modules()
        norms.install()
        cast("Any", self._ddp).stoker_shards = self
        self._ddp.__class__ = ShardedReplica
        for each in units:
            torch_private.refuse_copies(each, _no_copy, _no_pickle)

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A pass through DDP: collective if it computes gradients."""
        untyped = cast("Any", self._ddp)
        if untyped.device_ids:
            (inputs,), (kwargs,) = untyped.to_kwargs(inputs, kwargs, untyped.device_ids[0])
        is_training, syncs = torch.is_grad_enabled(), bool(untyped.require_backward_grad_sync)
        if self._syncs_buffers and self._buffers_are_due and self.weights.buffers:
            self._synchronise_buffers(is_training=is_training)
        if not is_training:
            return self._module(*inputs, **kwargs)
        # As DDP does: not behind a pass that exchanged nothing.
        self._buffers_are_due = syncs
        cast("Any", self._module).set_requires_gradient_sync(syncs)
        with self._passes.training():
            return self._module(*inputs, **kwargs)

    def close(self) -> None:
        """Serves no more; weights stay in shares, as torch has no way back from FSDP2. Of this rank alone."""
        optimizers.discard(self._states)
        self._passes.remove()
        if self.weights.service is not None:
            self.weights.service.close()

    def _synchronise_buffers(self, *, is_training: bool) -> None:
        """Buffers become those of the first rank; for a pass without gradients this rank fetches them, once a step."""
        if is_training:
            self._copy_buffers()
        elif self._fetched_buffers_at != self.weights.num_forwards:
            self.weights.take_buffers()
            self._fetched_buffers_at = self.weights.num_forwards

    def _copy_buffers(self) -> None:
        source = dist.get_process_group_ranks(self._group)[0]
        for dtype in dict.fromkeys(each.dtype for each in self.weights.buffers.values()):
            alike = [each for each in self.weights.buffers.values() if each.dtype == dtype and each.numel()]
            flat = torch.cat([each.reshape(-1) for each in alike]) if alike else None
            if flat is None:
                continue
            dist.broadcast(flat, source, group=self._group)
            with torch.no_grad():
                for each, part in zip(alike, flat.split([each.numel() for each in alike]), strict=True):
                    each.copy_(part.view(each.shape))


class ShardedReplica(DistributedDataParallel):
    """What a program's DDP object is once its module is sharded."""

    stoker_shards: WeightShards

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The outputs of this rank's batch."""
        return self.stoker_shards.forward(inputs, kwargs)

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Refuses: FSDP2 exchanges the gradients."""
        raise ValueError(
            "`register_comm_hook` must not be used where weights are sharded, whose gradients FSDP2 exchanges; shard "
            "optimizer states alone"
        )

    def join_hook(self, **_: Any) -> Any:
        """Refuses: each pass needs all ranks."""
        raise ValueError("`join` must not be used where weights are sharded, which needs all ranks; make batches even")

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        _no_copy()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        _no_pickle()


ShardedReplica.__module__ = DistributedDataParallel.__module__
ShardedReplica.__qualname__ = ShardedReplica.__name__ = DistributedDataParallel.__name__


def _fully_shard(
    module: nn.Module, units: Sequence[str], mesh: DeviceMesh, reshard: bool | Sequence[str]
) -> list[tuple[nn.Module, torch_private.HookNumbers]]:
    """Shards units and the rest of a module; returns the hooks that came with it."""
    # Imported here: it takes a second, and few programs are sharded.
    from torch.distributed.fsdp import fully_shard

    found: list[tuple[nn.Module, torch_private.HookNumbers]] = []
    # Units inside others come first: what they have is not the outer one's.
    for path in [*sorted(units, key=lambda path: -path.count(".")), ""]:
        unit = module.get_submodule(path)
        freed = bool(path) and (reshard if isinstance(reshard, bool) else path in reshard)
        unit.register_forward_hook(_begin_at_bases, with_kwargs=True)  # before FSDP2's own
        before = torch_private.hooks_of(unit)
        fully_shard(unit, mesh=mesh, reshard_after_forward=freed)
        allow_views(unit)
        if mesh.device_type == "cpu":
            set_collectives(unit)
        found.append((unit, torch_private.new_hooks(unit, before)))
    return found


def allow_views(unit: nn.Module) -> None:
    """Silences what torch says of units of this class whose outputs are views: writes to them lose a hook.

    Ours is there then. Units of other classes, such as those that a program shards itself, are still warned of.
    """
    # For good, and undone by a program that sets all filters later. To silence each call of the hook would reset what
    # Python knows of warnings that were shown once (catch_warnings, for all threads): each would come in each pass.
    name = re.escape(type(unit).__name__)
    warnings.filterwarnings("ignore", rf"FSDP2-wrapped module \({name}\) returned a view", UserWarning)


def _begin_at_bases(module: nn.Module, inputs: Any, named: dict[str, Any], outputs: Any) -> None:
    """Lets programs and modules write into outputs that are views, as they may under DDP."""
    if torch.is_grad_enabled() and not torch_private.is_in_backward():
        torch_private.begin_at_bases(module, (inputs, named), outputs)


def _by_unit(weights: dict[str, ShardedWeight], units: Sequence[nn.Module]) -> dict[nn.Module, list[ShardedWeight]]:
    """The weights of each unit, the innermost that has them."""
    found: dict[nn.Module, list[ShardedWeight]] = {unit: [] for unit in units}
    sizes = {unit: sum(1 for _ in unit.modules()) for unit in found}
    inside = {unit: {id(each) for each in unit.modules()} for unit in found}
    for weight in weights.values():
        owner = weight.places[0][0]
        found[min((unit for unit in found if id(owner) in inside[unit]), key=sizes.__getitem__)].append(weight)
    return found


def _no_copy(*_: Any) -> Any:
    raise TypeError(
        "`module` must not be copied where its weights are sharded, since other ranks hold parts of them; load "
        "state_dict() into a copy that was made before DistributedDataParallel"
    )


def _no_pickle(*_: Any) -> Any:
    raise TypeError(
        "`module` must not be pickled where its weights are sharded, since other ranks hold parts of them; save its "
        "state_dict()"
    )
