"""A ring of slots: reused regions of shared memory that hold one batch each, of samples or of requests.

A ring is one memfd (never a named file: nothing outlives a ``kill -9`` and the size of /dev/shm is no limit), mapped
once by each process. Free slots are handed out last-in first-out, so that memory follows the number of batches in
flight, not the number of slots, and stays warm in the caches. Views of a slot keep it taken; it is free again when
the last view dies. If batches are large, free slots return their memory to the system (``num_warm``): they are then as
cheap as the segments that torch makes for each batch, and as slow.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.core.processes.forking import Owner
from stoker.core.slots.free_slots import FreeSlots

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

    def trim(self, offset: int, size_bytes: int) -> None:
        """Returns the memory of a range to the system; it reads as zeros until it is written again."""
        self._map.madvise(mmap.MADV_REMOVE, offset, size_bytes)

    def close(self) -> None:
        """Unmaps, unless views are alive: then the mapping ends with the last of them."""
        with contextlib.suppress(BufferError):
            self._map.close()


class Ring:
    """The side of the process that hands slots out, of one generation of them.

    Args:
        generation: number by which both sides name the ring.
        slot_bytes: capacity of a slot; rounded up to whole memory pages.
        num_slots: most slots in use at once; only those that have been used take memory.

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
        self.slots = FreeSlots(generation, num_slots)
        """Which of them are free."""
        self._watches: dict[int, weakref.ref[Any]] = {}
        self._owner = Owner()
        self.num_warm: int | None = None
        """Most slots that may hold memory; one freed beyond that returns its own. None for no bound."""

    @property
    def touched(self) -> int:
        """Slots that hold memory: what the ring costs."""
        return len(self.slots.warm)

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        return self.slots.num_free

    def take(self) -> int | None:
        """A free slot, the one used last; None when all are taken."""
        slot = self.slots.take()
        return slot if slot >= 0 else None

    def give_back(self, slot: int) -> None:
        """Frees a slot of which no view exists."""
        self.slots.give_back(slot)
        self._cool(slot)

    def _cool(self, slot: int) -> None:
        """Returns the memory of an unused slot to the system, if more slots hold memory than may.

        Not in a forked child, which drops its own views of slots that this process still uses.
        """
        warm = self.slots.warm
        if self.num_warm is None or len(warm) <= self.num_warm or slot not in warm:
            return
        if self._owner.is_here:
            warm.discard(slot)
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile, or refused: it stays as it is
                self._mapping.trim(slot * self.slot_bytes, self.slot_bytes)

    def limit_warm(self, num_warm: int | None) -> None:
        """Sets how many slots may hold memory; free ones beyond that return theirs now, the most recently used last."""
        if num_warm == self.num_warm:
            return
        self.num_warm = num_warm
        for slot in list(self.slots.free):
            self._cool(slot)

    def view(self, slot: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The first bytes of a slot, not tied to its lifetime (for copying out)."""
        return self._mapping.view(slot * self.slot_bytes, size_bytes)

    def hand_out(self, slot: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The first bytes of a slot; the slot is freed when the returned array and all made from it are gone."""
        holder = self.view(slot, size_bytes)
        returned, watches = self.slots.returned, self._watches

        def come_back(_: object) -> None:
            # At once, not when the slot is next taken: the program may need the memory in between.
            if self.num_warm is not None:
                self._cool(slot)
            watches.pop(slot, None)
            returned.append(slot)

        watches[slot] = weakref.ref(holder, come_back)
        return holder

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
        """Closes the descriptor; the memory is freed with the last view and the last worker's mapping."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._mapping.close()
