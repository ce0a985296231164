"""A worker's answer to a request for ranges: cached pages at once, then fetched pages as they arrive.

Runs in the connection's thread and calls nothing that computes for long. During a fetch, the worker sends a sign of
life several times a second, so that silence always means a lost worker.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from stoker.cache.cluster.membership.hot_chunks import Heat
from stoker.cache.cluster.membership.ring import CHUNK_PAGES
from stoker.cache.cluster.messages.frames import (
    DATA_HEAD,
    RANGE,
    Blob,
    Flag,
    Hot,
    Kind,
    Message,
    Object,
    Range,
    RangeMiss,
    Read,
    Reason,
    Refused,
    Stat,
    data_head,
    encode,
)
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.cluster.server.fills import Fills, NotServed
from stoker.cache.cluster.server.grants import Grant, may_read
from stoker.cache.cluster.server.hits import Hits, LastAsked
from stoker.cache.cluster.server.protocols import Mount
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.protocols import Pages
from stoker.cache.versions import Version

SMALL_BYTES = 64 << 10
"""Requests up to this size are answered in the reactor's thread, if all of it is cached."""
BEAT_S = 0.25
"""Interval between signs of life during a fetch; clients time out after more than three times that."""
PATIENCE_S = 60.0
"""A store that takes longer for a page counts as failed."""
_AHEAD = 16
"""Pages of one request that are fetched side by side, and kept until they are sent."""
_COPY_BYTES = PAGE_BYTES // 2
"""Up to here the blocks that hold a piece are checked as they are copied; above, the whole page where it lies."""
_SCRATCH_BYTES = _COPY_BYTES
_FLUSH_BYTES = 2 * SMALL_BYTES
_MAX_PARTS = 256
_FEW = 32
_Result = TypeVar("_Result")


class RangePiece(NamedTuple):
    """The part of a range that lies in one page."""

    number: int
    offset: int
    """In the range."""
    page: int
    start: int
    """In the page."""
    length: int


@dataclass(slots=True)
class ServedCounts:
    """Counters of one connection. Each has its own, so that no lock is needed; a query sums them."""

    requests: int = 0
    hits: int = 0
    misses: int = 0
    refused: int = 0
    hit_bytes: int = 0
    sent_bytes: int = 0

    def hit(self, length: int) -> None:
        """A request was answered with a piece of a page that is held."""
        self.requests += 1
        self.hits += 1
        self.hit_bytes += length
        self.sent_bytes += length

    def add(self, other: ServedCounts) -> None:
        """Adds another's."""
        for name in ServedCounts.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Outgoing:
    """Frames on their way to a client, sent together.

    Args:
        channel: to the client; None where :meth:`taken` is sent by others, and at most a flush is queued.
    """

    def __init__(self, channel: NodeChannel | None) -> None:
        self._channel = channel
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES + DATA_HEAD.size))
        self._used = 0
        self.epoch = 0

    def whole(self, length: int) -> memoryview:
        """Memory for one DATA frame with its payload; for when nothing is queued."""
        return self._scratch[: DATA_HEAD.size + length]

    def send(self, data: memoryview) -> None:
        """Sends bytes at once; for when nothing is queued."""
        assert self._channel is not None
        self._channel.send_all(data)

    def clear(self) -> None:
        """Queues nothing any more."""
        self._parts, self._size, self._used = [], 0, 0

    def taken(self) -> bytes:
        """What is queued, which is nothing afterwards."""
        data = b"".join(self._parts)
        self.clear()
        return data

    def room(self, length: int) -> memoryview:
        """Memory for a payload, valid until the next flush."""
        if self._used + length > len(self._scratch):
            self.flush()
        self._used += length
        return self._scratch[self._used - length : self._used]

    def add(self, head: bytes, payload: memoryview | bytes = b"") -> None:
        """Queues a frame; a full queue is sent."""
        self._parts.append(head)
        if payload:
            self._parts.append(payload)
        self._size += len(head) + len(payload)
        if self._size >= _FLUSH_BYTES or len(self._parts) >= _MAX_PARTS:
            self.flush()

    def frame(self, frame: Message) -> None:
        """Queues a short frame."""
        self.add(encode(frame, self.epoch))

    def flush(self) -> None:
        """Sends the queued frames."""
        if self._parts:
            parts, self._parts = self._parts, []
            assert self._channel is not None
            self._channel.send_parts(parts)
        self._size = self._used = 0


