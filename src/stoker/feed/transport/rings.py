"""The slots of one loader: chooses ring sizes from measured batches and turns arrived payloads into memory.

A ring is created once the first batch shows how large batches are; a larger batch leads to a new, larger generation.
When memory or descriptors are short the ring is smaller, and without any ring batches travel in separate memfds or
through the socket: slower, never wrong.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from stoker.core.errors import WireError
from stoker.core.processes.forking import at_fork
from stoker.core.slots.ring import Mapping, Ring
from stoker.core.units import format_bytes
from stoker.feed.transport.descriptors import spare_descriptors
from stoker.feed.transport.messages import Place, ReadyHeader

HEADROOM = 1.25
"""A slot is this many times as large as the batch that it was sized for: batches vary."""
_SPARE_FDS = 32
"""With fewer descriptors left, no batch comes with one."""
_COUNT_EVERY_S = 0.25
MIN_SLOT_BYTES = 1 << 16
MAX_SLOTS = 512
MIN_SLOTS = 3
"""One being made, one ready, one in the program's hands."""


class Payload(msgspec.Struct, frozen=True):
    """A batch that has arrived: where its bytes are and the skeleton that refers to them."""

    header: ReadyHeader
    skeleton: bytes
    ring: Ring | None = None
    memory: npt.NDArray[np.uint8] | None = None
    """The bytes themselves, when they are not in a slot."""


