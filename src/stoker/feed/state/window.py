"""Counters for scaling policies and reports: cumulative ones, and their differences in the current window."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.feed.scaling import Observation
from stoker.feed.state.ledger import Idleness


@dataclass(slots=True)
class Counters:
    """Cumulative over the life of a loader; named as in ``records.events.Progress``."""

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    input_wait_s: float = 0.0
    """Time inside ``iter`` and ``next``, up to the last return from either."""
    asked_s: float | None = None
    """When the request that the program waits for began; None while it does not wait."""
    starved_s: float = 0.0
    """Part of the input wait: the next batch was not made yet. The rest is stoker's own time."""
    starved_steps: int = 0
    worker_busy_s: float = 0.0
    worker_idle_s: float = 0.0
    worker_cpu_s: float = 0.0
    worker_stall_s: float = 0.0
    """Time for which data workers were runnable but had no core."""
    items: int = 0
    items_away: int = 0
    """Those of them that other machines made."""
    step_s: float = 0.0
    """Time the program spent between batches."""
    private_bytes: int = 0
    """Largest private memory of a worker."""
    stalls_known: bool = True
    """Whether the kernel has reported the stall time of every item."""

    def waited_s(self, now_s: float) -> float:
        """The input wait until now, a pending wait included."""
        return self.input_wait_s + (now_s - self.asked_s if self.asked_s is not None else 0.0)

    def copy(self) -> Counters:
        """A snapshot."""
        return Counters(*(getattr(self, name) for name in self.__slots__))


_SUMS = tuple(name for name in Counters.__slots__ if name not in ("asked_s", "private_bytes", "stalls_known"))
"""Counters that add up."""


class Window:
    """Differences of the counters since the window began, and the idle time of each worker.

    Args:
        counters: of the loader.
        now_s: when it begins.
        idleness: of the workers; None without workers.
    """

    def __init__(self, counters: Counters, now_s: float, idleness: Idleness | None = None) -> None:
        self._counters = counters
        self._idleness = idleness if idleness is not None else Idleness()
        self._before = counters.copy()
        self._waited_s = counters.waited_s(now_s)
        self._begun_s = now_s
        self._paused: tuple[float, float, Counters] | None = None
        """When the pause began, with the input wait and the counters at that time."""
        self._paused_s = 0.0

    @property
    def begun_s(self) -> float:
        """When the window began."""
        return self._begun_s

    def span_s(self, now_s: float) -> float:
        """Length so far, without pauses; 0 during a pause, when it must not be closed."""
        return now_s - self._begun_s - self._paused_s if self._paused is None else 0.0

    def pause(self, now_s: float) -> None:
        """Excludes what follows from the window; idempotent."""
        if self._paused is None:
            self.settle(now_s)
            self._paused = now_s, self._counters.waited_s(now_s), self._counters.copy()

    def resume(self, now_s: float) -> None:
        """Continues the window, if it is paused."""
        if self._paused is not None:
            since_s, waited_s, then = self._paused
            self._paused = None
            self._paused_s += now_s - since_s
            idleness = self._idleness
            idleness.since_s.update(dict.fromkeys(idleness.since_s, now_s))  # idle because the work went elsewhere
            idleness.spent_s = 0.0
            self._waited_s += self._counters.waited_s(now_s) - waited_s
            for name in _SUMS:
                during = getattr(self._counters, name) - getattr(then, name)
                setattr(self._before, name, getattr(self._before, name) + during)

    def settle(self, now_s: float) -> None:
        """Adds the idle time of workers to the counters."""
        if self._paused is None:
            self._counters.worker_idle_s += self._idleness.settle(now_s)

    def close(
        self,
        now_s: float,
        *,
        workers: int,
        depth: int,
        batch_bytes: int,
        waiting: bool,
        free_bytes: int = -1,
        away: int = 0,
        away_room: int = 0,
        away_limit: str = "",
    ) -> Observation:
        """Returns what happened in the window and begins the next one."""
        self.settle(now_s)
        now, was = self._counters, self._before
        span_s = max(self.span_s(now_s), 1e-9)
        steps, items = now.batches - was.batches, now.items - was.items
        waited_s = now.waited_s(now_s)
        wait_s, starved_s = waited_s - self._waited_s, now.starved_s - was.starved_s
        seen = Observation(
            now_s=now_s,
            workers=workers,
            depth=depth,
            steps=steps,
            items=items,
            starved_frac=_share(now.starved_steps - was.starved_steps, steps),
            input_wait_frac=_share(wait_s, span_s),
            handover_frac=_share(wait_s - starved_s, span_s),
            blocked_frac=_share(now.worker_idle_s - was.worker_idle_s, span_s * max(workers, 1)),
            step_s=(now.step_s - was.step_s) / steps if steps else 0.0,
            item_wall_s=(now.worker_busy_s - was.worker_busy_s) / items if items else 0.0,
            item_cpu_s=(now.worker_cpu_s - was.worker_cpu_s) / items if items else 0.0,
            item_stall_s=(now.worker_stall_s - was.worker_stall_s) / items if items and now.stalls_known else -1.0,
            batch_bytes=batch_bytes,
            worker_bytes=now.private_bytes,
            waiting=waiting,
            window_s=span_s,
            free_bytes=free_bytes,
            paused_s=self._paused_s,
            away=away,
            away_room=away_room,
            away_limit=away_limit,
        )
        self._before, self._begun_s, self._waited_s, self._paused_s = now.copy(), now_s, waited_s, 0.0
        return seen


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
