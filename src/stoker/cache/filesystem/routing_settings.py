"""The routing settings of this process, and their form for child interpreters."""

from __future__ import annotations

from stoker.cache.settings import CacheSettings
from stoker.core.settings import Handed


class Routing(Handed, frozen=True, kw_only=True):
    """How programs are routed."""

    cache: CacheSettings
    """What reads go through."""
    protocols: tuple[str, ...]
    """Stores that are routed."""


_in_force: Routing | None = None


def installed() -> Routing | None:
    """How programs are routed; None if they are not."""
    return _in_force


def put_in_force(routing: Routing | None) -> None:
    """Filesystems that are built from now on have these settings; None for no routing."""
    global _in_force
    _in_force = routing