class SlotKeeper:
    """Hands out slots for leases and memory for deliveries.

    Args:
        budget_bytes: most memory that the slots of this loader may use.
        notice: receives one line when batches have to travel in a slower way.
    """

    def __init__(self, budget_bytes: int, notice: Callable[[str], None]) -> None:
        self._budget_bytes = budget_bytes
        self._notice = notice
        self._rings: dict[int, Ring] = {}
        self.current: Ring | None = None
        """The ring that new leases get slots from."""
        self._given_up = False
        self._num_warm: int | None = None
        self._counted_s = float("-inf")
        self._short = False
        self.largest_bytes = 0
        """Largest batch seen, in bytes."""

    @property
    def descriptors_are_short(self) -> bool:
        """Whether batches should come without descriptors: one that can't be received is lost."""
        now = time.monotonic()
        if now >= self._counted_s + _COUNT_EVERY_S:
            self._counted_s = now
            self._short = spare_descriptors() < _SPARE_FDS
        return self._short

    @property
    def num_slots(self) -> int:
        """How many batches memory allows in flight at once; a large number before their size is known."""
        if self.current is not None:
            return self.current.num_slots
        return MAX_SLOTS if not self.largest_bytes else max(MIN_SLOTS, self._budget_bytes // self.largest_bytes)

    def limit_warm(self, num_warm: int | None) -> None:
        """Sets how many slots may hold memory while unused; None for all."""
        self._num_warm = num_warm
        if self.current is not None:
            self.current.limit_warm(num_warm)

    def give_back(self, generation: int, slot: int) -> None:
        """Frees the slot of a lease that did not fill it."""
        ring = self._rings.get(generation)
        if ring is not None and slot >= 0:
            ring.give_back(slot)
            self._retire()

    def arrive(self, header: ReadyHeader, rest: memoryview, fds: tuple[int, ...]) -> Payload:
        """Takes over a payload; frees the lease's slot when the batch is elsewhere."""
        skeleton = bytes(rest[: header.skeleton_bytes])
        if header.place is Place.SLOT:
            ring = self._rings.get(header.ring)
            if ring is None or header.payload_bytes > ring.slot_bytes or header.slot not in ring.slots.taken:
                raise WireError(f"batch {header.seq} came in slot {header.slot} of ring {header.ring}, not given to it")
            if not header.skeleton_bytes:
                skeleton = _tail_skeleton(ring.view(header.slot, header.payload_bytes))
            if header.payload_bytes > self.largest_bytes:
                self.largest_bytes = header.payload_bytes
            return Payload(header, skeleton, ring=ring)
        self.give_back(header.ring, header.slot)
        if header.place is Place.INLINE:
            memory = np.array(np.frombuffer(rest[header.skeleton_bytes :], np.uint8))
        else:
            memory = _map_own(header, fds)
        if not header.skeleton_bytes:
            skeleton = _tail_skeleton(memory)
        self.largest_bytes = max(self.largest_bytes, header.payload_bytes)
        return Payload(header, skeleton, memory=memory)

    def drop(self, payload: Payload) -> None:
        """Frees the slot of an unwanted payload."""
        if payload.ring is not None:
            payload.ring.give_back(payload.header.slot)
            self._retire()

    def memory_of(self, payload: Payload, *, reserve: int) -> npt.NDArray[np.uint8]:
        """The bytes to build the batch on.

        They are the slot itself as long as more than ``reserve`` slots stay free; else a copy, so that workers never
        wait for a program that keeps its batches.
        """
        if payload.memory is not None:
            return payload.memory
        assert payload.ring is not None
        ring, slot, size = payload.ring, payload.header.slot, payload.header.payload_bytes
        if ring is self.current and (len(ring.slots.free) > reserve or ring.num_free > reserve):
            return ring.hand_out(slot, size)
        copy = ring.view(slot, size).copy()
        self.drop(payload)
        return copy

    def fit(self, in_flight: int) -> Ring | None:
        """Makes and returns a new ring if none fits the largest batch and ``in_flight`` items; else None."""
        if self._given_up or not self.largest_bytes:
            return None
        wanted = min(MAX_SLOTS, 2 * in_flight + 4)
        ring = self.current
        if (
            ring is not None
            and self.largest_bytes <= ring.slot_bytes
            and (wanted <= ring.num_slots or ring.num_slots >= self._most(ring))
        ):
            return None
        slot_bytes = max(MIN_SLOT_BYTES, int(self.largest_bytes * HEADROOM))
        num_slots = min(max(wanted, 32), self._budget_bytes // slot_bytes)
        if num_slots < MIN_SLOTS:
            self._give_up(f"{format_bytes(self._budget_bytes)} for slots hold fewer than {MIN_SLOTS} such batches")
            return None
        return self._create(slot_bytes, num_slots)

    def _most(self, ring: Ring) -> int:
        return min(MAX_SLOTS, self._budget_bytes // ring.slot_bytes)

    def _create(self, slot_bytes: int, num_slots: int) -> Ring | None:
        generation = max(self._rings, default=-1) + 1
        if self.current is not None:
            generation = max(generation, self.current.generation + 1)
        try:
            ring = Ring(generation, slot_bytes, num_slots)
        except (OSError, ValueError, OverflowError) as error:
            self._give_up(str(error))
            return None
        at_fork(ring.abandon)
        if self.current is not None:
            self.current.limit_warm(0)  # workers keep it mapped
        ring.limit_warm(self._num_warm)
        self._rings[generation] = ring
        self.current = ring
        self._retire()
        return ring

    def _give_up(self, why: str) -> None:
        self._given_up = True
        size = format_bytes(self.largest_bytes)
        self._notice(
            f"batches of {size} do not go through shared slots: {why}; they travel one by one, which is slower"
        )

    def _retire(self) -> None:
        """Closes earlier rings that nothing refers to any more."""
        for generation, ring in list(self._rings.items()):
            if ring is not self.current and ring.idle:
                ring.close()
                del self._rings[generation]

    def close(self) -> None:
        """Closes all rings; batches in the program's hands stay valid."""
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()
        self.current = None


def _map_own(header: ReadyHeader, fds: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    if len(fds) != 1:
        raise WireError(f"batch {header.seq} in a separate memfd came with {len(fds)} descriptors, not 1")
    try:
        size_bytes = os.fstat(fds[0]).st_size
        if header.payload_bytes > size_bytes:
            raise WireError(f"batch {header.seq} of {header.payload_bytes} bytes came in a memfd of {size_bytes}")
        return Mapping(fds[0], size_bytes).view(0, header.payload_bytes)
    finally:
        os.close(fds[0])


def _tail_skeleton(memory: npt.NDArray[np.uint8]) -> bytes:
    """The skeleton that a worker put after the buffers because it is long."""
    length = int.from_bytes(memory[-8:].tobytes(), "little")
    if not 0 < length <= len(memory) - 8:
        raise WireError(f"batch of {len(memory)} bytes claims a skeleton of {length}")
    return memory[-8 - length : -8].tobytes()
