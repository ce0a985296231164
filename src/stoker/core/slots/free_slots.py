"""Which slots of a ring are free; pure."""

from __future__ import annotations

from collections import deque


class FreeSlots:
    """The free slots of one ring, handed out last-in first-out. No memory here.

    Args:
        generation: number by which both sides name the ring.
        num_slots: how many there are.
    """

    __slots__ = ("free", "generation", "num_slots", "returned", "taken", "warm")

    def __init__(self, generation: int, num_slots: int) -> None:
        self.generation = generation
        self.num_slots = num_slots
        self.free = list(range(num_slots - 1, -1, -1))
        """Slots that can be taken, the one used last at the end."""
        self.taken: set[int] = set()
        self.returned: deque[int] = deque()
        """Slots whose last view has died. Appended to by finalizers, which may run in any thread."""
        self.warm: set[int] = set()
        """Slots that hold memory: all that were taken since the last trim."""

    def take(self) -> int:
        """Takes the free slot used last; -1 if there is none."""
        if self.returned:
            self.collect()
        if not self.free:
            return -1
        slot = self.free.pop()
        self.taken.add(slot)
        self.warm.add(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Frees a taken slot."""
        assert slot in self.taken, f"slot {slot} was freed twice; two batches would have shared it"
        self.taken.remove(slot)
        self.free.append(slot)

    def collect(self) -> None:
        """Frees the slots whose last view has died."""
        while self.returned:
            self.give_back(self.returned.popleft())

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        self.collect()
        return len(self.free)
