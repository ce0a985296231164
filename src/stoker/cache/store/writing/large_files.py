"""Large objects: one file each with the object's bytes, and a second one with its present pages and checksums.

Contiguous, so that whole objects can be mapped or opened by their path. Pages come in any order, from any process; a
page's entry is written after its bytes and confirms under a checksum that they are complete. The file has its final
length from the start; disk blocks are allocated and counted page by page.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from stoker.cache.names import PAGE_BYTES, ObjectName, span_of
from stoker.cache.policies import PageLife
from stoker.cache.store.files.checksums import Readable, sums_bytes, sums_of
from stoker.cache.store.files.holes import Span
from stoker.cache.store.files.maps import open_locked
from stoker.cache.store.files.records import PageHeader, aligned, pack_header, parse
from stoker.cache.store.files.table import FileKind, FileTable, Row, RowState
from stoker.cache.store.index.page_index import Entry, Index
from stoker.cache.store.layout import LARGE_BYTES, Layout
from stoker.cache.store.locks import LockFile
from stoker.cache.store.reclaim.access_log import Count, Pulse
from stoker.cache.store.reclaim.admission import Refusals, Shelf
from stoker.cache.store.reclaim.space import SpaceBounds
from stoker.cache.store.writing.segment_writer import NewPage, forget, is_older
from stoker.cache.versions import Version

LARGE_INDEX = 0xFFFFFFFE
"""Index under which the file of a large object is found."""
_HEAD_BYTES = 4096
_PAGE = struct.Struct("<Q16sQI4x")
"""Checksum of the rest; key, version's digest, length; the page's checksums follow."""
_SUMS_BYTES = sums_bytes(PAGE_BYTES)
_PAGE_BYTES = _PAGE.size + _SUMS_BYTES
_MOST_FRAC = 0.25
"""Largest fraction of the limit for an object with a separate file; pages of larger ones go into segments."""
_BLOCK_BYTES = 4096
"""The disk allocates blocks of this size."""
_MOST_OPEN = 16
_ATTEMPTS = 4


class _Open(NamedTuple):
    """A large object that this process writes to."""

    number: int
    row: int
    data: int
    pages: int

    def close(self) -> None:
        os.close(self.data)
        os.close(self.pages)


def is_large(size: int, limit_bytes: int) -> bool:
    """Whether an object gets a separate file."""
    return LARGE_BYTES <= size <= limit_bytes * _MOST_FRAC


def description_bytes(size: int) -> int:
    """Bytes of the descriptions of an object's pages."""
    return _HEAD_BYTES + -(-size // PAGE_BYTES) * _PAGE_BYTES


def has_page(pages: Readable, index: int) -> bool:
    """Whether a page is present."""
    at = _HEAD_BYTES + index * _PAGE_BYTES
    check: int = _PAGE.unpack_from(pages, at)[0]
    return check != 0 and xxh3_64_intdigest(pages[at + 8 : at + _PAGE_BYTES]) == check


def locate_page(pages: Readable, key: bytes, version: int, offset: int, length: int) -> tuple[int, bytes] | None:
    """Where a page is in its object, and its checksums; None if it is missing, or another one is there."""
    at = _HEAD_BYTES + offset // PAGE_BYTES * _PAGE_BYTES
    row = bytes(pages[at : at + _PAGE_BYTES])
    if offset % PAGE_BYTES or len(row) < _PAGE_BYTES:
        return None
    check, found, digest, stored = _PAGE.unpack_from(row)
    if found != key or digest != version or stored != length or xxh3_64_intdigest(row[8:]) != check:
        return None
    return offset, row[_PAGE.size :]


def spans_there(pages: Readable) -> Iterator[Span]:
    """Offsets of the present pages in the object."""
    for index in range((len(pages) - _HEAD_BYTES) // _PAGE_BYTES):
        if has_page(pages, index):
            yield index * PAGE_BYTES, (index + 1) * PAGE_BYTES


def head_of(pages: Readable) -> PageHeader | None:
    """Which object a file holds."""
    return parse(pages, 0, min(len(pages), _HEAD_BYTES))


class LargeFiles:
    """Writes pages of large objects, for this process."""

    def __init__(
        self, layout: Layout, locks: LockFile, table: FileTable, index: Index, pulse: Pulse, room: SpaceBounds,
        *, lock_wait_s: float, seconds_to_live: tuple[float, ...],
    ) -> None:  # fmt: skip
        self._layout, self._locks, self._table, self._index = layout, locks, table, index
        self._pulse, self._room = pulse, room
        self._lock_wait_s = lock_wait_s
        self._ttl_s = seconds_to_live
        self._open: dict[int, _Open] = {}
        self._refusals = Refusals(room)
        self._lock = threading.RLock()

    def reset(self) -> None:
        """In a forked child: close the parent's files, whose locks it would keep."""
        self._lock = threading.RLock()
        self.close()

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def let_go(self, numbers: Iterable[int]) -> None:
        """Close evicted files."""
        with self._lock:
            for number in numbers:
                if (file := self._open.pop(number, None)) is not None:
                    file.close()

    def keep_only(self, alive: set[int]) -> None:
        """Close all files that are not among these."""
        self.let_go([number for number in list(self._open) if number not in alive])

    def make(self, name: ObjectName, version: Version, shelf: Shelf, checked_at: float) -> int | None:
        """Number of the file of an object's version, created if missing; None if there is no room for it."""
        try:
            return self.find(name, version) or self._make(name, version, shelf, checked_at)
        except OSError:
            return None  # the disk is full or broken

    def find(self, name: ObjectName, version: Version) -> int | None:
        """Number of the file of an object's version; None if there is none."""
        entry = self._index.find(name.key(LARGE_INDEX))
        if entry is None or entry.version != version.digest:
            return None
        row = self._table.find(entry.segment)
        return entry.segment if row >= 0 and self._table.get(row).state == RowState.OPEN else None

    def put(self, page: NewPage, shelf: Shelf) -> bool:
        """Write a page and publish it; False if there is no room for it or a lock is unavailable."""
        first, last = span_of(page.page, page.version.size)
        if first >= last or len(page.view) != last - first or self._refusals.cover(shelf, len(page.view)):
            return False
        with self._lock:
            try:
                file = self._file(page.name, page.version, shelf, page.checked_at)
                if file is None:
                    return False
                self._raise_life(file, shelf.life)
                return self._write(file, page.key, page.entry(file.number, first, shelf.rule), page.view, shelf)
            except OSError:
                return False  # the disk is full or broken

    def _raise_life(self, file: _Open, life: PageLife) -> None:
        """Keep a file as long as any page in it must be kept."""
        if life.outlasts(self._table.get(file.row).life):
            with self._locks.publishing(self._lock_wait_s) as held:
                if held and self._table.get(file.row).id == file.number:
                    self._table.update(file.row, life=life)

    def _write(self, file: _Open, key: bytes, entry: Entry, view: memoryview, shelf: Shelf) -> bool:
        sums = sums_of(view)
        content = _PAGE.pack(0, key, entry.version, entry.length)[8:] + sums.ljust(_SUMS_BYTES, b"\0")
        content = xxh3_64_intdigest(content).to_bytes(8, "little") + content
        at = _HEAD_BYTES + entry.offset // PAGE_BYTES * _PAGE_BYTES
        there = os.pread(file.pages, _PAGE_BYTES, at)
        if there == content:
            return self._publish(file, key, entry)
        if any(there):
            # Other bytes under the same version, or damage: nothing is ever overwritten.
            self._room.doom([(file.row, file.number)])
            return False
        size = aligned(entry.length, _BLOCK_BYTES)
        if not self._reserve(file, size, shelf):
            return False
        try:
            _pwrite_all(file.data, view, entry.offset)
            _pwrite_all(file.pages, memoryview(content), at)
        except OSError:
            self._reserve(file, -size, shelf)
            raise
        return self._publish(file, key, entry)

    def _reserve(self, file: _Open, num_bytes: int, shelf: Shelf) -> bool:
        """Count bytes that are about to be written."""
        for _ in range(_ATTEMPTS):
            with self._locks.publishing(self._lock_wait_s) as held:
                row = self._table.get(file.row)
                if not held or row.id != file.number or row.state != RowState.OPEN:
                    return False
                if num_bytes < 0 or self._room.fits(num_bytes, shelf.rule):
                    self._table.allocate(file.row, row.allocated + num_bytes)
                    self._pulse.written(file.row)
                    return True
            if not self._room.make(num_bytes, shelf.life, shelf.rule):
                self._refusals.note(shelf, num_bytes)
                return False
        return False

    def _publish(self, file: _Open, key: bytes, entry: Entry) -> bool:
        with self._locks.publishing(self._lock_wait_s) as held:
            row = self._table.get(file.row)
            old = self._index.find(key)
            if not held or row.id != file.number or row.state != RowState.OPEN or is_older(entry, old):
                return False
            self._index.put(key, entry)
            self._table.extend(file.row, row.tail, row.live_bytes + entry.length, row.live_pages + 1)
            if old is not None:
                forget(self._table, old)
            self._pulse.count(Count.PUTS)
            return True

    def _file(self, name: ObjectName, version: Version, shelf: Shelf, checked_at: float) -> _Open | None:
        """The object's file, created if missing."""
        number = self.find(name, version)
        if number is None:
            number = self._make(name, version, shelf, checked_at)
        if number is None:
            return None
        if (file := self._open.get(number)) is None:
            file = self._open_file(number)
            if file is not None:
                while len(self._open) >= _MOST_OPEN:
                    self._open.pop(next(iter(self._open))).close()
                self._open[number] = file
        return file

    def _open_file(self, number: int) -> _Open | None:
        row = self._table.find(number)
        if row < 0:
            return None
        data = open_locked(self._layout.large(number), os.O_RDWR)
        pages = open_locked(self._layout.large_rows(number), os.O_RDWR)
        if data is not None and pages is not None:
            return _Open(number, row, data, pages)
        for fd in (data, pages):
            if fd is not None:
                os.close(fd)
        return None

    def _make(self, name: ObjectName, version: Version, shelf: Shelf, checked_at: float) -> int | None:
        head = pack_header(name, LARGE_INDEX, version, 0, b"", rule=shelf.rule, checked_at=checked_at)
        if head is None or len(head) > _HEAD_BYTES:
            return None
        size = description_bytes(version.size)
        for _ in range(_ATTEMPTS):
            with self._locks.publishing(self._lock_wait_s) as held:
                if not held:
                    return None
                if (number := self.find(name, version)) is not None:
                    return number  # another process was first
                if self._room.fits(size, shelf.rule):
                    return self._make_files(name, version, shelf, checked_at, head)
            if not self._room.make(size, shelf.life, shelf.rule):
                self._refusals.note(shelf, size)
                return None
        return None

    def _make_files(
        self, name: ObjectName, version: Version, shelf: Shelf, checked_at: float, head: bytes
    ) -> int | None:
        key = name.key(LARGE_INDEX)
        old = self._index.find(key)
        now = time.time()
        size = description_bytes(version.size)
        timed = shelf.life in (PageLife.TIMED, PageLife.COPY) and shelf.rule < len(self._ttl_s)
        ttl_s = self._ttl_s[shelf.rule] if timed else float("inf")
        row, content = self._table.add(
            state=RowState.MAKING, kind=FileKind.LARGE, life=shelf.life, rule=shelf.rule, group=shelf.group,
            allocated=aligned(size, _BLOCK_BYTES), created=now, expires=now + ttl_s,
        )  # fmt: skip
        if not self._locks.claim(row):
            self._table.free(row)
            return None
        entry = Entry(version.digest, version.size, checked_at, content.id, 0, 0, shelf.rule)
        if is_older(entry, old):
            self._table.free(row)
            self._locks.release(row)
            return None
        try:
            self._pulse.begin(row)
            _make_file(self._layout.large_rows(content.id), head, size)
            _make_file(self._layout.large(content.id), b"", version.size)
            self._table.update(row, state=RowState.OPEN)
            self._index.put(key, entry)
        except OSError:
            self._drop_files(row, content)
            raise
        finally:
            self._locks.release(row)
        if old is not None and (old_row := self._table.find(old.segment)) >= 0:
            # Pages of the previous version are of no use any more.
            self._room.doom([(old_row, old.segment)])
        return content.id

    def _drop_files(self, row: int, content: Row) -> None:
        self._layout.large(content.id).unlink(missing_ok=True)
        self._layout.large_rows(content.id).unlink(missing_ok=True)
        self._table.free(row)


def _make_file(path: Path, head: bytes, size: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if head:
            # Descriptions of missing pages are read too, which needs space on some filesystems.
            os.posix_fallocate(fd, 0, size)
            os.pwrite(fd, head, 0)
        else:
            os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _pwrite_all(fd: int, content: memoryview, offset: int) -> None:
    while content:
        done = os.pwrite(fd, content, offset)
        content, offset = content[done:], offset + done
