"""Orders in which buffers are put on a skyline, the height up to which memory is filled at each moment.

Nothing is put below the skyline, so a place costs one look at a buffer's moments. What makes a plan good is which of
the buffers that rest lowest is taken. Sizes and places are whole units here, and time is the number of the moment:
moments are those at which a buffer is born, since the most that is alive at once is reached at one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
_PLACED = np.int64(1) << 60
"""Height of what has its place."""
_REFRESHED = 16
"""Buffers between two looks at which moments are tight; each look takes as long as placing several (measured)."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Buffers on a line of moments.

    Attributes:
        sizes: units of each buffer, at least 1.
        births: its first moment.
        deaths: the moment after its last one.
        moments: number of moments.
    """

    sizes: Whole
    births: Whole
    deaths: Whole
    moments: int

    @staticmethod
    def of(sizes: Whole, births: Whole, deaths: Whole) -> Lives:
        """Lives at any times, told apart only by which of them meet."""
        known = np.unique(births)
        return Lives(sizes, np.searchsorted(known, births), np.searchsorted(known, deaths), len(known))

    @property
    def spans(self) -> Whole:
        """Moments through which each buffer lives."""
        return self.deaths - self.births

    def load(self) -> Whole:
        """Units that are alive at each moment."""
        change = np.zeros(self.moments + 1, dtype=np.int64)
        np.add.at(change, self.births, self.sizes)
        np.add.at(change, self.deaths, -self.sizes)
        return np.cumsum(change[:-1])


def in_order(lives: Lives, order: NDArray[np.intp]) -> Whole:
    """Places of buffers that are put down in this order, each as low as what is below it allows."""
    heights = np.zeros(lives.moments, dtype=np.int64)
    places = np.zeros(len(order), dtype=np.int64)
    for number, size, birth, death in zip(
        order.tolist(), lives.sizes[order].tolist(), lives.births[order].tolist(), lives.deaths[order].tolist(),
        strict=True,
    ):  # fmt: skip
        part = heights[birth:death]
        base = int(part.max())
        part.fill(base + size)
        places[number] = base
    return places


def lowest_first(lives: Lives, order: NDArray[np.intp]) -> Whole:
    """Places of buffers where the one that rests lowest comes next, the first of ``order`` among equals.

    Source: the best-fit rule for packing a strip (Burke, Kendall and Whitwell, 2004) on the axis of time.
    """
    sizes, births, deaths, numbers = lives.sizes[order], lives.births[order], lives.deaths[order], order.copy()
    bases: Whole = np.zeros(len(order), dtype=np.int64)
    places, gone = np.zeros(len(order), dtype=np.int64), 0
    for _ in range(len(order)):
        at = int(np.argmin(bases))
        places[numbers[at]] = bases[at]
        _lift(bases, births, deaths, at, int(bases[at] + sizes[at]))
        gone += 1
        if 4 * gone > len(bases):
            left, gone = bases < _PLACED, 0
            bases, sizes, births, deaths = bases[left], sizes[left], births[left], deaths[left]
            numbers = numbers[left]
    return places


def _lift(bases: Whole, births: Whole, deaths: Whole, at: int, top: int) -> None:
    """Marks a buffer as placed, and lifts those that meet it onto it."""
    meets = (births < deaths[at]) & (deaths > births[at])
    np.maximum(bases, np.where(meets, top, 0), out=bases)
    bases[at] = _PLACED


def tightest_first(lives: Lives, bound: int, tolerance: float, urgency: NDArray[np.float64]) -> tuple[Whole, Whole]:
    """Places of buffers where of those that rest lowest the one that lives through the tightest moments comes next.

    A moment is tight if what is filled and what is still to come leave little below the bound: a gap there costs
    height.

    Args:
        lives: of the buffers.
        bound: most units that are alive at once.
        tolerance: share of the bound that counts as nothing left; the smaller, the more the tightest moments decide.
        urgency: by how much more each moment counts.

    Returns:
        The places, and how high each moment is filled in the end.
    """
    sizes, births, deaths = lives.sizes, lives.births, lives.deaths
    numbers = np.arange(len(sizes))
    bases: Whole = np.zeros(len(sizes), dtype=np.int64)
    places, heights, ends = np.zeros(len(sizes), dtype=np.int64), np.zeros(lives.moments, dtype=np.int64), lives.load()
    tight: NDArray[np.float64] = np.zeros(lives.moments + 1, dtype=np.float64)
    weights: NDArray[np.float64] = np.zeros(0, dtype=np.float64)
    gone = 0
    for count in range(len(sizes)):
        if count % _REFRESHED == 0:
            np.cumsum(urgency / (np.maximum(bound - ends, 0) / bound + tolerance), out=tight[1:])
            weights = tight[deaths] - tight[births]
        lowest = np.flatnonzero(bases == bases.min())
        at = int(lowest[np.argmax(weights[lowest])])
        base, birth, death = int(bases[at]), births[at], deaths[at]
        places[numbers[at]] = base
        ends[birth:death] += base - heights[birth:death]
        heights[birth:death] = base + sizes[at]
        _lift(bases, births, deaths, at, base + int(sizes[at]))
        gone += 1
        if 4 * gone > len(bases):
            left, gone = bases < _PLACED, 0
            bases, sizes, births, deaths = bases[left], sizes[left], births[left], deaths[left]
            numbers, weights = numbers[left], weights[left]
    return places, heights
