"""What a stage of a pipeline holds, and where a module is cut: by hand, and for any number of stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.features.lifetimes import BufferLife, CallInTime, MemoryTimeline
from stoker.perf.features.records import Layer
from stoker.perf.memory.stages import cuts_of, stage_memory

BLOCKS = 6


def timeline(weights: list[int], kept: list[int], outputs: list[int], seconds: list[float]) -> MemoryTimeline:
    """Blocks one after the other: each makes what it keeps and an output that the next one keeps as well."""
    count = len(weights)
    buffers: list[BufferLife] = []
    begin, turn = 3 * count, 6 * count
    end = turn + 4 * count

    def life(
        size: int, birth: int, death: int, category: str, phase: str, block: int, uses: tuple[int, ...] = ()
    ) -> None:
        buffers.append(
            BufferLife(size, birth, death, -1, category, phase, f"blocks.{block}", "p.py:1", uses)  # type: ignore[arg-type]
        )

    for block, size in enumerate(weights):
        life(size, block, end, "parameters", "forward", block)
    for block, size in enumerate(weights):
        life(2 * size, count + block, end, "optimizer", "optimizer", block)
    calls = [
        CallInTime(begin + 3 * block, "mm", "gemm", "forward", f"blocks.{block}", 0.0, seconds[block])
        for block in range(count)
    ]
    for block in reversed(range(count)):
        at = turn + 4 * (count - 1 - block)
        calls.append(CallInTime(at, "mm", "gemm", "backward", f"blocks.{block}", 0.0, 2 * seconds[block]))
    for block in range(count):
        back = 2 * count - 1 - block
        birth, death = begin + 3 * block, turn + 4 * (count - 1 - block)
        life(kept[block], birth + 1, death + 3, "activations", "forward", block, (block, back))
        uses = (block, block + 1, back - 1) if block + 1 < count else (block,)
        life(outputs[block], birth + 2, death, "activations", "forward", block, uses)
        life(weights[block], death + 1, end, "gradients", "backward", block)
    buffers.sort(key=lambda each: each.birth)
    return MemoryTimeline(
        name="p", target="cpu", batch_size=1, begin=begin, end=end, buffers=tuple(buffers), calls=tuple(calls)
    )


def layers(weights: list[int], kept: list[int], outputs: list[int]) -> list[Layer]:
    return [
        Layer(
            module=f"blocks.{block}", dense_bytes=weights[block], saved_bytes=kept[block], output_bytes=outputs[block]
        )
        for block in range(len(weights))
    ]


def test_a_stage_keeps_what_all_batches_leave_there_and_what_goes_between() -> None:
    found = stage_memory(timeline([10, 20], [100, 200], [7, 3], [1.0, 1.0]), ["blocks.1"], 2)
    first, last = found
    assert (first.weights, first.gradients, first.states) == (10, 10, 20)
    assert (last.weights, last.gradients, last.states) == (20, 20, 40)
    assert (first.kept, first.received, first.sent) == (100, 0, 7)
    assert (last.kept, last.received) == (200, 7)
    # Of two batches, with the gradient of what it received.
    assert last.peak >= 60 + 2 * (200 + 7)
    assert first.peak >= 30 + 2 * 100 + 7


@given(
    st.lists(st.integers(1, 1000), min_size=BLOCKS, max_size=BLOCKS),
    st.lists(st.integers(1, 1000), min_size=BLOCKS, max_size=BLOCKS),
    st.lists(st.integers(1, 100), min_size=BLOCKS, max_size=BLOCKS),
    st.integers(2, BLOCKS),
)
def test_stages_have_all_weights_and_activations_once(
    weights: list[int], kept: list[int], outputs: list[int], ranks: int
) -> None:
    seconds = [float(each) for each in kept]
    whole = timeline(weights, kept, outputs, seconds)
    cuts = cuts_of(layers(weights, kept, outputs), whole, ranks)
    assert len(cuts) == ranks - 1
    found = stage_memory(whole, cuts, ranks)
    for name, factor in (("weights", 1), ("gradients", 1), ("states", 2)):
        # Shares of states are rounded.
        assert abs(sum(getattr(each, name) for each in found) - factor * sum(weights)) <= ranks, name
    inside = sum(outputs[:-1]) - sum(each.received for each in found)
    assert sum(each.kept for each in found) == sum(kept) + inside
    for each in found:
        assert each.peak >= each.weights + each.states + ranks * (each.kept + each.received)


def test_cuts_go_by_seconds_and_by_memory_where_those_do_not_fit() -> None:
    weights, kept, outputs = [10] * 6, [1000, 1000, 1000, 10, 10, 10], [1] * 6
    whole = timeline(weights, kept, outputs, [1.0] * 6)
    every = layers(weights, kept, outputs)
    assert cuts_of(every, whole, 2) == ("blocks.3",)
    assert cuts_of(every, whole, 2, 10_000) == ("blocks.3",)
    assert cuts_of(every, whole, 2, 5_000) == ("blocks.2",)
    with pytest.raises(
        ValueError, match=r"`budget` must hold the fullest of 2 stages, which takes 3.98 KiB, got 0.98 KiB"
    ):
        cuts_of(every, whole, 2, 1_000)
    with pytest.raises(ValueError, match="`pipeline` must be at most 6"):
        cuts_of(every, whole, 7)
