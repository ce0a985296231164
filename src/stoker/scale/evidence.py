"""What a job's queue has shown so far: windows of observation, and the figures drawn from them.

Owns the statistics of the job autoscaler (means with their uncertainty, change points, pauses of the program). It
decides nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.feed.scaling import Observation

MEMORY_S = 30.0
"""Windows older than this are forgotten: long enough to average items that vary a lot, short enough to follow drift."""
STEP_CLIP = 5.0
"""A window's mean step counts at most this many times the median: a checkpoint or an evaluation is no step."""
PAUSE_S = 1.0
"""A silence shorter than this is never a pause."""
GAP_S = 0.1
"""A longer gap between two windows means that another iteration has begun."""
SHIFT_RATIO = 1.4
SHIFT_SIGMAS = 5.0
RECENT_WINDOWS = 4
UNKNOWN_CV = 0.5
"""Assumed variation of single values while fewer than three windows have been seen."""


@dataclass(frozen=True)
class Estimate:
    """A mean of ``count`` values and how much single values vary around it."""

    mean: float
    cv: float
    """Standard deviation of single values over their mean."""
    count: int

    @property
    def error_frac(self) -> float:
        """Relative standard error of the mean."""
        return self.cv / math.sqrt(self.count) if self.count else math.inf


@dataclass(frozen=True)
class ObservedWindow:
    """One observation with the time it covers."""

    observation: Observation
    length_s: float

    @property
    def silent(self) -> bool:
        """The program neither took a batch nor waited for one."""
        return self.observation.steps == 0 and not self.observation.waiting


QUEUE_MOVES = 0.25
"""If items made and delivered differ by more than this share of the larger, the queue between fills or empties."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A job under one number of workers and one depth, once the effect of the last change has settled."""

    workers: float
    """Mean number of data workers."""
    span_s: float
    total_s: float
    """Time that the program waited or worked, without long pauses."""
    windows: int
    steps: int
    items: int
    wait_frac: float
    """Share of ``total_s`` that the program waited for batches to be made: what more workers can shorten."""
    handover_frac: float = 0.0
    """Share that it waited for stoker's own work on finished batches: what more workers cannot shorten."""
    blocked_frac: float
    step: Estimate
    wall: Estimate
    cpu_s: float
    """Mean CPU time of an item."""
    stall_s: float | None = None
    """Mean time that an item waited for a core; None when unknown."""

    @property
    def input_wait_frac(self) -> float:
        """Input wait as reports show it."""
        return min(1.0, self.wait_frac + self.handover_frac)

    @property
    def step_s(self) -> float:
        """Time of the program between two batches apart from waiting: its steps, and the loader's own overhead."""
        return self.total_s * (1.0 - self.wait_frac) / self.steps if self.steps else 0.0

    @property
    def rate(self) -> float:
        """Batches delivered per second while the program is not pausing."""
        return self.steps / self.total_s

    @property
    def pace(self) -> float:
        """Items that the busy workers make per second, from the items' own time: unaffected by bunched deliveries."""
        return self.workers * (1.0 - self.blocked_frac) / self.wall.mean if self.wall.mean > 0.0 else 0.0

    @property
    def cores(self) -> float:
        """CPU cores that the data workers use."""
        if self.wall.mean <= 0.0:
            return 0.0
        return self.workers * (1.0 - self.blocked_frac) * self.cpu_s / self.wall.mean

    @property
    def cpu_frac(self) -> float:
        """CPU time over wall time of an item that never waits for a core; 1.0 when unknown, to be careful."""
        wall_s = max(self.wall.mean - (self.stall_s or 0.0), self.cpu_s)
        return self.cpu_s / wall_s if wall_s > 0.0 else 1.0

    @property
    def needed(self) -> float:
        """Data workers that would be busy if the program never waited.

        Work is conserved: ``workers * (1 - blocked) / effective item time = (1 - wait) / step``, so the ratio of
        effective item time (leases and transport included) to step needs no clock in the workers. While a queue fills
        or, after workers were removed, empties, this does not hold: then the workers' own clocks give the item time.
        """
        moving = abs(self.items - self.steps) > QUEUE_MOVES * max(self.items, self.steps)
        if self.wait_frac >= 0.9 or self.items == 0 or moving:
            return self.wall.mean / self.step_s if self.step_s > 0.0 else math.inf
        return self.workers * (1.0 - self.blocked_frac) / (1.0 - self.wait_frac)


