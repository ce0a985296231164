"""Adding pages to segments: claiming one, appending, publishing; one batch of records at a time per process.

A record counts once the table's ``tail`` is past it, and is found once the index names it, in this order. A process
that dies in between leaves an unreachable record, and never revives an old one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from stoker.cache.names import ObjectName
from stoker.cache.policies import PageLife
from stoker.cache.store.files.checksums import sums_of
from stoker.cache.store.files.records import pack_header
from stoker.cache.store.files.segments import FIRST_RECORD_AT, SegmentWriter, make_segment
from stoker.cache.store.files.table import FileKind, FileTable, Row, RowState
from stoker.cache.store.index.page_index import Entry, Index, pack_slot
from stoker.cache.store.layout import Layout
from stoker.cache.store.locks import LockFile
from stoker.cache.store.reclaim.access_log import Count, Pulse
from stoker.cache.store.reclaim.admission import Refusals, Refuser, Shelf
from stoker.cache.versions import Version

_APPEND_FRAC = 0.25
"""Fraction of a segment's lifetime in which pages are added: its last page lives for the rest of it."""
_MOST_WRITERS = 8
"""Segments that one process appends to; the one that it began first is left to others."""
_ATTEMPTS = 4
"""Attempts to make room, since other processes may take it."""


class Growth(Refuser, Protocol):
    """Decides whether the store may grow."""

    def fits(self, num_bytes: int, rule: int) -> bool:
        """Whether so many bytes may be added. Under the publish lock."""
        ...

    @property
    def is_tight(self) -> bool:
        """Whether the index has little room left to grow."""
        ...

    def quota_bytes(self, rule: int) -> int | None:
        """Most bytes of a rule's pages."""
        ...

    def make(self, num_bytes: int, life: PageLife, rule: int) -> bool:
        """Evict what may be evicted for so many bytes; return whether anything was removed. Under no lock."""
        ...


class NewPage(NamedTuple):
    """A page to keep.

    Attributes:
        name: of the object.
        page: its index.
        version: of the object.
        view: the bytes.
        key: of the page.
        digest: of the version.
        checked_at: when the store said that this is the version.
    """

    name: ObjectName
    page: int
    version: Version
    view: memoryview
    key: bytes
    digest: int
    checked_at: float

    def header(self, rule: int) -> bytes | None:
        """Header of its record; None if a text is too long to be kept."""
        return pack_header(
            self.name, self.page, self.version, len(self.view), sums_of(self.view), rule=rule,
            checked_at=self.checked_at, key=self.key, digest=self.digest,
        )  # fmt: skip

    def entry(self, segment: int, offset: int, rule: int) -> Entry:
        """Its entry in the index."""
        return Entry(self.digest, self.version.size, self.checked_at, segment, offset, len(self.view), rule)


class _Record(NamedTuple):
    """A page with its header, and its place among the pages to keep."""

    place: int
    page: NewPage
    header: bytes


