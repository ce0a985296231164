"""What a forked child does with what it inherits: locks, threads, descriptors, and objects that the parent owns.

A child is a copy of its parent with one thread. In it, a lock that another thread held is never released, a pool has no
threads, and descriptors are shared with the parent. All of stoker detects forks by this module, with the only hook.

Note: a child first frees locks and marks owners, then makes the registered calls in the order of their registration.
"""

from __future__ import annotations

import functools
import os
import threading  # before our hook is registered, so that its hook runs first
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

_T = TypeVar("_T")


class ForkedLock:
    """A lock for threads of one process that is free in a forked child, even if the parent held it.

    For state that is consistent whenever the interpreter switches threads, so that a child may continue with it.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        """Creates a free lock."""
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        # A child that was forked in between has a new lock and never acquired it.
        if self._lock.locked():
            self._lock.release()

    def renew(self) -> None:
        """Replaces the lock in a forked child."""
        self._lock = threading.Lock()


class Owner:
    """Marks the process that creates it, for what a forked child must neither use nor end.

    Attributes:
        is_here: whether this is that process; cheaper to read than ``os.getpid()``.
    """

    __slots__ = ("__weakref__", "is_here")

    def __init__(self) -> None:
        """Makes this process the owner."""
        self.is_here = True
        _owners.add(self)


def at_fork(call: Callable[[], object]) -> None:
    """Registers what forked children, and their children, call first.

    Args:
        call: takes no arguments; a bound method is called only as long as its object lives.

    Note: an exception is shown on standard error, as Python does it, and the other calls are still made.
    """
    if isinstance(call, MethodType):
        # No WeakMethod: if the interpreter ends before its object, its callback fails and python shows that.
        found = weakref.ref(call.__self__, functools.partial(_forget, _calls))
        _calls[id(found)] = functools.partial(_bound, call.__func__, found)
    else:
        _calls[id(call)] = lambda: call


def per_process(factory: Callable[[], _T]) -> Callable[[], _T]:
    """A function that returns what ``factory`` made at the first call in this process; a forked child makes its own.

    A child never releases the inherited object: finalizers would end what belongs to the parent.
    """
    lock = ForkedLock()
    made: list[tuple[int, _T]] = []  # by this process and its ancestors

    def of_this_process() -> _T:
        if not made or made[-1][0] != os.getpid():
            with lock:
                if not made or made[-1][0] != os.getpid():
                    _inherited.extend(made)
                    made.append((os.getpid(), factory()))
        return made[-1][1]

    of_this_process.__doc__ = factory.__doc__
    return of_this_process


_locks: weakref.WeakSet[ForkedLock] = weakref.WeakSet()
_owners: weakref.WeakSet[Owner] = weakref.WeakSet()
_calls: dict[int, Callable[[], Callable[[], object] | None]] = {}
_inherited: list[Any] = []


def _forget(calls: dict[int, Any], gone: weakref.ref[Any]) -> None:
    calls.pop(id(gone), None)


def _bound(function: Callable[[Any], object], found: weakref.ref[Any]) -> Callable[[], object] | None:
    owner = found()
    return None if owner is None else functools.partial(function, owner)


def _in_child() -> None:
    for lock in list(_locks):
        lock.renew()
    for owner in list(_owners):
        owner.is_here = False
    _owners.clear()
    errors: list[Exception] = []
    for found in list(_calls.values()):
        call = found()
        try:
            if call is not None:
                call()
        except Exception as error:  # the other calls are still made
            errors.append(error)
    if errors:
        raise ExceptionGroup("in a forked child", errors)


os.register_at_fork(after_in_child=_in_child)
