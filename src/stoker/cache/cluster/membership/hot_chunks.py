"""Which chunks are requested so often that several workers should serve them; pure, with time as an argument.

The owner counts requests and tells clients how many workers serve the chunk. A client picks two of those at random and
uses the faster one. There is no coordination: an announcement expires.

Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (2001).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stoker.cache.names import ObjectName

MOST_COPIES = 4
HOT_PER_S = 400.0
"""Requests a second for one chunk (64 MiB) that count as hot; twice as many are worth one copy more."""
TOLD_S = 30.0
"""How long an announcement is valid."""
_WINDOW_S = 1.0
_MOST_CHUNKS = 10_000

Chunk = tuple[ObjectName, int]


class Heat:
    """Counts requests by chunk, for one worker.

    Args:
        hot_per_s: requests a second from which on a chunk has a copy.
    """

    def __init__(self, hot_per_s: float = HOT_PER_S) -> None:
        self._hot_per_s = hot_per_s
        self._counts: dict[Chunk, int] = {}
        self._copies: dict[Chunk, int] = {}
        self._since = 0.0

    def ask(self, chunk: Chunk, now: float, number: int = 1) -> int:
        """Counts requests; returns how many workers should serve the chunk, from the rate of the last second."""
        if now - self._since >= _WINDOW_S or len(self._counts) >= _MOST_CHUNKS:
            self._end_window(now)
        self._counts[chunk] = self._counts.get(chunk, 0) + number
        return self._copies.get(chunk, 1)

    def _end_window(self, now: float) -> None:
        passed_s = max(_WINDOW_S, now - self._since)
        threshold = self._hot_per_s * passed_s
        self._copies = {
            chunk: min(MOST_COPIES, int(count / threshold).bit_length() + 1)
            for chunk, count in self._counts.items()
            if count >= threshold
        }
        self._counts = {}
        self._since = now


@dataclass(slots=True)
class Announced:
    """Announcements that one client received.

    Attributes:
        random: source of the choices.
    """

    random: random.Random = field(default_factory=random.Random)
    _hot: dict[Chunk, tuple[int, float]] = field(default_factory=dict[Chunk, tuple[int, float]])

    def __bool__(self) -> bool:
        return bool(self._hot)

    def tell(self, chunk: Chunk, copies: int, now: float) -> None:
        """An owner announced copies."""
        if len(self._hot) >= _MOST_CHUNKS:
            self._hot.clear()
        self._hot[chunk] = min(copies, MOST_COPIES), now + TOLD_S

    def choose(self, chunk: Chunk, num_owners: int, now: float, took_s: Callable[[int], float]) -> int:
        """Which of the owners to ask: 0 for the first, which is the only one for most chunks.

        Args:
            chunk: wanted chunk.
            num_owners: available owners.
            now: the time.
            took_s: how long the owner of a number took for its last answer.
        """
        copies, until = self._hot.get(chunk, (1, 0.0))
        if now >= until:
            self._hot.pop(chunk, None)
            return 0
        candidates: Sequence[int] = range(min(copies, num_owners))
        if len(candidates) < 2:
            return 0
        one, other = self.random.sample(candidates, 2)
        return one if took_s(one) <= took_s(other) else other
