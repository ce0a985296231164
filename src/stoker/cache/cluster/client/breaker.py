"""When a worker is used and when it is avoided; pure, with time as an argument.

A worker that times out or refuses connections is avoided at once, and reads do not retry it. Background probes detect
when it is back. So an unreachable worker costs one time-out, not one per read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

FIRST_PROBE_S = 0.5
"""A worker that restarts is back within a second or so."""
LAST_PROBE_S = 30.0
"""Longest time between probes; jitter keeps a thousand clients from probing together."""


@dataclass(slots=True)
class Breaker:
    """The state of one worker as one client sees it, until it answers; then it is dropped.

    Attributes:
        random: source of the jitter.
    """

    random: random.Random = field(default_factory=random.Random)
    _failures: int = 0
    _probe_at: float = 0.0

    @property
    def allows(self) -> bool:
        """Whether reads may ask the worker."""
        return self._failures == 0

    def fail(self, now: float) -> None:
        """The worker did not answer a read or a probe."""
        self._failures += 1
        wait_s = min(LAST_PROBE_S, FIRST_PROBE_S * 2.0 ** min(self._failures - 1, 16))
        self._probe_at = now + wait_s * self.random.uniform(0.5, 1.0)

    def take_probe(self, now: float) -> bool:
        """Whether it is time for a probe; true once, until that probe has failed or a while has passed."""
        if self.allows or now < self._probe_at:
            return False
        self._probe_at = now + LAST_PROBE_S
        return True

    def next_probe_s(self, now: float) -> float | None:
        """Seconds until a probe is due; None for a worker that has not failed."""
        return None if self.allows else max(0.0, self._probe_at - now)
