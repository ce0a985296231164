"""How stale a path may be, and how long its pages live: rules by path; the first that matches counts."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Literal

Verify = Literal["always", "first-touch"]
"""When checksums of cached bytes are verified: at every read, or at a process's first."""
Policy = Literal["epoch", "sieve", "s3fifo", "lru"]
"""Which segments are evicted first (:mod:`stoker.cache.store.reclaim.eviction`)."""


class Freshness(enum.Enum):
    """When the store is asked whether a cached object is still current."""

    IMMUTABLE = "immutable"
    """Never: paths are written once."""
    MAX_AGE = "max-age"
    """When the last answer is older than the rule's ``max_age_s``."""
    ALWAYS = "always"
    """At every open, and at every read without an open file."""


class PageLife(enum.IntEnum):
    """How pages leave the cache; pages of different lives are kept in different segments."""

    NORMAL = 0
    """When room is needed, as the eviction policy says."""
    TIMED = 1
    """After the rule's ``ttl_s``, or when room is needed."""
    PINNED = 2
    """Only when they are unpinned or evicted by name."""
    COPY = 3
    """Before all others: another worker keeps them as its own."""

    def outlasts(self, other: int) -> bool:
        """Whether pages of this life are kept rather than those of another."""
        return _RANKS[self] > _RANKS.get(other, 0)


_RANKS: dict[int, int] = {PageLife.COPY: 0, PageLife.NORMAL: 1, PageLife.TIMED: 1, PageLife.PINNED: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule for paths that match a pattern.

    Attributes:
        pattern: shell pattern over ``protocol://path`` (``s3://bucket/train/*``; ``*`` also matches ``/``).
        freshness: when the store is asked again.
        max_age_s: for ``MAX_AGE`` (seconds).
        ttl_s: pages are evicted after so many seconds; None keeps them while there is room.
        cached: False passes reads of these paths through to the store.
        quota_bytes: most bytes that pages under this rule may take together; None for no separate bound.
        pinned_since: start of a run (seconds since the epoch) that pins each path to the version first read; no effect
            under ``ALWAYS``.
    """

    pattern: str = "*"
    freshness: Freshness = Freshness.MAX_AGE
    max_age_s: float = 60.0
    ttl_s: float | None = None
    cached: bool = True
    quota_bytes: int | None = None
    pinned_since: float | None = None

    def is_fresh(self, checked_at: float, now: float) -> bool:
        """Whether an answer of the store is still fresh.

        Args:
            checked_at: when the store gave it (seconds since the epoch).
            now: the same clock; a clock that was set back makes answers stale.
        """
        if self.freshness is Freshness.IMMUTABLE:
            return True
        if self.freshness is Freshness.ALWAYS:
            return False
        if self.pinned_since is not None and self.pinned_since <= checked_at <= now:
            return True
        return 0.0 <= now - checked_at < self.max_age_s

    @property
    def life(self) -> PageLife:
        """How pages under this rule leave the cache."""
        return PageLife.NORMAL if self.ttl_s is None or math.isinf(self.ttl_s) else PageLife.TIMED


DEFAULT_RULES: tuple[Rule, ...] = (
    Rule(pattern="file://*", cached=False),
    Rule(pattern="local://*", cached=False),
    Rule(pattern="http://*", cached=False),
    Rule(pattern="https://*", cached=False),
    Rule(),
)
"""A local disk is its own cache; web servers are cached where a rule asks for it."""