class WindowHistory:
    """Windows of the last half minute, trimmed at change points; settled views of them."""

    def __init__(self) -> None:
        self._windows: list[ObservedWindow] = []
        self._pending: list[ObservedWindow] = []
        self._last_s: float | None = None
        self._settled_from_s: float | None = None
        self._asked: int = 0
        self._asked_at_s: float | None = None
        self._delivered = False

    def restart(self, workers: int) -> None:
        """Starts a new iteration: its first batches come late with any number of workers."""
        self._delivered = False
        self._last_s = None
        self._pending.clear()
        self.expect(workers, None)

    def expect(self, workers: int, now_s: float | None) -> None:
        """Starts a new view: ``workers`` is the wanted number from ``now_s`` on."""
        self._asked, self._asked_at_s, self._settled_from_s = workers, now_s, None

    def observe(self, observation: Observation) -> None:
        """Adds a window; the first of an iteration only sets the clock."""
        last_s, self._last_s = self._last_s, observation.now_s
        begun_s = observation.now_s - observation.window_s - observation.paused_s
        if last_s is not None and observation.window_s and begun_s > last_s + GAP_S:
            self.restart(self._asked)
        self._delivered = self._delivered or observation.steps > 0
        length_s = observation.window_s or (observation.now_s - last_s if last_s is not None else 0.0)
        if length_s <= 0.0:
            return
        self._settle(observation)
        window = ObservedWindow(observation, length_s)
        if window.silent:
            self._pending.append(window)
            return
        self._windows += [*self._unless_pause(), window]
        self._pending.clear()
        self._trim()

    @property
    def silent_s(self) -> float:
        """How long the program has neither taken a batch nor waited for one."""
        return sum(window.length_s for window in self._pending)

    def view(self) -> View | None:
        """The settled windows since the last change; None when there are none yet."""
        start_s = self._settled_from_s
        if start_s is None:
            return None
        return _view([w for w in self._windows if w.observation.now_s - w.length_s >= start_s - 1e-9])

    def whole(self) -> View | None:
        """All remembered windows, also those before the last change: for item and step times, not the queue."""
        return _view(self._windows)

    def _settle(self, observation: Observation) -> None:
        if self._settled_from_s is not None or not self._delivered:
            return
        if self._asked_at_s is None:
            self._asked_at_s = observation.now_s
        late = observation.now_s - self._asked_at_s >= 3.0
        if observation.workers == self._asked or late:
            recent = [w.observation.item_wall_s for w in self._windows[-8:] if w.observation.items]
            wall_s = statistics.fmean(recent) if recent else observation.item_wall_s
            self._settled_from_s = observation.now_s + max(0.2, min(1.5 * wall_s, 10.0))

    def _unless_pause(self) -> list[ObservedWindow]:
        """The silent windows, if they are just a part of slow steps."""
        steps = [w.observation.step_s for w in self._windows if w.observation.steps]
        longest_s = max(PAUSE_S, 4.0 * statistics.median(steps)) if steps else PAUSE_S
        return self._pending if self.silent_s <= longest_s else []

    def _trim(self) -> None:
        now_s = self._windows[-1].observation.now_s
        self._windows = [w for w in self._windows if w.observation.now_s > now_s - MEMORY_S]
        workers = self._windows[-1].observation.workers
        steps = [(i, w.observation.step_s, w.observation.steps) for i, w in enumerate(self._windows)]
        walls = [
            (i, w.observation.item_wall_s, w.observation.items if w.observation.workers == workers else 0)
            for i, w in enumerate(self._windows)
        ]
        first = max(_shift(steps), _shift(walls))
        if first:
            self._windows = self._windows[first:]


