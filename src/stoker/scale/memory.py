"""What the autoscaler has learned about a job, and when it becomes void.

Owns ceilings (more workers brought no gain), floors (fewer starved the program), the delivered rate by number of
workers, and the conditions under which all that was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stoker.scale.evidence import View
from stoker.scale.limits import Limit

NEW_CONDITIONS = 1.5
"""Results are void when the cost of items or steps changes by this factor."""
RETRY_S = 300.0
"""A ceiling is tried again after this long, then after twice as long: what limited the job may be gone."""
NOISE_S = 0.002
"""Costs below this are not compared."""


@dataclass(frozen=True)
class Conditions:
    """What an item and a step cost under some number of workers."""

    step_s: float
    wall_s: float
    cpu_s: float
    sure: bool = False
    """Measured over enough items to be kept as the reference."""

    def differ(self, other: Conditions, factor: float) -> bool:
        """Whether any cost differs by more than ``factor``."""
        pairs = ((self.step_s, other.step_s), (self.wall_s, other.wall_s), (self.cpu_s, other.cpu_s))
        return any(max(pair) > NOISE_S and _apart(*pair, factor) for pair in pairs)


@dataclass(frozen=True)
class Ceiling:
    """A number of workers above which more brought no gain."""

    limit: Limit
    until_s: float
    """When it is to be tried again."""
    cores: float
    """Share of the CPU budget under which it was found; with more it is void."""


class Memory:
    """What holds while items and steps cost about the same; costs are compared only at equal numbers of workers.

    Workers slow each other down, and the program too: a cost that changes together with their number proves nothing.
    """

    def __init__(self) -> None:
        self.ceiling: Ceiling | None = None
        self.floor = 1
        """Fewer workers than this starved the program."""
        self.waits = False
        """More workers than cores were shown to help: items do wait, and not only for a core."""
        self.wall_per_cpu = math.inf
        """Smallest wall over CPU time of an item: what it is without contention for cores."""
        self.rates: dict[int, float] = {}
        """Delivered rate by number of workers."""
        self._wall_per_cpu_at_s = 0.0
        self._conditions: dict[int, Conditions] = {}
        self._retry_s = RETRY_S

    def refresh(self, view: View, workers: int, cores: float, now_s: float) -> bool:
        """Records a view of ``workers``; returns whether conditions are new, which voids earlier results."""
        self._expire(cores, now_s)
        if view.items < 16 or view.steps < 8 or view.windows < 3:
            return False
        forgotten = self._compare(view, workers)
        self._note_wall(view, now_s)
        if view.span_s >= 0.7:
            self.rates[workers] = view.rate
        return forgotten

    def set_ceiling(self, limit: Limit, cores: float, now_s: float) -> None:
        """Remembers that more workers than ``limit`` bring no gain."""
        self.ceiling = Ceiling(limit, now_s + self._retry_s, cores)

    def raise_floor(self, workers: int) -> None:
        """Remembers that fewer than ``workers`` are too few."""
        self.floor = max(self.floor, workers)

    @property
    def known(self) -> bool:
        """Whether any number of workers has been measured."""
        return bool(self._conditions)

    def _expire(self, cores: float, now_s: float) -> None:
        if self.ceiling is None:
            return
        if now_s >= self.ceiling.until_s:
            self._retry_s *= 2.0
            self.ceiling = None
        elif cores > 1.1 * self.ceiling.cores:
            self.ceiling = None

    def _note_wall(self, view: View, now_s: float) -> None:
        """Keeps the current ratio if waits for cores are known, else the smallest for a while: contention passes."""
        if view.cpu_s <= 0.0:
            return
        ratio = 1.0 / view.cpu_frac
        if view.stall_s is not None or ratio <= self.wall_per_cpu or now_s - self._wall_per_cpu_at_s > RETRY_S:
            self.wall_per_cpu, self._wall_per_cpu_at_s = ratio, now_s

    def _compare(self, view: View, workers: int) -> bool:
        now = Conditions(view.step_s, view.wall.mean, view.cpu_s)
        known = self._conditions.setdefault(workers, now)
        doubt = 1.0 + 3.0 * max(view.step.error_frac, view.wall.error_frac)
        if known.differ(now, NEW_CONDITIONS * doubt):
            self._forget(same_cpu=not _apart(known.cpu_s, now.cpu_s, NEW_CONDITIONS))
            self._conditions = {workers: now}
            return True
        if view.wall.error_frac < 0.05 and not known.sure:
            self._conditions[workers] = replace(now, sure=True)
        return False

    def _forget(self, *, same_cpu: bool) -> None:
        self.ceiling = None
        self.floor = 1
        self.waits = False
        self.rates.clear()
        self._retry_s = RETRY_S
        if not same_cpu:
            self.wall_per_cpu = math.inf


def _apart(a: float, b: float, factor: float) -> bool:
    return max(a, b) > factor * min(a, b)
