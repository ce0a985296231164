"""What the allocator knows of jobs whose curves it has to learn: the live estimate, from simulated queues.

A row is a slot of the engine. What was never measured is tried, as on a cluster, so that a job's first grants are not
those of its true curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from stoker.scale.cluster.curves import CurveEstimate, RateCurve
from stoker.scale.cluster.state import Claims, FloatArray


@dataclass
class _Known:
    """A job that runs."""

    share_cpus: float
    cap: float
    """The most CPUs that it can use, whatever its curve is believed to be."""
    estimate: CurveEstimate = field(default_factory=CurveEstimate)
    curve: RateCurve | None = None
    due_s: float = math.inf
    """When its queue has been seen with the CPUs that it has now."""


class CurveLearner:
    """Believed curves of the jobs that run.

    Args:
        window_s: time for which a queue is watched, once all CPUs of its job work.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._known: dict[int, _Known] = {}

    def begin(self, slot: int, share_cpus: float, cap: float) -> None:
        """A job begins, of which nothing is known."""
        known = self._known[slot] = _Known(share_cpus, cap)
        self._believe(known)

    def end(self, slot: int) -> None:
        """It has ended, or was preempted."""
        self._known.pop(slot, None)

    def observe(self, now_s: float, claims: Claims, rate: FloatArray) -> None:
        """Takes in the queues that have been watched for long enough.

        Args:
            now_s: the time.
            claims: of the slots, with their true curves and what they hold.
            rate: true rates of the slots, as shares of full speed.
        """
        for slot, known in self._known.items():
            if known.due_s > now_s:
                continue
            known.due_s = math.inf
            cpus = int(claims.held_cpus[slot])
            if cpus < 1:
                continue
            full = float(rate[slot])
            need = float(claims.widths[slot].sum())
            known.estimate.observe(
                cpus, full, starved_frac=float(full < 1.0 - 1e-9), blocked_frac=max(0.0, 1.0 - need / cpus),
                now_s=now_s, computing_frac=full,
            )  # fmt: skip
            self._believe(known)

    def watch(self, before: FloatArray, after: FloatArray, works_s: FloatArray) -> None:
        """CPUs were divided: where a job's changed, its queue is watched once they work.

        Args:
            before: CPUs that slots had.
            after: CPUs that they have.
            works_s: when all of them work.
        """
        for slot, known in self._known.items():
            if before[slot] != after[slot]:
                known.due_s = float(works_s[slot]) + self._window_s

    @property
    def next_s(self) -> float:
        """When the next queue has been watched for long enough."""
        return min((known.due_s for known in self._known.values()), default=math.inf)

    def believed(self, claims: Claims) -> Claims:
        """The claims with the curves that are believed."""
        curves = {slot: known.curve.points for slot, known in self._known.items() if known.curve is not None}
        most = max(map(len, curves.values()), default=1)
        widths, slopes = np.zeros((len(claims), most)), np.zeros((len(claims), most))
        for slot, points in curves.items():
            before = (0.0, 0.0)
            for column, (cpus, rate) in enumerate(points):
                widths[slot, column] = cpus - before[0]
                slopes[slot, column] = (rate - before[1]) / (cpus - before[0])
                before = (cpus, rate)
        return replace(claims, widths=widths, slopes=slopes)

    def _believe(self, known: _Known) -> None:
        known.curve = known.estimate.curve(math.ceil(known.share_cpus)).until(known.cap)
