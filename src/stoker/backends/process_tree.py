"""Lists the descendants of a process, and kills them together with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path


def children(pid: int) -> list[int]:
    """Process ids of the children of ``pid``."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Process ids of the descendants of ``pid``, each after its parent."""
    found = children(pid)
    return [*found, *(below for child in found for below in descendants(child))]


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and all its descendants at once: a parent that saw its rank end would carry on.

    Python's resource trackers are spared: they exit after the last process that they serve, and clean up after it.
    """
    if process.poll() is not None:
        return
    os.kill(process.pid, signal.SIGSTOP)  # it starts no others while they are listed
    for pid in [process.pid, *descendants(process.pid)]:
        if not _is_tracker(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _is_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
