"""Fetches missing pages from the store (or from peers), each once for all processes of the host, and caches them.

Owns the threads that wait for stores. ``request_planning`` decides which requests to make, ``reader`` which bytes are
needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from stoker.cache.names import PAGE_BYTES, ObjectName, span_of
from stoker.cache.policies import Rule
from stoker.cache.protocols import Pages
from stoker.cache.reading.read_counters import ReadCounts
from stoker.cache.reading.request_planning import PARALLEL, bytes_of, requests_for, runs_of
from stoker.cache.sources.opening import SourceHolder
from stoker.cache.versions import Version
from stoker.core.processes.forking import per_process

Deliver = Callable[[int, memoryview], None]
"""Takes a page's index and its bytes, in the thread that fetched them."""

THREADS = 2 * PARALLEL
"""Threads of a process for all its reads, readahead included."""


class FoundPage(Protocol):
    """What a lookup in the page store says of a page."""

    # ruff: noqa: D102 - documented in the page store
    @property
    def version(self) -> int: ...
    @property
    def object_size(self) -> int: ...
    @property
    def checked_at(self) -> float: ...
    @property
    def length(self) -> int: ...


class Told(Protocol):
    """Another node's metadata of an object: a part of :class:`~stoker.cache.object_metadata.Description`."""

    # ruff: noqa: D102 - documented in the node
    @property
    def version(self) -> Version: ...
    @property
    def age_s(self) -> float: ...
    @property
    def description(self) -> bytes: ...


class Peers(Protocol):
    """Other nodes of the cache."""

    def stat(self, name: ObjectName, max_age_s: float) -> Told | None:
        """A node's metadata of an object, at most so old; None without one."""
        ...

    def fetch(
        self, name: ObjectName, version: Version | None, ranges: list[tuple[int, int]], into: list[memoryview]
    ) -> list[bool]:
        """Fills buffers with ranges of an object; returns which succeeded."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of one object, as a call or an open file sees it.

    Attributes:
        name: of the object.
        version: of its bytes.
        digest: of the version.
        rule: for its path.
        rule_number: of the rule.
        checked_at: when the store was asked (seconds since the epoch).
        details: the store's answer; None if it could not be kept.
        is_file: whether it has bytes, and their number is known.
    """

    name: ObjectName
    version: Version
    digest: int
    rule: Rule
    rule_number: int
    checked_at: float
    details: Mapping[str, Any] | None = None
    is_file: bool = True

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self.version.size

    @property
    def is_kept(self) -> bool:
        """Whether its pages may outlive the call or the file."""
        return self.version.storable


