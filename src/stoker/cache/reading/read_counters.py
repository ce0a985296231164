"""Counters of readers, for each of them or for the run of the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class ReadCounts:
    """What a reader did; threads add without a lock, so a count may lack a few.

    Attributes:
        asked_bytes: handed to callers.
        hit_bytes: of those, from the cache's pages.
        fetched_bytes: from stores.
        peer_bytes: from other nodes.
        requests: to stores, for bytes.
        checks: questions to stores for an object's version.
        changes: of those, how many found another version than the cached one.
    """

    asked_bytes: int = 0
    hit_bytes: int = 0
    fetched_bytes: int = 0
    peer_bytes: int = 0
    requests: int = 0
    checks: int = 0
    changes: int = 0


def _tell_nobody(what: str) -> None:
    """Does nothing."""


@dataclass(slots=True)
class ReaderWatch:
    """Receives what the readers of this process count.

    Attributes:
        counts: returns the counters for a new reader.
        tell_changed: called for objects that changed although a run pins one version of each.
        tell_around: called for clients that read stores without the cache.
    """

    counts: Callable[[], ReadCounts] = ReadCounts
    tell_changed: Callable[[str], None] = _tell_nobody
    tell_around: Callable[[str], None] = _tell_nobody


watch = ReaderWatch()
"""The sink of this process; a run replaces it before the first reader."""
