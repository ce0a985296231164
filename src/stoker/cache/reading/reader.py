"""The bytes of objects: from the cache, else from peers or the store, and never of two versions.

A *call* (``read``) and a *file* (``snapshot`` then ``read_into``) see one version each. A hit takes no lock and makes
no system call or request, as long as the store's last answer is fresh under the path's rule.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stoker.cache.names import DESCRIPTION, PAGE_BYTES, ObjectName, pages_of
from stoker.cache.object_metadata import Description
from stoker.cache.policies import Freshness, Rule
from stoker.cache.reading.fetching import Deliver, FoundPage, PageFetcher, Peers, Snapshot
from stoker.cache.reading.read_counters import watch
from stoker.cache.reading.recent_writes import Writes
from stoker.cache.reading.revalidation import Listings
from stoker.cache.rules import Rules
from stoker.cache.sources.opening import SourceHolder
from stoker.cache.sources.source import ObjectInfo
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version
from stoker.core.errors import CacheBusyError, SourceChangedError
from stoker.core.processes.forking import at_fork

Given = dict[int, memoryview]
"""Pages by their index."""
_SMALL_BYTES = 1 << 16
"""Up to here it is cheaper to copy a result once more than to have it written in place."""


class Reader:
    """Reads the objects of one store through a page store. Safe for threads, and for children after a fork."""

    def __init__(
        self,
        pages: PageStore,
        holder: SourceHolder,
        rules: Sequence[Rule],
        *,
        peers: Peers | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Reads nothing yet.

        Args:
            pages: where pages are kept.
            holder: of the store's source.
            rules: of paths; the first that fits counts.
            peers: other nodes, asked before the store.
            clock: seconds since the epoch.
        """
        self.pages = pages
        self.holder = holder
        self.counts = watch.counts()
        self.fetcher = PageFetcher(pages, holder, self.counts, peers)
        self.rules = Rules(rules, holder.spec.protocol)
        self.writes = Writes(clock)
        self.listings = Listings(clock)
        self._clock = clock
        self._namespace = holder.spec.namespace
        at_fork(self._in_child)

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Bytes of an object, all of one version that the path's rule allows.

        Args:
            path: as the store's filesystem strips it; where its rule does not cache, the read passes through.
            start: first byte, counted from the end if negative; None for the first of all.
            end: byte after the last, likewise; None for all the rest.

        Raises:
            FileNotFoundError: there is no such object.
            SourceChangedError: it changed again and again while it was read.
        """
        number, rule = self.rules.of(path)
        if not rule.cached:
            return self.holder.get().target.cat_file(path, start, end)
        name = self.name(path)
        data = self._hit(name, rule, start or 0, end)
        if data is not None:
            return data
        return self._read_cold(name, number, rule, start, end)

    def read_many(self, path: str, ranges: Sequence[tuple[int | None, int | None]]) -> list[bytes]:
        """Reads ranges of one object, all of one version; missing pages are fetched together.

        Args:
            path: as for :meth:`read`.
            ranges: first byte and byte after the last of each, as for :meth:`read`.
        """
        _, rule = self.rules.of(path)
        if len(ranges) == 1 or not rule.cached:
            return [self.read(path, start, end) for start, end in ranges]
        try:
            return self._ranges(self.snapshot(path), ranges)
        except SourceChangedError:
            return self._ranges(self.snapshot(path, ask=True), ranges)

    def _ranges(self, snapshot: Snapshot, ranges: Sequence[tuple[int | None, int | None]]) -> list[bytes]:
        if not snapshot.is_file:
            return [self._passed(snapshot, start, end) for start, end in ranges]
        wanted = [slice(start, end).indices(snapshot.size)[:2] for start, end in ranges]
        buffers = [bytearray(max(0, end - start)) for start, end in wanted]
        parts = [(start, memoryview(buffer)) for (start, _), buffer in zip(wanted, buffers, strict=True)]
        self.read_ranges(snapshot, parts)
        return [bytes(buffer) for buffer in buffers]

    def snapshot(self, path: str, *, ask: bool = False) -> Snapshot:
        """The object's metadata, as fresh as the path's rule requires.

        Args:
            path: as the store's filesystem strips it.
            ask: the store, also if its last answer still counts.

        Raises:
            FileNotFoundError: there is no such object.
        """
        number, rule = self.rules.of(path)
        name = self.name(path)
        if ask:
            return self._ask(name, number, rule, singly=True)
        if (known := self._known(name, number, rule)) is not None:
            return known
        # If many processes open an object at once, one connects and asks the store; the others read its answer.
        with self.pages.filling(name.key(DESCRIPTION)):
            return self._known(name, number, rule) or self._ask(name, number, rule, singly=False)

    def _known(self, name: ObjectName, number: int, rule: Rule) -> Snapshot | None:
        """A snapshot of the cached version, if the store's last answer is still fresh."""
        key = name.key(DESCRIPTION)
        entry = self.pages.lookup(key)
        if entry is None or not self._is_fresh(name.path, rule, entry) or not (found := self._description(key, entry)):
            return None
        version, details = found
        return Snapshot(name, version, entry.version, rule, number, entry.checked_at, details)

    def read_into(
        self,
        snapshot: Snapshot,
        start: int,
        buffer: memoryview,
        given: Given | None = None,
        hold: Deliver | None = None,
    ) -> None:
        """Fills a buffer with bytes of this version.

        Args:
            snapshot: of the object.
            start: offset of the first byte; the buffer ends before the object does.
            buffer: of bytes, contiguous.
            given: pages that the caller has.
            hold: called with each page that was fetched.

        Raises:
            SourceChangedError: bytes that are not cached are of another version now.
        """
        self.read_ranges(snapshot, ((start, buffer),), given, hold)

    def read_ranges(
        self,
        snapshot: Snapshot,
        ranges: Sequence[tuple[int, memoryview]],
        given: Given | None = None,
        hold: Deliver | None = None,
    ) -> None:
        """Fills several buffers with bytes of this version; missing pages are fetched together.

        Args:
            snapshot: of the object.
            ranges: first byte of each, and its buffer.
            given: pages that the caller has.
            hold: called with each page that was fetched.
        """
        missing: dict[int, list[tuple[int, memoryview]]] = {}
        for start, buffer in ranges:
            self.counts.asked_bytes += len(buffer)
            for index, offset, part in _parts(start, buffer):
                if given and (data := given.get(index)) is not None:
                    part[:] = data[offset : offset + len(part)]
                elif not self.read_kept(snapshot, index, offset, part):
                    missing.setdefault(index, []).append((offset, part))
        if missing:

            def deliver(index: int, data: memoryview) -> None:
                for offset, part in missing[index]:
                    part[:] = data[offset : offset + len(part)]
                if hold is not None:
                    hold(index, data)

            self.fetcher.bring(snapshot, sorted(missing), deliver)

    def read_kept(self, snapshot: Snapshot, index: int, offset: int, buffer: memoryview) -> bool:
        """Fills a buffer from a page, if the page is cached in this version.

        Args:
            snapshot: of the object.
            index: of the page.
            offset: of the first byte in the page.
            buffer: ends before the page does.
        """
        key = snapshot.name.key(index)
        entry = self.pages.lookup(key)
        if entry is None or entry.version != snapshot.digest or not self.pages.read_into(key, entry, offset, buffer):
            return False
        self.counts.hit_bytes += len(buffer)
        return True

    def read_one(self, snapshot: Snapshot, index: int, offset: int, buffer: memoryview) -> bool:
        """:meth:`read_kept` for a caller who wants nothing else, and who calls :meth:`read_into` if it is False.

        Args:
            snapshot: of the object.
            index: of the page.
            offset: of the first byte in the page.
            buffer: ends before the page does.
        """
        found = self.read_kept(snapshot, index, offset, buffer)
        if found:
            self.counts.asked_bytes += len(buffer)
        return found

    def has(self, snapshot: Snapshot, index: int) -> bool:
        """Whether a page is cached in this version."""
        entry = self.pages.lookup(snapshot.name.key(index))
        return entry is not None and entry.version == snapshot.digest

    def is_known(self, path: str) -> bool:
        """Whether the cache knows that the object exists, freshly enough for the path's rule."""
        _, rule = self.rules.of(path)
        entry = self.pages.lookup(self.name(path).key(DESCRIPTION)) if rule.cached else None
        return entry is not None and self._is_fresh(path, rule, entry)

    def wrote(self, path: str) -> None:
        """Notes that this process writes, or has written, an object: nothing that was cached of it counts."""
        self.writes.wrote(path)
        self.forget(self.name(path))

    def wrote_below(self, path: str) -> None:
        """Notes that this process writes, or has written, a path and any below it; an empty one stands for all."""
        self.writes.wrote_below(path)
        self.forget(self.name(path))

    def forget(self, name: ObjectName) -> None:
        """Evicts the pages of an object, for all processes of the host."""
        key = name.key(DESCRIPTION)
        known = [entry.object_size for entry in map(self.pages.lookup, (key, name.key(0))) if entry is not None]
        try:
            self.pages.drop(key, *map(name.key, pages_of(0, max([*known, 1]))))
        except CacheBusyError:
            pass  # pages that stay are used no longer than the path's rule allows

    def _in_child(self) -> None:
        self._namespace = ""  # objects in a process's memory are private to it

    def name(self, path: str) -> ObjectName:
        """Name of the object at a path of this store."""
        if not self._namespace:
            self._namespace = self.holder.spec.namespace
        return ObjectName(self._namespace, path)

    def _hit(self, name: ObjectName, rule: Rule, start: int, end: int | None) -> bytes | None:
        """The bytes, if they lie in one page that is cached and fresh."""
        if start < 0 or (end is not None and end < start):
            return None
        index = start // PAGE_BYTES
        key = name.key(index)
        entry = self.pages.lookup(key)
        if entry is None or not self._is_fresh(name.path, rule, entry):
            return None
        size: int = entry.object_size
        last = size if end is None or end > size else end
        if last <= start or last > (index + 1) * PAGE_BYTES:
            return None
        try:
            data = filled(last - start, lambda part: self._copy(key, entry, start - index * PAGE_BYTES, part))
        except _PageGoneError:
            return None
        self.counts.asked_bytes += len(data)
        self.counts.hit_bytes += len(data)
        return data

    def _copy(self, key: bytes, entry: Any, offset: int, part: memoryview) -> None:
        if not self.pages.read_into(key, entry, offset, part):
            raise _PageGoneError

    def _read_cold(self, name: ObjectName, number: int, rule: Rule, start: int | None, end: int | None) -> bytes:
        try:
            snapshot, given = self._first_snapshot(name, number, rule, start, end)
            return self._slice(snapshot, start, end, given)
        except SourceChangedError:
            # Nothing has been returned yet, so the call may as well return the new version.
            return self._slice(self.snapshot(name.path, ask=True), start, end)

    def _slice(self, snapshot: Snapshot, start: int | None, end: int | None, given: Given | None = None) -> bytes:
        if not snapshot.is_file:
            return self._passed(snapshot, start, end)
        first, last, _ = slice(start, end).indices(snapshot.size)
        if last <= first:
            return b""
        if given and (page := given.get(0)) is not None and last <= len(page):
            # No confirmation: the page was stored a moment ago, with the time of the same answer.
            self.counts.asked_bytes += last - first
            return bytes(page[first:last])
        data = filled(last - first, lambda buffer: self.read_into(snapshot, first, buffer, given))
        self._confirm(snapshot, pages_of(first, last))
        return data

    def _passed(self, snapshot: Snapshot, start: int | None, end: int | None) -> bytes:
        """What the store's own filesystem makes of a directory, or of an object of unknown length."""
        return self.holder.get().target.cat_file(snapshot.name.path, start=start, end=end)

    def _first_snapshot(
        self, name: ObjectName, number: int, rule: Rule, start: int | None, end: int | None
    ) -> tuple[Snapshot, Given]:
        """A snapshot; for an unknown object, by the request that fetches its first page."""
        known = self.pages.lookup(name.key(DESCRIPTION)) or self.pages.lookup(name.key(0))
        is_first_page = 0 <= (start or 0) < PAGE_BYTES and (end is None or end > (start or 0))
        if known is not None or not is_first_page or self.fetcher.peers is not None:
            return self.snapshot(name.path), {}
        with self.pages.filling(name.key(0)):
            if self.pages.lookup(name.key(0)) is not None:
                return self.snapshot(name.path), {}
            asked_at = self._clock()
            info, data = self.holder.get().first(name.path, PAGE_BYTES)
            self.counts.requests += 1
            self.counts.checks += 1
            self.counts.fetched_bytes += len(data)
            snapshot = self._snapshot_of(name, number, rule, info, asked_at)
            if info.is_file:
                pages = {DESCRIPTION: Description(snapshot.version, info.details).encode()}
                self.fetcher.keep_together(snapshot, pages | {0: data} if data else pages)
        return snapshot, {0: memoryview(data)}

    def _ask(self, name: ObjectName, number: int, rule: Rule, *, singly: bool) -> Snapshot:
        """A snapshot of the store's current version; cached pages of another version are evicted."""
        key = name.key(DESCRIPTION)
        described = self.pages.lookup(key)
        if (
            not singly
            and described is not None
            and (listed := self._listed(name, number, rule, key, described)) is not None
        ):
            return listed
        known = described or self.pages.lookup(name.key(0))
        told = None if singly else self._told(name, rule, known)
        if told is not None:
            info, asked_at = told
        else:
            asked_at = self._clock()
            self.counts.checks += 1
            try:
                info = self.holder.get().info(name.path)
            except FileNotFoundError:
                if known is not None:
                    self.forget(name)
                raise
        version = kept_version(info.version, rule)
        digest = version.digest
        if known is not None and (known.version != digest or not info.is_file):
            self.counts.changes += 1
            if rule.pinned_since is not None and known.checked_at >= rule.pinned_since:
                watch.tell_changed(url_of(self.holder.spec.protocol, name.path))
            self.forget(name)
        elif described is not None:
            self.pages.confirm(key, described, asked_at)
            return Snapshot(name, version, digest, rule, number, asked_at, info.details)
        return self._described(name, number, rule, info, asked_at)

    def _told(self, name: ObjectName, rule: Rule, known: FoundPage | None) -> tuple[ObjectInfo, float] | None:
        """Another node's metadata of an object, and its time; None without one, or if it is too old."""
        peers = self.fetcher.peers
        if peers is None or rule.freshness is Freshness.ALWAYS:
            return None
        now = self._clock()
        told = peers.stat(name, rule.max_age_s if rule.freshness is Freshness.MAX_AGE else math.inf)
        if told is None:
            return None
        asked_at = now - told.age_s
        since = max(self.writes.last(name.path), known.checked_at if known is not None else -math.inf)
        if asked_at <= since or not rule.is_fresh(asked_at, now):
            return None
        try:
            version, details = Description.decode(told.description)
        except (ValueError, KeyError, TypeError):
            return None
        return (ObjectInfo(version, details), asked_at) if version == told.version and details is not None else None

    def _listed(self, name: ObjectName, number: int, rule: Rule, key: bytes, entry: Any) -> Snapshot | None:
        """A snapshot of the cached version, if a listing of its folder says that it still is the object's."""
        if rule.freshness is not Freshness.MAX_AGE or (found := self._description(key, entry)) is None:
            return None
        source, since = self.holder.get(), self.writes.last(name.path)
        listed_at = self.listings.confirmed_at(source, name.path, found.version, rule, since)
        if listed_at is None:
            return None
        self.pages.confirm(key, entry, listed_at)
        return Snapshot(name, found.version, entry.version, rule, number, listed_at, found.details)

    def _described(self, name: ObjectName, number: int, rule: Rule, info: ObjectInfo, asked_at: float) -> Snapshot:
        snapshot = self._snapshot_of(name, number, rule, info, asked_at)
        if info.is_file:
            self.fetcher.keep(snapshot, DESCRIPTION, Description(snapshot.version, info.details).encode())
        return snapshot

    @staticmethod
    def _snapshot_of(name: ObjectName, number: int, rule: Rule, info: ObjectInfo, asked_at: float) -> Snapshot:
        version = kept_version(info.version, rule)
        return Snapshot(name, version, version.digest, rule, number, asked_at, info.details, info.is_file)

    def _description(self, key: bytes, entry: Any) -> Description | None:
        data = bytearray(entry.length)
        if not self.pages.read_into(key, entry, 0, memoryview(data)):
            return None
        found = Description.decode(data)
        return found if found.version.digest == entry.version else None

    def _confirm(self, snapshot: Snapshot, indexes: range) -> None:
        """Notes for the next call that the store just confirmed the version of cached pages."""
        if snapshot.rule.is_fresh(snapshot.checked_at, self._clock()):
            for index in indexes:
                key = snapshot.name.key(index)
                entry = self.pages.lookup(key)
                if entry is not None and entry.version == snapshot.digest and entry.checked_at < snapshot.checked_at:
                    self.pages.confirm(key, entry, snapshot.checked_at)

    def _is_fresh(self, path: str, rule: Rule, entry: FoundPage) -> bool:
        return rule.is_fresh(entry.checked_at, self._clock()) and (
            not self.writes or entry.checked_at > self.writes.last(path)
        )