class Writers:
    """The segments that this process appends to, one per shelf."""

    def __init__(
        self, layout: Layout, locks: LockFile, table: FileTable, index: Index, pulse: Pulse, room: Growth,
        *, segment_bytes: int, lock_wait_s: float, seconds_to_live: tuple[float, ...],
    ) -> None:  # fmt: skip
        self._layout, self._locks, self._table, self._index = layout, locks, table, index
        self._pulse, self._room = pulse, room
        self._segment_bytes = segment_bytes
        self._lock_wait_s = lock_wait_s
        self._ttl_s = seconds_to_live

        self._num_buckets = -1
        self._writers: dict[Shelf, SegmentWriter] = {}
        self._refusals = Refusals(room)
        self._lock = threading.Lock()

    def reset(self) -> None:
        """In a forked child: close the segments, which are the parent's."""
        left, self._writers = self._writers, {}
        self._lock = threading.Lock()
        for writer in left.values():
            writer.close()

    def close(self) -> None:
        """Release the segments for other processes."""
        with self._lock:
            for writer in self._writers.values():
                writer.close()
                self._locks.release(writer.row)
            self._writers.clear()

    def put(self, pages: Sequence[NewPage], shelf: Shelf) -> list[bool]:
        """Append pages and publish them, many under one lock.

        Returns:
            For each page, whether it is kept: there may be no room for it, or a lock is unavailable.
        """
        kept = [False] * len(pages)
        waiting: list[_Record] = []
        for place, page in enumerate(pages):
            header = None if self._refusals.cover(shelf, len(page.view)) else page.header(shelf.rule)
            if header is not None:
                waiting.append(_Record(place, page, header))
        with self._lock:
            try:
                if not waiting or not self._index_may_grow(shelf):
                    return kept
                while waiting and (
                    writer := self._writer_for(shelf, len(waiting[0].header), len(waiting[0].page.view))
                ):
                    ends = writer.append([(header, page.view) for _, page, header in waiting])
                    number = self._publish(writer, waiting[: len(ends)], ends, shelf.rule)
                    if number is None:
                        break
                    for record in waiting[:number]:
                        kept[record.place] = True
                    # The first one that was not published is out of date; those after it are appended again.
                    waiting = waiting[number + (number < len(ends)) :]
            except OSError:
                # The disk is full or broken: unpublished records do not count.
                self._abandon(shelf)
        return kept

    def _index_may_grow(self, shelf: Shelf) -> bool:
        """Whether there is room for the index too; asked when it has grown, by any process."""
        num_buckets = self._index.num_buckets
        if num_buckets == self._num_buckets:
            return True
        if self._room.is_tight and not self._room.make(0, shelf.life, shelf.rule):
            self._refusals.note(shelf, 0)
            return False
        self._num_buckets = num_buckets
        return True

    def _publish(self, writer: SegmentWriter, records: Sequence[_Record], ends: Sequence[int], rule: int) -> int | None:
        """Publish the records that were just appended.

        Returns:
            How many, up to the first one that is out of date; None if there is no lock, or the segment is gone.
        """
        starts = (writer.tail, *ends)
        entries = [
            record.page.entry(writer.number, start, rule) for record, start in zip(records, starts, strict=False)
        ]
        slots = [pack_slot(record.page.key, entry) for record, entry in zip(records, entries, strict=True)]
        done = 0
        # Other processes wait meanwhile: only what is necessary is done under the lock.
        with self._locks.publishing(self._lock_wait_s) as held:
            if not held:
                return None
            for (_, page, header), entry, slot, end in zip(records, entries, slots, ends, strict=True):
                number, state, live_bytes, live_pages = self._table.live(writer.row)
                if number != writer.number or state != RowState.OPEN:
                    return None
                spot = self._index.seek(page.key)
                if is_older(entry, spot.entry):
                    break
                self._table.extend(writer.row, end, live_bytes + entry.length, live_pages + 1)
                writer.advance(header, end)
                self._index.write(page.key, slot, spot)
                if spot.entry is not None:
                    forget(self._table, spot.entry)
                done += 1
        if done:
            self._pulse.written(writer.row)
            self._pulse.count(Count.PUTS, done)
        return done

    def _writer_for(self, shelf: Shelf, header_bytes: int, length: int) -> SegmentWriter | None:
        writer = self._writers.get(shelf)
        if writer is not None and not (writer.has_room(header_bytes, length) and time.time() < writer.until):
            self._seal(shelf, writer)
            writer = None
        if writer is None:
            while len(self._writers) >= _MOST_WRITERS:
                self._abandon(next(iter(self._writers)))
            writer = self._claim(shelf, header_bytes, length) or self._make(shelf, header_bytes, length)
            if writer is not None:
                self._writers[shelf] = writer
                self._refusals.forget(shelf)
        return writer

    def _seal(self, shelf: Shelf, writer: SegmentWriter) -> None:
        del self._writers[shelf]
        try:
            writer.seal()
            with self._locks.publishing(self._lock_wait_s) as held:
                if held and self._table.get(writer.row).id == writer.number:
                    self._table.update(writer.row, state=RowState.SEALED)
        finally:
            writer.close()
            self._locks.release(writer.row)

    def _abandon(self, shelf: Shelf) -> None:
        writer = self._writers.pop(shelf, None)
        if writer is not None:
            writer.close()
            self._locks.release(writer.row)

    def _claim(self, shelf: Shelf, header_bytes: int, length: int) -> SegmentWriter | None:
        """A segment that another process began and left."""
        with self._locks.publishing(self._lock_wait_s) as held:
            if not held:
                return None
            rows = self._table.rows()
            fits = (
                (rows["state"] == RowState.OPEN) & (rows["kind"] == FileKind.SEGMENT) & (rows["group"] == shelf.group)
            )
            fits &= (rows["life"] == shelf.life) & (rows["rule"] == shelf.rule)
            fits &= rows["created"] + self._ttl_of(shelf) * _APPEND_FRAC > time.time()
            for row in fits.nonzero()[0].tolist():
                writer = self._claim_row(row)
                if writer is not None and writer.has_room(header_bytes, length):
                    return writer
                if writer is not None:
                    writer.seal()
                    self._table.update(row, state=RowState.SEALED)
                    writer.close()
                    self._locks.release(row)
        return None

    def _claim_row(self, row: int) -> SegmentWriter | None:
        if not self._locks.claim(row):
            return None
        content = self._table.get(row)
        try:
            fd = os.open(self._layout.segment(content.id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            self._table.doom(row, time.time())
            self._locks.release(row)
            return None
        return SegmentWriter(fd, content.id, row, content.tail, self._until(content))

    def _make(self, shelf: Shelf, header_bytes: int, length: int) -> SegmentWriter | None:
        size = self._segment_bytes
        if (quota := self._room.quota_bytes(shelf.rule)) is not None:
            size = min(size, max(quota // 8, min(quota, 4 << 20)) // 4096 * 4096)
        smallest = header_bytes * 2 + length + FIRST_RECORD_AT + 128
        if smallest > size:
            return None
        for _ in range(_ATTEMPTS):
            with self._locks.publishing(self._lock_wait_s) as held:
                if not held:
                    return None
                if self._room.fits(size, shelf.rule):
                    return self._make_row(shelf, size)
            if self._room.make(size, shelf.life, shelf.rule):
                continue
            # Nothing may be evicted; a small segment uses what is left of the limit.
            self._refusals.note(shelf, length)
            if size // 4 < smallest:
                return None
            size = size // 4 // 4096 * 4096
        return None

    def _make_row(self, shelf: Shelf, size: int) -> SegmentWriter | None:
        now = time.time()
        row, content = self._table.add(
            state=RowState.MAKING, kind=FileKind.SEGMENT, life=shelf.life, rule=shelf.rule, group=shelf.group,
            allocated=size, tail=FIRST_RECORD_AT, created=now, expires=now + self._ttl_of(shelf),
        )  # fmt: skip
        if not self._locks.claim(row):
            self._table.free(row)
            return None
        try:
            self._pulse.begin(row)
            fd = make_segment(self._layout.segment(content.id), content.id, row, size)
            self._table.update(row, state=RowState.OPEN)
        except OSError:
            self._table.free(row)
            self._locks.release(row)
            raise
        return SegmentWriter(fd, content.id, row, FIRST_RECORD_AT, self._until(content))

    def _ttl_of(self, shelf: Shelf) -> float:
        timed = shelf.life in (PageLife.TIMED, PageLife.COPY) and shelf.rule < len(self._ttl_s)
        return self._ttl_s[shelf.rule] if timed else float("inf")

    @staticmethod
    def _until(row: Row) -> float:
        return row.created + (row.expires - row.created) * _APPEND_FRAC


def is_older(new: Entry, old: Entry | None) -> bool:
    """Whether the index has another version, which the store confirmed later."""
    return old is not None and old.version != new.version and new.checked_at < old.checked_at <= time.time()


def forget(table: FileTable, entry: Entry) -> None:
    """Count a page as no longer live. Under the publish lock."""
    row = table.find(entry.segment)
    if row >= 0:
        content = table.get(row)
        live_bytes, live_pages = max(0, content.live_bytes - entry.length), max(0, content.live_pages - 1)
        table.extend(row, content.tail, live_bytes, live_pages)