@dataclass(slots=True)
class PageFetcher:
    """Fetches pages of the objects of one store.

    Attributes:
        pages: where they are kept.
        holder: of the store's source.
        counts: are added to.
        peers: asked before the store.
    """

    pages: Pages
    holder: SourceHolder
    counts: ReadCounts = field(default_factory=ReadCounts)
    peers: Peers | None = None

    def bring(self, snapshot: Snapshot, missing: Sequence[int], deliver: Deliver) -> None:
        """Delivers every one of these pages; requests run side by side, the last one in the calling thread.

        Args:
            snapshot: whose pages.
            missing: their indexes, ascending.
            deliver: is called once for each page, from several threads.

        Raises:
            SourceChangedError: the object has another version now.
            SourceReadError: the store kept answering wrongly.
        """
        *others, last = requests_for(missing)
        futures = [pool().submit(self.bring_run, snapshot, run, deliver) for run in others]
        try:
            self.bring_run(snapshot, last, deliver)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        finally:
            # Buffers must not be written to after the caller has them back.
            errors = [future.exception() for future in futures if not future.cancelled()]
        for error in errors:
            if error is not None:
                raise error

    def bring_run(self, snapshot: Snapshot, run: range, deliver: Deliver) -> None:
        """Delivers adjacent pages; one process at a time fetches each, and the others then hit."""
        if not snapshot.is_kept:
            self._fetch_from_store(snapshot, run, deliver)
        elif self.peers is None:
            self._fill(snapshot, run, deliver)
        else:
            # Not the lock for filling: a worker that keeps its pages in this very directory takes that one.
            with self._locked(snapshot, run, lambda key: key[::-1]):
                missing = self._without_kept(snapshot, run, deliver)
                self._fill(snapshot, self._fetch_from_peers(self.peers, snapshot, missing, deliver), deliver)

    def _fill(self, snapshot: Snapshot, pages: Sequence[int], deliver: Deliver) -> None:
        """Delivers pages from the store, or those that another process has just fetched."""
        with self._locked(snapshot, pages, lambda key: key):
            for part in runs_of(self._without_kept(snapshot, pages, deliver)):
                self._fetch_from_store(snapshot, part, deliver)

    @contextlib.contextmanager
    def _locked(self, snapshot: Snapshot, pages: Sequence[int], lock_of: Callable[[bytes], bytes]) -> Generator[None]:
        with contextlib.ExitStack() as stack:
            # Every process locks in ascending order, so none deadlock.
            for index in pages:
                stack.enter_context(self.pages.filling(lock_of(snapshot.name.key(index))))
            yield

    def _without_kept(self, snapshot: Snapshot, pages: Sequence[int], deliver: Deliver) -> list[int]:
        """Delivers cached pages; returns those that are missing."""
        return [index for index in pages if not self._deliver_kept(snapshot, index, deliver)]

    def _deliver_kept(self, snapshot: Snapshot, index: int, deliver: Deliver) -> bool:
        key = snapshot.name.key(index)
        entry = self.pages.lookup(key)
        if entry is None or entry.version != snapshot.digest:
            return False
        start, end = span_of(index, snapshot.size)
        data = memoryview(bytearray(end - start))
        if not self.pages.read_into(key, entry, 0, data):
            return False
        deliver(index, data)
        return True

    def _fetch_from_store(self, snapshot: Snapshot, run: range, deliver: Deliver) -> None:
        start, end = bytes_of(run, snapshot.size)
        data = memoryview(self.holder.get().read(snapshot.name.path, start, end, snapshot.version))
        self.counts.requests += 1
        self.counts.fetched_bytes += len(data)
        for index in run:
            offset = index * PAGE_BYTES - start
            self.keep(snapshot, index, data[offset : offset + PAGE_BYTES])
            deliver(index, data[offset : offset + PAGE_BYTES])

    def _fetch_from_peers(self, peers: Peers, snapshot: Snapshot, pages: Sequence[int], deliver: Deliver) -> list[int]:
        """Delivers pages that peers have; returns the others."""
        if not pages:
            return []
        ranges = [span_of(index, snapshot.size) for index in pages]
        buffers = [memoryview(bytearray(end - start)) for start, end in ranges]
        came = peers.fetch(snapshot.name, snapshot.version, ranges, buffers)
        for index, buffer, has_come in zip(pages, buffers, came, strict=True):
            if has_come:
                self.counts.peer_bytes += len(buffer)
                if not self._is_kept(snapshot, index):  # kept already if a worker shares this directory
                    self.keep(snapshot, index, buffer)
                deliver(index, buffer)
        return [index for index, has_come in zip(pages, came, strict=True) if not has_come]

    def _is_kept(self, snapshot: Snapshot, index: int) -> bool:
        entry = self.pages.lookup(snapshot.name.key(index))
        return entry is not None and entry.version == snapshot.digest

    def keep(self, snapshot: Snapshot, index: int, data: memoryview | bytes) -> bool:
        """Offers a page to the page store, if it may be cached."""
        return snapshot.is_kept and self.pages.put(
            snapshot.name,
            index,
            snapshot.version,
            data,
            rule=snapshot.rule_number,
            life=snapshot.rule.life,
            checked_at=snapshot.checked_at,
        )

    def keep_together(self, snapshot: Snapshot, pages: Mapping[int, memoryview | bytes]) -> None:
        """Puts pages that came in one answer into the page store.

        Args:
            snapshot: whose pages.
            pages: bytes by index.
        """
        if snapshot.is_kept:
            self.pages.put_many(
                [(snapshot.name, index, snapshot.version, data) for index, data in pages.items()],
                rule=snapshot.rule_number,
                life=snapshot.rule.life,
                checked_at=snapshot.checked_at,
            )


@per_process
def pool() -> ThreadPoolExecutor:
    """The threads of this process that wait for stores; a forked child has none of its parent's."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="stoker-fetch")


PendingPages = Future[dict[int, memoryview]]
"""Pages in flight."""
