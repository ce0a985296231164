"""Slots: none is handed out twice, none is lost, and views keep theirs whatever becomes of the ring."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stoker.core.slots.ring import ALIGN, Mapping, Ring, align, create_memory
from stoker.core.slots.writers import FreshWriter, SlotWriter


class SlotsInUse(RuleBasedStateMachine):
    """A ring under every sequence of taking, giving back, handing out and dropping."""

    NUM_SLOTS = 5

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(1, 4096, self.NUM_SLOTS)
        self.taken: set[int] = set()
        self.views: dict[int, list[Any]] = {}
        self.stamp = 0

    @rule()
    def take(self) -> None:
        slot = self.ring.take()
        if len(self.taken) + len(self.views) == self.NUM_SLOTS:
            assert slot is None
            return
        assert slot is not None
        assert slot not in self.taken
        assert slot not in self.views
        self.taken.add(slot)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.taken)))
        self.taken.remove(slot)
        self.ring.give_back(slot)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), how=st.sampled_from(["array", "slice", "tensor", "view of a tensor", "both"]))
    def hand_out(self, data: st.DataObject, how: str) -> None:
        slot = data.draw(st.sampled_from(sorted(self.taken)))
        self.taken.remove(slot)
        self.stamp += 1
        holder = self.ring.hand_out(slot, 256)
        holder[:] = self.stamp % 251
        made: dict[str, Any] = {
            "array": lambda: [holder],
            "slice": lambda: [holder[8:64]],
            "tensor": lambda: [torch.from_numpy(holder)],
            "view of a tensor": lambda: [torch.from_numpy(holder).view(16, 16)[3:5]],
            "both": lambda: [holder[:4], torch.from_numpy(holder)[4:]],
        }
        self.views[slot] = [*made[how](), self.stamp % 251]

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.views)))
        *views, stamp = self.views.pop(slot)
        assert all(int(view.min()) == int(view.max()) == stamp for view in views)

    @rule(num_warm=st.none() | st.integers(0, 5))
    def limit_warm(self, num_warm: int | None) -> None:
        self.ring.limit_warm(num_warm)

    @invariant()
    def no_more_memory_is_held_than_may_be(self) -> None:
        in_use = len(self.taken) + len(self.views)
        if self.ring.num_warm is not None:
            assert self.ring.touched <= max(self.ring.num_warm, in_use)

    @invariant()
    def every_slot_is_free_or_accounted_for(self) -> None:
        assert self.ring.num_free == self.NUM_SLOTS - len(self.taken) - len(self.views)
        assert self.ring.idle == (not self.taken and not self.views)
        assert self.ring.touched <= self.NUM_SLOTS

    def teardown(self) -> None:
        self.ring.close()
        for *views, stamp in self.views.values():  # batches outlive the ring
            assert all(int(view.min()) == stamp for view in views)


TestSlotsInUse = SlotsInUse.TestCase


class TestRing:
    def test_the_slot_used_last_comes_next(self) -> None:
        ring = Ring(1, 100, 8)
        for _ in range(20):
            slot = ring.take()
            assert slot == 0
            ring.give_back(slot)
        assert ring.touched == 1
        ring.close()

    def test_a_large_slot_gives_its_memory_back_when_its_last_view_dies(self) -> None:
        ring = Ring(1, 1 << 20, 4)
        ring.limit_warm(0)
        slot = ring.take()
        assert slot is not None
        held = torch.from_numpy(ring.hand_out(slot, 1 << 20)).fill_(7)
        assert os.fstat(ring.fd).st_blocks * 512 == 1 << 20
        del held
        assert os.fstat(ring.fd).st_blocks == 0  # at once: the program may need it before it asks for a batch again
        ring.close()

    def test_a_forked_child_that_drops_its_views_leaves_the_memory_alone(self) -> None:
        ring = Ring(1, 1 << 20, 4)
        ring.limit_warm(0)
        slot = ring.take()
        assert slot is not None
        held = torch.from_numpy(ring.hand_out(slot, 1 << 20)).fill_(7)
        child = os.fork()
        if not child:
            del held
            os._exit(0)
        os.waitpid(child, 0)
        assert int(held.min()) == 7
        ring.close()

    def test_a_slot_held_by_autograd_is_not_free(self) -> None:
        ring = Ring(1, 4096, 1)
        slot = ring.take()
        assert slot is not None
        flat: Any = ring.hand_out(slot, 16)
        weight = torch.ones(4, requires_grad=True)
        loss = (torch.frombuffer(flat, dtype=torch.float32) * weight).sum()
        del flat
        gc.collect()
        assert ring.num_free == 0
        loss.backward()
        del loss
        gc.collect()
        assert ring.num_free == 1
        ring.close()

    def test_memory_and_descriptor_go_with_the_ring(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        ring = Ring(1, 4096, 4)
        assert len(os.listdir("/proc/self/fd")) > before
        ring.close()
        ring.close()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_an_impossible_size_leaves_no_descriptor(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises((OSError, ValueError, OverflowError)):
            Ring(1, 1 << 62, 1)
        assert len(os.listdir("/proc/self/fd")) == before


class TestFreshWriter:
    def test_what_is_stacked_in_it_is_sent_without_a_copy(self) -> None:
        writer = FreshWriter()
        assert writer.reserve(100) is None  # a label alone is no reason to make a memory
        offset = writer.reserve(1 << 20)
        assert offset is not None
        writer.view[offset : offset + (1 << 20)] = 3
        fd = writer.take()
        assert os.fstat(fd).st_size == writer.used_bytes == 1 << 20
        assert int(Mapping(fd, 1 << 20).view(0, 1 << 20).min()) == 3
        os.close(fd)

    def test_a_memory_that_is_not_taken_is_given_up(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        writer = FreshWriter(1 << 20)
        assert len(os.listdir("/proc/self/fd")) > before
        writer.close()
        del writer
        assert len(os.listdir("/proc/self/fd")) == before

    def test_an_impossible_size_has_no_room_and_leaves_no_descriptor(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        assert FreshWriter().reserve(1 << 60) is None
        with pytest.raises(OSError, match=r"."):
            FreshWriter(1 << 62)
        assert len(os.listdir("/proc/self/fd")) == before


class TestWriter:
    @given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 200)), max_size=12))
    def test_regions_are_aligned_disjoint_and_inside(self, wanted: list[tuple[int, int]]) -> None:
        writer = SlotWriter(np.zeros(1024, np.uint8))
        end = 0
        for size_bytes, phase in wanted:
            offset = writer.reserve(size_bytes, phase)
            if offset is None:
                assert align(end) + phase % ALIGN + size_bytes > 1024
                continue
            assert offset >= end
            assert offset % ALIGN == phase % ALIGN
            end = offset + size_bytes
            assert end <= 1024
            assert writer.used_bytes == end
            assert writer.offset_of(writer.address + offset, size_bytes) == offset
        assert writer.offset_of(writer.address - 1, 1) is None
        assert writer.offset_of(writer.address + writer.used_bytes, 1) is None


def test_a_mapping_that_is_viewed_outlives_its_closing() -> None:
    fd = create_memory("test", 4096)
    mapping = Mapping(fd, 4096)
    os.close(fd)
    view = mapping.view(0, 10)
    view[:] = 7
    mapping.close()
    assert view.tolist() == [7] * 10
