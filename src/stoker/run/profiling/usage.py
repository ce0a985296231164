"""Processor time of this process and of those below it, read where it is needed: twice a profile."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from pathlib import Path

from stoker.backends.process_tree import descendants
from stoker.records.profile import Usage

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def read_usage() -> Usage:
    """CPU seconds so far; for descendants of this process, those of their ended children too."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    family = [os.getpid(), *descendants(os.getpid())]
    process_s, children_s = time.process_time(), ended.ru_utime + ended.ru_stime + sum(map(_spent_s, family[1:]))
    return Usage(
        process_s=process_s,
        children_s=children_s,
        others_s=_busy_s(os.sched_getaffinity(0)) - process_s - children_s,
        delayed_s=sum(map(_delayed_s, family)),
    )


def used_between(before: Usage, after: Usage, steps: int) -> Usage:
    """A step's share of the usage between two readings."""

    def grown(name: str) -> float:
        return max(0.0, getattr(after, name) - getattr(before, name)) / steps

    return Usage(**{name: grown(name) for name in Usage.__struct_fields__})


def _busy_s(cores: set[int]) -> float:
    """Busy time of some cores since boot: proc(5), /proc/stat, all but idle and iowait; guests are in user time.

    Time that a hypervisor took (steal) counts for others too.
    """
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return 0.0
    own = {f"cpu{core}" for core in cores}
    return (
        sum(int(field) for words in lines if words and words[0] in own for field in (*words[1:4], *words[6:9]))
        * _TICK_S
    )


def _delayed_s(pid: int) -> float:
    """Second field of each thread's schedstat, in nanoseconds: Documentation/scheduler/sched-stats.rst of Linux."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):
                total += int((thread / "schedstat").read_text().split()[1])
    return total * 1e-9


def _spent_s(pid: int) -> float:
    """proc(5), fields 14 and 15 of stat."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) * _TICK_S
