"""A whole object as one buffer: the cache's own file, mapped, where it has one; memory of this process where not.

All processes of a host that map the file share its memory, and pages that one of them fetches are hits for the others.
The map is private: what a program writes to the buffer stays its own.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from stoker.cache.names import DESCRIPTION, PAGE_BYTES, pages_of, span_of
from stoker.cache.reading.fetching import Snapshot
from stoker.cache.reading.reader import Reader
from stoker.cache.reading.request_planning import MAX_REQUEST_PAGES, runs_of
from stoker.cache.sources.source import check_length
from stoker.cache.store.page_store import PageStore
from stoker.cache.store.writing.large_object import LargeObject

PARALLEL = 16
"""Requests in flight; each fetches up to eight pages."""
ROUND_BYTES = PARALLEL * MAX_REQUEST_PAGES * PAGE_BYTES
"""Bytes that are requested at a time."""
WHOLE = DESCRIPTION - 2
"""Stands for the whole object where one process at a time begins to load it."""

Report = Callable[[int, bool], None]
"""Receives bytes that have arrived, and whether they were fetched for it."""


class _Map(mmap.mmap):
    """Keeps the cache from deleting the file while anything uses the buffer."""

    kept: LargeObject | None = None


class WholeObject:
    """One version of an object, fetched in order.

    Note:
        ``wait`` and ``ahead`` are for one thread. Views of the buffer stay valid after ``close``.
    """

    def __init__(self, pages: PageStore, reader: Reader, path: str, report: Report | None = None) -> None:
        """Fetches nothing yet.

        Args:
            pages: where the reader keeps them.
            reader: of the object's store.
            path: of the object.
            report: called with what was done, from several threads.

        Raises:
            FileNotFoundError: there is no such object.
        """
        self._pages, self._reader, self._report = pages, reader, report
        self.snapshot: Snapshot = reader.snapshot(path)
        if not self.snapshot.is_file:
            raise IsADirectoryError(path)
        self.size = self.snapshot.size
        self.large = self._large_object()
        self._map = self._mapped()
        self.view = memoryview(self._map)
        self._number = -1 if self.large is None else int(self.large.path.name, 16)
        self._has_own = False
        self._damaged: set[int] = set()
        self._asked: dict[int, Future[None]] = {}
        self._planned: deque[range] = deque()
        self._threads = ThreadPoolExecutor(PARALLEL, thread_name_prefix="stoker-whole")
        self._stopped = threading.Event()
        self.plan([(0, self.size)])

    @property
    def is_shared(self) -> bool:
        """Whether the buffer is the cache's file, whole and sound; ask when all of it was waited for."""
        return self.large is not None and not self._has_own and self.large.complete

    def plan(self, spans: Sequence[tuple[int, int]]) -> None:
        """Sets which parts of the object will be needed, in order; all of it by default.

        Args:
            spans: first byte, and byte after the last.
        """
        pages = dict.fromkeys(index for start, end in spans for index in pages_of(start, end))
        runs = runs_of(index for index in pages if index not in self._asked)
        self._planned = deque(
            run[start : start + MAX_REQUEST_PAGES] for run in runs for start in range(0, len(run), MAX_REQUEST_PAGES)
        )

    def ahead(self, end: int) -> None:
        """Starts to fetch what is planned before a byte."""
        while self._planned and self._planned[0].start * PAGE_BYTES < end:
            self._ask(self._planned.popleft())

    def begin(self, end: int = ROUND_BYTES) -> None:
        """Starts to fetch what is planned before a byte; of concurrent processes, one fetches a small object.

        Connecting to a store takes as much of a processor as fetching some 50 MiB. So the first process alone fetches
        an object that takes one round of requests; all processes together fetch only larger objects.
        """
        if self.size > end or self.large is None or self.large.complete:
            self.ahead(end)
            return
        with self._pages.filling(self.snapshot.name.key(WHOLE)):
            self.ahead(end)
            # The lock is held until all requests are under way, so that other processes find them.
            self.wait(0, min(self.size, 1))

    def wait(self, start: int, end: int) -> memoryview:
        """The bytes from ``start`` to before ``end``, once they have arrived.

        Raises:
            SourceChangedError: the object has another version now.
        """
        self.ahead(end)
        for index in pages_of(start, end):
            if index not in self._asked:
                self._ask(range(index, index + 1))
            self._asked[index].result()
        return self.view[start:end]

    def _ask(self, run: range) -> None:
        self._asked.update(dict.fromkeys(run, self._threads.submit(self._bring, run)))

    def close(self) -> None:
        """Fetches nothing more."""
        self._stopped.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> WholeObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _large_object(self) -> LargeObject | None:
        found = self.snapshot
        if not found.rule.cached or not found.is_kept:
            return None
        return self._pages.large(
            found.name, found.version, create=True,
            rule=found.rule_number, life=found.rule.life, checked_at=found.checked_at,
        )  # fmt: skip

    def _has_room(self, large: LargeObject) -> bool:
        """Whether pages of the file that are not there may be touched through a map (see ``store.holes``)."""
        disk = os.statvfs(large.path.parent)
        return large.complete or disk.f_bavail * disk.f_frsize >= self.size

    def _mapped(self) -> _Map:
        if self.large is not None:
            try:
                fd = os.open(self.large.path, os.O_RDONLY | os.O_CLOEXEC) if self._has_room(self.large) else -1
            except OSError:
                fd = -1  # evicted between the two calls
            if fd < 0:
                self.large = None
            else:
                try:
                    made = _Map(fd, self.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                finally:
                    os.close(fd)
                made.kept = self.large
                return made
        return _Map(-1, max(1, self.size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _bring(self, run: range) -> None:
        if self._stopped.is_set():
            return
        missing = [index for index in run if not self._is_here(index)]
        if self.large is not None:
            # The file claims to have them, but its bytes are unusable.
            self._damaged.update(filter(self.large.has, missing))
        self._tell([index for index in run if index not in missing], False)
        if missing and not self.snapshot.rule.cached:
            self._read_past(missing)
        else:
            for part in runs_of(missing):
                self._reader.fetcher.bring_run(self.snapshot, part, self._take)
        self._tell(missing, True)

    def _is_here(self, index: int) -> bool:
        """Whether a page is whole in the mapped file, compared with its checksums now."""
        if self.large is None or not self.large.has(index):
            return False
        key = self.snapshot.name.key(index)
        entry = self._pages.lookup(key)
        if entry is None or entry.segment != self._number or entry.version != self.snapshot.digest:
            return False
        first, last = span_of(index, self.size)
        return self._pages.read_into(key, entry, 0, memoryview(bytearray(last - first)))

    def _take(self, index: int, data: memoryview) -> None:
        """A page that the cache did not take into the mapped file is written to this process's own copy."""
        if self.large is None or index in self._damaged or not self.large.has(index):
            first, last = span_of(index, self.size)
            self.view[first:last] = data
            self._has_own = True

    def _read_past(self, missing: Sequence[int]) -> None:
        """Pages of a path that no rule caches."""
        source = self._reader.holder.get()
        for part in runs_of(missing):
            start, end = part.start * PAGE_BYTES, min(self.size, part.stop * PAGE_BYTES)
            data = source.read(self.snapshot.name.path, start, end, self.snapshot.version)
            self.view[start:end] = check_length(self.snapshot.name.path, start, end, data)
            self._has_own = True

    def _tell(self, indexes: Sequence[int], moved: bool) -> None:
        num_bytes = sum(last - first for first, last in (span_of(index, self.size) for index in indexes))
        counts = self._reader.counts
        counts.asked_bytes += num_bytes
        counts.hit_bytes += 0 if moved else num_bytes
        if self._report is not None and indexes:
            self._report(num_bytes, moved)
