"""Which request of a step gets which place; pure, and the law that the allocator's C++ follows request by request.

Steps of training ask for the same sizes in the same order. So a request is known by its position: the place that the
plan gives to it is taken if the size is the planned one and nothing alive lies there. Whatever else happens gets an
ordinary block, so no deviation is ever wrong.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

ALIGNED = 512
"""Bytes that each block is a multiple of, as in torch's allocator."""
LOOK_AHEAD = 8
"""Positions at which a request is looked for: the program may leave out as many but one."""


def rounded(nbytes: int) -> int:
    """Bytes of the block that a request gets."""
    return max(1, -(-nbytes // ALIGNED)) * ALIGNED


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request of the step.

    Attributes:
        nbytes: of its block.
        offset: from the arena's start; None: an ordinary block, since it outlives the step.
    """

    nbytes: int
    offset: int | None


@dataclass(slots=True)
class Counts:
    """What requests got.

    Attributes:
        planned: their place.
        outliving: an ordinary block, as planned.
        unexpected: an ordinary block, since the plan has no such request there.
        occupied: an ordinary block, since something still lived in their place.
        left_out: planned requests that did not come.
    """

    planned: int = 0
    outliving: int = 0
    unexpected: int = 0
    occupied: int = 0
    left_out: int = 0

    @property
    def deviations(self) -> int:
        """Requests that did not go by the plan."""
        return self.unexpected + self.occupied


class StepPolicy:
    """Places for the requests of steps that repeat.

    Args:
        plan: the requests of a step, in order.
    """

    def __init__(self, plan: Sequence[PlannedRequest]) -> None:
        self._plan = plan
        self._position = 0
        self._starts: list[int] = []  # of what is alive, in order
        self._ends: dict[int, int] = {}
        self.counts = Counts()

    def begin_step(self) -> None:
        """The next request is the first of a step."""
        self.counts.left_out += max(0, len(self._plan) - self._position)
        self._position = 0

    def allocate(self, nbytes: int) -> int | None:
        """Bytes from the arena's start of a request's place; None: it gets an ordinary block."""
        size = rounded(nbytes)
        number = self._expected(size)
        if number is None:
            self.counts.unexpected += 1
            return None
        offset = self._plan[number].offset
        if offset is None:
            self.counts.outliving += 1
            return None
        if not self._is_free(offset, size):
            self.counts.occupied += 1
            return None
        insort(self._starts, offset)
        self._ends[offset] = offset + size
        self.counts.planned += 1
        return offset

    def free(self, offset: int) -> None:
        """Ends the life of what lies at a place."""
        del self._ends[offset]
        del self._starts[bisect_left(self._starts, offset)]

    def _expected(self, size: int) -> int | None:
        for number in range(self._position, min(self._position + LOOK_AHEAD, len(self._plan))):
            if self._plan[number].nbytes == size:
                self.counts.left_out += number - self._position
                self._position = number + 1
                return number
        return None

    def _is_free(self, offset: int, size: int) -> bool:
        place = bisect_left(self._starts, offset)
        before = place > 0 and self._ends[self._starts[place - 1]] > offset
        behind = place < len(self._starts) and self._starts[place] < offset + size
        return not before and not behind


@dataclass(slots=True)
class OrdinaryBlocks:
    """Blocks that are kept when they are freed, and given to the next request of the same size.

    Attributes:
        reserved: bytes of all blocks.
    """

    reserved: int = 0
    _kept: Counter[int] = field(default_factory=Counter[int])

    def allocate(self, nbytes: int) -> None:
        """Takes a block."""
        size = rounded(nbytes)
        if self._kept[size]:
            self._kept[size] -= 1
        else:
            self.reserved += size

    def free(self, nbytes: int) -> None:
        """Keeps a block."""
        self._kept[rounded(nbytes)] += 1

    def release(self) -> None:
        """Gives back all that is kept."""
        self.reserved -= sum(size * count for size, count in self._kept.items())
        self._kept.clear()
