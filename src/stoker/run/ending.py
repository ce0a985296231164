"""Ending the program where stoker was asked for one thing only (an explanation, one sample), without running further.

At once rather than by ``SystemExit``: a ``finally`` of the program could save the untrained model over a good one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from typing import NoReturn


def end_program(status: int) -> NoReturn:
    """Ends this process, and the daemons it started with multiprocessing, after flushing what was printed."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed or replaced by the program
            stream.flush()
    os._exit(status)