def estimate(points: Sequence[tuple[float, int]]) -> Estimate:
    """Mean and variation of single values from window means ``(mean, count)``.

    A mean of k values varies by sigma / sqrt(k), so weighted squares of window means give back sigma.
    """
    used = [(mean, count) for mean, count in points if count > 0]
    total = sum(count for _, count in used)
    if not total:
        return Estimate(0.0, UNKNOWN_CV, 0)
    mean = sum(m * k for m, k in used) / total
    if len(used) < 3 or mean <= 0.0:
        return Estimate(mean, UNKNOWN_CV, total)
    variance = _squares(used, mean) / (len(used) - 1)
    return Estimate(mean, math.sqrt(variance) / mean, total)


def _squares(points: Sequence[tuple[float, int]], mean: float) -> float:
    return sum(count * (value - mean) ** 2 for value, count in points)


def _shift(series: Sequence[tuple[int, float, int]]) -> int:
    """Index of the first window after a change of the mean, 0 where there is none.

    Compares the last windows with all before them: another mean by ``SHIFT_RATIO``, and by ``SHIFT_SIGMAS`` standard
    errors. Items that vary a lot need more of them; a single long step is mostly variance and so changes nothing.
    """
    used = [(index, mean, count) for index, mean, count in series if count > 0]
    if len(used) < 2 * RECENT_WINDOWS:
        return 0
    recent, before = used[-RECENT_WINDOWS:], used[:-RECENT_WINDOWS]
    new = [(mean, count) for _, mean, count in recent]
    old = [(mean, count) for _, mean, count in before]
    num_new, num_old = sum(k for _, k in new), sum(k for _, k in old)
    new_mean = sum(m * k for m, k in new) / num_new
    old_mean = sum(m * k for m, k in old) / num_old
    if max(new_mean, old_mean) <= SHIFT_RATIO * min(new_mean, old_mean):
        return 0
    variance = (_squares(new, new_mean) + _squares(old, old_mean)) / (len(used) - 2)
    error = math.sqrt(variance * (1.0 / num_new + 1.0 / num_old))
    return recent[0][0] if abs(new_mean - old_mean) > SHIFT_SIGMAS * error else 0


def _view(windows: Sequence[ObservedWindow]) -> View | None:
    windows = _without_pauses(windows)
    if not windows:
        return None
    seen = [w.observation for w in windows]
    step = _steps(seen)
    wall = estimate([(o.item_wall_s, o.items) for o in seen])
    worker_s = sum(w.length_s * max(w.observation.workers, 1) for w in windows)
    blocked_s = sum(w.length_s * max(w.observation.workers, 1) * w.observation.blocked_frac for w in windows)
    handover_s = sum(w.length_s * w.observation.handover_frac for w in windows)
    wait_s = sum(w.length_s * w.observation.input_wait_frac for w in windows) - handover_s
    span_s = sum(w.length_s for w in windows)
    total_s = max(span_s, wait_s + step.mean * step.count)
    return View(
        workers=worker_s / span_s,
        span_s=span_s,
        total_s=total_s,
        windows=len(windows),
        steps=step.count,
        items=wall.count,
        wait_frac=wait_s / total_s,
        handover_frac=handover_s / total_s,
        blocked_frac=blocked_s / worker_s,
        step=step,
        wall=wall,
        cpu_s=sum(o.item_cpu_s * o.items for o in seen) / max(wall.count, 1),
        stall_s=_stall_s(seen),
    )


def _without_pauses(windows: Sequence[ObservedWindow]) -> list[ObservedWindow]:
    """The windows except those that a pause filled, which a feed that observes inside ``next()`` reports as a step."""
    steps = [w.observation.step_s for w in windows if w.observation.steps]
    longest_s = max(PAUSE_S, STEP_CLIP * statistics.median(steps)) if steps else math.inf
    return [w for w in windows if w.length_s <= PAUSE_S or w.observation.step_s * w.observation.steps <= longest_s]


def _stall_s(seen: Sequence[Observation]) -> float | None:
    items = sum(o.items for o in seen)
    if not items or any(o.items and o.item_stall_s < 0.0 for o in seen):
        return None
    return sum(o.item_stall_s * o.items for o in seen) / items


def _steps(seen: Sequence[Observation]) -> Estimate:
    means = [o.step_s for o in seen if o.steps]
    clip = STEP_CLIP * statistics.median(means) if means else 0.0
    return estimate([(min(o.step_s, clip), o.steps) for o in seen])
