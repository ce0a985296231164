"""Locks between processes: byte ranges of one file, held by open file descriptions (OFD), freed by the kernel at death.

POSIX record locks would be lost when any other descriptor of the file closes, and ``flock`` has no ranges. A child that
is forked shares its parent's descriptions, so every holder closes and reopens in the child (:class:`LockFile`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Generator
from pathlib import Path

from stoker.core.processes.forking import Owner, at_fork

PUBLISH = 0
"""Byte of the lock under which index and table change."""
EVICT = 1
"""Byte of the evict lock."""
CLAIM = 1 << 20
"""From here on one byte per row of the table: the lock of the segment's writer."""
FILL = 1 << 40
"""From here on one byte per hash of a key: the lock of the page's fetcher."""
_FILL_RANGE = (1 << 40) - 1

_FLOCK = struct.Struct("hhqqi4x")
_TAKE_PUBLISH = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, PUBLISH, 1, 0)
_LEAVE_PUBLISH = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, PUBLISH, 1, 0)
_STUCK_S, _STUCK_AGAIN_S = 0.1, 10.0
"""Failed waits after which a lock counts as stuck, and the time until the next wait."""
_YIELDS = 10
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 2e-3
_LONGEST_FILLING_PAUSE_S = 20e-3
"""A store takes longer to answer, and a process that loads what others fetch has many threads that wait."""


