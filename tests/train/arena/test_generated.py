"""Drawn graphs and drawn programs around them: equal to ``aot_eager`` bit for bit, and nothing alive is overwritten."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as functional
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx

import stoker.train.arena.running as running
from stoker.train.arena.backend import arena

SIZE = 16
ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "softmax": lambda x: x.softmax(-1),
    "transposed": lambda x: x.t(),
    "view": lambda x: x.reshape(SIZE // 2, SIZE * 2).reshape(SIZE, SIZE),
    "halves": lambda x: torch.cat([x[:, 4:], x[:, :4]], 1),
    "chunk": lambda x: torch.cat(x.chunk(2)[::-1]),
    "clone": torch.clone,
    "total": lambda x: x.sum(1, keepdim=True).expand(SIZE, SIZE),
    "norm": lambda x: functional.layer_norm(x, [SIZE]),
    "masked": lambda x: x.masked_fill(x > 0.5, -1.0),
    "pooled": lambda x: functional.max_pool2d(x[None, None], 3, 1, 1)[0, 0],
    "batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
}
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": operator.add, "mul": operator.mul, "mm": torch.mm, "where": lambda x, y: torch.where(x > y, x, y),
    "outer": lambda x, y: torch.bmm(x[None], y[None])[0],
}  # fmt: skip


class Drawn(NamedTuple):
    """Calls with the numbers of their arguments, and the numbers of the values that are returned."""

    calls: tuple[tuple[str, int, int], ...]
    returned: tuple[int, ...]


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    count = draw(st.integers(1, 12))
    names = st.sampled_from([*ONE, *TWO])
    # Values 0 to 2 are the arguments; late values are likelier, so that graphs are deep.
    calls = tuple(
        (draw(names), draw(st.integers(0, 2 + at)), 2 + at - draw(st.integers(0, min(3, 2 + at))))
        for at in range(count)
    )
    returned = draw(st.lists(st.integers(3, 2 + count), min_size=1, max_size=3))
    return Drawn(calls, (*returned, 2 + count))


def module_of(drawn: Drawn) -> fx.GraphModule:
    def run(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        values = [x, w, b]
        for name, one, other in drawn.calls:
            values.append(ONE[name](values[one]) if name in ONE else TWO[name](values[one], values[other]))
        return tuple(values[number] for number in drawn.returned)

    return fx.symbolic_trace(run)


STEPS = st.lists(st.sampled_from(["step", "kept", "two", "again", "unused", "no_grad"]), min_size=3, max_size=7)


def run_program(call: Callable[..., Sequence[Tensor]], steps: list[str]) -> list[Tensor]:
    """What a program sees: results, gradients, and what it kept of earlier steps."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(SIZE, SIZE, generator=generator).requires_grad_()
    b = torch.randn(SIZE, SIZE, generator=generator).requires_grad_()
    found: list[Tensor] = []
    kept: list[tuple[Tensor, Tensor]] = []

    def batch() -> Tensor:
        return torch.randn(SIZE, SIZE, generator=generator)

    def loss(results: Sequence[Tensor]) -> Tensor:
        return torch.stack([(each * (place + 1)).mean() for place, each in enumerate(results)]).sum()

    for step in ["step", "step", *steps]:
        if step == "no_grad":
            with torch.no_grad():
                found += [each.clone() for each in call(batch(), w, b)]
            continue
        results = call(batch(), w, b)
        if step == "kept":
            kept += [(each.detach(), each.detach().clone()) for each in results]
        if step == "unused":
            continue
        total = loss(results)
        if step == "two":
            total = total + loss(call(batch(), w, b))
        if total.requires_grad:
            if step == "again":
                total.backward(retain_graph=True)
            total.backward()
        found += [each.detach().clone() for each in (*results, total)]
        found += [each.grad.clone() for each in (w, b) if each.grad is not None]  # never set to None: they add up
        assert all(torch.equal(one, other) for one, other in kept), "what a program keeps was overwritten"
    return found


def compiled(drawn: Drawn, backend: Callable[..., Any]) -> Callable[..., Sequence[Tensor]]:
    """The graph as a backend compiles it, for training."""
    example = [torch.randn(SIZE, SIZE), *(torch.randn(SIZE, SIZE).requires_grad_() for _ in range(2))]
    with torch._functorch.config.patch(donated_buffer=False):
        return backend(module_of(drawn), example)


SLOW = [HealthCheck.too_slow]


@pytest.mark.slow("compiles each drawn graph twice")
@given(graphs(), STEPS)
@settings(max_examples=12, deadline=None, suppress_health_check=SLOW)
def test_drawn_programs_are_equal(drawn: Drawn, steps: list[str]) -> None:
    check_program(drawn, steps)


def check_program(drawn: Drawn, steps: list[str]) -> None:
    known = set(running.known())
    with torch._functorch.config.patch(donated_buffer=False):
        wanted = run_program(compiled(drawn, torch._dynamo.lookup_backend("aot_eager")), steps)
        call = compiled(drawn, arena)
        found = run_program(call, steps)
    assert len(wanted) == len(found)
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
    for each in set(running.known()) - known:
        assert not each.problem
        check_places(each)


def check_places(graphs: running.Graphs) -> None:
    """Nothing that is alive at one time overlaps, by the calls of the graphs themselves."""
    for shape in graphs._shapes.values():
        if shape.layout is None or shape.forward is None or shape.backward is None:
            continue
        count = len(shape.forward.nodes)
        lives = [
            (at, at + buffer.nbytes, buffer.birth, buffer.death)
            for number, at in shape.layout.forward.items()
            for buffer in [shape.forward.buffers[number]]
        ]
        # Buffers that were saved are in both: in the backward graph they live from its start on.
        lives += [
            (at, at + buffer.nbytes, count + max(buffer.birth, 0), count + buffer.death)
            for number, at in shape.layout.backward.items()
            for buffer in [shape.backward.buffers[number]]
        ]
        for place, one in enumerate(lives):
            for other in lives[:place]:
                alive = one[2] < other[3] and other[2] < one[3]
                assert not alive or one[1] <= other[0] or other[1] <= one[0]
        assert all(stop <= shape.layout.nbytes for _, stop, _, _ in lives)
