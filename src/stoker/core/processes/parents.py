"""Ties a process's life to its parent's, and names it. Imports nothing that takes long."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
# Looked up before the fork: in each worker it would delay the first batch by a fraction of a millisecond.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with(parent_pid: int) -> None:
    """Makes the kernel kill this process when the thread that forked it ends; exits if the parent is gone already."""
    signal_when_orphaned(signal.SIGKILL, parent_pid)


def signal_when_orphaned(number: int, parent_pid: int) -> None:
    """Makes the kernel send a signal to this process when that thread ends; exits if the parent is gone already."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


def adopt_orphans() -> None:
    """Makes descendants of this process that outlive their parent its own children, so that they are found."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_name(name: bytes) -> None:
    """Sets the kernel's name for this process."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)
