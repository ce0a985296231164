# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""Layers in stages of a pipeline, in the place of ``DistributedDataParallel``.

The program keeps a DDP object, its module, names and ``no_sync``. A pass for training is collective: each rank brings
its batch and gets its outputs. One without gradients and state dicts are affairs of one rank, which fetches what others
have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stoker.core.errors import ExchangeError
from stoker.core.units import parse_bytes
from stoker.train.program.reducers import all_left_out
from stoker.train.program.sharing import gather_bytes
from stoker.train.ring.groups import group_of
from stoker.train.ring.meeting import GATHERED_BYTES
from stoker.train.ring.transport import GroupAssembly
from stoker.train.sharding.early import optimizers_with
from stoker.train.sharding.marks import mark
from stoker.train.sharding.telling import told_by_first
from stoker.train.staging import norms
from stoker.train.staging.capturing import CallArguments, CallForm, arguments_of, captured
from stoker.train.staging.checking import (
    check_cuts,
    check_graph,
    check_module,
    check_options,
    check_stages,
    placed,
)
from stoker.train.staging.graphs import StagedGraph, staged
from stoker.train.staging.links import StageLinks
from stoker.train.staging.passes import StagePass
from stoker.train.staging.states import StageStates, leave_loads, watch_loads
from stoker.train.staging.weights import StagedWeights
from stoker.train.state import optimizers
from stoker.train.state.leaving import watch
from stoker.train.state.service import PartService

_CUTTER = ("stoker.run.fitting.stage_cutting", "cuts_for")
"""What predicts and chooses. It lives in a layer above, where capabilities are joined, and so is found by name."""
_FORMS = 16
"""Graphs that are kept, of calls with different shapes."""


Construct = Callable[..., None]
Example = Callable[[torch.device], tuple[tuple[Any, ...], dict[str, Any]]]
Casting = Callable[[torch.device], contextlib.AbstractContextManager[Any]]


class StageCutter(Protocol):
    """Chooses where a module is cut."""

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], ranks: int,
        optimizer: Optimizer | None, budget: int | None,
    ) -> list[str]:  # fmt: skip
        """Paths of the modules with which the second and further stages begin.

        Raises:
            StokerError, ValueError: the module can't be traced, has fewer parts than ranks, or does not fit.
        """
        ...


def shard_layers(
    module: nn.Module, example: Any, group: dist.ProcessGroup | None = None, *, cuts: Sequence[str] | None = None,
    budget: int | str | None = None, by_parameter: Sequence[type[Optimizer]] = (), **options: Any,
) -> DistributedDataParallel:  # fmt: skip
    """Puts the layers of a module in stages, one a rank; returns a ``DistributedDataParallel`` around it. Collective.

    A rank keeps the weights, gradients and optimizer states of its stage. In a pass for training the batches of all
    ranks go through the stages as micro-batches; each rank gets the outputs of its batch, and its ``backward()`` sends
    gradients back. Losses are those of DDP, to rounding.

    Args:
        module: whole, alike on all ranks, captured by ``torch.export``; its optimizers may be there already.
        example: a batch as the module is called with, of which shapes count alone: a tensor, a tuple of arguments, or a
            dict of keyword arguments.
        group: of the ranks; None for all.
        cuts: paths of modules with which the second and further stages begin, in the order of the forward pass; None to
            cut where the slowest stage is predicted to take least.
        budget: most bytes of tensors that a rank may hold, such as ``"20GB"``, which cuts are chosen for; None for no
            limit.
        by_parameter: classes of optimizers, besides those of ``torch.optim``, of which the program knows that each
            weight depends on its own gradients alone.
        options: for ``DistributedDataParallel``.

    Raises:
        ValueError: the module, the program or an option does not allow it, no cut fits, or ranks have different
            modules; nothing is changed.
        ExchangeError: the ranks can't connect; later, if one is lost, or they do different things.
        TypeError: later, if an optimizer is not known to work by weight.
    """
    args, kwargs = _call_of(example)
    limit = parse_bytes(budget) if isinstance(budget, str) else budget
    ddp = DistributedDataParallel.__new__(DistributedDataParallel)
    construct_staged(
        DistributedDataParallel.__init__, ddp, module, {**options, "process_group": group}, lambda _: (args, kwargs),
        cuts=cuts, budget=limit, by_parameter=tuple(by_parameter),
    )  # fmt: skip
    return ddp


