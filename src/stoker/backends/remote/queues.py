"""Windows of a crew's queue for who divides the CPUs of a cluster: observations while its workers do not change.

Pure; the training process adds an observation about four times a second.
"""

from __future__ import annotations

from stoker.backends.remote.brokering import SeenQueue
from stoker.feed.scaling import Observation

SETTLE_S = 1.0
"""Time after a change of workers that is left out: their first batches come late, and the queue fills or empties."""
WINDOW_S, LEAST_STEPS = 2.0, 8
"""A window is at least so long, and has as many steps."""


class QueueTally:
    """Adds observations up to windows."""

    def __init__(self) -> None:
        self._workers = (-1, -1)
        self._settled_s = 0.0
        self._last_s: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._steps = 0
        self._span_s = self._starved = self._blocked_s = self._waited_s = 0.0

    def add(self, seen: Observation) -> SeenQueue | None:
        """Takes in an observation; returns a window if it completes one.

        Where the program neither takes a batch nor waits for one, it does something else: that is no time of the queue.
        """
        last_s, self._last_s = self._last_s, seen.now_s
        workers = (seen.workers - seen.away, seen.away)
        if workers != self._workers or last_s is None:
            self._workers, self._settled_s = workers, seen.now_s + SETTLE_S
            self._clear()
            return None
        length_s = seen.window_s or seen.now_s - last_s
        if seen.now_s - length_s < self._settled_s or not (seen.steps or seen.waiting):
            return None
        self._span_s += length_s
        self._steps += seen.steps
        self._starved += seen.starved_frac * seen.steps
        self._blocked_s += seen.blocked_frac * length_s
        self._waited_s += (seen.input_wait_frac - seen.handover_frac) * length_s
        if self._span_s < WINDOW_S or self._steps < LEAST_STEPS or not sum(workers):
            return None
        found = SeenQueue(
            near=workers[0], away=workers[1], batches_per_s=self._steps / self._span_s,
            starved_frac=self._starved / self._steps, blocked_frac=self._blocked_s / self._span_s,
            computing_frac=min(1.0, max(0.0, 1.0 - self._waited_s / self._span_s)),
        )  # fmt: skip
        self._clear()
        return found
