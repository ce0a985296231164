"""Maintenance of a store: evict, pin, verify, compact, count. Slow; no read waits for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stoker.cache.names import ObjectName
from stoker.cache.policies import PageLife
from stoker.cache.store.components import Parts
from stoker.cache.store.contents import HeldPage, is_under
from stoker.cache.store.files.table import FileKind, Row, RowState
from stoker.cache.store.index.page_index import Entry
from stoker.cache.store.reclaim.access_log import Count
from stoker.cache.store.reclaim.admission import Shelf
from stoker.cache.store.writing.segment_writer import NewPage, forget

_TOGETHER = 64
"""Pages that change under one lock, for which other processes wait."""
COMPACT_FRAC = 0.3
"""A segment with less of it live is rewritten."""


class PageCount(NamedTuple):
    """A number of pages and their bytes."""

    pages: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """The state of a store.

    Attributes:
        limit_bytes: most bytes on disk.
        used_bytes: bytes that count for the limit.
        disk_spare_bytes: bytes of disk left for it; negative if less is free than must stay free.
        live: pages that can be read.
        pinned: of these, in files that are only evicted once they are unpinned.
        doomed_bytes: bytes of evicted files that processes still have mapped.
        index_bytes: of the index.
        segments: files of small pages.
        large: files of large objects.
        hits: reads of pages, since the store was made.
        puts: pages that were stored.
        refused: pages that were not.
        evicted: pages that were evicted.
        damaged: pages whose checksums differed.
    """

    limit_bytes: int
    used_bytes: int
    disk_spare_bytes: int
    live: PageCount
    pinned: PageCount
    doomed_bytes: int
    index_bytes: int
    segments: int
    large: int
    hits: int
    puts: int
    refused: int
    evicted: PageCount
    damaged: int


class VerifyReport(NamedTuple):
    """What reading everything found.

    Attributes:
        intact: pages whose checksums are right.
        damaged: pages that were not, and were dropped.
    """

    intact: PageCount
    damaged: PageCount


class Upkeep:
    """Slow work on a store.

    Args:
        parts: of the store.
        view: returns a page's bytes if they are intact, and drops it if not.
    """

    def __init__(self, parts: Parts, view: Callable[[bytes, Entry], memoryview | None]) -> None:
        self._locks, self._table, self._index, self._pulse = parts.locks, parts.table, parts.index, parts.pulse
        self._room, self._writers, self._contents, self._pins = parts.room, parts.writers, parts.contents, parts.pins
        self._lock_wait_s, self._limit_bytes = parts.settings.lock_wait_s, parts.limit_bytes
        self._view = view

    def evict(self, prefix: ObjectName | None) -> PageCount:
        """Forget pages under a prefix, and remove files without any pages left."""
        pages = num_bytes = 0
        for batch in _batches(self._contents.held(prefix)):
            with self._locks.publishing(self._lock_wait_s) as locked:
                for held in batch if locked else ():
                    found = self._index.find(held.key)
                    if found is not None and found.segment == held.entry.segment:
                        self._index.remove(held.key)
                        forget(self._table, found)
                        pages, num_bytes = pages + 1, num_bytes + found.length
        self._remove_empty()
        return PageCount(pages, num_bytes)

    def _remove_empty(self) -> None:
        # Segments that this process appends to are released, or they could not be removed.
        self._writers.close()
        rows = [(row, self._table.get(row)) for row in self._contents.rows()]
        self._room.doom([(row, content.id) for row, content in rows if not content.live_pages])
        self._room.reap()

    def pin(self, prefix: ObjectName) -> PageCount:
        """Pin a prefix, now and later, until it is unpinned or evicted; return what is cached of it now."""
        with self._locks.publishing(self._lock_wait_s) as locked:
            if locked:
                self._pins.change({*self._pins.prefixes(), prefix})
        pages = num_bytes = 0
        for row in self._contents.rows():
            for held in self._with_life(row, prefix, PageLife.PINNED):
                pages, num_bytes = pages + 1, num_bytes + held.entry.length
        self._writers.close()
        return PageCount(pages, num_bytes)

    def unpin(self, prefix: ObjectName) -> PageCount:
        """Unpin a prefix: its pages may be evicted from now on."""
        with self._locks.publishing(self._lock_wait_s) as locked:
            if locked:
                self._pins.change({pinned for pinned in self._pins.prefixes() if not is_under(pinned, prefix)})
        pages = num_bytes = 0
        self._writers.close()
        for row in self._contents.rows():
            if self._table.get(row).life == PageLife.PINNED:
                for held in self._with_life(row, prefix, PageLife.NORMAL):
                    pages, num_bytes = pages + 1, num_bytes + held.entry.length
        # Release the segments that the pages were moved to.
        self._writers.close()
        return PageCount(pages, num_bytes)

    def _with_life(self, row: int, prefix: ObjectName, life: PageLife) -> Iterator[HeldPage]:
        """Change the life of a file's pages under a prefix; yields those that have it now."""
        content = self._table.get(row)
        held = list(self._contents.of_row(row))
        chosen = [page for page in held if is_under(page.name, prefix)]
        if content.life == life or not chosen:
            yield from chosen
            return
        # A large object's file, or one without other pages, changes as a whole; else pages are stored again.
        if (content.kind == FileKind.LARGE or len(chosen) == len(held)) and self._change_row(row, content, life):
            yield from chosen
            return
        if content.kind == FileKind.SEGMENT:
            yield from (page for page, is_moved in self._moved(chosen, content, life) if is_moved)

    def _change_row(self, row: int, content: Row, life: PageLife) -> bool:
        with self._locks.publishing(self._lock_wait_s) as locked:
            if not locked or self._table.get(row).id != content.id or not self._locks.claim(row):
                return False
            try:
                self._table.update(row, life=life)
            finally:
                self._locks.release(row)
            return True

    def _moved(self, held: Iterable[HeldPage], content: Row, life: PageLife) -> Iterator[tuple[HeldPage, bool]]:
        """Store pages of a file again, with another life; yields each with whether that was done."""
        shelf = Shelf(content.group, life, content.rule)
        for batch in _batches(held):
            views = [self._view(one.key, one.entry) for one in batch]
            pages = [
                NewPage(one.name, one.page, one.version, view, one.key, one.entry.version, one.entry.checked_at)
                for one, view in zip(batch, views, strict=True)
                if view is not None
            ]
            kept = iter(self._writers.put(pages, shelf))
            yield from [(one, view is not None and next(kept)) for one, view in zip(batch, views, strict=True)]

    def compact(self) -> int:
        """Rewrite segments of which little is live; return their number."""
        done = 0
        for row in self._contents.rows():
            content = self._table.get(row)
            small = 0 < content.live_bytes < COMPACT_FRAC * content.allocated
            if content.kind != FileKind.SEGMENT or content.state != RowState.SEALED or not small:
                continue
            moved = [
                is_moved for _, is_moved in self._moved(self._contents.of_row(row), content, PageLife(content.life))
            ]
            if all(moved):
                done += self._room.doom([(row, content.id)])
        self._writers.close()
        self._room.reap()
        return done

    def verify(self) -> VerifyReport:
        """Verify everything; evict damaged pages."""
        counts = {True: [0, 0], False: [0, 0]}
        for held in self._contents.held():
            count = counts[self._view(held.key, held.entry) is not None]
            count[0] += 1
            count[1] += held.entry.length
        return VerifyReport(PageCount(*counts[True]), PageCount(*counts[False]))

    def stats(self) -> StoreStats:
        """The state of the store."""
        self._pulse.flush()
        rows = self._table.rows()
        alive = (rows["state"] == RowState.OPEN) | (rows["state"] == RowState.SEALED)
        pinned = alive & (rows["life"] == PageLife.PINNED)
        counted = self._pulse.counted
        return StoreStats(
            limit_bytes=self._limit_bytes,
            used_bytes=self._room.used_bytes(),
            disk_spare_bytes=self._room.disk_spare_bytes(),
            live=PageCount(int(rows["live_pages"][alive].sum()), int(rows["live_bytes"][alive].sum())),
            pinned=PageCount(int(rows["live_pages"][pinned].sum()), int(rows["live_bytes"][pinned].sum())),
            doomed_bytes=int(rows["allocated"][rows["state"] == RowState.DOOMED].sum()),
            index_bytes=self._index.num_bytes,
            segments=int((alive & (rows["kind"] == FileKind.SEGMENT)).sum()),
            large=int((alive & (rows["kind"] == FileKind.LARGE)).sum()),
            hits=counted(Count.HITS),
            puts=counted(Count.PUTS),
            refused=counted(Count.REFUSED),
            evicted=PageCount(counted(Count.EVICTED_PAGES), counted(Count.EVICTED_BYTES)),
            damaged=counted(Count.DAMAGED),
        )


def _batches(held: Iterable[HeldPage]) -> Iterator[list[HeldPage]]:
    """Pages in their order, some at a time."""
    waiting = iter(held)
    while batch := list(itertools.islice(waiting, _TOGETHER)):
        yield batch
