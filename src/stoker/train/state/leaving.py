"""When a rank whose program has ended may leave: not while another one may still want its parts."""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from collections.abc import Callable
from multiprocessing import util

from stoker.core.processes.forking import Owner
from stoker.train.state.messages import RankStanding
from stoker.train.state.service import PartService

_TICK_S = 0.1
_LEFTOVER_S = 60.0
"""Longest wait after a pass that no step has followed: the other ranks may be waiting in it for this one."""


def may_leave(own: RankStanding, other: RankStanding | None) -> bool:
    """Whether another rank wants nothing more of this one, whose program has ended.

    Args:
        own: where this rank is.
        other: where the other is; None if it is gone.
    """
    # One that has begun a further pass waits in it for this rank: leaving is what ends it, with torch's error.
    return other is None or other.is_done or other.forwards > own.forwards


def longest_wait_s(own: RankStanding, timeout_s: float) -> float:
    """How long a rank waits for others at most (s).

    Args:
        own: where it is.
        timeout_s: of the process group.
    """
    return min(timeout_s, _LEFTOVER_S) if own.is_in_step else timeout_s


class LeavingWatch:
    """Keeps a process from ending as long as other ranks may want the parts of its services.

    Not where an exception ends the program, whose ranks may be waiting for this one in a collective.
    """

    def __init__(self) -> None:
        self._services: weakref.WeakKeyDictionary[PartService, float] = weakref.WeakKeyDictionary()
        self._kept: list[PartService] = []
        self._owner: Owner | None = None

    def add(self, service: PartService, timeout_s: float) -> None:
        """Waits for a service's ranks at the end of this process.

        Args:
            service: which is kept until then: a program's last reference to its model may go before.
            timeout_s: longest wait.
        """
        if self._owner is None or not self._owner.is_here:
            self._owner = Owner()
            self._services.clear()
            self._kept.clear()
            atexit.register(self.wait)
            # Processes that multiprocessing forks run these, and no functions of `atexit` before Python 3.13.
            util.Finalize(None, self.wait, exitpriority=100)
        self._services[service] = timeout_s
        self._kept.append(service)

    def wait(self) -> None:
        """Waits, then closes the services; at once where an exception has ended the program."""
        if self._owner is None or not self._owner.is_here:
            return
        failed = getattr(sys, "last_value", None) is not None or sys.exc_info()[0] is not None
        while self._kept:
            service = self._kept.pop()
            if not service.is_closed:
                service.end_program()
                if not failed:
                    wait_for_others(service, self._services[service])
                service.close()


def wait_for_others(service: PartService, timeout_s: float, sleep: Callable[[float], object] = time.sleep) -> None:
    """Waits until no other rank wants a part of a service any more, or for as long as :func:`longest_wait_s`."""
    until = time.monotonic() + longest_wait_s(service.standing, timeout_s)
    waiting = [place for place in range(len(service.ranks)) if place != service.rank]
    while waiting:
        waiting = [place for place in waiting if not may_leave(service.standing, service.standing_of(place))]
        if not waiting or time.monotonic() > until:
            return
        sleep(_TICK_S)


watch = LeavingWatch()
"""What keeps this process."""
