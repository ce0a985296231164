"""The cost of fresh memory, and how to make the C library keep freed memory.

glibc returns memory to the system when much of it is free at once, as after every training step, and allocates it again
in the next. The system zeroes pages one by one when they are first touched: on virtual machines that costs as much as
reading and writing them several times.
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import time

import numpy as np

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of mallopt(3), as <malloc.h> has them."""
_BLOCK = 32 << 20


def keep_memory() -> bool:
    """Makes this process keep freed memory from now on; returns whether its C library supports that."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_MMAP_MAX, 0))


def fault_seconds_per_byte(rounds: int = 9) -> float:
    """Seconds per byte of memory that is touched for the first time after allocation: median of some rounds."""
    found: list[float] = []
    for _ in range(rounds):
        with mmap.mmap(-1, _BLOCK) as block:
            pages = np.frombuffer(block, np.uint8)[:: mmap.PAGESIZE].view()
            pages.flags.writeable = True
            begun = time.perf_counter()
            pages[:] = 1
            found.append((time.perf_counter() - begun) / _BLOCK)
            del pages
    return statistics.median(found)
