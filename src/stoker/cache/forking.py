"""A lock that is free in a forked child, whoever held it in the parent: that thread is not there to give it back.

For state that is whole whenever the interpreter switches threads, so that a child may go on with it.
"""

from __future__ import annotations

import os
import threading
import weakref


class ForkedLock:
    """A lock for threads of one process."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        """Free."""
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        # A child that was forked in between has never had it.
        if self._lock.locked():
            self._lock.release()

    def renew(self) -> None:
        """In a forked child."""
        self._lock = threading.Lock()


_locks: weakref.WeakSet[ForkedLock] = weakref.WeakSet()


def _in_child() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_in_child)
