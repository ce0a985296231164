"""Slots: regions of shared memory that hold one produced batch each and are used again and again.

A ring is one memfd (never a named file: nothing outlives a ``kill -9`` and the size of /dev/shm is no limit), mapped
once by each process. Free slots are handed out last-in first-out, so that memory follows the number of batches in
flight, not the number of slots, and stays warm in the caches. Views of a slot keep it taken; it is free again when
the last view dies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGN = 64
"""Alignment of every buffer in a slot, in bytes (a cache line, and what vectorised kernels like)."""
_PAGE = mmap.PAGESIZE


def align(value: int, to: int = ALIGN) -> int:
    """``value`` rounded up to a multiple of ``to``."""
    return -(-value // to) * to


def create_memory(name: str, size_bytes: int) -> int:
    """Descriptor of fresh anonymous shared memory; raises ``OSError`` when memory or descriptors are short."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size_bytes)
    except OSError:
        os.close(fd)
        raise
    return fd


class Mapping:
    """A mapped memfd; views keep the mapping alive after :meth:`close`."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._map = mmap.mmap(fd, size_bytes)

    def view(self, offset: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """A writable byte view; every tensor or array made from it keeps it (and the mapping) alive."""
        return np.frombuffer(self._map, np.uint8, count=size_bytes, offset=offset)

    def close(self) -> None:
        """Unmaps, unless views are alive: then the mapping goes with the last of them."""
        with contextlib.suppress(BufferError):
            self._map.close()


class Ring:
    """The training process's side of one generation of slots.

    Args:
        generation: number that both sides name the ring by.
        slot_bytes: capacity of a slot; rounded up to whole memory pages.
        num_slots: how many slots there can be; memory is only used by those that get touched.

    Raises:
        OSError: no memory or no descriptor left.
    """

    def __init__(self, generation: int, slot_bytes: int, num_slots: int) -> None:
        self.generation = generation
        self.slot_bytes = align(slot_bytes, _PAGE)
        self.num_slots = num_slots
        self.fd = create_memory(f"stoker-ring-{generation}", self.slot_bytes * num_slots)
        try:
            self._mapping = Mapping(self.fd, self.slot_bytes * num_slots)
        except (OSError, ValueError):
            os.close(self.fd)
            raise
        self._free = list(range(num_slots - 1, -1, -1))
        self._is_free = bytearray(b"\1" * num_slots)
        self._returned: deque[int] = deque()  # appended to by finalizers, which may run in any thread
        self._watches: dict[int, weakref.ref[Any]] = {}
        self.touched = 0
        """Slots used at least once: what the ring costs in memory."""

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        self._collect()
        return len(self._free)

    def take(self) -> int | None:
        """A free slot, the one used last; None when all are taken."""
        self._collect()
        if not self._free:
            return None
        slot = self._free.pop()
        self._is_free[slot] = 0
        self.touched = max(self.touched, slot + 1)
        return slot

    def is_taken(self, slot: int) -> bool:
        """Whether the number is that of a slot in use."""
        return 0 <= slot < self.num_slots and not self._is_free[slot]

    def give_back(self, slot: int) -> None:
        """Frees a slot that no view was made of."""
        self._release(slot)

    def _release(self, slot: int) -> None:
        assert not self._is_free[slot], f"slot {slot} was freed twice; two batches would have shared it"
        self._is_free[slot] = 1
        self._free.append(slot)

    def view(self, slot: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The first bytes of a slot, not tied to its lifetime (for copying out)."""
        return self._mapping.view(slot * self.slot_bytes, size_bytes)

    def hand_out(self, slot: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The first bytes of a slot; the slot is freed when the returned array and all made from it are gone."""
        holder = self.view(slot, size_bytes)
        returned = self._returned
        self._watches[slot] = weakref.ref(holder, lambda _: returned.append(slot))
        return holder

    def _collect(self) -> None:
        while self._returned:
            slot = self._returned.popleft()
            self._watches.pop(slot, None)
            self._release(slot)

    @property
    def idle(self) -> bool:
        """Whether no slot is leased or viewed."""
        return self.num_free == self.num_slots

    def abandon(self) -> None:
        """Closes this process's copy of the descriptor (in a forked child); batches it can see stay mapped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Closes the descriptor; memory goes when the last view and the last worker's mapping are gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._mapping.close()


class SlotWriter:
    """A worker's cursor in one slot: hands out aligned regions and knows which addresses lie inside.

    Also serves as the arena into which ``default_collate`` stacks, so that most batches are never copied.
    """

    def __init__(self, view: npt.NDArray[np.uint8]) -> None:
        self.view = view
        self.address = int(view.ctypes.data)
        self.size_bytes = len(view)
        self.used_bytes = 0

    def reserve(self, size_bytes: int, phase: int = 0) -> int | None:
        """Offset of a free region whose address is ``phase`` modulo ``ALIGN``; None when it does not fit."""
        start = align(self.used_bytes) + phase % ALIGN
        if start + size_bytes > self.size_bytes:
            return None
        self.used_bytes = start + size_bytes
        return start

    def offset_of(self, address: int, size_bytes: int) -> int | None:
        """Where a memory range lies in the slot; None when it lies elsewhere."""
        offset = address - self.address
        return offset if offset >= 0 and offset + size_bytes <= self.used_bytes else None
