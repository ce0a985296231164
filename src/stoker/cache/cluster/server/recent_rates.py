"""Recent throughput of a worker, so that one status request returns rates. Pure: time is passed."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

WINDOW_S = 10.0
"""Several steps of a training program, which reads in bursts."""
STEP_S = 1.0
"""Between two samples."""


class Done(NamedTuple):
    """What a worker has done so far.

    Attributes:
        found: reads of pages of its directories, by whomever, that found theirs.
        missed: reads that did not.
        sent_bytes: to clients and other workers.
        fetched_bytes: from stores.
        moved_bytes: from other workers.
    """

    found: int
    missed: int
    sent_bytes: int
    fetched_bytes: int
    moved_bytes: int


class RecentRates:
    """Samples of the last :data:`WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Done]] = deque()

    def note(self, now: float, done: Done) -> None:
        """Takes a sample.

        Args:
            now: monotonic seconds.
            done: until now.
        """
        samples = self._samples
        samples.append((now, done))
        while len(samples) > 1 and samples[1][0] <= now - WINDOW_S:
            samples.popleft()

    def rates(self, now: float, done: Done) -> dict[str, Any]:
        """What was done a second since the oldest sample.

        Args:
            now: monotonic seconds.
            done: until now.

        Returns:
            ``over_s``, the age of that sample; ``hit_ratio``, the share of reads that found their page, None where
            nothing was read; the others by name.
        """
        began, before = self._samples[0] if self._samples else (now, done)
        over_s = now - began
        new = Done(*(after - earlier for after, earlier in zip(done, before, strict=True)))
        reads = new.found + new.missed
        per_s = {f"{name}_per_s": value / over_s if over_s else 0.0 for name, value in new._asdict().items()}
        return {"over_s": over_s, "hit_ratio": new.found / reads if reads else None, **per_s}
