"""Dividing CPUs among claims: floors first, then by worth, by class of priority, within quotas, the rest borrowed.

Pure and on columns: a pass costs a sort. Nodes are not looked at here; amounts are placed on them elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.scale.cluster.objectives import OBJECTIVES, PRIOR_S, Objective, worth_of_rates
from stoker.scale.cluster.state import Claims, FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class DivisionConfig:
    """How CPUs are divided."""

    objective: Objective = "jct"
    floor_frac: float = 0.0
    """Part of its node's own share that a job keeps whatever others would gain. In [0, 1]."""
    hysteresis: float = 2.0
    """A CPU moves only to where it is worth so many times as much. At least 1. Tried: 1 to 4; jobs that share in turns
    all end late, so that 2 is better than 1 also without costs of moves."""
    prior_s: float = PRIOR_S
    """Work that a job is believed to have left at its start."""
    quotas: Sequence[float] | None = None
    """CPUs by number of the user; None: all is common."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"`objective` must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}")
        if not 0.0 <= self.floor_frac <= 1.0:
            raise ValueError(f"`floor_frac` must be from 0 to 1, got {self.floor_frac}")
        if not self.hysteresis >= 1.0:
            raise ValueError(f"`hysteresis` must be at least 1, got {self.hysteresis}")


def divide(claims: Claims, capacity: float, now_s: float, config: DivisionConfig) -> FloatArray:
    """CPUs for each claim: never more than it can use, together never more than ``capacity``.

    No CPU stays idle while a claim would gain by it. Each claim gets at least as much from a larger capacity.
    """
    widths = claims.widths
    need = widths.sum(axis=1) if widths.shape[1] > 1 else widths[:, 0]
    # A method's own sum takes twice as long for a few hundred jobs.
    if np.add.reduce(need) <= capacity:
        return need.copy()
    floors, total = np.zeros(len(need)), 0.0
    if config.floor_frac:
        floors = np.minimum(config.floor_frac * claims.share_cpus, need)
        if (total := float(floors.sum())) > capacity:
            floors, total = floors * (capacity / total), capacity
    if config.objective == "max-min":
        if config.floor_frac:
            return _level_above(floors, need, capacity, claims.weight)
        return _level(need, capacity, claims.weight)
    rest = _beyond(widths, floors) if config.floor_frac else widths
    order = _order(claims, now_s, config)
    taken = _fill(rest.ravel()[order], order, capacity - total, claims, config.quotas, floors)
    amounts = np.empty(widths.size)
    amounts[order] = taken
    if widths.shape[1] > 1:
        amounts = amounts.reshape(widths.shape).sum(axis=1)
    return floors + amounts if config.floor_frac else amounts


def _beyond(widths: FloatArray, floors: FloatArray) -> FloatArray:
    """Segments without their part below the floors."""
    before = np.cumsum(widths, axis=1) - widths
    return widths - np.minimum(np.maximum(floors[:, None] - before, 0.0), widths)


def _order(claims: Claims, now_s: float, config: DivisionConfig) -> IntArray:
    """Segments, as numbers in the flattened columns, in the order in which they get CPUs."""
    worth = worth_of_rates(claims, now_s, config.objective, config.prior_s)
    segments = claims.widths.shape[1]
    if config.objective == "first-come":
        keys = np.repeat(worth, segments)
    elif config.objective == "fair":
        # Whom it is owed most goes first, whatever its CPUs bring; its own segments are in order by a stable sort.
        np.multiply(worth, config.hysteresis, out=worth, where=claims.held_cpus > 0.0)
        keys = np.repeat(worth, segments)
    elif segments == 1:
        keys = claims.slopes[:, 0] * worth
        np.multiply(keys, config.hysteresis, out=keys, where=claims.held_cpus > 0.0)
    else:
        keys = claims.slopes * worth[:, None]
        held = claims.held_cpus[:, None] > np.cumsum(claims.widths, axis=1) - claims.widths
        np.multiply(keys, config.hysteresis, out=keys, where=held)
        keys = keys.ravel()
    np.negative(keys, out=keys)
    if np.count_nonzero(claims.priority):
        return np.lexsort((keys, -np.repeat(claims.priority, segments)))
    return np.argsort(keys, kind="stable")


def _fill(
    widths: FloatArray,
    order: IntArray,
    capacity: float,
    claims: Claims,
    quotas: Sequence[float] | None,
    floors: FloatArray,
) -> FloatArray:
    """CPUs for each segment of the order: within quotas first, what is left to all."""
    if quotas is None:
        return _first(widths, capacity)
    users = np.repeat(claims.user, claims.widths.shape[1])[order]
    left = np.maximum(np.asarray(quotas, dtype=np.float64) - np.bincount(claims.user, floors, len(quotas)), 0.0)
    own = _first(_within(widths, users, left), capacity)
    return own + _first(widths - own, capacity - float(own.sum()))


def _first(widths: FloatArray, capacity: float) -> FloatArray:
    """As much of each as the capacity allows, the first first."""
    ends = np.cumsum(widths)
    return np.minimum(np.maximum(capacity - (ends - widths), 0.0), widths)


def _within(widths: FloatArray, users: IntArray, quotas: FloatArray) -> FloatArray:
    """As much of each as its user's quota allows, the first first."""
    by_user = np.argsort(users, kind="stable")
    sorted_widths, sorted_users = widths[by_user], users[by_user]
    ends = np.cumsum(sorted_widths)
    begins = np.searchsorted(sorted_users, sorted_users)
    before = ends - sorted_widths - (ends - sorted_widths)[begins]
    found = np.empty_like(widths)
    found[by_user] = np.minimum(np.maximum(quotas[sorted_users] - before, 0.0), sorted_widths)
    return found


def _level(need: FloatArray, capacity: float, weight: FloatArray) -> FloatArray:
    """Max-min fair amounts, of a capacity that is less than the need: all at one level for each unit of weight."""
    order = np.argsort(need / weight, kind="stable")
    needs, weights = need[order], weight[order]
    # The level if all before a claim were satisfied, and it and all behind it shared the rest.
    levels = (capacity - (np.cumsum(needs) - needs)) / np.cumsum(weights[::-1])[::-1]
    level = levels[int((needs > levels * weights).argmax())]
    return np.minimum(need, level * weight)


def _level_above(floors: FloatArray, need: FloatArray, capacity: float, weight: FloatArray) -> FloatArray:
    """The same above floors: claims whose floor is above the level have that."""
    # The level is between two of the points at which a claim leaves its floor or is satisfied.
    points = np.unique(np.concatenate([floors / weight, need / weight]))
    low, high = 0, len(points) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if _at_level(points[middle], need, floors, weight).sum() <= capacity:
            low = middle
        else:
            high = middle
    below = _at_level(points[low], need, floors, weight)
    above = _at_level(points[high], need, floors, weight)
    step = float((above - below).sum())
    frac = min(1.0, max(0.0, (capacity - float(below.sum())) / step)) if step > 0.0 else 0.0
    return below + frac * (above - below)


def _at_level(level: float, need: FloatArray, floors: FloatArray, weight: FloatArray) -> FloatArray:
    return np.minimum(need, np.maximum(floors, level * weight))
