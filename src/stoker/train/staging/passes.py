# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false
"""A pass of all ranks' batches through the stages, and the way back of their gradients.

Each rank's batch is one micro-batch. All go forward before any goes back (GPipe, arXiv 1811.06965): a rank computes its
loss when it has its outputs, and those come at the end of the forward pass. With N ranks a stage waits in N - 1 of
2N - 1 turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge

from stoker.core.errors import ExchangeError
from stoker.train import torch_private
from stoker.train.staging.graphs import INPUT, StagedGraph, StageValue
from stoker.train.staging.links import StageLinks

TensorOf = Callable[[str], Tensor]
"""A weight or buffer of the module by its name in the graph."""
Shared = Sequence[tuple[nn.Parameter, tuple[int, ...]]]
"""Weights that this rank's stage has in common with others, and all stages that have them."""


_ON, _OUT, _BACK, _IN, _WAYS = 0, 1, 2, 3, 4
"""Ways of a value: to a further stage, to the program; of its gradient: from a further stage, from the program."""


@dataclass(slots=True)
class _Kept:
    """What one micro-batch leaves for its way back, on one stage."""

    received: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    edges: dict[int, GradientEdge] = field(default_factory=dict[int, GradientEdge])


class StagePass:
    """One pass, on one rank.

    Args:
        links: to the other ranks.
        graphs: of each rank's batch.
        tensors: of the module.
        shared: weights in several stages.
        begin_back: called before gradients go back.
    """

    def __init__(
        self, links: StageLinks, graphs: Sequence[StagedGraph], tensors: TensorOf, shared: Shared,
        begin_back: Callable[[], object],
    ) -> None:  # fmt: skip
        self._links, self._graphs, self._tensors, self._shared = links, graphs, tensors, shared
        self._begin_back = begin_back
        self._kept: list[_Kept] | None = None
        self._first: dict[str, Tensor] = {}
        """Buffers behind the first rank's batch."""
        self._tags = max(len(each.values) for each in graphs) + 1
        """Numbers for what a micro-batch sends in one direction: its values, and the state of its generator."""

    @property
    def own(self) -> StagedGraph:
        """The graph of this rank's batch."""
        return self._graphs[self._links.own]

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """What the module returns for this rank's batch. Collective."""
        given = {number: leaf for number, leaf in zip(self.own.inputs, leaves, strict=True) if number is not None}
        stand_in = torch.zeros((), requires_grad=True)
        results = cast("tuple[Tensor, ...]", _Passing.apply(self, stand_in, given, *given.values()))
        found = dict(zip((each.number for each in self._returned()), results, strict=True))
        outputs = [
            (given[each] if each in given else found[each]) if is_value else each for is_value, each in self.own.outputs
        ]
        return torch_private.tree_unflatten(outputs, self.own.spec)

    def _returned(self) -> list[StageValue]:
        """Values that stages compute for this rank's program."""
        return [each for each in self.own.values if each.is_output and each.producer != INPUT]

    def _tag(self, micro: int, number: int, way: int) -> int:
        return _WAYS * (micro * self._tags + number) + way

    # Forward.

    def forward(self, given: Mapping[int, Tensor]) -> list[Tensor]:
        """This rank's outputs."""
        links, own = self._links, self._links.own
        for value in self.own.values:
            if value.producer == INPUT:
                for stage in value.consumers:
                    if stage != own:
                        links.send(given[value.number], stage, self._tag(own, value.number, _ON))
        generator = _Draws(links, self._tags - 1) if any(each.draws for each in self._graphs) else None
        if generator is not None:
            generator.begin(self._tag(own, generator.number, _ON))
        changed = self._changed()
        kept = [self._through(micro, given if micro == own else {}, changed, generator) for micro in range(links.count)]
        self._kept = [each for each, _ in kept]
        found: list[Tensor] = []
        for value in self._returned():
            if value.producer == own:
                found.append(kept[own][1][value.number])
            else:
                tag = self._tag(own, value.number, _OUT)
                found.append(links.receive(value.shape, value.dtype, value.producer, tag))
        if generator is not None:
            generator.end(self._tag(own, generator.number, _ON))
        links.flush()
        self._spread(changed)
        return found

    def _through(
        self, micro: int, given: Mapping[int, Tensor], changed: Mapping[str, Tensor], generator: _Draws | None
    ) -> tuple[_Kept, dict[int, Tensor]]:
        """One micro-batch through this rank's stage: what it leaves, and what its rank's program gets here."""
        links, own, graph = self._links, self._links.own, self._graphs[micro]
        kept = _Kept()
        for argument in graph.stage.arguments:
            if argument.kind != "value":
                continue
            value = graph.values[argument.number]
            if value.producer == INPUT and micro == own:
                found = given[value.number].detach()
            else:
                source = micro if value.producer == INPUT else value.producer
                found = links.receive(value.shape, value.dtype, source, self._tag(micro, value.number, _ON))
            kept.received[value.number] = found.requires_grad_(value.needs)
        if generator is not None:
            generator.enter(micro, self._tag(micro, generator.number, _ON))
        # Running means are those of the first rank's batch, as under DDP; each batch begins with what was before.
        buffers = {name: each.clone() for name, each in changed.items()}
        with torch.enable_grad():
            results = graph.stage.function(
                *(
                    kept.received[each.number] if each.kind == "value"
                    else each.constant if each.kind == "constant"
                    else buffers[each.name] if each.name in buffers
                    else self._tensors(each.name)
                    for each in graph.stage.arguments
                )
            )  # fmt: skip
        if generator is not None:
            generator.leave(micro, self._tag(micro, generator.number, _ON))
        if not micro:
            self._first = buffers
        returned: dict[int, Tensor] = {}
        for number, result in zip(graph.stage.results, results, strict=True):
            value = graph.values[number]
            _check(value, result)
            if value.needs and result.requires_grad:
                kept.edges[number] = get_gradient_edge(result)
            if value.is_output and micro == own:
                returned[number] = result.detach()
            for stage in value.consumers:
                links.send(result, stage, self._tag(micro, number, _ON))
            if value.is_output and micro != own:
                links.send(result, micro, self._tag(micro, number, _OUT))
        # What needs no way back is not kept.
        kept.received = {number: each for number, each in kept.received.items() if each.requires_grad}
        return kept, returned

    def _changed(self) -> dict[str, Tensor]:
        """Buffers that this rank's stage changes."""
        names = {name for each in self._graphs for name in each.written[self._links.own]}
        return {name: self._tensors(name) for name in sorted(names)}

    def _spread(self, changed: Mapping[str, Tensor]) -> None:
        """Changed buffers are those of their stage on all ranks."""
        with torch.no_grad():
            for name, each in changed.items():
                each.copy_(self._first[name])
            self._first = {}
            for stage in range(self._links.count):
                names = sorted({name for each in self._graphs for name in each.written[stage]})
                own = [self._tensors(name) for name in names]
                if not own:
                    continue
                flat = torch.cat([each.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for each in own])
                self._links.broadcast(flat, stage)
                if stage != self._links.own:
                    for each, part in zip(own, flat.split([each.nbytes for each in own]), strict=True):
                        each.copy_(part.clone().view(each.dtype).view(each.shape))

    # Backward.

    def backward(self, gradients: Sequence[Tensor | None], given: Mapping[int, Tensor]) -> list[Tensor | None]:
        """The gradients of this rank's inputs, from those of its outputs; weights of its stage have theirs."""
        if self._kept is None:
            raise RuntimeError("`backward` must be called once for a pass through stages, whose memory is freed then")
        kept, self._kept = self._kept, None
        links, own = self._links, self._links.own
        self._begin_back()
        mine: dict[int, Tensor] = {}
        for value, gradient in zip(self._returned(), gradients, strict=True):
            if not value.needs:
                continue
            # The mean over ranks, as DDP takes it.
            if gradient is None:
                scaled = torch.zeros(value.shape, dtype=value.dtype)
            else:
                scaled = gradient.to(value.dtype) / links.count
            if value.producer == own:
                mine[value.number] = scaled
            else:
                links.send(scaled, value.producer, self._tag(own, value.number, _IN))
        before = [(each, each.grad) for each, _ in self._shared]
        for each, _ in before:
            each.grad = None
        for micro in range(links.count):
            self._back(micro, kept[micro], mine)
        found: list[Tensor | None] = []
        for value in (self.own.values[number] for number in given):
            parts: list[Tensor] = []
            for stage in value.consumers if value.needs else ():
                tag = self._tag(own, value.number, _BACK)
                is_here = stage == own
                parts.append(mine[value.number] if is_here else links.receive(value.shape, value.dtype, stage, tag))
            # A program sees the gradient of its own loss.
            found.append(sum(parts[1:], parts[0]) * links.count if parts else None)
        self._join_shared(before)
        links.flush()
        return found

    def _back(self, micro: int, kept: _Kept, mine: dict[int, Tensor]) -> None:
        """One micro-batch's gradients through this rank's stage."""
        links, own, graph = self._links, self._links.own, self._graphs[micro]
        edges: list[GradientEdge] = []
        gradients: list[Tensor] = []
        for number in graph.stage.results:
            value = graph.values[number]
            if not value.needs:
                continue
            tag = self._tag(micro, number, _BACK)
            parts = [links.receive(value.shape, value.dtype, stage, tag) for stage in value.consumers]
            if value.is_output and micro == own:
                parts.append(mine.pop(number))
            elif value.is_output:
                parts.append(links.receive(value.shape, value.dtype, micro, self._tag(micro, number, _IN)))
            if number in kept.edges:
                edges.append(kept.edges[number])
                gradients.append(sum(parts[1:], parts[0]))
        if edges:
            torch.autograd.backward(edges, gradients)
        for argument in graph.stage.arguments:
            if argument.kind != "value" or not (value := graph.values[argument.number]).needs:
                continue
            received = kept.received[value.number]
            gradient = torch.zeros_like(received) if received.grad is None else received.grad
            if value.producer == INPUT and micro == own:
                mine[value.number] = gradient
            else:
                source = micro if value.producer == INPUT else value.producer
                links.send(gradient, source, self._tag(micro, value.number, _BACK))
        kept.received.clear()
        kept.edges.clear()

    def _join_shared(self, before: Sequence[tuple[nn.Parameter, Tensor | None]]) -> None:
        """A weight of several stages gets the sum of their gradients on each of them."""
        links = self._links
        for number, ((parameter, stages), (_, old)) in enumerate(zip(self._shared, before, strict=True)):
            own = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            tag = _WAYS * (links.count * self._tags + number)
            for stage in stages:
                if stage != links.own:
                    links.send(own, stage, tag)
            total = sum(
                (
                    own if stage == links.own else links.receive(own.shape, own.dtype, stage, tag)
                    for stage in stages
                ),
                torch.zeros_like(own),
            )  # fmt: skip
            if old is None:
                parameter.grad = total
            else:
                parameter.grad = old.add_(total)


