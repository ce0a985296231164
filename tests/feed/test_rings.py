"""The keeper of slots: sizes follow the batches, memory that is short costs speed only, nothing leaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import WireError
from stoker.core.slots.ring import create_memory
from stoker.core.slots.writers import SlotWriter
from stoker.feed.transport import rings
from stoker.feed.transport.messages import Place, ReadyHeader
from stoker.feed.transport.pack import pack, place
from stoker.feed.transport.rings import Payload, SlotKeeper


class Bench:
    """A keeper and, in place of a worker, code that fills the slots it leases."""

    def __init__(self, budget_bytes: int = 64 << 20) -> None:
        self.notices: list[str] = []
        self.keeper = SlotKeeper(budget_bytes, self.notices.append)
        self.seq = 0

    def take(self) -> tuple[int, int]:
        """A ring and a slot of it for a lease, as a machine takes them."""
        ring = self.keeper.current
        slot = ring.take() if ring is not None else None
        return (ring.generation, slot) if ring is not None and slot is not None else (-1, -1)

    def header(self, where: Place, ring: int, slot: int, payload: int, skeleton: int) -> ReadyHeader:
        self.seq += 1
        return ReadyHeader(self.seq, self.seq, ring, slot, where, payload, skeleton, 0.0, 0.0, 0.0, 0.0, 0, 0)

    def inline(self, size_bytes: int) -> Payload:
        """A batch that came through the socket, as the first ones do."""
        ring, slot = self.take()
        body = memoryview(b"skeleton" + bytes(size_bytes))
        return self.keeper.arrive(self.header(Place.INLINE, ring, slot, size_bytes, 8), body, ())

    def in_slot(self, batch: Any) -> Payload:
        ring, slot = self.take()
        assert slot >= 0, "a free slot"
        current = self.keeper.current
        assert current is not None
        writer = SlotWriter(current.view(slot, current.slot_bytes))
        skeleton = place(pack(batch), writer)
        assert skeleton is not None
        header = self.header(Place.SLOT, ring, slot, writer.used_bytes, len(skeleton))
        return self.keeper.arrive(header, memoryview(skeleton), ())


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.keeper.close()


def test_no_ring_before_a_batch_has_shown_how_large_they_are(bench: Bench) -> None:
    assert bench.keeper.fit(4) is None
    assert bench.take() == (-1, -1)
    bench.inline(100_000)
    ring = bench.keeper.fit(4)
    assert ring is not None
    assert ring.slot_bytes >= 100_000 * rings.HEADROOM
    assert bench.keeper.fit(4) is None, "it fits"


def test_a_larger_batch_brings_a_larger_ring_and_the_old_one_goes_when_it_is_empty(bench: Bench) -> None:
    bench.inline(100_000)
    first = bench.keeper.fit(4)
    assert first is not None
    held = bench.keeper.memory_of(bench.in_slot(np.arange(1000)), reserve=0)
    bench.inline(900_000)
    second = bench.keeper.fit(4)
    assert second is not None
    assert second.generation > first.generation
    assert bench.take()[0] == second.generation
    assert first.fd >= 0, "the program still holds a batch of it"
    del held
    bench.keeper.give_back(*bench.take())
    assert first.fd == -1


def test_more_items_in_flight_bring_more_slots(bench: Bench) -> None:
    bench.inline(1000)
    first = bench.keeper.fit(2)
    assert first is not None
    assert bench.keeper.fit(first.num_slots // 2 - 2) is None
    more = bench.keeper.fit(first.num_slots)
    assert more is not None
    assert more.num_slots > first.num_slots


def test_a_program_that_keeps_its_batches_gets_copies(bench: Bench) -> None:
    bench.inline(1000)
    ring = bench.keeper.fit(2)
    assert ring is not None
    kept = [bench.keeper.memory_of(bench.in_slot([np.full(200, n)]), reserve=3) for n in range(5 * ring.num_slots)]
    assert ring.num_free >= 3
    slots = {memory.ctypes.data for memory in kept}
    assert len(slots) == len(kept), "no two batches share memory"


def test_a_budget_for_fewer_than_three_batches_means_no_ring_and_one_clear_line() -> None:
    bench = Bench(budget_bytes=1 << 20)
    bench.inline(900_000)
    assert bench.keeper.fit(4) is None
    bench.inline(900_000)
    assert bench.keeper.fit(4) is None
    assert len(bench.notices) == 1
    assert "slower" in bench.notices[0]


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 24), st.integers(1, 600))
def test_rings_stay_inside_their_budget(batch_bytes: int, budget_bytes: int, in_flight: int) -> None:
    bench = Bench(budget_bytes)
    bench.inline(batch_bytes)
    ring = bench.keeper.fit(in_flight)
    if ring is not None:
        assert rings.MIN_SLOTS <= ring.num_slots <= rings.MAX_SLOTS
        assert ring.num_slots * rings.MIN_SLOT_BYTES <= max(budget_bytes, 0)
        assert ring.slot_bytes >= batch_bytes
        assert bench.keeper.num_slots == ring.num_slots
    else:
        assert bench.notices
    bench.keeper.close()


def test_an_unwanted_payload_frees_its_slot(bench: Bench) -> None:
    bench.inline(1000)
    ring = bench.keeper.fit(2)
    assert ring is not None
    bench.keeper.drop(bench.in_slot([1, 2]))
    assert ring.idle


def test_a_batch_in_a_memory_of_its_own_leaves_no_descriptor(bench: Bench) -> None:
    before = len(os.listdir("/proc/self/fd"))
    fd = create_memory("test", 4096)
    payload = bench.keeper.arrive(bench.header(Place.OWN_MEMORY, -1, -1, 4096, 3), memoryview(b"abc"), (fd,))
    memory = bench.keeper.memory_of(payload, reserve=0)
    assert len(memory) == 4096
    del payload, memory
    assert len(os.listdir("/proc/self/fd")) == before


class TestLies:
    def test_a_ring_that_was_never_made(self, bench: Bench) -> None:
        with pytest.raises(WireError, match="slot 0 of ring 9, not given to it"):
            bench.keeper.arrive(bench.header(Place.SLOT, 9, 0, 10, 3), memoryview(b"abc"), ())

    def test_a_payload_larger_than_its_slot(self, bench: Bench) -> None:
        bench.inline(1000)
        bench.keeper.fit(2)
        ring, slot = bench.take()
        with pytest.raises(WireError):
            bench.keeper.arrive(bench.header(Place.SLOT, ring, slot, 1 << 30, 3), memoryview(b"abc"), ())

    @pytest.mark.parametrize("slot", [-1, 1 << 20])
    def test_a_slot_that_the_ring_has_not(self, bench: Bench, slot: int) -> None:
        bench.inline(1000)
        ring = bench.keeper.fit(2)
        assert ring is not None
        with pytest.raises(WireError):
            bench.keeper.arrive(bench.header(Place.SLOT, ring.generation, slot, 10, 3), memoryview(b"abc"), ())

    def test_a_memory_of_its_own_without_a_descriptor(self, bench: Bench) -> None:
        with pytest.raises(WireError, match="came with 0 descriptors"):
            bench.keeper.arrive(bench.header(Place.OWN_MEMORY, -1, -1, 10, 3), memoryview(b"abc"), ())

    def test_a_memory_smaller_than_it_says(self, bench: Bench) -> None:
        fd = create_memory("test", 4096)
        with pytest.raises(WireError):
            bench.keeper.arrive(bench.header(Place.OWN_MEMORY, -1, -1, 1 << 20, 3), memoryview(b"abc"), (fd,))

    @given(st.binary(max_size=40))
    def test_a_skeleton_behind_the_payload_that_is_not_there(self, payload: bytes) -> None:
        bench = Bench()
        header = bench.header(Place.INLINE, -1, -1, len(payload), 0)
        try:
            skeleton = bench.keeper.arrive(header, memoryview(payload), ()).skeleton
        except WireError:
            return
        assert skeleton in payload
