"""Before a worker leaves, the next owners of its pinned pages fetch them from it and pin them too.

Nothing is pushed. The draining worker requests one byte of each page from its next owner. The next owner then fetches
the page from the draining worker, as from any previous owner, and pins it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.range_request import PartState
from stoker.cache.cluster.membership.ring import CHUNK_PAGES, HashRing
from stoker.cache.cluster.messages.frames import Flag, fits
from stoker.cache.names import DESCRIPTION, ObjectName
from stoker.cache.protocols import Pages
from stoker.cache.versions import Version

_THREADS = 4
_TIMEOUT_S = 5.0
"""Longest silence of a next owner, which has much to take at once."""
_AHEAD = 64
_ATTEMPTS, _PAUSE_S = 4, 1.0
"""A next owner that is busy may take this worker for lost, for a second or so."""
_CANDIDATES = 2
"""Workers that are tried, the next owner first; it may be lost."""


class _Batch(NamedTuple):
    """Pinned pages of one chunk."""

    name: ObjectName
    version: Version
    pages: list[int]


class PinTransfer:
    """Transfers pinned pages to their next owners, in separate threads.

    Args:
        pages: of this worker.
        peers: of this worker.
        ring: of those that stay; it may have this worker's place in it still.
        node: its id.
        namespaces: of its mounts; pages of others cannot be transferred.

    Attributes:
        planned: pages found so far.
        done: pages that another worker has now.
    """

    def __init__(self, pages: Pages, peers: PeerClient, ring: HashRing, node: str, namespaces: Collection[str]) -> None:
        self._pages, self._peers, self._ring, self._node = pages, peers.patient(_TIMEOUT_S), ring, node
        self._namespaces = frozenset(namespaces)
        self._batches: queue.Queue[_Batch | None] = queue.Queue(_AHEAD)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.planned = 0
        self.done = 0

    def start(self) -> None:
        """Begins. The threads do not keep the process from ending."""
        works = [self._list, *[self._work] * _THREADS]
        self._threads = [threading.Thread(target=work, name="stoker-handover", daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def wait(self, deadline: float) -> bool:
        """Waits for the end, or until the monotonic clock says so; whether nothing is left."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._peers.close()
        return not any(thread.is_alive() for thread in self._threads) and self.done == self.planned

    def _list(self) -> None:
        try:
            for batch in self._found():
                self.planned += len(batch.pages)
                self._batches.put(batch)
        finally:
            for _ in range(_THREADS):
                self._batches.put(None)

    def _found(self) -> Iterator[_Batch]:
        last: tuple[Any, ...] = ()
        batch: _Batch | None = None
        for held in self._pages.pinned_pages():
            name, version = held.name, held.version
            known = name.namespace in self._namespaces and fits(name.namespace, name.path, version)
            if held.page == DESCRIPTION or not known:
                continue
            chunk = (name, version, held.page // CHUNK_PAGES)
            if batch is None or chunk != last or len(batch.pages) >= CHUNK_PAGES:
                if batch is not None:
                    yield batch
                batch, last = _Batch(name, version, []), chunk
            batch.pages.append(held.page)
        if batch is not None:
            yield batch

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            left = batch.pages
            for attempt in range(_ATTEMPTS):
                time.sleep(attempt and _PAUSE_S)
                left = self._hand(batch, left)
                if not left:
                    break
            with self._lock:
                self.done += len(batch.pages) - len(left)

    def _hand(self, batch: _Batch, left: list[int]) -> list[int]:
        """Transfers pages and returns those that no worker accepted."""
        owners = self._ring.owners(batch.name, left[0], _CANDIDATES + 1)
        for owner in [one for one in owners if one != self._node][:_CANDIDATES]:
            if not left:
                break
            member = self._ring.members[owner]
            self._peers.hold(member, batch.name, batch.version, left, Flag.COPY | Flag.PIN)
            held = self._peers.hold(member, batch.name, batch.version, left, Flag.ONLY_IF_CACHED)
            left = [part.page for part in held if part.state is not PartState.DONE]
        return left
