"""Carries out a warming: lists what URLs mean, and reads every page that is missing, many side by side.

Each page is fetched once, also where several processes warm the same objects, and proven of one version as any read is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import DESCRIPTION, PAGE_BYTES, ObjectName, pages_of
from stoker.cache.reading.fetching import Snapshot
from stoker.cache.reading.reader import Reader, kept_version
from stoker.cache.sources.source import version_of
from stoker.cache.versions import Strength, Version
from stoker.cache.warm.warm_plan import (
    Account,
    Outcome,
    PageRun,
    WarmObject,
    has_magic,
    num_pieces,
    page_bytes,
    pieces_of,
    share_out,
)
from stoker.core.errors import SourceChangedError

JOBS = 32

Report = Callable[[int, bool], None]
"""Takes bytes that were done, and whether they were moved for it."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a URL means.

    Attributes:
        items: objects in the store's order.
        versions: of the objects, where the listing tells them apart.
        listed_at: when (seconds since the epoch).
    """

    items: list[WarmObject]
    versions: dict[str, Version]
    listed_at: float


def list_items(filesystem: StokerFileSystem, path: str, *, is_pattern: bool | None = None) -> Listing:
    """The objects of a path: the object itself, those below it, or those that match it as a pattern.

    Raises:
        FileNotFoundError: nothing is there.
    """
    listed_at = time.time()
    target: Any = filesystem.target
    pattern = has_magic(path) if is_pattern is None else is_pattern
    found: dict[str, Any] = target.glob(path, detail=True) if pattern else {}
    if not found:
        found, pattern = target.find(path, detail=True), False  # names may have brackets in them
    files = {name: details for name, details in found.items() if details.get("type") == "file"}
    if pattern:
        for folder in [name for name, details in found.items() if details.get("type") == "directory"]:
            files |= target.find(folder, detail=True)
    if not files and not found:
        raise FileNotFoundError(path)
    items = [WarmObject(name, int(details.get("size") or 0)) for name, details in files.items()]
    versions = {name: version_of(details, listed_at) for name, details in files.items()}
    # A date in a listing may be coarser than what a read says; only what surely is the same spares the question.
    return Listing(items, {n: v for n, v in versions.items() if v.strength >= Strength.ETAG}, listed_at)


@dataclass(slots=True)
class _Object:
    """An object while its pieces are under way."""

    item: WarmObject
    pieces_left: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    snapshot: Snapshot | None = None
    moved: bool = False
    error: BaseException | None = None


class Warming:
    """Warms the objects of one store."""

    def __init__(self, reader: Reader, account: Account, report: Report | None = None) -> None:
        """Does nothing yet.

        Args:
            reader: of the store.
            account: updated with the results.
            report: called with what was done.
        """
        self.account = account
        self._reader = reader
        self._report = report or _ignore
        self._done: list[tuple[WarmObject, Snapshot]] = []
        self._stop = threading.Event()

    def run(self, listing: Listing, jobs: int = JOBS) -> None:
        """Fetches what is missing; after an interruption, finishes the pieces in flight and raises it again."""
        self._confirm(listing)
        objects = [_Object(item, num_pieces(item.size)) for item in listing.items]
        share_out(pieces_of(listing.items), lambda piece: self._bring(objects[piece.item], piece), jobs, self._stop)

    def stop(self) -> None:
        """Begins nothing more. From any thread."""
        self._stop.set()

    def check(self) -> None:
        """Checks all present objects once more, and counts those that are not."""
        for item, snapshot in self._done:
            if not self._is_whole(snapshot.name, snapshot.size, snapshot.digest):
                self.account.evicted.add(item.size)

    def _bring(self, item: _Object, piece: PageRun) -> None:
        if item.error is None:
            try:
                self._bring_piece(item, piece)
            except Exception as error:  # one object that cannot be read must not stop the others
                item.error = error
        with item.lock:
            item.pieces_left -= 1
            is_last = item.pieces_left == 0
        if is_last:
            self._end(item)

    def _bring_piece(self, item: _Object, piece: PageRun) -> None:
        snapshot = self._snapshot(item)
        if not snapshot.rule.cached or not snapshot.is_kept:
            return
        moved = item.moved and item.item.size <= PAGE_BYTES
        if any(not self._reader.has(snapshot, index) for index in piece.pages):
            item.moved = moved = True
            self._reader.fetcher.bring_run(snapshot, piece.pages, _drop)
        self._report(page_bytes(piece.pages, item.item.size), moved)

    def _snapshot(self, item: _Object) -> Snapshot:
        with item.lock:
            if item.snapshot is None:
                item.snapshot = self._first_look(item)
            return item.snapshot

    def _first_look(self, item: _Object) -> Snapshot:
        path, size = item.item
        reader = self._reader
        _, rule = reader.rules.of(path)
        if not rule.cached:
            return Snapshot(reader.name(path), Version(Strength.NONE, "", size), 0, rule, 0, 0.0)
        if size <= PAGE_BYTES and not reader.is_known(path):
            item.moved = True
            if size:
                reader.read(path)  # one request brings the description with the only page
        return reader.snapshot(path)

    def _again(self, item: _Object) -> None:
        """Another version came while the object was read: it is as good, as a whole."""
        item.error, item.moved = None, True
        item.snapshot = snapshot = self._reader.snapshot(item.item.path, ask=True)
        missing = [index for index in pages_of(0, snapshot.size) if not self._reader.has(snapshot, index)]
        if missing and snapshot.is_kept:
            self._reader.fetcher.bring(snapshot, missing, _drop)

    def _end(self, item: _Object) -> None:
        if isinstance(item.error, SourceChangedError):
            try:
                self._again(item)
            except Exception as error:
                item.error = error
        outcome, reason = self._outcome(item)
        self.account.end(item.item, outcome, reason)
        if outcome in ("present", "fetched"):
            assert item.snapshot is not None
            self._done.append((item.item, item.snapshot))

    def _outcome(self, item: _Object) -> tuple[Outcome, str]:
        if item.error is not None:
            return "failed", f"{type(item.error).__name__}: {item.error}"
        snapshot = item.snapshot
        assert snapshot is not None
        if not snapshot.rule.cached or not snapshot.is_kept:
            return "uncached", ""
        if not self._is_whole(snapshot.name, snapshot.size, snapshot.digest):
            return "refused", ""
        return ("fetched" if item.moved else "present"), ""

    def _is_whole(self, name: ObjectName, size: int, digest: int) -> bool:
        entries = (self._reader.pages.lookup(name.key(index)) for index in pages_of(0, size))
        return all(entry is not None and entry.version == digest for entry in entries)

    def _confirm(self, listing: Listing) -> None:
        """Objects whose listed version is the cached one need no request."""
        pages = self._reader.pages
        for path, version in listing.versions.items():
            name = self._reader.name(path)
            _, rule = self._reader.rules.of(path)
            key = name.key(DESCRIPTION)
            entry = pages.lookup(key)
            if entry is not None and entry.version == kept_version(version, rule).digest:
                pages.confirm(key, entry, listing.listed_at)


def _drop(index: int, data: memoryview) -> None:
    """Does nothing: the page store has the page."""


def _ignore(num_bytes: int, moved: bool) -> None:
    """Does nothing."""
