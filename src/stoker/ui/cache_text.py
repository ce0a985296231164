"""The results of the data cache, in words."""

from __future__ import annotations

from stoker.core.units import format_bytes, format_count
from stoker.records.events import CacheUsed
from stoker.ui.figures import write_percent


def write_cache_used(used: CacheUsed) -> str:
    """One sentence: how much was read, how much of it came from where."""
    parts = [
        f"{format_bytes(used.asked_bytes)} read, {write_percent(hit_frac(used))} from the cache",
        f"{format_bytes(used.fetched_bytes)} from stores in {format_count(used.requests, 'request')}",
    ]
    if not used.asked_bytes and not used.fetched_bytes:
        parts = ["nothing was read through it"]
    if used.peer_bytes:
        parts.insert(1, f"{format_bytes(used.peer_bytes)} from other nodes")
    if used.changes:
        parts.append(f"{format_count(used.changes, 'object')} had changed at the source, and the new version was read")
    if used.around:
        parts.append(f"{', '.join(used.around)} may have read stores around it")
    return " · ".join(parts)


def hit_frac(used: CacheUsed) -> float:
    """Share of the read bytes that came from cached pages."""
    return min(1.0, used.hit_bytes / used.asked_bytes) if used.asked_bytes else 0.0
