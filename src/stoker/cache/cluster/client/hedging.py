"""When a slow request is also sent to a replica; pure, with time as an argument.

Source: Dean and Barroso, The Tail at Scale (2013). A hedge asks only for what the replica holds, so that it never
costs the store a request, and hedges are a bounded part of all requests, so that slow workers do not get more load.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

HEDGED_FRAC = 0.03
"""Most hedges, as a part of requests."""
SHORTEST_S = 0.005
"""A healthy answer on a busy machine may take this long; earlier hedges would be load without gain."""
_KEPT = 256
_FEWEST = 32
"""Requests to a worker before any of them counts as slow."""
_BURST = 5.0


@dataclass(slots=True)
class Durations:
    """The last durations of one owner and size class."""

    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    until_recount: int = _FEWEST
    p99_s: float | None = None

    @property
    def delay_s(self) -> float | None:
        """Silence after which a request is slow; None while too few were seen."""
        return None if self.p99_s is None else max(SHORTEST_S, self.p99_s)

    @property
    def last_s(self) -> float:
        """The last duration; 0 before any, so that a worker that was never asked is tried."""
        return self.durations_s[-1] if self.durations_s else 0.0

    def add(self, duration_s: float) -> None:
        """A request was answered, its first bytes after ``duration_s``."""
        self.durations_s.append(duration_s)
        self.until_recount -= 1
        if self.until_recount <= 0:  # sorting at each request would cost more than many requests do
            self.until_recount = len(self.durations_s)
            ordered = sorted(self.durations_s)
            self.p99_s = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


class Hedging:
    """Decides after how many seconds of silence to hedge, and whether the budget allows it."""

    def __init__(self) -> None:
        self._recent: dict[tuple[str, int], Durations] = {}
        self._tokens = 0.0
        self.requests = 0
        self.hedges = 0

    def of(self, owner: str, size_bytes: int) -> Durations:
        """Durations of this owner for requests of about this size."""
        key = (owner, size_class(size_bytes))
        recent = self._recent.get(key)
        if recent is None:
            recent = self._recent[key] = Durations()
        return recent

    def count(self) -> None:
        """A request was sent."""
        self.requests += 1
        if self._tokens < _BURST:
            self._tokens += HEDGED_FRAC

    def take(self) -> bool:
        """Whether one more hedge may be sent now; counts it."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        self.hedges += 1
        return True

    def forget(self, owner: str) -> None:
        """The owner left the ring."""
        for key in [key for key in self._recent if key[0] == owner]:
            del self._recent[key]


def size_class(size_bytes: int) -> int:
    """Sizes within a factor of four are alike: up to 4 KiB, 16 KiB, 64 KiB..."""
    return max(0, (max(1, size_bytes) - 1).bit_length() - 12 + 1) // 2
