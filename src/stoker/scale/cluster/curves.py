"""A job's rate over the CPUs that work for it: concave, by breakpoints, and learned from the state of its queue.

Rates are shares of full speed, which is the speed of the training workers when their queue is never empty. Knows
nothing about nodes or other jobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

TRIAL_GROWTH = 2.0
"""Beyond the most CPUs that were measured, a starved job is believed to gain up to so many times as many."""
STARVED, BLOCKED = 0.02, 0.02
"""Shares of time below which a queue counts as never empty, or never full."""
GAIN_FRAC = 0.05
"""More CPUs that raise the rate by less than this share of itself do not count as a gain."""
FORGET_S = 600.0
"""A measurement older than this is dropped once a newer one of another number contradicts it."""


@dataclass(frozen=True)
class RateCurve:
    """A concave, piecewise linear rate that begins at no CPUs and no rate, and is flat after its last breakpoint."""

    points: tuple[tuple[float, float], ...]
    """``(cpus, rate)``, both rising, the slopes falling; rates in (0, 1]."""

    def __post_init__(self) -> None:
        previous, slope = (0.0, 0.0), math.inf
        for cpus, rate in self.points:
            if cpus <= previous[0] or rate <= previous[1]:
                raise ValueError(f"`points` must rise from (0, 0), got {(cpus, rate)} after {previous}")
            own = (rate - previous[1]) / (cpus - previous[0])
            if own > slope * (1 + 1e-9):
                raise ValueError(f"`points` must be concave, got a slope of {own:g} after {slope:g}")
            previous, slope = (cpus, rate), own
        if not self.points:
            raise ValueError("`points` must hold at least one breakpoint, got none")

    @property
    def need_cpus(self) -> float:
        """The CPUs beyond which none gains."""
        return self.points[-1][0]

    def rate(self, cpus: float) -> float:
        """The rate with so many CPUs."""
        before = (0.0, 0.0)
        for point in self.points:
            if cpus < point[0]:
                return before[1] + (point[1] - before[1]) * (cpus - before[0]) / (point[0] - before[0])
            before = point
        return before[1]

    def beyond(self, cpus: float) -> RateCurve | None:
        """The gain of further CPUs for a job that has so many for itself; None where there is none."""
        if cpus >= self.need_cpus:
            return None
        had = self.rate(cpus)
        return RateCurve(tuple((at - cpus, rate - had) for at, rate in self.points if at > cpus))

    def until(self, cpus: float) -> RateCurve | None:
        """The curve of a job that uses at most so many CPUs; None for none."""
        if cpus >= self.need_cpus:
            return self
        kept = tuple(point for point in self.points if point[0] < cpus)
        return RateCurve((*kept, (cpus, self.rate(cpus)))) if cpus > 0 else None


def linear(need_cpus: float) -> RateCurve:
    """A rate in proportion to the CPUs until full speed at ``need_cpus``: items that cost the same each."""
    return RateCurve(((need_cpus, 1.0),))


def concave(points: list[tuple[float, float]]) -> RateCurve:
    """The smallest concave curve over points, which may be in any order and need not be concave."""
    hull: list[tuple[float, float]] = [(0.0, 0.0)]
    for point in sorted(points):
        if point[0] <= 0.0 or point[1] <= hull[-1][1]:
            continue
        # Points on one line are one segment: what is held of it counts for all of it.
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], point) * (1.0 + 1e-12):
            hull.pop()
        if point[0] == hull[-1][0]:
            hull.pop()
        hull.append(point)
    return RateCurve(tuple(hull[1:]))


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0]) if other[0] > one[0] else math.inf


@dataclass(frozen=True)
class _Measured:
    """What a number of CPUs came to."""

    samples_per_s: float
    starved_frac: float
    blocked_frac: float
    at_s: float
    computing_frac: float | None = None


@dataclass
class CurveEstimate:
    """The curve of a live job, from what its queue showed at each number of CPUs.

    Starved: one more gains. Blocked: the CPUs in use are more than it needs. What was never measured is believed
    optimistically, so that it is tried.

    Source: GoldMiner (SIGMOD 2023), the rule of the job scaler; its reading as a curve is ours.
    """

    _measured: dict[int, _Measured] = field(default_factory=dict[int, _Measured])

    @property
    def is_measured(self) -> bool:
        """Whether anything was observed."""
        return bool(self._measured)

    def observe(
        self,
        cpus: int,
        samples_per_s: float,
        *,
        starved_frac: float,
        blocked_frac: float,
        now_s: float,
        computing_frac: float | None = None,
    ) -> None:
        """Takes in a window of the job with ``cpus`` CPUs at work.

        Args:
            cpus: at work in the whole window; at least 1.
            samples_per_s: delivered.
            starved_frac: share of steps that found the queue empty.
            blocked_frac: share of time in which workers found it full.
            now_s: end of the window.
            computing_frac: share of time in which the training workers did not wait for input, if known: then the full
                speed is known before enough CPUs for it were tried.
        """
        if cpus < 1:
            raise ValueError(f"`cpus` must be at least 1, got {cpus}")
        new = _Measured(samples_per_s, starved_frac, blocked_frac, now_s, computing_frac)
        old = self._measured.items()
        self._measured = {at: each for at, each in old if not _contradicts(at, each, cpus, new)} | {cpus: new}

    def curve(self, share_cpus: int) -> RateCurve:
        """The curve as it is believed; before anything was measured, twice the node's own share is worth a trial."""
        if not self._measured:
            return linear(max(1.0, TRIAL_GROWTH * share_cpus))
        top = max(self._measured)
        last = self._measured[top]
        starved = last.starved_frac > STARVED and last.blocked_frac <= BLOCKED
        if starved and last.computing_frac and last.samples_per_s > 0.0:
            return self._towards_full_speed(top, last.samples_per_s / last.computing_frac)
        per_cpu = last.samples_per_s / top
        if starved:
            reach = math.ceil(TRIAL_GROWTH * top)
            whole = max(per_cpu * reach, 1e-12)
        else:
            # Workers that find the queue full are spare: the rest of them would do.
            reach = max(1, math.ceil(top * (1.0 - last.blocked_frac)))
            whole = max(last.samples_per_s, 1e-12)
        points = [
            (float(at), min(1.0, each.samples_per_s / whole))
            for at, each in self._measured.items()
            if at < reach and each.samples_per_s > 0.0
        ]
        return concave([*points, (float(reach), 1.0)])

    def _towards_full_speed(self, top: int, full: float) -> RateCurve:
        """The curve below a known full speed: beyond what was measured it rises as it did last, since it is concave."""
        rates = [(float(at), min(1.0, each.samples_per_s / full)) for at, each in self._measured.items()]
        measured = concave(rates)
        (before, low), (last, high) = ((0.0, 0.0), *measured.points)[-2:]
        if high < low * (1.0 + GAIN_FRAC) or last < top:
            # What was added last brought nothing.
            return RateCurve(measured.points[:-1]) if last == top else measured
        slope = (high - low) / (last - before)
        reach = math.ceil(last + (1.0 - high) / slope - 1e-6)
        return concave([*measured.points, (float(reach), min(1.0, high + slope * (reach - last)))])


def _contradicts(at: int, old: _Measured, cpus: int, new: _Measured) -> bool:
    """Whether an old measurement cannot be true next to a new one, or is too old."""
    if at == cpus:
        return True
    faster_with_less = at < cpus and old.samples_per_s > new.samples_per_s * 1.1
    slower_with_more = at > cpus and old.samples_per_s < new.samples_per_s * 0.9
    stale = new.at_s - old.at_s > FORGET_S
    return faster_with_less or slower_with_more or (stale and at > cpus and new.starved_frac > STARVED)
