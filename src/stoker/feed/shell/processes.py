"""What the kernel says of a process."""

from __future__ import annotations

import os
import signal


def ended_by(status: int, signal_number: int) -> bool:
    """Whether a wait status is the end by a signal."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal_number


def describe_exit(status: int | None) -> str:
    """A wait status in words."""
    if status is None:
        return "ended with a status that the program took"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = " (the kernel's out-of-memory killer?)" if number == signal.SIGKILL else ""
        return f"killed by signal: {signal.Signals(number).name}{hint}"  # torch's words
    code = os.waitstatus_to_exitcode(status)
    return f"exited with status {code}"


def process_state(pid: int) -> str:
    """The kernel's one-letter state of a process (``T`` for stopped); empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used; 0.0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
