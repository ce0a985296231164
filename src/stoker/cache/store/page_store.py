"""The page store: this package's interface for the rest of the cache.

Thread-safe, fork-safe, and shared by all processes that open its directory. Reading takes no lock and no system call
where the file is mapped already, so that a busy thread of the program does not make it wait.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from xxhash import xxh3_64_intdigest

from stoker.cache.names import DESCRIPTION, ObjectName
from stoker.cache.policies import PageLife
from stoker.cache.protocols import Reads
from stoker.cache.store.block_sum_cache import LONGEST_BYTES, Pieces
from stoker.cache.store.components import Parts
from stoker.cache.store.contents import HeldPage
from stoker.cache.store.files.checksums import Bytes
from stoker.cache.store.files.maps import Mapped
from stoker.cache.store.files.records import locate
from stoker.cache.store.files.table import CHANGES_CELL, FileKind
from stoker.cache.store.index.page_index import TICK_S, Entry
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.maintenance import PageCount, StoreStats, Upkeep, VerifyReport
from stoker.cache.store.reclaim.access_log import Count
from stoker.cache.store.reclaim.admission import Shelf
from stoker.cache.store.writing.large_files import is_large, locate_page
from stoker.cache.store.writing.large_object import LargeObject, LargePages
from stoker.cache.store.writing.segment_writer import NewPage, forget
from stoker.cache.versions import Version

_BRIEFLY_S = 0.05
"""Longest wait for a lock if going without it only costs another lookup."""
_DROPPED_AT_ONCE = 64
"""Pages under one lock: others wait for it."""


class PageStore:
    """Pages of objects in a directory.

    Args:
        directory: of the store; created if missing.
        settings: how it behaves.

    Raises:
        CacheDirectoryError: the directory cannot be used.
        CacheBusyError: a stopped process holds the lock under which the store is opened.
    """

    def __init__(self, directory: Path, settings: StoreSettings | None = None) -> None:
        self._parts = parts = Parts(Path(directory), settings or StoreSettings())
        self.settings, self.layout, self.limit_bytes = parts.settings, parts.layout, parts.limit_bytes
        self._locks, self._table, self._index, self._pulse = parts.locks, parts.table, parts.index, parts.pulse
        self._maps, self._large = parts.maps, parts.large
        self._upkeep = Upkeep(parts, self.view)
        self._changes = self._table.changes
        self._always = self.settings.verify == "always"
        self._pieces = Pieces()

    def close(self) -> None:
        """Unmap all files; views stay valid. Nothing else may be called afterwards."""
        self._parts.close()

    def note_reads(self) -> None:
        """Count this process's reads that were not counted yet, since reads are counted in batches."""
        self._pulse.flush()

    def __enter__(self) -> PageStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def roots(self) -> tuple[str, ...]:
        """Its directory, which other processes of this user may open as well."""
        return (str(self.layout.root.absolute()),)

    def lookup(self, key: bytes) -> Entry | None:
        """Where a page is, and which version it belongs to; None if it is not here."""
        return self._index.find(key)

    def read_into(self, key: bytes, entry: Entry, start: int, buffer: memoryview) -> bool:
        """Copy bytes of a page, compared with their checksums.

        Args:
            key: of the page.
            entry: what :meth:`lookup` gave.
            start: first byte of the page.
            buffer: as long as the range to copy, all within the page; its content is undefined after False.

        Returns:
            False if the page is gone or damaged (then it is dropped): a miss.
        """
        small = self._always and len(buffer) <= LONGEST_BYTES < entry.length
        if small and self._changes == self._table.cells[CHANGES_CELL]:
            mapped = self._pieces.read(self._maps.files.get(entry.segment), key, entry, start, buffer)
            if mapped is not None:
                self._pulse.hit(key, mapped.row)
                return True
        found = self._located(key, entry)
        if found is None or start + len(buffer) > entry.length:
            return False
        mapped, at, sums = found
        if mapped.read(at, entry.length, sums, start, buffer, always=self._always):
            if small:
                self._pieces.note(mapped, key, entry, at, sums, start)
            self._pulse.hit(key, mapped.row)
            return True
        self._damaged(key, entry)
        return False

    def view(self, key: bytes, entry: Entry) -> memoryview | None:
        """A zero-copy, read-only view of a page, verified now; None if it is gone or damaged.

        The bytes stay unchanged while the view lives, even if the page is evicted, and count against the limit.
        """
        found = self._located(key, entry)
        if found is None:
            return None
        mapped, at, sums = found
        page = mapped.page(at, entry.length, sums, always=self._always)
        if page is None:
            self._damaged(key, entry)
        else:
            self._pulse.hit(key, mapped.row)
        return page

    def _located(self, key: bytes, entry: Entry) -> tuple[Mapped, int, bytes] | None:
        """The file of a page, where its bytes begin in it, and their checksums."""
        try:
            mapped = self._mapped(entry.segment)
        except OSError:
            return None  # no descriptors or no memory for one more map: other processes may still read the page
        if mapped is None or (mapped.expires is not None and mapped.expires <= time.time()):
            self._discard(key, entry)
            return None
        if mapped.large is not None:
            found = locate_page(mapped.large.data, key, entry.version, entry.offset, entry.length)
        else:
            checked = self._always or not mapped.has_seen(entry.offset)
            found = locate(mapped.data, entry.offset, mapped.size, key, entry.version, entry.length, checked=checked)
            if found is not None and checked and not self._always:
                mapped.note_seen(entry.offset)
        if found is None:
            self._discard(key, entry)
            return None
        return mapped, found[0], found[1]

    def _mapped(self, number: int) -> Mapped | None:
        """A mapped file; evicted ones are unmapped."""
        if self._changes != self._table.cells[CHANGES_CELL]:
            self._changes = self._table.changes
            self._parts.sweep()
        return self._maps.files.get(number) or self._maps.get(number)

    def put(
        self, name: ObjectName, index: int, version: Version, payload: Bytes, *,
        rule: int = 0, life: PageLife = PageLife.NORMAL, checked_at: float,
    ) -> bool:  # fmt: skip
        """Keep a page.

        Args:
            name: of the object.
            index: of the page, or :data:`~stoker.cache.names.DESCRIPTION`.
            version: that the bytes are proven to belong to.
            payload: bytes of the page.
            rule: number of the rule that holds for the path.
            life: how the page leaves the cache.
            checked_at: when the store said that this is the version (seconds since the epoch).

        Returns:
            False if it is not kept: nothing may be evicted for it, the disk is full, a later version is known, or a
            stopped process holds a lock.
        """
        if not version.storable:
            return False
        page = self._new_page(name, index, version, payload, checked_at)
        if self._has(page, life):
            return True
        shelf = self._shelf(name, life, rule)
        if self._is_large(index, version):
            kept = self._large.put(page, shelf)
        else:
            kept = self._parts.writers.put([page], shelf)[0]
        if not kept:
            self._pulse.count(Count.REFUSED)
        return kept

    def put_many(
        self, pages: Sequence[tuple[ObjectName, int, Version, Bytes]], *,
        rule: int = 0, life: PageLife = PageLife.NORMAL, checked_at: float,
    ) -> list[bool]:  # fmt: skip
        """Keep several pages; for many small ones that is faster than one after the other.

        Args:
            pages: object, index, version and bytes of each, as for :meth:`put`.
            rule: number of the rule that holds for their paths.
            life: how they leave the cache.
            checked_at: when the store said that these are the versions.

        Returns:
            For each, what :meth:`put` would return.
        """
        kept = [False] * len(pages)
        waiting: dict[Shelf, list[tuple[int, NewPage]]] = {}
        for place, (name, index, version, payload) in enumerate(pages):
            if not version.storable or self._is_large(index, version):
                kept[place] = self.put(name, index, version, payload, rule=rule, life=life, checked_at=checked_at)
                continue
            page = self._new_page(name, index, version, payload, checked_at)
            if self._has(page, life):
                kept[place] = True
            else:
                waiting.setdefault(self._shelf(name, life, rule), []).append((place, page))
        for shelf, placed in waiting.items():
            done = self._parts.writers.put([page for _, page in placed], shelf)
            for (place, _), is_kept in zip(placed, done, strict=True):
                kept[place] = is_kept
            self._pulse.count(Count.REFUSED, done.count(False))
        return kept

    def _new_page(self, name: ObjectName, index: int, version: Version, payload: Bytes, checked_at: float) -> NewPage:
        key = name.key(index)
        self._pulse.ask(key)
        return NewPage(name, index, version, memoryview(payload).cast("B"), key, version.digest, checked_at)

    def _is_large(self, index: int, version: Version) -> bool:
        return index != DESCRIPTION and is_large(version.size, self.limit_bytes)

    def _has(self, page: NewPage, life: PageLife) -> bool:
        """Whether a page is here already, intact, and stays as long as it should."""
        old = self._index.find(page.key)
        if old is None or old.version != page.digest or old.length != len(page.view):
            return False
        if page.checked_at > old.checked_at:
            self.confirm(page.key, old, page.checked_at)
        return self._is_intact(page.key, old) and not self._outlasts(life, old)

    def _is_intact(self, key: bytes, entry: Entry) -> bool:
        found = self._located(key, entry)
        return found is not None and found[0].page(found[1], entry.length, found[2], always=True) is not None

    def _outlasts(self, life: PageLife, entry: Entry) -> bool:
        """Whether a page must be kept longer than the file that it is in."""
        row = self._table.find(entry.segment)
        return row >= 0 and life.outlasts(self._table.get(row).life)

    def _shelf(self, name: ObjectName, life: PageLife, rule: int) -> Shelf:
        life = PageLife.PINNED if self._parts.pins.covers(name) else life
        return Shelf(group_of(name.namespace, name.path.partition("/")[0]), life, min(rule, 255))

    def confirm(self, key: bytes, entry: Entry, checked_at: float) -> None:
        """Record that the store confirmed an entry's version. Does nothing if a lock is unavailable."""
        if checked_at - entry.checked_at < TICK_S:
            return  # the entry says so already, at its resolution
        with self._locks.publishing(_BRIEFLY_S) as held:
            now = self._index.find(key) if held else None
            if now is not None and now.version == entry.version and now.checked_at < checked_at:
                # On a full disk, the store is asked again later.
                with contextlib.suppress(OSError):
                    self._index.put(key, now._replace(checked_at=checked_at))

    def describe(
        self, name: ObjectName, version: Version, description: bytes, *,
        rule: int = 0, life: PageLife = PageLife.NORMAL, checked_at: float,
    ) -> bool:  # fmt: skip
        """Keep the store's metadata of an object."""
        return self.put(name, DESCRIPTION, version, description, rule=rule, life=life, checked_at=checked_at)

    def description(self, name: ObjectName) -> tuple[Entry, bytes] | None:
        """The store's metadata of an object and its version; None if it is not cached."""
        key = name.key(DESCRIPTION)
        entry = self.lookup(key)
        if entry is None:
            return None
        content = bytearray(entry.length)
        return (entry, bytes(content)) if self.read_into(key, entry, 0, memoryview(content)) else None

    def reads(self) -> Reads:
        """How many reads found their page; other processes note theirs a few at a time."""
        self._pulse.flush()
        counted = self._pulse.counted
        return Reads(counted(Count.HITS), counted(Count.PUTS) + counted(Count.REFUSED))

    def drop(self, *keys: bytes) -> None:
        """Forget pages.

        Raises:
            CacheBusyError: a stopped process holds the lock; pages are still there.
        """
        for first in range(0, len(keys), _DROPPED_AT_ONCE):
            with self._parts.publishing("dropping pages"):
                for key in keys[first : first + _DROPPED_AT_ONCE]:
                    entry = self._index.find(key)
                    self._index.remove(key)
                    if entry is not None:
                        forget(self._table, entry)

    def _discard(self, key: bytes, entry: Entry) -> None:
        """Drop a page that is gone or damaged, unless it has been stored again. A read does not wait for it."""
        with self._locks.publishing(_BRIEFLY_S) as held:
            now = self._index.find(key) if held else None
            if now is not None and now._replace(checked_at=entry.checked_at) == entry:
                self._index.remove(key)
                forget(self._table, entry)

    def _damaged(self, key: bytes, entry: Entry) -> None:
        self._pulse.count(Count.DAMAGED)
        self._discard(key, entry)
        row = self._table.find(entry.segment)
        if row >= 0 and self._table.get(row).kind == FileKind.LARGE:
            # Its place is never written again: the object gets a new file.
            self._parts.room.doom([(row, entry.segment)])

    def large(
        self, name: ObjectName, version: Version, *, create: bool = False,
        rule: int = 0, life: PageLife = PageLife.NORMAL, checked_at: float = 0.0,
    ) -> LargeObject | None:  # fmt: skip
        """A large object's file.

        Args:
            name: of the object.
            version: of it.
            create: whether to create a missing file.
            rule: number of the rule that holds for the path.
            life: how its pages leave the cache.
            checked_at: when the store said that this is the version; with ``create``.

        Returns:
            None if there is no file, no room for one, or the object is not of a size that gets one.
        """
        if not is_large(version.size, self.limit_bytes) or not version.storable:
            return None
        shelf = self._shelf(name, life, rule)
        if create:
            number = self._large.make(name, version, shelf, checked_at)
        else:
            number = self._large.find(name, version)
        try:
            mapped = self._maps.get(number) if number is not None else None
        except OSError:
            return None  # as for a page: no descriptors, no memory, or a full disk below a copied store
        return LargeObject(self, name, version, mapped, shelf, checked_at) if mapped is not None else None

    def large_pages(self, name: ObjectName, version: Version) -> LargePages | None:
        """A reader of a large object in order; None if it has no separate file."""
        if not is_large(version.size, self.limit_bytes) or (number := self._large.find(name, version)) is None:
            return None
        return LargePages(name, version, number, self._mapped, self._pulse.hit_tagged, always=self._always)

    def names(self, prefix: ObjectName | None = None) -> Iterator[HeldPage]:
        """Cached pages under a prefix (same namespace, path that begins so; None: all)."""
        return self._parts.contents.held(prefix)

    def evict(self, prefix: ObjectName | None = None) -> PageCount:
        """Forget pages under a prefix, pinned or not; return how many there were."""
        return self._upkeep.evict(prefix)

    def pin(self, prefix: ObjectName) -> PageCount:
        """Pin pages under a prefix, later ones too, until they are unpinned or evicted; return what is cached."""
        return self._upkeep.pin(prefix)

    def unpin(self, prefix: ObjectName) -> PageCount:
        """Let pages under a prefix be evicted like others; return how many there are."""
        return self._upkeep.unpin(prefix)

    def pinned(self) -> tuple[ObjectName, ...]:
        """Prefixes that are pinned."""
        return self._parts.pins.prefixes()

    def pinned_pages(self) -> Iterator[HeldPage]:
        """Pages in files that are only evicted once they are unpinned."""
        return self._parts.contents.held(life=PageLife.PINNED)

    def compact(self) -> int:
        """Rewrite segments of which little is live (for a maintenance process); return their number."""
        return self._upkeep.compact()

    def verify(self) -> VerifyReport:
        """Verify everything, and evict damaged pages."""
        return self._upkeep.verify()

    def stats(self) -> StoreStats:
        """The state of the store, as all processes together made it."""
        return self._upkeep.stats()

    def filling(self, key: bytes) -> contextlib.AbstractContextManager[None]:
        """Makes one thread of all processes fetch a page; look it up again once inside.

        Waits at most ``filling_wait_s``, then proceeds concurrently. Hold one at a time per thread.
        """
        return self._locks.filling(key, self.settings.filling_wait_s)


@functools.lru_cache(1024)
def group_of(namespace: str, first: str) -> int:
    """Hash of what pages that are read together have in common: the store, and the first part of the path."""
    return xxh3_64_intdigest(f"{namespace}\n{first}".encode("utf-8", "surrogateescape"))
