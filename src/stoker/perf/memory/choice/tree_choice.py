"""Which units to repeat, and what they keep, so that a step fits in the least time: exact, by dynamic programming.

Units run one after another, some inside of others. What a repeated unit does not keep is missing from all that is alive
while later units run, forward and backward. So a choice fits if, at each point of the order, what is alive there in the
plain step, less what the units before it save, stays within the budget. States are the pairs of saved bytes and seconds
that no other pair beats; a unit is repeated as a whole, or kept, or the same is asked of the units inside of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stoker.records.fitting import Keeps

Way = Keeps | Literal["away"]
"""What a unit does with what it saves: it is repeated and keeps so much, or keeps it in host memory."""
_MOST_STATES = 2048
"""States beyond which those that save about as much as others are dropped: units that are alike stay far below."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """One way to do without what a unit saves.

    Attributes:
        keeps: what it keeps, or that it lies in host memory.
        saves: bytes that are missing between its passes; may be negative.
        seconds: of the repetition, or of the copies.
        need: most bytes that are alive in its passes, as if no unit before it saved anything.
    """

    keeps: Way
    saves: int
    seconds: float
    need: int


@dataclass(frozen=True, slots=True)
class StepPart:
    """A unit, or what runs between units.

    Attributes:
        name: of the unit; empty for what runs in between.
        need: most bytes that are alive in it while it is kept.
        repeats: ways to repeat it.
        inside: parts of it, in their order; empty for one that is kept or repeated as a whole.
    """

    name: str
    need: int
    repeats: tuple[Repeat, ...] = ()
    inside: tuple[StepPart, ...] = ()


@dataclass(slots=True)
class _History:
    """How states came about: each repetition with the one before it."""

    firsts: list[int] = field(default_factory=list[int])
    """Number of the first state of each batch of them; 0 is the state without a repetition."""
    batches: list[tuple[NDArray[np.int64], str, Way]] = field(
        default_factory=list[tuple[NDArray[np.int64], str, "Way"]]
    )
    count: int = 1

    def added(self, nodes: NDArray[np.int64], name: str, keeps: Way) -> NDArray[np.int64]:
        """Numbers of new states, which repeat a unit after others."""
        first = self.count
        self.firsts.append(first)
        self.batches.append((nodes, name, keeps))
        self.count += len(nodes)
        return np.arange(first, self.count, dtype=np.int64)

    def of(self, node: int) -> dict[str, Way]:
        """What a state repeats."""
        found: dict[str, Way] = {}
        while node > 0:
            place = bisect_right(self.firsts, node) - 1
            nodes, name, keeps = self.batches[place]
            found[name] = keeps
            node = int(nodes[node - self.firsts[place]])
        return found


@dataclass(frozen=True, slots=True)
class _States:
    """Choices for the first parts: bytes saved, seconds, and how they came about."""

    saved: NDArray[np.int64]
    seconds: NDArray[np.float64]
    nodes: NDArray[np.int64]

    def where(self, allowed: NDArray[np.bool_] | NDArray[np.intp]) -> _States:
        return _States(self.saved[allowed], self.seconds[allowed], self.nodes[allowed])

    def within(self, need: int, budget: int) -> _States:
        return self.where(need - self.saved <= budget)


def choose_parts(parts: Sequence[StepPart], budget: int) -> dict[str, Way] | None:
    """What each repeated unit keeps, in the least time that the budget allows; None if no choice fits.

    Args:
        parts: in the order of the forward pass; names are unique.
        budget: bytes.
    """
    history = _History()
    start = _States(np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.int64))
    found = _through(parts, start, budget, history)
    if not len(found.saved):
        return None
    # Of the quickest, the one with the most room.
    best = int(np.lexsort((-found.saved, found.seconds))[0])
    return history.of(int(found.nodes[best]))


def _through(parts: Sequence[StepPart], states: _States, budget: int, history: _History) -> _States:
    for part in parts:
        if not part.repeats and not part.inside:
            states = states.within(part.need, budget)
            continue
        kept = _through(part.inside, states, budget, history) if part.inside else states.within(part.need, budget)
        ways = [kept]
        for way in part.repeats:
            allowed = states.within(way.need, budget)
            if len(allowed.saved):
                nodes = history.added(allowed.nodes, part.name, way.keeps)
                ways.append(_States(allowed.saved + way.saves, allowed.seconds + way.seconds, nodes))
        states = _unbeaten(ways, budget)
        if not len(states.saved):
            break
    return states


def _unbeaten(ways: Sequence[_States], budget: int) -> _States:
    """States that no other one beats in both saved bytes and seconds."""
    if len(ways) == 1:
        return ways[0]
    saved, seconds, nodes = (
        np.concatenate([getattr(way, name) for way in ways]) for name in ("saved", "seconds", "nodes")
    )
    found = _pareto(_States(saved, seconds, nodes))
    if len(found.saved) > _MOST_STATES:
        # Of states that save about as much, the quickest and the one that saves most.
        grid = max(1, -(-2 * int(found.saved.max() - found.saved.min()) // _MOST_STATES))
        places = found.saved // grid
        ends = np.ones(len(places), dtype=np.bool_)
        ends[1:-1] = (places[1:-1] != places[:-2]) | (places[1:-1] != places[2:])
        found = found.where(ends)
    return found


def _pareto(states: _States) -> _States:
    order = np.lexsort((states.seconds, -states.saved))
    seconds = states.seconds[order]
    least = np.minimum.accumulate(seconds)
    better = np.ones(len(order), dtype=np.bool_)
    better[1:] = seconds[1:] < least[:-1]
    return states.where(order[better])
