"""Work of low priority in a process that has none."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_NICER_BY = 10
"""A tenth of the share of a busy core: enough to load in some time, and any request goes first."""
_NICEST = 19


def in_background(call: Callable[[], T]) -> T:
    """What it returns or raises, from a thread of low priority: what answers requests meanwhile goes first.

    A separate thread, since only root can raise a priority again; children are forked from the main thread, with its.
    """
    found: Future[T] = Future()

    def work() -> None:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(niceness + _NICER_BY, _NICEST))
        try:
            found.set_result(call())
        except BaseException as error:  # raised again where it is waited for
            found.set_exception(error)

    thread = threading.Thread(target=work, name="stoker-load")
    thread.start()
    thread.join()
    return found.result()
