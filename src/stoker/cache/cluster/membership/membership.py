"""Which workers belong to the cluster: from a list, a file or etcd; kept in memory, so that no read waits for it.

Owns the record that this process follows and its copy on disk. Liveness is not membership: breakers detect lost
workers. A worker leaves the ring when it drains, or ten minutes after its last sign of life.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol

from stoker.cache.cluster.membership.ring import Member, RingRecord, decode_record, newest
from stoker.core.errors import MembershipError

POLL_S = 1.0
"""How often a ring file is checked for changes, by one ``stat``."""


class Membership(Protocol):
    """Where the ring's record comes from."""

    def record(self) -> RingRecord | None:
        """The newest record known, from memory; None before any was."""
        ...

    def refresh(self) -> RingRecord | None:
        """Refreshes the record and returns it; may take a second and never raises. Not for reads."""
        ...

    def learn(self, record: RingRecord) -> None:
        """Adopts a record that a worker sent, if it is newer."""
        ...

    def join(self, member: Member) -> None:
        """Takes a place in the ring and keeps it until :meth:`leave`; raises :class:`MembershipError`."""
        ...

    def leave(self) -> None:
        """Gives the place up; never raises."""
        ...

    def watch(self, changed: Callable[[RingRecord], None]) -> None:
        """Calls ``changed`` with each newer record, from a thread, until :meth:`close`."""
        ...

    def forked(self) -> None:
        """Resets a forked child: drops the parent's threads, locks and connections."""
        ...

    def close(self) -> None:
        """Ends threads and connections; a place that was taken is kept as long as it lives without us."""
        ...


class KnownRecord:
    """The newest record in memory, and the last one on disk, so that a restart without its source has a ring.

    Args:
        state_dir: where the copy is kept; None for memory alone.
        origin: address of the membership; each has a separate file.
    """

    def __init__(self, state_dir: Path | None, origin: str) -> None:
        name = f"ring-{hashlib.sha256(origin.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.json"
        self._path = None if state_dir is None else state_dir / name
        self._lock = threading.Lock()
        self._changed: Callable[[RingRecord], None] | None = None
        self.record = self._load()

    def _load(self) -> RingRecord | None:
        if self._path is None:
            return None
        try:
            return decode_record(self._path.read_bytes(), str(self._path))
        except (OSError, MembershipError):
            return None  # none yet, or another release's: the source has a better one

    def learn(self, record: RingRecord, *, authority: bool = False) -> None:
        """Keeps a record if it is newer, or if it comes from the authority and differs."""
        with self._lock:
            known = self.record
            kept = record if authority and record != known else newest(known, record)
            if kept is known or kept is None:
                return
            self.record = kept
            changed = self._changed
            self._save(kept)
        if changed is not None:
            changed(kept)

    def _save(self, record: RingRecord) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, record.encode())
        except OSError:
            pass  # a full or read-only disk: the copy only matters after a restart

    def on_change(self, changed: Callable[[RingRecord], None]) -> None:
        """Calls ``changed`` with each newer record from now on, and at once with the one that is known."""
        with self._lock:
            self._changed = changed
            record = self.record
        if record is not None:
            changed(record)

    def forked(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock, self._changed = threading.Lock(), None


class StaticMembership:
    """A list that never changes.

    Args:
        members: of the ring.
    """

    def __init__(self, members: tuple[Member, ...]) -> None:
        self._record = RingRecord(epoch=1, members=tuple(sorted(members, key=lambda member: member.id)))

    def record(self) -> RingRecord:
        """The list."""
        return self._record

    def refresh(self) -> RingRecord:
        """The list."""
        return self._record

    def learn(self, record: RingRecord) -> None:
        """Does nothing: the list never changes."""

    def join(self, member: Member) -> None:
        """Checks that the list names the member."""
        if all(member.id != known.id for known in self._record.members):
            ids = ", ".join(known.id for known in self._record.members)
            raise MembershipError(f"`{member.id}` must be one of the members of the static list, got {ids}")

    def leave(self) -> None:
        """Does nothing: clients' breakers find out."""

    def watch(self, changed: Callable[[RingRecord], None]) -> None:
        """Calls ``changed`` once with the list."""
        changed(self._record)

    def forked(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


class FileMembership:
    """A ring record in a file, replaced as a whole by rename; written by workers that join, or by a person.

    A record without an epoch, or with epoch 0, takes the time of the file's last change as its epoch.

    Args:
        path: of the file, on a file system that all nodes see.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = KnownRecord(None, str(path))
        self._seen: tuple[int, int, int] | None = None
        self._member: Member | None = None
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        self.refresh()

    def record(self) -> RingRecord | None:
        """The record of the file as it was last seen."""
        return self._known.record

    def refresh(self) -> RingRecord | None:
        """Reads the file if it was replaced or changed; keeps the last record while it cannot be read."""
        try:
            facts = self._path.stat()
            seen = (facts.st_mtime_ns, facts.st_ino, facts.st_size)
            if seen != self._seen:
                self._known.learn(self._read(), authority=True)
                self._seen = seen
        except (OSError, MembershipError):
            pass  # gone or half-written by an editor: the last record holds until a good one is there
        return self._known.record

    def learn(self, record: RingRecord) -> None:
        """Keeps the record if it is newer: a worker has seen the file before this process did."""
        self._known.learn(record)

    def join(self, member: Member) -> None:
        """Writes the member into the file, under a lock file next to it."""
        self._member = member
        self._edit(lambda members: (*(known for known in members if known.id != member.id), member))

    def leave(self) -> None:
        """Takes the member out of the file."""
        member, self._member = self._member, None
        if member is None:
            return
        try:
            self._edit(lambda members: tuple(known for known in members if known.id != member.id))
        except MembershipError:
            pass  # the file cannot be written: clients' breakers find out

    def watch(self, changed: Callable[[RingRecord], None]) -> None:
        """Checks the file every second."""
        self._known.on_change(changed)
        self._watcher = threading.Thread(target=self._poll, name="stoker-ring-file", daemon=True)
        self._watcher.start()

    def forked(self) -> None:
        """In a forked child: nothing watches, and the parent keeps its place."""
        self._known.forked()
        self._member, self._watcher, self._ended = None, None, threading.Event()

    def close(self) -> None:
        """Ends the watching thread."""
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()

    def _poll(self) -> None:
        while not self._ended.wait(POLL_S):
            self.refresh()

    def _read(self) -> RingRecord:
        record = decode_record(self._path.read_bytes(), str(self._path))
        if record.epoch > 0:
            return record
        epoch = self._path.stat().st_mtime_ns
        return RingRecord(epoch=epoch, members=record.members, points=record.points, hash=record.hash)

    def _edit(self, edit: Callable[[tuple[Member, ...]], tuple[Member, ...]]) -> None:
        try:
            with _locked(self._path.with_name(self._path.name + ".lock")):
                current = self._read() if self._path.exists() else RingRecord(epoch=0, members=())
                known = newest(self._known.record, current) or current
                members = edit(current.members)
                if sorted(members, key=lambda member: member.id) == list(current.members):
                    return
                epoch = max(known.epoch, current.epoch) + 1
                ordered = tuple(sorted(members, key=lambda member: member.id))
                record = RingRecord(epoch=epoch, members=ordered, points=current.points, hash=current.hash)
                replace_file(self._path, record.encode())
        except OSError as error:
            raise MembershipError(f"`{self._path}` must be writable for a worker to join: {error.strerror}") from None
        self.refresh()


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file by ``data`` atomically."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
