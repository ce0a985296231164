"""Places for buffers whose lives are known, in one piece of memory: several greedy orders, the best one repaired.

No order is best on all steps. Those that are tried put buffers on a skyline, the longest, the largest and the first
born at first, then those that live through the tightest moments; what stood out above the bound counts more the next
time (the weights of guided local search: Voudouris and Tsang, 1999). In small plans buffers at the top are then moved
forward.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.core.placement.skyline import Lives, Whole, in_order, lowest_first, tightest_first

ALIGNED = 512
"""Bytes that each place is a multiple of, as torch's allocator has it."""
_TOLERANCES = (2e-5, 5e-4)
"""Shares of the bound below which a moment counts as full (best of those tried on traced steps and random lives)."""
_PAIRS = 580_000_000
"""Pairs of buffers that are looked at in all: rounds of a large plan, to end within seconds."""
_ROUNDS = 16
"""Rounds of a small one."""
_MOVED = 200_000
"""Buffers that are put down again while moving single ones: half a second."""
_MOVES = 2000


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
    table = np.array(lives, dtype=np.int64).reshape(-1, 3)
    units = -(-table[:, 0] // ALIGNED)
    filled = np.flatnonzero(units)
    if not len(filled):
        return Placement((0,) * len(lives), 0, 0)
    known = Lives.of(units[filled], table[filled, 1], table[filled, 2])
    bound = int(known.load().max())
    places = np.zeros(len(lives), dtype=np.int64)
    places[filled] = _best(known, bound)
    size = int((places + units).max())
    return Placement(tuple(int(each) * ALIGNED for each in places), size * ALIGNED, bound * ALIGNED)


def _best(lives: Lives, bound: int) -> Whole:
    """The lowest of several plans, repaired."""
    best, least = np.zeros(0, dtype=np.int64), -1
    rounds = max(2, min(_ROUNDS, _PAIRS // len(lives.sizes) ** 2))
    for found in itertools.islice(_plans(lives, bound), rounds):
        top = int((found + lives.sizes).max())
        if least < 0 or top < least:
            best, least = found, top
        if least == bound:
            return best
    return _moved(lives, bound, best)


def _plans(lives: Lives, bound: int) -> Iterator[Whole]:
    """Ever more plans."""
    sizes, spans = lives.sizes, lives.spans
    for first, second in ((-spans, -sizes), (-sizes * spans, -sizes)):
        yield lowest_first(lives, np.lexsort((second, first)))
    urgency = {tolerance: np.ones(lives.moments) for tolerance in _TOLERANCES}
    for count in itertools.count():
        for tolerance, weights in urgency.items():
            found, heights = tightest_first(lives, bound, tolerance, weights)
            yield found
            above = np.maximum(heights - bound, 0)
            weights *= 1 + 2 * above / max(1, int(above.max()))
        if count == 0:
            for first, second in ((lives.births, -sizes), (-sizes, -spans)):
                yield lowest_first(lives, np.lexsort((second, first)))


def _moved(lives: Lives, bound: int, places: Whole) -> Whole:
    """The plan after buffers that reach its top were moved forward in its order, each move kept if nothing is worse."""
    chance = np.random.default_rng(0)
    best, least = places, _height(lives, places)
    order: NDArray[np.intp] = np.argsort(places, kind="stable")
    for _ in range(min(_MOVES, _MOVED // len(order))):
        tops = (best + lives.sizes)[order]
        at = int(chance.choice(np.flatnonzero(tops == tops.max())))
        to = int(chance.integers(at)) if at else 0
        tried = np.insert(np.delete(order, at), to, order[at])
        found = in_order(lives, tried)
        height = _height(lives, found)
        if height <= least:
            best, least, order = found, height, tried
        if least[0] == bound:
            break
    return best


def _height(lives: Lives, places: Whole) -> tuple[int, int]:
    """The top of a plan, and how many buffers reach it."""
    tops = places + lives.sizes
    top = int(tops.max())
    return top, int((tops == top).sum())