class _Passing(torch.autograd.Function):
    """All stages as one operation of the program's graph."""

    @staticmethod
    def forward(
        context: Any, work: StagePass, _stand_in: Tensor, given: dict[int, Tensor], *_inputs: Tensor
    ) -> tuple[Tensor, ...]:
        context.work, context.given = work, dict.fromkeys(given)
        found = work.forward(given)
        returned = work._returned()  # pyright: ignore[reportPrivateUsage]
        context.mark_non_differentiable(*(each for each, value in zip(found, returned, strict=True) if not value.needs))
        context.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None, None, *context.work.backward(gradients, context.given)


class _Draws:
    """The random numbers of each rank's batch are those of its rank's generator: it goes from stage to stage.

    Args:
        links: to the other ranks.
        number: of what is sent, besides the values.
    """

    def __init__(self, links: StageLinks, number: int) -> None:
        self._links, self.number = links, number
        self._own = torch.get_rng_state()
        self._kept = self._own

    def begin(self, tag: int) -> None:
        """This rank's generator goes to the first stage."""
        if self._links.own:
            self._links.send(self._own, 0, tag)

    def enter(self, micro: int, tag: int) -> None:
        """The generator of a batch comes to this stage."""
        links = self._links
        if not links.own and not micro:
            return
        source = links.own - 1 if links.own else micro
        torch.set_rng_state(links.receive(self._own.shape, torch.uint8, source, tag).cpu())

    def leave(self, micro: int, tag: int) -> None:
        """It goes on, from the last stage to its rank."""
        links, state = self._links, torch.get_rng_state()
        is_last = links.own == links.count - 1
        if is_last and micro == links.own:
            self._kept = state
        else:
            links.send(state, micro if is_last else links.own + 1, tag)

    def end(self, tag: int) -> None:
        """This rank's generator is where its batch left it."""
        links = self._links
        if links.own != links.count - 1:
            self._kept = links.receive(self._own.shape, torch.uint8, links.count - 1, tag).cpu()
        torch.set_rng_state(self._kept)


def _check(value: StageValue, found: Any) -> None:
    if not isinstance(found, Tensor) or tuple(found.shape) != value.shape or found.dtype != value.dtype:
        got = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise ExchangeError(
            f"`{value.name}` must be a tensor of {value.shape} of {value.dtype} to go from one stage to another, as "
            f"captured, got {got}",
            layer=value.name,
        )
