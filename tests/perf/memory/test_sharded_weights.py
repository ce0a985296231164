"""What a rank holds whose weights are in shares: counts of FSDP2's buffers on plain numbers, and properties of any."""

from __future__ import annotations

import msgspec.structs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.features.lifetimes import BufferLife, CallInTime, Category, MemoryTimeline
from stoker.perf.memory.remedies import part_of_rows, sharded
from stoker.perf.memory.sharded_weights import with_shares
from stoker.perf.memory.timeline import live_bytes, peak_before, step_peak

EVENTS = 10
"""Of each block, in each pass."""


def chain(weights: list[int], rest: int = 0, target: str = "cpu") -> MemoryTimeline:
    """Blocks that are called one after another, with nothing but weights and gradients, and a layer in front."""
    paths = ["front", *(f"blocks.{number}" for number in range(len(weights)))]
    sizes = [rest, *weights]
    begin = len(sizes) + 1
    forward = [begin + EVENTS * (place + 1) for place in range(len(sizes))]
    backward = [forward[-1] + EVENTS * (place + 1) for place in range(len(sizes))]
    end = backward[-1] + 3 * EVENTS
    buffers = [
        BufferLife(size, place, end, -1, "parameters", "forward", path, "")
        for place, (path, size) in enumerate(zip(paths, sizes, strict=True))
    ]
    buffers += [
        BufferLife(size, at + EVENTS // 2, end, -1, "gradients", "backward", path, "")
        for path, size, at in zip(reversed(paths), reversed(sizes), backward, strict=True)
    ]
    calls = [CallInTime(at, "mm", "gemm", "forward", path, 0.0) for path, at in zip(paths, forward, strict=True)]
    calls += [
        CallInTime(at + shift, "mm", "gemm", "backward", path, 0.0)
        for path, at in zip(reversed(paths), backward, strict=True)
        for shift in (0, EVENTS // 2)
    ]
    calls.append(CallInTime(end - EVENTS, "add_", "pointwise", "optimizer", "", 0.0))
    return MemoryTimeline(
        name="p", target=target, batch_size=1, begin=begin, end=end, buffers=tuple(buffers), calls=tuple(calls)
    )


def peak(weights: list[int], kept: int, ranks: int, rest: int = 0, target: str = "cpu") -> int:
    units = [f"blocks.{number}" for number in range(len(weights))]
    return step_peak(with_shares(chain(weights, rest, target), units, units[len(units) - kept :], ranks)).bytes


@pytest.mark.parametrize(("target", "blocks"), [("cpu", 3), ("cuda", 4)])
def test_a_backward_pass_has_blocks_whole_besides_the_shares(target: str, blocks: int) -> None:
    # Weights, gradients, the next block's buffer, on GPUs the last one's reduction; shares of six, gradients of four.
    assert peak([1000] * 6, 0, 4, target=target) == blocks * 1000 + (6 + 4) * 1000 // 4


def test_ranks_share_weights_by_rows_and_gather_empty_ones() -> None:
    even = chain([1000] * 6, rest=400)

    def of_rows(rows: int) -> MemoryTimeline:
        lives = (msgspec.structs.replace(even.buffers[0], rows=rows), *even.buffers[1:])
        return msgspec.structs.replace(even, buffers=lives)

    units = [f"blocks.{number}" for number in range(6)]
    ten, eight = (step_peak(with_shares(of_rows(rows), units, (), 4)).bytes for rows in (10, 8))
    assert eight == step_peak(with_shares(even, units, (), 4)).bytes
    # Two rows of 40 bytes that are empty, while the weight is whole, and half a row that the first rank has more.
    assert ten == eight + 2 * 40 + 20
    assert [part_of_rows(each, 4) for each in of_rows(10).buffers[:2]] == [3 * 40, 250]


def test_weights_of_equal_bytes_are_shared_by_their_own_rows() -> None:
    """A token of shape (1, 1, 100), whose one row the first rank has, and a layer norm's weight of 100 rows."""

    def life(category: Category, rows: int) -> BufferLife:
        return BufferLife(400, 0, 9, -1, category, "forward", "", "", rows=rows)

    lives = tuple(life(category, rows) for category in ("parameters", "gradients", "optimizer") for rows in (1, 100))
    timeline = msgspec.structs.replace(chain([1000]), buffers=lives)
    assert [each.bytes for each in sharded(timeline, 4, weights=True).buffers] == [400, 100] * 3
    assert [each.bytes for each in sharded(timeline, 4, weights=False).buffers] == [400] * 4 + [100] * 2


def test_a_block_is_copied_out_of_its_buffer_beside_that_of_the_one_before() -> None:
    timeline = with_shares(chain([1000] * 3), [f"blocks.{number}" for number in range(3)], (), 4)
    ahead = [call.at for call in timeline.calls if call.phase == "forward"]
    live = live_bytes(timeline)
    assert [max(live[start - 3 : start]) for start in ahead[1:]] == [750 + 2000, 750 + 3000, 750 + 3000]
    assert [live[start] for start in ahead[1:]] == [750 + 2000] * 3, "weights and their own buffer"


def test_gradients_of_micro_batches_are_whole_until_the_last_one_reduces_them() -> None:
    once = chain([1000] * 3)
    past, length = once.begin, once.end - once.begin

    def later(at: int) -> int:
        return at + length if at >= past else at

    # A second pass before the optimizer's step, to gradients that are there.
    steps = [call for call in once.calls if call.phase != "optimizer"]
    calls = [*steps, *(msgspec.structs.replace(call, at=later(call.at)) for call in once.calls)]
    buffers = [msgspec.structs.replace(each, death=later(each.death)) for each in once.buffers]
    twice = msgspec.structs.replace(once, end=later(once.end), calls=tuple(calls), buffers=tuple(buffers))
    changed = with_shares(twice, [f"blocks.{number}" for number in range(3)], (), 4)
    second = [call.at for call in changed.calls if call.phase == "forward"][4:]
    live = live_bytes(changed)
    assert live[second[0] - 4] == 750 + 3000, "all gradients are whole between the passes"
    assert live[second[2]] == 750 + 3000 + 2000, "and in the second one; weights and their buffer"
    assert live[-1] == 750 + 750, "shares are left"


def test_what_is_in_no_block_is_whole_from_the_first_pass_to_the_end() -> None:
    assert peak([1000] * 6, 0, 4, rest=400) >= peak([1000] * 6, 0, 4) + 400
    # Its own gradients and their reduction come at the end, when no block is whole.
    assert peak([10], 0, 2, rest=1000) == pytest.approx(2 * 1000 + 1000 // 2, abs=40)


def test_weights_are_whole_before_they_are_shared() -> None:
    changed = with_shares(chain([1000] * 4), [f"blocks.{number}" for number in range(4)], (), 4)
    assert peak_before(changed).bytes == 4000
    assert live_bytes(changed)[changed.begin + 1] == 1000


@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=6), st.integers(2, 8), st.integers(0, 1000),
    st.lists(st.booleans(), min_size=6, max_size=6),
)  # fmt: skip
def test_any_blocks(weights: list[int], ranks: int, rest: int, kept: list[bool]) -> None:
    plain = chain(weights, rest)
    units = [f"blocks.{number}" for number in range(len(weights))]
    chosen = [path for path, keeps in zip(units, kept, strict=False) if keeps]
    changed = with_shares(plain, units, chosen, ranks)
    live, freed = live_bytes(changed), live_bytes(with_shares(plain, units, (), ranks))
    total = sum(weights) + rest
    assert live[-1] <= 2 * (total + ranks * len(plain.buffers)) // ranks, "shares are what is left"
    assert min(live[changed.begin :]) >= total // ranks
    assert max(live) >= max(freed) - max(weights), "units that are kept spare no more than one buffer"
    assert sorted(each.birth for each in changed.buffers) == [each.birth for each in changed.buffers]
