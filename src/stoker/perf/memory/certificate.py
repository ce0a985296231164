"""Whether a plan of an arena is the smallest that there is: a mixed-integer program where the live bound is missed.

Most plans reach the bound, and need none. Where a plan does not, two buffers that are alive together lie one above the
other, in either order: a program with one choice for each such pair, solved by HiGHS. With too many pairs it would not
end, and nothing is proven.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stoker.core.extras import require
from stoker.core.placement.offsets import ALIGNED, Placement

LIMIT_S = 10.0
"""Seconds that a certificate may take (assumed: what a person waits for)."""
_MOST_PAIRS = 400
"""Choices above which HiGHS seldom ends within the limit."""


@dataclass(frozen=True, slots=True)
class PlanProof:
    """What is known about the smallest plan.

    Attributes:
        placement: the smallest plan that was found.
        bound: bytes below which no plan can be.
    """

    placement: Placement
    bound: int

    @property
    def is_optimal(self) -> bool:
        """Whether no plan is smaller than this one."""
        return self.placement.size <= self.bound


def certify(lives: Sequence[tuple[int, int, int]], placement: Placement, *, limit_s: float = LIMIT_S) -> PlanProof:
    """A proof that a plan is the smallest, or the best bound that was found; a smaller plan if there is one.

    Args:
        lives: that were placed, as for :func:`~stoker.core.placement.offsets.place_buffers`.
        placement: of them.
        limit_s: seconds after which the search ends with what it knows.

    Raises:
        MissingExtraError: the bound is missed and scipy is not installed.
    """
    if placement.size <= placement.bound:
        return PlanProof(placement, placement.bound)
    taken = [place for place, (nbytes, _, _) in enumerate(lives) if nbytes]
    pairs = _pairs([lives[place] for place in taken])
    solved = None
    if pairs is not None:
        solved = _solve([-(-lives[place][0] // ALIGNED) for place in taken], pairs, placement, limit_s)
    if solved is None:
        return PlanProof(placement, placement.bound)
    places, least = solved
    if places is not None:
        offsets = [0] * len(lives)
        for place, at in zip(taken, places, strict=True):
            offsets[place] = at * ALIGNED
        size = max(at + -(-lives[place][0] // ALIGNED) * ALIGNED for place, at in enumerate(offsets))
        if size < placement.size and _is_valid(lives, offsets):
            placement = replace(placement, offsets=tuple(offsets), size=size)
    return PlanProof(placement, min(max(placement.bound, least * ALIGNED), placement.size))


def _pairs(lives: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]] | None:
    """Pairs of buffers that are alive together; None if there are too many."""
    found: list[tuple[int, int]] = []
    for two, (_, birth, death) in enumerate(lives):
        found += [(one, two) for one in range(two) if lives[one][1] < death and birth < lives[one][2]]
        if len(found) > _MOST_PAIRS:
            return None
    return found


def _solve(
    sizes: Sequence[int], pairs: Sequence[tuple[int, int]], placement: Placement, limit_s: float
) -> tuple[list[int] | None, int] | None:
    """Places if some were found, and the units below which no plan is; None if nothing was proven."""
    optimize: Any = require("scipy.optimize", extra="plan")
    sparse: Any = require("scipy.sparse", extra="plan")
    most, count = placement.size // ALIGNED, len(sizes)
    # Places of all buffers, the top, and for each pair whether its first buffer lies below.
    width = count + 1 + len(pairs)
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    least: list[float] = []

    def add(terms: Sequence[tuple[int, float]], at_least: float) -> None:
        for column, value in terms:
            rows.append(len(least))
            columns.append(column)
            values.append(value)
        least.append(at_least)

    for each, size in enumerate(sizes):
        add([(count, 1.0), (each, -1.0)], size)
    for place, (one, two) in enumerate(pairs):
        below = count + 1 + place
        add([(two, 1.0), (one, -1.0), (below, -float(most))], sizes[one] - most)
        add([(one, 1.0), (two, -1.0), (below, float(most))], sizes[two])
    matrix = sparse.csr_matrix((values, (rows, columns)), shape=(len(least), width))
    upper = np.array([*(most - size for size in sizes), most, *([1] * len(pairs))], dtype=float)
    lower = np.zeros(width)
    lower[count] = placement.bound // ALIGNED
    cost = np.zeros(width)
    cost[count] = 1.0
    found = optimize.milp(
        cost, constraints=optimize.LinearConstraint(matrix, np.array(least), np.inf),
        bounds=optimize.Bounds(lower, upper), integrality=np.array([1] * width),
        options={"time_limit": limit_s, "mip_rel_gap": 0.0},
    )  # fmt: skip
    dual = getattr(found, "mip_dual_bound", None)
    if found.status == 2 or dual is None or not math.isfinite(dual):
        return None
    # A solver's numbers are inexact: a unit counts as proven only if it is well above the one before.
    proven = math.ceil(float(dual) - 1e-3)
    places = None if found.x is None else [round(float(each)) for each in found.x[:count]]
    return places, proven


def _is_valid(lives: Sequence[tuple[int, int, int]], offsets: Sequence[int]) -> bool:
    """Whether no two buffers that are alive together overlap: what a solver says is looked at once more."""
    order = sorted(range(len(lives)), key=lambda place: offsets[place])
    for at, one in enumerate(order):
        nbytes, birth, death = lives[one]
        end = offsets[one] + nbytes
        for two in order[at + 1 :]:
            if offsets[two] >= end:
                break
            if nbytes and lives[two][0] and lives[two][1] < death and birth < lives[two][2]:
                return False
    return True