def try_lock(fd: int, start: int, *, shared: bool = False) -> bool:
    """Lock one byte of an open file without waiting; False if another description holds it, or no file is open."""
    if fd < 0:
        return False
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(fd: int, start: int) -> None:
    """Release the byte, for all processes that share the description."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, 1, 0))


def lock_within(fd: int, start: int, wait_s: float, longest_pause_s: float = _LONGEST_PAUSE_S) -> bool:
    """Lock one byte, waiting at most ``wait_s``; False if that was not enough.

    A holder may be a stopped process, so nothing here waits without a bound.
    """
    if try_lock(fd, start):
        return True
    deadline_s = time.monotonic() + wait_s
    pause_s = _FIRST_PAUSE_S
    while time.monotonic() < deadline_s:
        time.sleep(pause_s)
        if try_lock(fd, start):
            return True
        pause_s = min(pause_s * 1.25, longest_pause_s)
    return False


class LockFile:
    """The lock file of a store, in this process.

    Threads of one process share a description, which does not conflict with itself: they take a Python lock first.

    Attributes:
        fd: of the file; -1 if it is closed, may only be read, or could not be opened in a child: then no lock can be
            taken.
        reads_only: the file may not be written.
        publishing_lock: taken before the one on :data:`PUBLISH`.
    """

    def __init__(self, path: Path, *, reads_only: bool = False) -> None:
        self._path = path
        self.reads_only = reads_only
        self._fillings: set[int] = set()
        self._forked: weakref.WeakMethod[Callable[[], None]] | None = None
        self._open()
        at_fork(self._in_child)

    def _open(self) -> None:
        self.fd = -1
        self.publishing_lock = threading.RLock()
        self._evicting = threading.Lock()
        self._claiming = threading.Lock()
        self._claimed: set[int] = set()
        self._depth = 0
        self._stuck_until = self._filling_stuck_until = 0.0
        if not self.reads_only:
            self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def call_after_fork(self, method: Callable[[], None]) -> None:
        """Call a bound method in forked children, once the locks have been reopened, as long as its object lives."""
        self._forked = weakref.WeakMethod(method)

    def _in_child(self) -> None:
        """Close the parent's descriptions, which hold the parent's locks."""
        if self.fd < 0 and not self.reads_only:
            return
        left, self.fd = (self.fd, *self._fillings), -1
        for fd in left:
            # A thread of the parent may have been closing it.
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fillings.clear()
        # If the directory is gone or no descriptors are left, the child reads and stores nothing.
        with contextlib.suppress(OSError):
            self._open()
        if self._forked is not None and (method := self._forked()) is not None:
            method()

    def close(self) -> None:
        """Free all locks of this process."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def publishing(self, wait_s: float) -> contextlib.AbstractContextManager[bool]:
        """Locks index and table for this thread; yields False if another process did not release them in time.

        Args:
            wait_s: longest wait; no wait if one failed a moment ago.
        """
        return _Publishing(self, wait_s)

    def begin_publishing(self, wait_s: float) -> bool:
        """Take the lock between processes; return whether that succeeded. Only :meth:`publishing` calls this."""
        if not self._depth:
            try:
                fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _TAKE_PUBLISH)
            except (OSError, ValueError):  # it is held, or there is no file
                if not self._wait_to_publish(wait_s):
                    return False
            self._stuck_until = 0.0
        self._depth += 1
        return True

    def _wait_to_publish(self, wait_s: float) -> bool:
        if self.fd < 0:
            return False
        # A process that holds it for so long is stopped: there is no further wait until the lock was free once.
        stuck = time.monotonic() < self._stuck_until
        # Most holders need it for 20 us; a sleep takes 80 us.
        for _ in range(_YIELDS):
            os.sched_yield()
            if try_lock(self.fd, PUBLISH):
                return True
        held = lock_within(self.fd, PUBLISH, 0.0 if stuck else wait_s)
        if not held and wait_s >= _STUCK_S:
            self._stuck_until = time.monotonic() + _STUCK_AGAIN_S
        return held

    def end_publishing(self) -> None:
        """Release the lock."""
        self._depth -= 1
        if not self._depth:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _LEAVE_PUBLISH)

    @contextlib.contextmanager
    def evicting(self) -> Generator[bool]:
        """Lets one thread of all processes make room; yields False at once if another one does."""
        if not self._evicting.acquire(blocking=False):
            yield False
            return
        try:
            held = try_lock(self.fd, EVICT)
            try:
                yield held
            finally:
                if held:
                    unlock(self.fd, EVICT)
        finally:
            self._evicting.release()

    def claim(self, row: int) -> bool:
        """Claim a row's segment for appending, if no process or thread has it."""
        with self._claiming:
            if row in self._claimed or not try_lock(self.fd, CLAIM + row):
                return False
            self._claimed.add(row)
            return True

    def release(self, row: int) -> None:
        """Let others append to the row's segment."""
        with self._claiming:
            self._claimed.discard(row)
            unlock(self.fd, CLAIM + row)

    @contextlib.contextmanager
    def filling(self, key: bytes, wait_s: float) -> Generator[None]:
        """Admits one thread of all processes at a time, as long as the holder takes no longer than ``wait_s``.

        After a timeout there are no waits for as long, since a stopped process may hold many pages of an object.
        """
        start = FILL + (int.from_bytes(key[:8], "little") & _FILL_RANGE)
        # A separate description: other threads of this process wait like other processes do.
        fd = -1
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        if fd < 0:
            # The directory is gone, or no descriptors are left: rather fetch twice than not at all.
            yield
            return
        self._fillings.add(fd)
        owner = Owner()
        held = False
        try:
            stuck = time.monotonic() < self._filling_stuck_until
            held = lock_within(fd, start, 0.0 if stuck else wait_s, _LONGEST_FILLING_PAUSE_S)
            if not held and not stuck:
                self._filling_stuck_until = time.monotonic() + wait_s
            yield
        finally:
            if owner.is_here:
                # Unlocked and not merely closed: a child that is being forked may still share the description.
                if held:
                    unlock(fd, start)
                self._fillings.discard(fd)
                os.close(fd)


class _Publishing:
    """The context of :meth:`LockFile.publishing`, which each stored page enters; a generator would cost more."""

    __slots__ = ("_file", "_held", "_lock", "_wait_s")

    def __init__(self, file: LockFile, wait_s: float) -> None:
        self._file, self._wait_s = file, wait_s
        self._held = False

    def __enter__(self) -> bool:
        self._lock = self._file.publishing_lock
        self._lock.acquire()
        try:
            self._held = self._file.begin_publishing(self._wait_s)
        except BaseException:
            self._lock.release()
            raise
        return self._held

    def __exit__(self, *_: object) -> None:
        try:
            # A child that was forked in between does not hold the lock.
            if self._held and self._lock is self._file.publishing_lock:
                self._file.end_publishing()
        finally:
            self._lock.release()
