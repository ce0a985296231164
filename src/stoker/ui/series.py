"""A loader's course over time, thinned to what a plot can show. Pure: records in, points out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.records.events import IterationStarted, Progress, WorkersChanged
from stoker.records.runlog import Run
from stoker.ui.windows import RecordedWindow, between, monotone

MAX_POINTS = 120
"""More points than this are finer than a plot of some hundred pixels."""
_MIN_STEP_S = 0.5
"""Shorter spans hold too few batches to make a rate of."""
_GAP_S = 5.0
"""A span in which the loader was idle for longer than this is drawn as a gap (validation, checkpoints)."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One span of a loader's course."""

    from_s: float
    to_s: float
    window: RecordedWindow
    ready: int
    capacity: int
    workers: int

    @property
    def middle_s(self) -> float:
        """Where the span's figures are drawn."""
        return (self.from_s + self.to_s) / 2


@dataclass(frozen=True, kw_only=True)
class WorkerStep:
    """The number of data workers from this time on."""

    t_s: float
    workers: int
    reason: str


def pieces(run: Run, loader: int) -> list[list[Point]]:
    """The loader's course as unbroken stretches of points."""
    records = monotone([event for event in run.events if isinstance(event, Progress) and event.loader == loader])
    thinned = _thin(records)
    stretches: list[list[Point]] = [[]]
    for first, last in zip([None, *thinned], thinned, strict=False):
        window = between(first, last)
        if window is None:
            continue
        # If the loader paused within the span, its steps are drawn at the end of the span.
        from_s = max(window.from_s, window.to_s - 1.05 * window.active_s)
        if first is not None and from_s - window.from_s > _GAP_S:
            stretches.append([])
        stretches[-1].append(
            Point(
                from_s=from_s,
                to_s=window.to_s,
                window=window,
                ready=last.ready,
                capacity=last.capacity,
                workers=last.workers,
            )
        )
    return [stretch for stretch in stretches if stretch]


def worker_steps(run: Run, loader: int) -> list[WorkerStep]:
    """Every change of the number of data workers, with the policy's reason where it was one."""
    steps: list[WorkerStep] = []
    for event in run.events:
        if not isinstance(event, IterationStarted | WorkersChanged | Progress) or event.loader != loader:
            continue
        if isinstance(event, Progress) and event.workers == 0 and steps:
            # The last record of an iteration may be taken after the workers have gone; that is no decision.
            continue
        reason = event.reason if isinstance(event, WorkersChanged) else ""
        if not steps or steps[-1].workers != event.workers:
            steps.append(WorkerStep(t_s=event.t_s, workers=event.workers, reason=reason))
    return steps


def _thin(records: Sequence[Progress]) -> list[Progress]:
    """At most ``MAX_POINTS`` records, evenly in time; counters are cumulative, so no change is lost."""
    if not records:
        return []
    begin_s, end_s = records[0].t_s, records[-1].t_s
    step_s = max(_MIN_STEP_S, (end_s - begin_s) / MAX_POINTS)
    times = [record.t_s for record in records]
    kept: list[Progress] = []
    position = 0
    while position < len(records):
        kept.append(records[position])
        position = max(position + 1, bisect_right(times, records[position].t_s + step_s * 0.999))
    if kept[-1] is not records[-1]:
        kept.append(records[-1])
    return kept