class PageServing:
    """Answers requests about the objects of named mounts.

    Args:
        pages: the page store.
        fills: fetches missing pages.
        mounts: that are served.
        grants: which clients may read which paths of them.
        heat: counts requests per chunk.
    """

    def __init__(
        self, pages: Pages, fills: Fills, mounts: Sequence[Mount], grants: Sequence[Grant], heat: Heat
    ) -> None:
        self.hits = Hits(pages, heat)
        self._heat = heat
        self._pages = pages
        self._fills = fills
        self._mounts = {mount.namespace: mount for mount in mounts}
        self._grants = tuple(grants)

    def again(self, out: Outgoing, body: bytes, recent: LastAsked, counts: ServedCounts) -> bool:
        """Sends a range within one page of the last requested object; False if the request needs the normal path."""
        at = len(recent.head)
        if len(body) != at + RANGE.size or not at or not body.startswith(recent.head):
            return False
        start, length = RANGE.unpack_from(body, at)
        if length <= _COPY_BYTES:
            answer = self.hits.small(recent, start, length, out.epoch, out.whole(length))
            if answer is None:
                return False
            out.send(answer)
        else:
            page, offset = divmod(start, PAGE_BYTES)
            found = self.hits.place(recent, page) if start + length <= recent.size else None
            view = None if found is None else self._pages.view(*found)
            if view is None or len(view) < offset + length:
                recent.pages.clear()
                return False
            out.add(data_head(0, 0, recent.digest, recent.size, length, out.epoch), view[offset : offset + length])
            out.flush()
        counts.hit(length)
        return True

    def at_once(self, out: Outgoing, request: Read, identity: str, counts: ServedCounts, recent: LastAsked) -> bool:
        """Queues the answer to a small request of which all is held; False, with nothing queued, if it takes more."""
        mount, version = self._mounts.get(request.mount), request.version
        if mount is None or version is None or request.flags & Flag.PIN or len(request.ranges) > _FEW:
            return False
        if sum(asked.length for asked in request.ranges) > SMALL_BYTES:
            return False
        if not may_read(self._grants, identity, request.mount, request.path):
            return False
        name, digest = ObjectName(request.mount, request.path), version.digest
        if not request.flags:
            self._announce(out, request, recent)
        for number, asked in enumerate(request.ranges):
            for piece in pieces_of(number, asked) if asked.start + asked.length <= version.size else (None,):
                if piece is None or not self._hit(out, name, version.size, digest, piece):
                    out.clear()
                    recent.told.clear()  # the announcement was not sent
                    return False
        for asked in request.ranges:
            counts.hit(asked.length)
        counts.requests -= len(request.ranges) - 1
        recent.note(request)
        return True

    def read(
        self, out: Outgoing, request: Read, identity: str, counts: ServedCounts, recent: LastAsked, *, filling: bool
    ) -> None:
        """Sends the ranges of a request.

        Args:
            out: to the client.
            request: as it came.
            identity: of the client, proven.
            counts: of the connection.
            recent: of the connection.
            filling: False while the worker drains: it sends cached pages only.
        """
        counts.requests += 1
        mount = self._admit(out, request.mount, request.path, identity, counts)
        if mount is None:
            return
        filling = filling and not request.flags & Flag.ONLY_IF_CACHED
        try:
            version = request.version or self._await(out, self._fills.version(mount, request.path))
        except NotServed as answer:
            for number in range(len(request.ranges)):
                out.frame(RangeMiss(number, answer.reason))
            return out.flush()
        if not request.flags:
            self._announce(out, request, recent)
        self._send(out, request, version, mount, counts, filling)
        recent.note(request)
        return out.flush()

    def _announce(self, out: Outgoing, request: Read, recent: LastAsked) -> None:
        """Tells the client of hot chunks, each once in a while."""
        name, now = ObjectName(request.mount, request.path), time.monotonic()
        for number, asked in enumerate(request.ranges):
            chunk = name, asked.start // (CHUNK_PAGES * PAGE_BYTES)
            copies = self._heat.ask(chunk, now)
            if copies > 1 and recent.is_news(chunk, now):
                recent.tell(chunk, now)
                out.frame(Hot(number, copies))

    def stat(self, out: Outgoing, question: Stat, identity: str, counts: ServedCounts) -> None:
        """Sends the metadata of an object."""
        mount = self._admit(out, question.mount, question.path, identity, counts)
        if mount is None:
            return
        try:
            max_age_s = question.max_age_ms / 1000 or math.inf
            self._await(out, self._fills.version(mount, question.path, max_age_s))
            about = self._fills.about(mount, question.path)
            out.frame(RangeMiss(0, Reason.BUSY) if about is None else Object(*about))
        except NotServed as answer:
            out.frame(RangeMiss(0, answer.reason))
        out.flush()

    def _admit(self, out: Outgoing, namespace: str, path: str, identity: str, counts: ServedCounts) -> Mount | None:
        """The mount, if the client may read the path; otherwise sends a refusal."""
        mount = self._mounts.get(namespace)
        if mount is not None and may_read(self._grants, identity, namespace, path):
            return mount
        counts.refused += 1
        if mount is None:
            out.frame(Refused(Reason.NOT_MOUNTED, f"{namespace!r} is not mounted here"))
        else:
            out.frame(Refused(Reason.NOT_ALLOWED, f"{identity!r} may not read this"))
        out.flush()
        return None

    def _send(
        self, out: Outgoing, request: Read, version: Version, mount: Mount, counts: ServedCounts, filling: bool
    ) -> None:
        name = ObjectName(mount.namespace, request.path)
        digest = version.digest
        missing: deque[RangePiece] = deque()
        failed: set[int] = set()
        pin = filling and request.flags & Flag.PIN
        for number, asked in enumerate(request.ranges):
            if asked.start + asked.length > version.size:
                failed.add(number)
                out.frame(RangeMiss(number, Reason.MALFORMED))
                continue
            for piece in pieces_of(number, asked):
                if not pin and self._hit(out, name, version.size, digest, piece):
                    counts.hits += 1
                    counts.hit_bytes += piece.length
                    counts.sent_bytes += piece.length
                else:
                    counts.misses += 1
                    missing.append(piece)
        if filling:
            self._fill(out, mount, name, version, missing, counts, request.flags)
            return
        for piece in missing:
            if piece.number not in failed:
                failed.add(piece.number)
                out.frame(RangeMiss(piece.number, Reason.NOT_CACHED))

    def _hit(self, out: Outgoing, name: ObjectName, size: int, digest: int, piece: RangePiece) -> bool:
        """Queues a piece if its page is held in this version."""
        if not piece.length:
            out.add(data_head(piece.number, piece.offset, digest, size, 0, out.epoch))
            return True
        key = name.key(piece.page)
        entry = self._pages.lookup(key)
        if entry is None or entry.version != digest or entry.length < piece.start + piece.length:
            return False
        if piece.length <= _COPY_BYTES:
            payload = out.room(piece.length)
            if not self._pages.read_into(key, entry, piece.start, payload):
                return False
        else:
            view = self._pages.view(key, entry)
            if view is None:
                return False
            payload = view[piece.start : piece.start + piece.length]
        out.add(data_head(piece.number, piece.offset, digest, size, piece.length, out.epoch), payload)
        return True

    def _fill(
        self, out: Outgoing, mount: Mount, name: ObjectName, version: Version, missing: deque[RangePiece],
        counts: ServedCounts, flags: Flag,
    ) -> None:  # fmt: skip
        """Sends missing pieces as their pages come, a few pages ahead."""
        digest = version.digest
        copy, pin = bool(flags & Flag.COPY), bool(flags & Flag.PIN)
        waiting: deque[tuple[RangePiece, Future[bytes]]] = deque()
        failed: set[int] = set()
        while missing or waiting:
            while missing and len(waiting) < _AHEAD:
                piece = missing.popleft()
                # An earlier piece of the same page may have filled it.
                if piece.number in failed or (not pin and self._hit(out, name, version.size, digest, piece)):
                    continue
                waiting.append((piece, self._fills.page(mount, name, piece.page, version, copy=copy, pin=pin)))
            if not waiting:
                return
            piece, future = waiting.popleft()
            if piece.number in failed:
                continue
            try:
                data = memoryview(self._await(out, future))
            except NotServed as answer:
                failed.add(piece.number)
                out.frame(RangeMiss(piece.number, answer.reason))
                continue
            head = data_head(piece.number, piece.offset, digest, version.size, piece.length, out.epoch)
            out.add(head, data[piece.start : piece.start + piece.length])
            counts.sent_bytes += piece.length

    def _await(self, out: Outgoing, future: Future[_Result]) -> _Result:
        """Waits for a fetch and sends signs of life to the client."""
        waited_s = 0.0
        while not future.done():
            out.frame(Blob(Kind.FETCHING))
            out.flush()
            try:
                return future.result(timeout=BEAT_S)
            except TimeoutError:
                waited_s += BEAT_S
                if waited_s > PATIENCE_S:
                    raise NotServed(Reason.STORE_FAILED) from None
        return future.result()


def pieces_of(number: int, asked: Range) -> Iterator[RangePiece]:
    """The parts of a range by page; one of no bytes for an empty range."""
    position, end = asked.start, asked.start + asked.length
    if position == end:
        yield RangePiece(number, 0, *divmod(position, PAGE_BYTES), 0)
    while position < end:
        index, start = divmod(position, PAGE_BYTES)
        length = min(end - position, PAGE_BYTES - start)
        yield RangePiece(number, position - asked.start, index, start, length)
        position += length
