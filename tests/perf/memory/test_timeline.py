"""Peaks of a timeline and what is alive at them; their agreement with the features of the same trace."""

from __future__ import annotations

import msgspec.structs
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stoker.perf.communication.times import PassTimes
from stoker.perf.features.lifetimes import CATEGORIES, BufferLife, MemoryTimeline
from stoker.perf.features.step import trace
from stoker.perf.features.tracing.sources import places_in
from stoker.perf.memory.reserve import replay
from stoker.perf.memory.timeline import (
    by_category,
    by_line,
    by_module,
    kept_too_long,
    live_bytes,
    peak_before,
    step_peak,
    with_seconds,
)

PROGRAM = """\
def train(net, data):
    for x in data:
        out = net(
            x)
        loss = criterion(out,
                         x)
        loss.backward()
        print(out)
"""


@st.composite
def timelines(draw: st.DrawFn) -> MemoryTimeline:
    """Any lives of up to twelve buffers, and where the step begins."""
    lives = draw(st.lists(st.tuples(st.integers(1, 10**9), st.booleans()), min_size=1, max_size=12))
    order = draw(st.permutations([place for place, (_, dies) in enumerate(lives) for _ in range(1 + dies)]))
    births: dict[int, int] = {}
    deaths: dict[int, int] = {}
    for at, place in enumerate(order):
        (deaths if place in births else births)[place] = at
    end = len(order)
    buffers = [
        BufferLife(
            lives[place][0], births[place], deaths.get(place, end), -1, draw(st.sampled_from(CATEGORIES)),
            draw(st.sampled_from(("forward", "backward", "optimizer"))), draw(st.sampled_from(("", "a", "a.b"))),
            draw(st.sampled_from(("", "train.py:1", "train.py:2"))),
        )
        for place in sorted(births, key=births.__getitem__)
    ]  # fmt: skip
    begin = draw(st.integers(0, end))
    return MemoryTimeline(
        name="any", target="cuda", batch_size=1, begin=begin, end=end, buffers=tuple(buffers), calls=()
    )


@given(timeline=timelines())
def test_categories_modules_and_lines_sum_to_each_peak(timeline: MemoryTimeline) -> None:
    for peak in (step_peak(timeline), peak_before(timeline)):
        for sums in (by_category, by_module, by_line):
            assert sum(sums(timeline, peak).values()) == peak.bytes
    assert max(step_peak(timeline).bytes, peak_before(timeline).bytes) == max(live_bytes(timeline))
    assert MemoryTimeline.from_json(timeline.to_json()) == timeline


@given(timeline=timelines(), expandable=st.booleans())
def test_the_allocator_holds_what_is_alive(timeline: MemoryTimeline, expandable: bool) -> None:
    found = replay(timeline, expandable=expandable)
    assert found.full == 0
    assert found.reserved >= found.requested >= step_peak(timeline).bytes
    assert found.reserved >= found.first >= peak_before(timeline).bytes
    assert replay(timeline, expandable=expandable, limit=found.reserved) == found


def net() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(3)])


def test_a_traced_module_has_the_peak_of_its_features() -> None:
    features, timeline = trace(net(), torch.empty(64, 256), optimizer=torch.optim.AdamW)
    peak = step_peak(timeline)
    assert peak.bytes == features.peak_bytes
    found = by_category(timeline, peak)
    assert found["parameters"] == features.weights.bytes
    assert found["optimizer"] == features.weights.optimizer_bytes
    assert "2.0" in {timeline.buffers[place].module for place in peak.buffers}
    backward = {each.module for each in timeline.buffers if each.phase == "backward" and each.category == "temporaries"}
    assert {"0.1", "1.1", "2.2"} <= backward, "what the backward pass makes belongs to the module of its forward"


def test_seconds_of_layers_are_those_of_their_calls() -> None:
    features, timeline = trace(net(), torch.empty(64, 256), optimizer=torch.optim.AdamW)
    times = PassTimes.shared(features, 2.0, 5.0, 0.5)
    priced = with_seconds(timeline, features, times)
    found = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
    for call in priced.calls:
        found[call.phase] += call.seconds
    assert {phase: round(seconds, 9) for phase, seconds in found.items()} == {
        "forward": 2.0, "backward": 5.0, "optimizer": 0.5
    }  # fmt: skip
    assert msgspec.structs.replace(priced, calls=timeline.calls) == timeline


def test_a_variable_that_keeps_its_tensor_through_the_backward_pass() -> None:
    model = nn.Linear(8, 40_000, bias=False)

    def step(x: torch.Tensor) -> None:
        out = model(x)
        loss = nn.functional.cross_entropy(out, torch.zeros(len(x), dtype=torch.int64))
        loss.backward()
        model.zero_grad()

    line = step.__code__.co_firstlineno
    _, timeline = trace(step, torch.empty(256, 8))
    (kept,) = kept_too_long(timeline, step_peak(timeline))
    assert (kept.name, kept.bytes) == ("out", 256 * 40_000 * 4)
    assert (kept.assigned, kept.last_used) == (f"test_timeline.py:{line + 1}", f"test_timeline.py:{line + 2}")


def test_lines_that_assign_and_read_a_variable() -> None:
    assert places_in(PROGRAM, 1, "out", 7) == (3, 5)
    assert places_in(PROGRAM, 1, "loss", 7) == (5, 0)
    assert places_in(PROGRAM, 1, "x", 7) == (2, 6)
    assert places_in(PROGRAM, 1, "nothing", 7) == (0, 0)
    assert places_in("def broken(", 1, "x", 7) == (0, 0)


def test_what_a_backward_pass_adds_into_zeros_is_one_tensor() -> None:
    """Torch adds in place, but out of place where tensors are fake (``areAnyTensorSubclassLike``)."""
    table = nn.Linear(4, 50_000, bias=False)

    def step(x: torch.Tensor) -> None:
        (-table(x)).gather(-1, torch.zeros(len(x), 1, dtype=torch.int64)).sum().backward()
        table.zero_grad()

    _, timeline = trace(step, torch.empty(32, 4))
    outputs = [each for each in timeline.buffers if each.bytes == 32 * 50_000 * 4]
    # The product and its negative; the gradients of the negative and of the product.
    assert [each.phase for each in outputs] == ["forward", "forward", "backward", "backward"]


def test_gradients_of_a_tensor_that_is_used_twice_are_summed_in_place() -> None:
    """As autograd's engine does for plain tensors (``can_accumulate_inplace``), and does not for fake ones."""
    layer = nn.Linear(100, 100, bias=False)

    def step(x: torch.Tensor) -> None:
        out = layer(x)
        (out.exp() + out.sin()).sum().backward()
        layer.zero_grad()

    _, timeline = trace(step, torch.empty(32, 100))
    made = [each for each in timeline.buffers if each.bytes == 32 * 100 * 4 and each.phase == "backward"]
    # By exp; the cosine and its product by sin. Their sum takes none.
    assert len(made) == 3
