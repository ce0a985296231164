"""What a forked child does with what its parent left it: locks, threads, descriptors, and who made what.

A child is a copy of its parent with one thread. A lock that another thread held is never given back there, a pool has
no threads, and a descriptor is the parent's as well. All of stoker tells forks by this module, which has the only hook.

Note: locks are free and owners told apart before anything else is called; that is called in the order in which it was
asked for.
"""

from __future__ import annotations

import functools
import os
import threading  # before our hook is registered: its own comes first
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

_T = TypeVar("_T")


class ForkedLock:
    """A lock for threads of one process that is free in a forked child, whoever held it in the parent.

    For state that is whole whenever the interpreter switches threads, so that a child may go on with it.
    """

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


class Owner:
    """The process that makes it, which a forked child is not; for what only the former may use or end.

    Attributes:
        is_here: whether this is that process; reading it costs less than asking for the process's number.
    """

    __slots__ = ("__weakref__", "is_here")

    def __init__(self) -> None:
        """This process."""
        self.is_here = True
        _owners.add(self)


def at_fork(call: Callable[[], object]) -> None:
    """From now on forked children call this first, and their children again.

    Args:
        call: takes nothing; of a bound method only as long as its object lives.

    Note: one that raises is shown on standard error, as Python does it, and keeps no other from being called.
    """
    if isinstance(call, MethodType):
        # No WeakMethod: its own callback fails, and is shown, where the interpreter ends before its object.
        found = weakref.ref(call.__self__, functools.partial(_forget, _calls))
        _calls[id(found)] = functools.partial(_bound, call.__func__, found)
    else:
        _calls[id(call)] = lambda: call


def per_process(factory: Callable[[], _T]) -> Callable[[], _T]:
    """What gives a process what ``factory`` made for it, with the first call; a forked child makes its own.

    What a child inherits is never let go of: its finalizers would end what is the parent's.
    """
    lock = ForkedLock()
    made: list[tuple[int, _T]] = []  # by all processes up to this one

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
        except Exception as error:  # the others are called all the same
            errors.append(error)
    if errors:
        raise ExceptionGroup("in a forked child", errors)


os.register_at_fork(after_in_child=_in_child)
