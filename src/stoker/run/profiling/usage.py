"""Processor time of this process and of those below it, read where it is needed: twice a profile."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from stoker.perf.verdict.profile import Usage
from stoker.run.process_tree import descendants

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def read_usage() -> Usage:
    """Processor seconds so far, of processes below this one also those of their own that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = ended.ru_utime + ended.ru_stime + sum(_spent_s(pid) for pid in descendants(os.getpid()))
    return Usage(process_s=time.process_time(), children_s=children_s)


def used_between(before: Usage, after: Usage, steps: int) -> Usage:
    """A step's share of what was used between two readings."""
    return Usage(
        process_s=max(0.0, after.process_s - before.process_s) / steps,
        children_s=max(0.0, after.children_s - before.children_s) / steps,
    )


def _spent_s(pid: int) -> float:
    """proc(5), fields 14 and 15 of stat."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) * _TICK_S