def _parts(start: int, buffer: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Pages that a range touches: index, offset in the page, and the part of the buffer that it fills."""
    end = start + len(buffer)
    for index in pages_of(start, end):
        page_start = index * PAGE_BYTES
        first, last = max(start, page_start), min(end, page_start + PAGE_BYTES)
        yield index, first - page_start, buffer[first - start : last - start]


def kept_version(version: Version, rule: Rule) -> Version:
    """The version of an object, as strong as the rule for its path makes it: paths that are written once have one."""
    if version.strength is Strength.NONE and rule.freshness is Freshness.IMMUTABLE:
        return Version(Strength.DATED, version.token, version.size)
    return version


def url_of(protocol: str, path: str) -> str:
    """A path, as its store's filesystem strips it, with the protocol."""
    return path if "://" in path else f"{protocol}://{path}"


class _PageGoneError(Exception):
    """A page was evicted between its lookup and its read."""


class _Filler(io.RawIOBase):
    def __init__(self, fill: Callable[[memoryview], object]) -> None:
        super().__init__()
        self._fill = fill

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._fill(buffer)
        return len(buffer)


def filled(length: int, fill: Callable[[memoryview], object]) -> bytes:
    """Bytes that a function writes in place; a ``bytearray`` would have to be copied once more.

    Args:
        length: of them.
        fill: is called once, with all of it.
    """
    if length <= _SMALL_BYTES:
        buffer = bytearray(length)
        fill(memoryview(buffer))
        return bytes(buffer)
    return io.BufferedReader(_Filler(fill), 1).read(length)
