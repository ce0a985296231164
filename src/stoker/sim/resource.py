"""A virtual clock with an event heap, and a capacity that running work shares equally.

``SharedCapacity`` models both CPU cores and a remote store with a bounded number of streams.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable


class Clock:
    """Virtual time: runs callbacks by time, then in order of creation."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Runs ``action`` after ``delay_s``."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._count, action))

    def run(self, until_s: float) -> None:
        """Runs all events up to and including ``until_s``."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        self.now_s = until_s


class SharedCapacity:
    """Serves any number of pieces of work at once, each at speed 1 until ``capacity`` is exceeded, then slower.

    Processor sharing with one running total of service per piece of work, so an arrival or departure costs O(log n)
    instead of a pass over all running work.
    """

    def __init__(self, clock: Clock, capacity: float = math.inf) -> None:
        self._clock = clock
        self._capacity = capacity
        self._served = 0.0
        self._updated_s = 0.0
        self._running: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._version = 0

    def work(self, amount_s: float, done: Callable[[], None]) -> None:
        """Runs ``done`` once ``amount_s`` of work has been served."""
        if amount_s <= 0.0:
            self._clock.after(0.0, done)
            return
        self._advance()
        self._count += 1
        heapq.heappush(self._running, (self._served + amount_s, self._count, done))
        self._plan()

    def _speed(self) -> float:
        return min(1.0, self._capacity / len(self._running)) if self._running else 1.0

    def _advance(self) -> None:
        self._served += (self._clock.now_s - self._updated_s) * self._speed()
        self._updated_s = self._clock.now_s

    def _plan(self) -> None:
        self._version += 1
        if self._running:
            left = max(0.0, self._running[0][0] - self._served) / self._speed()
            version = self._version
            self._clock.after(left, lambda: self._finish(version))

    def _finish(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        target, _, done = heapq.heappop(self._running)
        self._served = max(self._served, target)
        self._plan()
        done()
