"""Layered drawing of a dataflow graph: which row each item stands in, its place in the row, and the ways of the edges.

Rows are longest paths, order in a row is by barycentres (Sugiyama, Tagawa and Toda, 1981), positions are the least
squares fit to the neighbours' that keeps items apart. An edge over several rows passes through a narrow stand-in in
each; edges from one item share theirs. Items are numbers; what they look like is the drawer's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_SWEEPS = 8
_STAND_IN_WIDTH = 12.0

Edge = tuple[int, int]


def longest_paths(edges: Iterable[Edge], floors: Mapping[int, int]) -> dict[int, int]:
    """The row of every item: below all its sources, and at least at its floor.

    Args:
        edges: source and target, in any order; without cycles.
        floors: every item and the first row that it may stand in.
    """
    sources: dict[int, list[int]] = {item: [] for item in floors}
    for source, target in edges:
        sources[target].append(source)
    rows: dict[int, int] = {}
    for item in sorted_by_dependence(sources):
        rows[item] = max([floors[item], *(rows[source] + 1 for source in sources[item] if source in rows)])
    return rows


def sorted_by_dependence(sources: Mapping[int, Sequence[int]]) -> list[int]:
    """The items, each after its sources; among those that are free, in the order given."""
    order: list[int] = []
    waiting = {item: {source for source in found if source != item} for item, found in sources.items()}
    while waiting:
        # Records read from a file may hold anything: a cycle is broken at its first item.
        free = [item for item, found in waiting.items() if not found] or [next(iter(waiting))]
        order += free
        for item in free:
            del waiting[item]
        done = set(free)
        for found in waiting.values():
            found -= done
    return order


@dataclass(kw_only=True)
class Drawing:
    """Where everything is."""

    rows: list[list[int]]
    """Items and stand-ins (negative numbers) from left to right, from top to bottom."""
    centre: dict[int, float]
    """Horizontal place of each."""
    ways: dict[Edge, list[int]]
    """The items that an edge passes, its ends included."""
    width: float


@dataclass
class _Grid:
    """Rows while they are ordered; neighbours are in the next row only."""

    rows: list[list[int]]
    above: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    below: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def link(self, source: int, target: int) -> None:
        """One segment of an edge; a shared one counts once."""
        if target not in self.below.setdefault(source, []):
            self.below[source].append(target)
            self.above.setdefault(target, []).append(source)

    def crossings(self) -> int:
        """Pairs of segments that cross."""
        count = 0
        for upper, lower in pairwise(self.rows):
            place = {item: number for number, item in enumerate(lower)}
            ends = [place[target] for item in upper for target in sorted(self.below.get(item, []), key=place.get)]  # type: ignore[arg-type]
            count += sum(left > right for number, left in enumerate(ends) for right in ends[number + 1 :])
        return count


def lay_out(row_of: Mapping[int, int], edges: Iterable[Edge], width_of: Callable[[int], float], gap: float) -> Drawing:
    """Places items.

    Args:
        row_of: the row of each item; edges lead to later rows.
        edges: each once.
        width_of: width of an item.
        gap: least space between two items of a row.
    """
    grid, ways = _grid(row_of, edges)
    _order(grid)
    widths = {item: width_of(item) if item >= 0 else _STAND_IN_WIDTH for row in grid.rows for item in row}
    centre = _place(grid, widths, gap)
    left = min((centre[item] - widths[item] / 2 for item in centre), default=0.0)
    right = max((centre[item] + widths[item] / 2 for item in centre), default=0.0)
    shifted = {item: place - left for item, place in centre.items()}
    return Drawing(rows=grid.rows, centre=shifted, ways=ways, width=right - left)


def _grid(row_of: Mapping[int, int], edges: Iterable[Edge]) -> tuple[_Grid, dict[Edge, list[int]]]:
    grid = _Grid([[] for _ in range(max(row_of.values(), default=-1) + 1)])
    for item, row in row_of.items():
        grid.rows[row].append(item)
    stand_ins: dict[tuple[int, int], int] = {}
    ways: dict[Edge, list[int]] = {}
    for source, target in edges:
        way = [source]
        for row in range(row_of[source] + 1, row_of[target]):
            number = stand_ins.setdefault((source, row), -1 - len(stand_ins))
            if number not in grid.rows[row]:
                grid.rows[row].append(number)
            way.append(number)
        way.append(target)
        for first, second in pairwise(way):
            grid.link(first, second)
        ways[source, target] = way
    return grid, ways


def _order(grid: _Grid) -> None:
    """Sorts rows by the mean place of the neighbours, alternating downwards and upwards; keeps the best order."""
    best, fewest = [list(row) for row in grid.rows], grid.crossings()
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        rows = grid.rows if downwards else grid.rows[::-1]
        neighbours = grid.above if downwards else grid.below
        for fixed, moving in pairwise(rows):
            place = {item: number for number, item in enumerate(fixed)}
            own = {item: number for number, item in enumerate(moving)}
            moving.sort(key=lambda item: _mean([place[other] for other in neighbours.get(item, [])], own[item]))
        crossings = grid.crossings()
        if crossings < fewest:
            best, fewest = [list(row) for row in grid.rows], crossings
    grid.rows = best


def _mean(places: Sequence[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def _place(grid: _Grid, widths: Mapping[int, float], gap: float) -> dict[int, float]:
    centre: dict[int, float] = {}
    for row in grid.rows:
        # Rows start centred above each other.
        total = sum(widths[item] + gap for item in row)
        edge = -total / 2
        for item in row:
            centre[item] = edge + (widths[item] + gap) / 2
            edge += widths[item] + gap
    for sweep in range(_SWEEPS):
        neighbours = [grid.above, grid.below] if sweep % 2 == 0 else [grid.below, grid.above]
        for row in grid.rows if sweep % 2 == 0 else grid.rows[::-1]:
            wanted = [_wish(item, neighbours, centre) for item in row]
            spaces = [(widths[left] + widths[right]) / 2 + gap for left, right in pairwise(row)]
            # Stand-ins weigh more: a long edge is easiest to read where it is straight.
            weights = [4.0 if item < 0 else 1.0 for item in row]
            centre.update(zip(row, keep_apart(wanted, spaces, weights), strict=True))
    return centre


def _wish(item: int, neighbours: Sequence[Mapping[int, list[int]]], centre: Mapping[int, float]) -> float:
    """Where an item wants to be: over the neighbours it is being aligned with, else over the others."""
    for side in neighbours:
        if side.get(item):
            return _mean([centre[other] for other in side[item]], centre[item])
    return centre[item]


def keep_apart(wanted: Sequence[float], spaces: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Places in the same order, at least ``spaces`` apart, with the least weighted squared distance to those wanted.

    Source: subtracting the spaces turns it into isotonic regression, solved by pooling adjacent violators.
    """
    offsets = [0.0]
    for space in spaces:
        offsets.append(offsets[-1] + space)
    pools: list[tuple[float, float, int]] = []
    for place, offset, weight in zip(wanted, offsets, weights, strict=False):
        pool = (place - offset, weight, 1)
        while pools and pools[-1][0] >= pool[0]:
            mean, mass, count = pools.pop()
            pool = ((mean * mass + pool[0] * pool[1]) / (mass + pool[1]), mass + pool[1], count + pool[2])
        pools.append(pool)
    level = [mean for mean, _, count in pools for _ in range(count)]
    return [value + offset for value, offset in zip(level, offsets, strict=False)]
