"""The fast path for small ranges of the object that the same connection requested last.

Most requests of a random reader are of this kind, and parsing names would be most of their cost. So the parts that
requests and answers share are kept as bytes, with the places of pages.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from stoker.cache.cluster.membership.hot_chunks import TOLD_S, Chunk, Heat
from stoker.cache.cluster.membership.ring import CHUNK_PAGES
from stoker.cache.cluster.messages.frames import (
    DATA_HEAD,
    FRAMING,
    RANGE,
    Flag,
    Kind,
    Read,
    data_head,
    read_head,
)
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.protocols import Pages

HEAD_BYTES = DATA_HEAD.size
_KEPT = 256
_NOTHING = ObjectName("", "")
_COUNTED = 8
"""One of so many requests is sampled to find hot chunks, and counts for all of them."""


@dataclass(slots=True)
class LastAsked:
    """The last object that a connection requested, cached for the next request.

    Attributes:
        head: body of the request up to its one range; empty for none.
        prefix: the same with the header of the frame.
        name: of the object, admitted.
        size: of the object (bytes).
        digest: of the version that was asked for.
        counts: whether its requests count for hot chunks; those for a replica do not.
        epoch: of the ring, as the answers' heads say it.
        heads: of answers, by their length.
        pages: key of each recently requested page, and its place.
        told: when the client was last notified that a chunk is hot.
        asked_epoch: of the ring, as the header of the last request says it.
    """

    head: bytes = b""
    prefix: bytes = b"\0"
    name: ObjectName = _NOTHING
    size: int = 0
    digest: int = 0
    counts: bool = False
    epoch: int = 0
    heads: dict[int, bytes] = field(default_factory=dict[int, bytes])
    pages: dict[int, tuple[bytes, Any]] = field(default_factory=dict[int, tuple[bytes, Any]])
    told: dict[Chunk, float] = field(default_factory=dict[Chunk, float])
    asked_epoch: int = 0
    until_counted: int = _COUNTED

    def note(self, request: Read) -> None:
        """A request was admitted; the next one may be for the same object, if it names a version and one range."""
        if len(request.ranges) != 1 or request.version is None or request.flags & Flag.PIN:
            return
        self.head = read_head(request.mount, request.path, request.version, 1, request.flags)
        length = len(self.head) + RANGE.size
        self.prefix = FRAMING.pack(Kind.READ, length, self.asked_epoch) + self.head
        self.name, self.size = ObjectName(request.mount, request.path), request.version.size
        self.digest, self.counts = request.version.digest, not request.flags
        self.heads.clear()
        self.pages.clear()

    def is_news(self, chunk: Chunk, now: float) -> bool:
        """Whether to notify the client now that a chunk is hot."""
        return now - self.told.get(chunk, -TOLD_S) > TOLD_S / 2

    def tell(self, chunk: Chunk, now: float) -> None:
        """Notes that the client was notified."""
        if len(self.told) >= _KEPT:
            self.told.clear()
        self.told[chunk] = now


class Hits:
    """Finds requested ranges in the cached pages.

    Args:
        pages: the page store.
        heat: counts requests per chunk.
    """

    def __init__(self, pages: Pages, heat: Heat) -> None:
        self._pages = pages
        self._heat = heat

    def small(self, recent: LastAsked, start: int, length: int, epoch: int, room: memoryview) -> memoryview | None:
        """The answer to a request for a range of the recent object, in ``room``; None if it takes more than that.

        Args:
            recent: of the connection.
            start: of the range.
            length: of the range, which must fit into ``room`` after a head.
            epoch: of the ring.
            room: memory for the answer.
        """
        page, offset = divmod(start, PAGE_BYTES)
        if not 0 < length <= PAGE_BYTES - offset or start + length > recent.size:
            return None
        found = self.place(recent, page)
        if found is None:
            return None
        answer = room[: HEAD_BYTES + length]
        if not self._pages.read_into(found[0], found[1], offset, answer[HEAD_BYTES:]):
            recent.pages.clear()
            return None
        if recent.epoch != epoch or len(recent.heads) > _KEPT:
            recent.epoch = epoch
            recent.heads.clear()
        head = recent.heads.get(length)
        if head is None:
            head = recent.heads[length] = data_head(0, 0, recent.digest, recent.size, length, epoch)
        answer[:HEAD_BYTES] = head
        return answer

    def place(self, recent: LastAsked, page: int) -> tuple[bytes, Any] | None:
        """Key and place of a page; None if it is not cached in that version, or the client must be notified."""
        recent.until_counted -= 1
        if recent.until_counted <= 0:
            recent.until_counted = _COUNTED
            chunk, now = (recent.name, page // CHUNK_PAGES), time.monotonic()
            if recent.counts and self._heat.ask(chunk, now, _COUNTED) > 1 and recent.is_news(chunk, now):
                return None
        found = recent.pages.get(page)
        if found is None:
            key = recent.name.key(page)
            entry = self._pages.lookup(key)
            if entry is None or entry.version != recent.digest:
                return None
            if len(recent.pages) >= _KEPT:
                recent.pages.clear()
            # Safe to keep: when reading, the store checks the entry's place against key and version.
            found = recent.pages[page] = key, entry
        return found
