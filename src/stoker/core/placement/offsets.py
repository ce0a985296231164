"""Places for buffers whose lives are known, in one piece of memory: several greedy orders, the best one kept.

Source: greedy by size of arXiv 2001.03288; each buffer takes the lowest gap that fits among those alive with it. No one
order is best on all steps, so several are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ALIGNED = 512
"""Bytes that each place is a multiple of, as torch's allocator has it."""
_Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where buffers lie.

    Attributes:
        offsets: bytes from the start, by buffer.
        size: bytes of the whole piece.
        bound: most bytes that are alive at once, rounded sizes counted: no plan is smaller.
    """

    offsets: tuple[int, ...]
    size: int
    bound: int


def place_buffers(lives: Sequence[tuple[int, int, int]]) -> Placement:
    """A place for each buffer, so that no two that are alive together overlap.

    Args:
        lives: bytes, birth and death of each buffer; a buffer is alive from its birth up to before its death.

    Raises:
        ValueError: a buffer has negative bytes, or does not die after its birth.
    """
    for nbytes, birth, death in lives:
        if nbytes < 0 or death <= birth:
            raise ValueError(
                f"`lives` must have bytes of at least 0 and a death after the birth, got {nbytes, birth, death}"
            )
    if not lives:
        return Placement((), 0, 0)
    table = np.array(lives, dtype=np.int64)
    sizes, births, deaths = -(-table[:, 0] // _ALIGNED) * _ALIGNED, table[:, 1], table[:, 2]
    spans = deaths - births
    keys = ((-spans, -sizes), (-sizes * spans, -sizes), (births, -sizes), (-sizes, -spans))
    bound = _bound(sizes, births, deaths)
    best, least = np.zeros(0, dtype=np.int64), -1
    for second, first in ((key[1], key[0]) for key in reversed(keys)):
        found = _greedy(np.lexsort((second, first)), sizes, births, deaths)
        top = int((found + sizes).max())
        if least < 0 or top < least:
            best, least = found, top
        if least == bound:
            break
    return Placement(tuple(int(each) for each in best), least, bound)


def _bound(sizes: _Whole, births: _Whole, deaths: _Whole) -> int:
    times = np.concatenate((deaths, births))
    change = np.concatenate((-sizes, sizes))
    # At one time frees come first.
    order = np.lexsort((change > 0, times))
    return int(np.cumsum(change[order]).max())


def _greedy(order: NDArray[np.intp], sizes: _Whole, births: _Whole, deaths: _Whole) -> _Whole:
    """Offsets of all buffers, placed in this order."""
    offsets = np.zeros(len(sizes), dtype=np.int64)
    # What is placed, in the order of offsets: start, end, birth, death.
    placed = np.zeros((4, len(sizes)), dtype=np.int64)
    for count, number in enumerate(order):
        size, birth, death = sizes[number], births[number], deaths[number]
        known = placed[:, :count]
        near = known[:2, (known[2] < death) & (known[3] > birth)]
        ends = np.maximum.accumulate(np.concatenate((np.zeros(1, dtype=np.int64), near[1])))
        gaps = np.flatnonzero(near[0] - ends[:-1] >= size)
        start = ends[gaps[0]] if len(gaps) else ends[-1]
        offsets[number] = start
        at = int(np.searchsorted(known[0], start))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        placed[:, at] = start, start + size, birth, death
    return offsets