def construct_staged(
    original: Construct, ddp: DistributedDataParallel, module: nn.Module, options: Mapping[str, Any],
    example: Example, *, cuts: Sequence[str] | None = None, budget: int | None = None,
    by_parameter: tuple[type[Optimizer], ...] = (), casting: Casting = lambda _: contextlib.nullcontext(),
) -> LayerStages:  # fmt: skip
    """What a constructor of ``DistributedDataParallel`` does where layers of its module are in stages. Collective.

    Args:
        original: torch's constructor.
        ddp: the object that is constructed.
        module: its module.
        options: the constructor's other arguments, by name.
        example: makes arguments of a call on a device.
        cuts: as for :func:`shard_layers`.
        budget: likewise, in bytes.
        by_parameter: likewise.
        casting: the precision in which the module is called on a device.

    Raises:
        ValueError: the module, the program or an option does not allow it, or no cut fits; on all ranks, and nothing is
            changed.
    """
    group = group_of(options.get("process_group"))
    if group.size() < 2:
        raise ValueError(f"`group` must have 2 ranks at least for layers to be in stages, got {group.size()}")
    device = next((each.device for each in module.parameters()), torch.device("cpu"))
    links = StageLinks(group, device)
    try:
        early = _checked(links, type(ddp), module, options, by_parameter)
        args, kwargs = example(device)
        found = _told_cuts(links, module, args, kwargs, cuts, early, budget)
        stages = LayerStages(module, links, found, options)
        with casting(device):
            stages.capture_first(args, kwargs)
    except BaseException:
        links.close()
        raise
    mark(module)
    # Weights stay each stage's affair: DDP copies them from the first rank, and exchanges none.
    with all_left_out(module):
        original(ddp, module, **options)
    stages.serve(ddp, early, by_parameter)
    return stages


class LayerStages:
    """One module whose layers are in stages; see :func:`shard_layers`.

    Args:
        module: whole until :meth:`serve`.
        links: between the ranks.
        cuts: where it is cut.
        options: of DDP.
    """

    def __init__(self, module: nn.Module, links: StageLinks, cuts: Sequence[str], options: Mapping[str, Any]) -> None:
        self._module, self.links, self.cuts, self._options = module, links, list(cuts), dict(options)
        self._device = links.device
        self._graphs: dict[int, StagedGraph] = {}
        """By the number of the call's form; the same ones on all ranks."""
        self.weights: StagedWeights
        self._states: StageStates
        self._ddp: DistributedDataParallel

    def capture_first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Captures a call that nobody has made yet. Collective.

        Raises:
            ValueError: a rank can't, or ranks have different modules; on all of them.
        """
        call: CallArguments | None = None
        trouble = ""
        try:
            call = arguments_of(self._module, args, kwargs, self._device.type)
        except ValueError as error:
            trouble = str(error)
        tell_trouble(self.links, trouble)
        assert call is not None
        self.capture(call)

    def capture(self, call: CallArguments) -> None:
        """Captures the call of each rank. Collective.

        Raises:
            ValueError: a rank can't; on all of them.
            ExchangeError: ranks call the module in different ways, once it is in stages.
        """
        forms = gather_bytes(call.form.packed(), self.links.group, torch.device("cpu"))
        rests = self.links.agree("a capture of the module", 0, call.form.rest)
        if hasattr(self, "weights"):
            _check_alike(rests)
        elif (other := _unlike(rests)) is not None:
            raise ValueError(_words_of_unlike(other))
        trouble = ""
        try:
            for form in dict.fromkeys(call.form.with_tensors(each) for each in forms):
                if form.number not in self._graphs:
                    self._graphs[form.number] = self._captured(call, form)
        except ValueError as error:
            trouble = str(error)
        tell_trouble(self.links, trouble)
        while len(self._graphs) > max(_FORMS, len(forms)):
            del self._graphs[next(iter(self._graphs))]

    def _captured(self, call: CallArguments, form: CallForm) -> StagedGraph:
        args, kwargs = call.examples(form, self._device)
        graph = staged(self._module, captured(self._module, args, kwargs), self.cuts, self.links.own)
        check_graph(graph, self._options, self._device.type)
        if hasattr(self, "weights"):
            check_stages(self._module, graph, self.weights.weights)
        else:
            placed(self._module, graph)
        return graph

    def serve(
        self, ddp: DistributedDataParallel, early: Sequence[Optimizer], by_parameter: tuple[type[Optimizer], ...]
    ) -> None:
        """Leaves the weights of other stages to them, and begins to serve this rank's. Collective."""
        links = self.links
        self._ddp = ddp
        self.weights = StagedWeights(links.own, placed(self._module, next(iter(self._graphs.values()))))
        self.weights.kept = cast("Any", ddp).process_group, links.group
        self.weights.service = PartService(GroupAssembly(links.group), self.weights, timeout_s=links.timeout_s)
        self.weights.leave_to_others()
        watch.add(self.weights.service, links.timeout_s)
        self._states = StageStates(self.weights, links, by_parameter)
        optimizers.add(self._states)
        for optimizer in early:
            optimizers.see(optimizer, "load")
        watch_loads(self.weights)
        norms.install(self.weights, links)
        cast("Any", ddp).stoker_stages = self
        ddp.__class__ = StagedReplica

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A pass of this rank's batch: collective if it computes gradients."""
        untyped = cast("Any", self._ddp)
        if untyped.device_ids:
            (args,), (kwargs,) = untyped.to_kwargs(args, kwargs, untyped.device_ids[0])
        if not torch.is_grad_enabled():
            return self._module(*args, **kwargs)
        call = arguments_of(self._module, args, kwargs, self._device.type)
        self.weights.begin_forward()
        numbers = self.links.agree("a pass for training", self.weights.version, call.form.number)
        _check_alike([number >> 32 for number in numbers])
        if any(number not in self._graphs for number in numbers):
            with self.weights.plain():
                self.capture(call)
        graphs = [self._graphs[number] for number in numbers]
        return StagePass(self.links, graphs, self._tensor, self._shared(), self._begin_back)(call.leaves)

    def close(self) -> None:
        """Serves no more; weights stay with their stages. Of this rank alone."""
        optimizers.discard(self._states)
        self._states.close()
        leave_loads(self.weights)
        norms.remove(self.weights)
        self.links.close()
        if self.weights.service is not None:
            self.weights.service.close()

    def _begin_back(self) -> None:
        self.links.agree("a backward pass", self.weights.version)

    def _tensor(self, name: str) -> Tensor:
        path, _, last = name.rpartition(".")
        return getattr(self._module.get_submodule(path), last)

    def _shared(self) -> list[tuple[nn.Parameter, tuple[int, ...]]]:
        """Trained weights of this stage and of others."""
        return [
            (each.parameter, each.stages)
            for each in self.weights.weights.values()
            if len(each.stages) > 1 and self.links.own in each.stages and each.parameter.requires_grad
        ]


