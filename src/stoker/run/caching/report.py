"""The results of the data cache in a run, for its report or as a line; imports no readers."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict
from pathlib import Path

from stoker.cache.filesystem.unrouted import unroutable
from stoker.cache.reading.run_counters import read_ledger
from stoker.core import saying
from stoker.records.events import CacheUsed
from stoker.run.caching import changes
from stoker.run.caching.cache_run import current_run
from stoker.ui.cache_text import write_cache_used


def used(t_s: float = 0.0) -> CacheUsed | None:
    """What the run's processes read through the cache so far, and clients that may have bypassed it.

    None if there was nothing, or it is unknown.

    Args:
        t_s: time of the record.
    """
    told = current_run()
    if told is None:
        return None
    try:
        totals = read_ledger(Path(told.ledger))
    except OSError:
        return None
    around = {*unroutable(), *changes.around(Path(told.ledger))}
    if not totals.asked_bytes and not totals.fetched_bytes and not around:
        return None
    return CacheUsed(
        t_s=t_s,
        directory=told.cache.directory,
        around=sorted(around),
        **asdict(totals),
    )


def end() -> None:
    """Removes the counters after the run's report."""
    told = current_run()
    if told is not None:
        changes.forget(Path(told.ledger))
        with contextlib.suppress(OSError):
            os.unlink(told.ledger)


def say() -> None:
    """The line on the cache for a program without a report of its loaders; otherwise the report has it."""
    told = current_run()
    modes = sys.modules.get("stoker.run.modes")
    if told is None or told.pid != os.getpid() or (modes is not None and modes.will_report()):
        return
    record = used()
    if record is not None and not told.quiet:
        saying.say(f"cache: {write_cache_used(record)}")
    end()
