"""Ends the program early when the user asked for one thing only (an explanation, one sample), or as a child ended.

Early, it exits at once and not by ``SystemExit``: a ``finally`` of the program could save the untrained model over a
good one.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from typing import NoReturn

_WAIT_S = 30
"""Longest wait to be killed from outside: the process that should do it may be gone."""


def await_end() -> NoReturn:
    """Waits to be killed together with the program's other processes: a parent that saw this one end would continue."""
    _flush()
    ctypes.PyDLL(None).sleep(_WAIT_S)  # keeps the interpreter's lock, so that no other thread runs either
    os._exit(0)


def end_program(status: int) -> NoReturn:
    """Ends this process, and the daemons it started with multiprocessing, after flushing its output."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
    _flush()
    os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed or replaced by the program
            stream.flush()


def end_like(status: int) -> int:
    """The exit status for how the program ended; does not return if a signal ended it."""
    if status >= 0:
        return status
    number = -status
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return 128 + number