class StagedReplica(DistributedDataParallel):
    """What a program's DDP object is once its module's layers are in stages."""

    stoker_stages: LayerStages

    @torch.compiler.disable
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *inputs: Any, **kwargs: Any
    ) -> Any:
        """The outputs of this rank's batch."""
        return self.stoker_stages.forward(inputs, kwargs)

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Refuses: no gradients are exchanged."""
        raise ValueError(
            "`register_comm_hook` must not be used where layers are in stages, which exchange no gradients"
        )

    def join_hook(self, **_: Any) -> Any:
        """Refuses: each pass needs all ranks."""
        raise ValueError("`join` must not be used where layers are in stages, which needs all ranks; make batches even")

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        raise TypeError("`DistributedDataParallel` must not be copied where layers are in stages; copy its module")

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError("`DistributedDataParallel` must not be pickled where layers are in stages; save its module")


StagedReplica.__module__ = DistributedDataParallel.__module__
StagedReplica.__qualname__ = StagedReplica.__name__ = DistributedDataParallel.__name__


def _call_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(cast("Mapping[str, Any]", example))
    return (tuple(cast("tuple[Any, ...]", example)) if isinstance(example, tuple) else (example,)), {}


def tell_trouble(links: StageLinks, trouble: str) -> None:
    """Raises ``ValueError`` on all ranks where one has met something. Collective."""
    told = GroupAssembly(links.group).gather(trouble.encode()[:GATHERED_BYTES])
    if trouble:
        raise ValueError(trouble)
    for rank, each in zip(links.ranks, told, strict=True):
        if each:
            raise ValueError(f"{each.decode(errors='replace')} (on rank {rank})")


def _checked(
    links: StageLinks, kind: type, module: nn.Module, options: Mapping[str, Any],
    by_parameter: tuple[type[Optimizer], ...],
) -> list[Optimizer]:  # fmt: skip
    """The optimizers that train a module's weights already. Collective."""
    early: list[Optimizer] = []
    trouble = ""
    try:
        check_options(kind, options)
        early = optimizers_with(module.parameters())
        check_module(module, early, by_parameter)
    except ValueError as error:
        trouble = str(error)
    tell_trouble(links, trouble)
    return early


def _told_cuts(
    links: StageLinks, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], cuts: Sequence[str] | None,
    early: Sequence[Optimizer], budget: int | None,
) -> list[str]:  # fmt: skip
    """The first rank's cuts. Collective."""
    found, trouble = list(cuts or ()), ""
    if not links.own:
        try:
            if cuts is None:
                cutter: StageCutter = getattr(import_module(_CUTTER[0]), _CUTTER[1])
                found = cutter(module, args, kwargs, links.count, next(iter(early), None), budget)
            check_cuts(module, found, links.count)
        except Exception as error:  # all ranks hear of it
            trouble = str(error)
    tell_trouble(links, trouble)
    return msgspec.msgpack.decode(told_by_first(links.group, msgspec.msgpack.encode(found)), type=list[str])


def _unlike(rests: Sequence[int]) -> int | None:
    """The first rank that calls the module in another way than rank 0."""
    return next((rank for rank, each in enumerate(rests) if each != rests[0]), None)


def _words_of_unlike(other: int) -> str:
    return (
        f"`rank {other}` must call the module as rank 0 does where layers are in stages, with other tensors alone, "
        "and does not: names or constants of the call, training or frozen modules, or autocast differ"
    )


def _check_alike(rests: Sequence[int]) -> None:
    other = _unlike(rests)
    if other is not None:
        raise ExchangeError(_words_of_unlike(other), rank=other)
