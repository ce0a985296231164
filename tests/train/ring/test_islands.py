"""Sums over islands: right for any sizes, dtypes, blocks and shapes, with the same bits on all ranks; lost ranks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as distributed
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import ExchangeError
from stoker.train.ring.groups import connect
from stoker.train.ring.islands import ACROSS, BACK, WITHIN, can_sum, checked_islands, island_block_bytes, island_rings
from tests.train.ring.ranks import ring
from tests.train.ring.test_groups import ranks as forked
from tests.train.ring.test_ring import DTYPES

SHAPES = st.tuples(st.integers(2, 3), st.integers(2, 3))
IN_TURNS = [[0, 2], [1, 3]]


def islands_of(count: int, local: int, *, in_turns: bool) -> list[list[int]]:
    """Islands whose ranks follow each other, or are placed in turns."""
    every = range(count * local)
    return [
        list(every[place::count]) if in_turns else list(every[place * local : (place + 1) * local])
        for place in range(count)
    ]


@given(st.integers(2, 6), st.integers(2, 6), st.booleans())
def test_each_rank_is_in_a_ring_of_its_island_and_in_one_of_its_place(count: int, local: int, in_turns: bool) -> None:
    islands = islands_of(count, local, in_turns=in_turns)
    assert can_sum(islands)
    found = [island_rings(islands, rank) for rank in range(count * local)]
    for rank, rings in enumerate(found):
        assert all(rank in ranks for ranks in rings.values())
        assert rings[WITHIN] == rings[BACK] == next(island for island in islands if rank in island)
        assert len(rings[ACROSS]) == count
        assert all(found[other][ACROSS] == rings[ACROSS] for other in rings[ACROSS])
        assert {rings[WITHIN].index(rank)} == {found[other][WITHIN].index(other) for other in rings[ACROSS]}


@given(st.integers(0, 1 << 30), st.integers(2, 16), st.integers(2, 16), st.integers(1 << 10, 1 << 22))
def test_a_block_is_an_eighth_of_a_tensor_within_bounds(size: int, count: int, local: int, most: int) -> None:
    block, least = island_block_bytes(size, count, local, most), (32 << 10) * local * count
    assert block >= least
    assert block <= max(least, size / 8, 1)
    assert block <= max(least, most * local)


@pytest.mark.parametrize(
    ("islands", "message"),
    [
        ([[0, 1], [2, 2]], r"`islands` must hold each place of 4 once, got \[\[0, 1\], \[2, 2\]\]"),
        ([[0, 1], [2]], "`islands` must hold each place of 4 once"),
        ([[0, 1, 2, 3]], r"`islands` must be at least 2, all of one size from 2 ranks on, got sizes \[4\]"),
        ([[0, 1, 2], [3]], r"got sizes \[3, 1\]"),
        ([[0], [1], [2], [3]], r"got sizes \[1, 1, 1, 1\]"),
    ],
)
def test_islands_that_sums_cannot_go_by_are_refused(islands: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_islands(islands, 4)


@settings(max_examples=12)
@given(
    SHAPES, st.booleans(), st.sampled_from((1 << 10, 3000, 1 << 18)),
    st.lists(
        st.tuples(st.one_of(st.integers(0, 9), st.integers(0, 9000), st.just(150_000)), st.sampled_from(DTYPES)),
        min_size=1, max_size=3,
    ),
)  # fmt: skip
def test_sums_are_right_and_alike(
    shape: tuple[int, int], in_turns: bool, block_bytes: int, tensors: list[tuple[int, torch.dtype]]
) -> None:
    """Sums by islands and by ring, copies and further sums follow each other over one set of connections."""
    size = shape[0] * shape[1]
    made = torch.Generator().manual_seed(size)
    with ring(size, block_bytes=block_bytes, islands=islands_of(*shape, in_turns=in_turns)) as ranks:
        for length, dtype in tensors:
            own = [torch.randint(0, 50, (length,), generator=made).to(dtype) for _ in range(size)]
            expected = torch.stack(own).to(torch.complex128 if dtype.is_complex else torch.float64).sum(0)
            flat = [each.clone() for each in own]
            futures = ranks.all(lambda rank, own=own: ranks.exchanges[rank].start_by_islands(own[rank], "layer"))
            others = ranks.all(lambda rank, flat=flat: ranks.exchanges[rank].start(flat[rank], "flat"))
            assert all(future.wait() is tensor for future, tensor in zip(futures, own, strict=True))
            assert all(future.wait() is tensor for future, tensor in zip(others, flat, strict=True))
            if dtype is not torch.uint8:  # whose sums pass 255
                assert torch.equal(own[0].to(expected.dtype), expected)
            assert all(torch.equal(each, own[0]) for each in (*own, *flat))


def test_sums_that_round_are_the_same_bits_on_all_ranks() -> None:
    with ring(4, block_bytes=4096, islands=IN_TURNS) as ranks:
        own = [torch.randn(200_003, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
        whole = torch.stack(own).double().sum(0)
        for future in ranks.all(lambda rank: ranks.exchanges[rank].start_by_islands(own[rank], "layer")):
            future.wait()
    assert all(torch.equal(each, own[0]) for each in own)
    assert torch.allclose(own[0].double(), whole, atol=1e-5)


def test_without_islands_a_sum_goes_by_the_ring() -> None:
    with ring(2) as ranks:
        own = [torch.ones(5), torch.ones(5)]
        for future in ranks.all(lambda rank: ranks.exchanges[rank].start_by_islands(own[rank], "layer")):
            assert torch.equal(future.wait(), torch.full((5,), 2.0))


def test_ranks_that_sum_different_things_hear_which() -> None:
    with ring(4, timeout_s=10, islands=IN_TURNS) as ranks:
        lengths = (10, 10, 10, 11)
        waiting = ranks.all(lambda rank: ranks.exchanges[rank].start_by_islands(torch.ones(lengths[rank]), "layer"))
        for future in waiting:
            with pytest.raises(ExchangeError, match=r"exchanges sum by islands 1, `layer` of 1\d float32"):
                future.wait()


def test_a_mistake_in_a_stage_of_its_own_ends_it_on_all_ranks() -> None:
    with ring(4, timeout_s=10, islands=IN_TURNS) as ranks:
        engine = ranks.exchanges[2]._engine
        assert engine is not None

        def broken(_: memoryview) -> None:
            raise MemoryError("none left")

        engine.links[ACROSS].receive = broken
        for future in ranks.all(lambda rank: ranks.exchanges[rank].start_by_islands(torch.ones(5000), "layer")):
            with pytest.raises(ExchangeError, match="`rank 2` failed: MemoryError: none left, in the exchange of 'lay"):
                future.wait()
        assert not [each.name for each in threading.enumerate() if each.name == f"stoker-exchange-{ACROSS}"]


def _summed(rank: int) -> tuple[bool, list[float], int]:
    exchange = connect(islands=IN_TURNS)
    own = torch.randn(300_000, generator=torch.Generator().manual_seed(rank))
    by_torch = own.clone()
    exchange.start_by_islands(own, "layer").wait()
    distributed.all_reduce(by_torch)
    distributed.destroy_process_group()
    left = sum(thread.name.startswith("stoker") for thread in threading.enumerate())
    return torch.allclose(own, by_torch, atol=1e-5), own[::50_000].tolist(), left


@pytest.mark.integration
def test_two_islands_of_real_ranks_sum_as_torch_and_leave_nothing(tmp_path: Path) -> None:
    found = forked(4, tmp_path, _summed)
    assert found == [(True, found[0][1], 0)] * 4


def _lost(number: int) -> Callable[[int], str]:
    def call(rank: int) -> str:
        exchange = connect(islands=IN_TURNS)
        exchange.start_by_islands(torch.ones(10), "first").wait()
        exchange.step = 4
        if rank == 3:
            # In the midst: the others have sent and wait for what does not come.
            exchange.start_by_islands(torch.ones(10), "second").wait()
            os.kill(os.getpid(), number)
        try:
            exchange.start_by_islands(torch.ones(10), "second").wait()
            exchange.start_by_islands(torch.ones(1_000_000), "head").wait()
        except ExchangeError as error:
            return f"rank {error.fields['rank']} at step {error.fields['step']}"
        return "summed"

    return call


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named_by_all_others(number: int, tmp_path: Path) -> None:
    expected = "rank 3 at step 4"
    assert forked(4, tmp_path, _lost(number), lost=3) == [expected, expected, expected, None]
