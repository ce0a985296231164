"""A worker's answer to a request for ranges: what it holds at once, then what it fetches, as it comes.

Runs in the connection's thread and calls nothing that computes for long. Whoever waits for a fetch hears from the
worker several times a second, so that silence means a lost worker and nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from stoker.cache.cluster.channel import Channel
from stoker.cache.cluster.fills import Fills, NotServed
from stoker.cache.cluster.frames import (
    DATA_BYTES,
    DATA_HEAD,
    MAGIC,
    PROTOCOL,
    RANGE,
    Blob,
    Flag,
    Frame,
    Hot,
    Kind,
    Miss,
    Object,
    Range,
    Read,
    Reason,
    Refused,
    Stat,
    data_head,
    encode,
    read_head,
)
from stoker.cache.cluster.heat import TOLD_S, Chunk, Heat
from stoker.cache.cluster.ports import Mount
from stoker.cache.cluster.ring import CHUNK_PAGES
from stoker.cache.cluster.security import Grant, may_read
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.pages import Pages
from stoker.cache.versions import Strength, Version

BEAT_S = 0.25
"""Between two signs of life while a fetch runs; clients give up after three times that and more."""
PATIENCE_S = 60.0
"""A store that takes longer for a page counts as failed."""
_AHEAD = 16
"""Pages of one request that are fetched side by side, and kept until they are sent."""
_COPY_BYTES = PAGE_BYTES // 2
"""Up to here the blocks that hold a piece are checked as they are copied; above, the whole page where it lies."""
_SCRATCH_BYTES = _COPY_BYTES
_FLUSH_BYTES = 128 << 10
_MAX_PARTS = 256
_PAGES_KEPT = 256
_DATA_KIND = int(Kind.DATA)
_NOTHING = ObjectName("", "")
_NO_VERSION = Version(Strength.NONE, "", 0)
_Result = TypeVar("_Result")


class Piece(NamedTuple):
    """The part of a range that lies in one page."""

    number: int
    offset: int
    """In the range."""
    page: int
    start: int
    """In the page."""
    length: int


@dataclass(slots=True)
class Counts:
    """What one connection was given. Each has its own, so that no lock is needed; they are added up when asked for."""

    requests: int = 0
    hits: int = 0
    misses: int = 0
    refused: int = 0
    hit_bytes: int = 0
    sent_bytes: int = 0

    def add(self, other: Counts) -> None:
        """Adds another's."""
        for name in Counts.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Recent:
    """The object that a connection asked for last, so that the next request for it is not taken apart again.

    Attributes:
        head: body of the request up to its one range.
        name: of the object, admitted.
        version: that was asked for.
        digest: of the version.
        pages: key of each page that was asked for lately, and where it is.
        told: when the client was last told that a chunk is hot.
    """

    head: bytes = b""
    name: ObjectName = _NOTHING
    version: Version = _NO_VERSION
    digest: int = 0
    pages: dict[int, tuple[bytes, Any]] = field(default_factory=dict[int, tuple[bytes, Any]])
    told: dict[Chunk, float] = field(default_factory=dict[Chunk, float])


class Outgoing:
    """Frames on their way to a client, sent together."""

    def __init__(self, channel: Channel) -> None:
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
        self._channel.send_all(data)

    def room(self, length: int) -> memoryview:
        """Memory for a payload, valid until the next flush."""
        if self._used + length > len(self._scratch):
            self.flush()
        self._used += length
        return self._scratch[self._used - length : self._used]

    def add(self, head: bytes, payload: memoryview | bytes = b"") -> None:
        """Queues a frame; what is queued is sent when it is much."""
        self._parts.append(head)
        if payload:
            self._parts.append(payload)
        self._size += len(head) + len(payload)
        if self._size >= _FLUSH_BYTES or len(self._parts) >= _MAX_PARTS:
            self.flush()

    def frame(self, frame: Frame) -> None:
        """Queues a short frame."""
        self.add(encode(frame, self.epoch))

    def flush(self) -> None:
        """Sends what is queued."""
        if self._parts:
            parts, self._parts = self._parts, []
            self._channel.send_parts(parts)
        self._size = self._used = 0


