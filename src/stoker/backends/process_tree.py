"""The processes below one: which they are, and ending all of them together with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """The processes below one, nearest first."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return [*found, *(below for child in found for below in descendants(child))]


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that descend from it, at once: a parent that saw its rank end would go on.

    Python's resource trackers are spared: they end with the last process that they serve, and clean up after it.
    """
    if process.poll() is not None:
        return
    os.kill(process.pid, signal.SIGSTOP)  # it starts no others while they are counted
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