class Serving:
    """Answers requests about the objects of named mounts.

    Args:
        pages: what is held.
        fills: gets what is not.
        mounts: that are served.
        grants: who may read what of them.
        heat: counts what is asked for.
    """

    def __init__(
        self, pages: Pages, fills: Fills, mounts: Sequence[Mount], grants: Sequence[Grant], heat: Heat
    ) -> None:
        self._heat = heat
        self._pages = pages
        self._fills = fills
        self._mounts = {mount.namespace: mount for mount in mounts}
        self._grants = tuple(grants)

    def again(self, out: Outgoing, body: bytes, recent: Recent, counts: Counts) -> bool:
        """Sends a range within one page of the object that was asked for last; False if it takes more than that.

        Most requests of a random reader are these, and taking names apart would be most of their cost.
        """
        at = len(recent.head)
        if len(body) != at + RANGE.size or not at or not body.startswith(recent.head):
            return False
        start, length = RANGE.unpack_from(body, at)
        page, offset = divmod(start, PAGE_BYTES)
        if not 0 < length <= PAGE_BYTES - offset or start + length > recent.version.size:
            return False
        chunk, now = (recent.name, page // CHUNK_PAGES), time.monotonic()
        # The first byte holds the flags: whoever asks for a copy knows already.
        is_hot = not recent.head[0] and self._heat.ask(chunk, now) > 1
        if is_hot and now - recent.told.get(chunk, -TOLD_S) > TOLD_S / 2:
            return False
        key, entry = recent.pages.get(page) or self._look_up(recent, page)
        digest = recent.digest
        if entry is None:
            return False
        if length <= _COPY_BYTES:
            whole = out.whole(length)
            if not self._pages.read_into(key, entry, offset, whole[DATA_HEAD.size :]):
                recent.pages.clear()
                return False
            DATA_HEAD.pack_into(
                whole, 0, MAGIC, PROTOCOL, _DATA_KIND, DATA_BYTES + length, out.epoch, 0, 0, digest, recent.version.size
            )
            out.send(whole)
        else:
            view = self._pages.view(key, entry)
            if view is None or len(view) < offset + length:
                recent.pages.clear()
                return False
            out.add(data_head(0, 0, digest, recent.version.size, length, out.epoch), view[offset : offset + length])
            out.flush()
        counts.requests += 1
        counts.hits += 1
        counts.hit_bytes += length
        counts.sent_bytes += length
        return True

    def _look_up(self, recent: Recent, page: int) -> tuple[bytes, Any]:
        """Key of a page and where it is, None if it is not held in the version that was asked for."""
        key = recent.name.key(page)
        entry = self._pages.lookup(key)
        if entry is None or entry.version != recent.digest:
            return key, None
        if len(recent.pages) >= _PAGES_KEPT:
            recent.pages.clear()
        # May be kept: the store compares what it finds at a place with key and version.
        recent.pages[page] = key, entry
        return key, entry

    def read(
        self, out: Outgoing, request: Read, identity: str, counts: Counts, recent: Recent, *, filling: bool
    ) -> None:
        """Sends the ranges of a request.

        Args:
            out: to the client.
            request: as it came.
            identity: of the client, proven.
            counts: of the connection.
            recent: is set if the next request may be for the same object.
            filling: False while the worker drains: only what is held is sent.
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
                out.frame(Miss(number, answer.reason))
            return out.flush()
        if not request.flags:
            self._announce(out, request, recent)
        self._send(out, request, version, mount, counts, filling)
        if len(request.ranges) == 1 and request.version is not None:
            recent.head = read_head(request.mount, request.path, version, 1, request.flags)
            recent.name, recent.version = ObjectName(mount.namespace, request.path), version
            recent.digest = version.digest
            recent.pages.clear()
        return out.flush()

    def _announce(self, out: Outgoing, request: Read, recent: Recent) -> None:
        """Tells the client of hot chunks, each once in a while."""
        name, now = ObjectName(request.mount, request.path), time.monotonic()
        for number, asked in enumerate(request.ranges):
            chunk = name, asked.start // (CHUNK_PAGES * PAGE_BYTES)
            copies = self._heat.ask(chunk, now)
            if copies > 1 and now - recent.told.get(chunk, -TOLD_S) > TOLD_S / 2:
                if len(recent.told) >= _PAGES_KEPT:
                    recent.told.clear()
                recent.told[chunk] = now
                out.frame(Hot(number, copies))

    def stat(self, out: Outgoing, question: Stat, identity: str, counts: Counts) -> None:
        """Sends what is known of an object."""
        mount = self._admit(out, question.mount, question.path, identity, counts)
        if mount is None:
            return
        try:
            version = self._await(out, self._fills.version(mount, question.path))
            out.frame(Object(version, self._fills.checked_at(mount, question.path)))
        except NotServed as answer:
            out.frame(Miss(0, answer.reason))
        out.flush()

    def _admit(self, out: Outgoing, namespace: str, path: str, identity: str, counts: Counts) -> Mount | None:
        """The mount, if the client may read the path; else it is told that it may not."""
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
        self, out: Outgoing, request: Read, version: Version, mount: Mount, counts: Counts, filling: bool
    ) -> None:
        name = ObjectName(mount.namespace, request.path)
        digest = version.digest
        missing: deque[Piece] = deque()
        failed: set[int] = set()
        for number, asked in enumerate(request.ranges):
            if asked.start + asked.length > version.size:
                failed.add(number)
                out.frame(Miss(number, Reason.MALFORMED))
                continue
            for piece in pieces_of(number, asked):
                if self._hit(out, name, version.size, digest, piece):
                    counts.hits += 1
                    counts.hit_bytes += piece.length
                    counts.sent_bytes += piece.length
                else:
                    counts.misses += 1
                    missing.append(piece)
        if filling:
            self._fill(out, mount, name, version, missing, counts, copy=bool(request.flags & Flag.COPY))
            return
        for piece in missing:
            if piece.number not in failed:
                failed.add(piece.number)
                out.frame(Miss(piece.number, Reason.NOT_CACHED))

    def _hit(self, out: Outgoing, name: ObjectName, size: int, digest: int, piece: Piece) -> bool:
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
        self, out: Outgoing, mount: Mount, name: ObjectName, version: Version, missing: deque[Piece], counts: Counts,
        *, copy: bool,
    ) -> None:  # fmt: skip
        """Sends missing pieces as their pages come, a few pages ahead."""
        digest = version.digest
        waiting: deque[tuple[Piece, Future[bytes]]] = deque()
        failed: set[int] = set()
        while missing or waiting:
            while missing and len(waiting) < _AHEAD:
                piece = missing.popleft()
                # An earlier piece of the same page may have brought it.
                if piece.number in failed or self._hit(out, name, version.size, digest, piece):
                    continue
                waiting.append((piece, self._fills.page(mount, name, piece.page, version, copy=copy)))
            if not waiting:
                return
            piece, future = waiting.popleft()
            if piece.number in failed:
                continue
            try:
                data = memoryview(self._await(out, future))
            except NotServed as answer:
                failed.add(piece.number)
                out.frame(Miss(piece.number, answer.reason))
                continue
            head = data_head(piece.number, piece.offset, digest, version.size, piece.length, out.epoch)
            out.add(head, data[piece.start : piece.start + piece.length])
            counts.sent_bytes += piece.length

    def _await(self, out: Outgoing, future: Future[_Result]) -> _Result:
        """What a fetch gives; the client hears that it runs."""
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


def pieces_of(number: int, asked: Range) -> Iterator[Piece]:
    """The parts of a range by page; one of no bytes for an empty range."""
    position, end = asked.start, asked.start + asked.length
    if position == end:
        yield Piece(number, 0, *divmod(position, PAGE_BYTES), 0)
    while position < end:
        index, start = divmod(position, PAGE_BYTES)
        length = min(end - position, PAGE_BYTES - start)
        yield Piece(number, position - asked.start, index, start, length)
        position += length
