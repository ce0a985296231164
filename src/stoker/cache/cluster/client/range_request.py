"""One worker's part of a fetch: ranges requested over one connection, received into the caller's buffers.

A range counts as received only if its pieces tile it exactly and all have the requested version.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stoker.cache.cluster.membership.ring import CHUNK_PAGES, Member
from stoker.cache.cluster.messages.frames import (
    DATA,
    DATA_BYTES,
    MAX_BODY_BYTES,
    MAX_RANGE_BYTES,
    Flag,
    Hot,
    Kind,
    Range,
    RangeMiss,
    Read,
    Reason,
    Refused,
    decode_body,
    encode,
)
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.versions import Version
from stoker.core.errors import PeerLostError, PeerRefusedError, WireError
from stoker.wire.framing import FrameHeader

MAX_BATCH = 1024
CHUNK_BYTES = CHUNK_PAGES * PAGE_BYTES


class PartState(enum.Enum):
    """The state of a part of a fetch."""

    OPEN = enum.auto()
    """Requested, or not requested yet."""
    DONE = enum.auto()
    MISSED = enum.auto()
    """A worker answered that it will not send it."""


@dataclass(slots=True, eq=False)
class Part:
    """A piece of one of the caller's ranges that has one owner.

    Attributes:
        number: of the caller's range.
        start: in the object.
        target: where the bytes go.
        state: of it.
        reason: why it was missed.
        pieces: offset and length of what was received.
    """

    number: int
    start: int
    target: memoryview
    state: PartState = PartState.OPEN
    reason: Reason | None = None
    pieces: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    received: int = 0

    @property
    def page(self) -> int:
        """The first page."""
        return self.start // PAGE_BYTES

    def took(self, offset: int, length: int) -> None:
        """A piece was received."""
        self.pieces.append((offset, length))
        self.received += length
        if self.received >= len(self.target):
            self.state = PartState.DONE if self._is_tiled() else PartState.MISSED

    def miss(self, reason: Reason) -> None:
        """Marks the part as missed."""
        self.state, self.reason = PartState.MISSED, reason

    def restart(self) -> None:
        """Resets the part: another worker is asked for all of it."""
        self.state, self.reason = PartState.OPEN, None
        self.pieces.clear()
        self.received = 0

    def _is_tiled(self) -> bool:
        end = 0
        for offset, length in sorted(self.pieces):
            if offset != end:
                return False
            end += length
        return end == len(self.target)


def parts_of(ranges: Sequence[tuple[int, int]], into: Sequence[memoryview]) -> Iterator[Part]:
    """The caller's ranges, cut where the owner may change."""
    for number, ((start, end), buffer) in enumerate(zip(ranges, into, strict=True)):
        target = buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
        if end - start != len(target) or start < 0:
            raise ValueError(f"buffer {number} must have the {end - start} bytes of its range, got {len(target)}")
        position = start
        while position < end:
            cut = min(end, (position // CHUNK_BYTES + 1) * CHUNK_BYTES)
            yield Part(number, position, target[position - start : cut - start])
            position = cut


@dataclass(slots=True)
class Agreed:
    """The version that all parts of a fetch must have; the first that is seen where the caller named none."""

    digest: int | None
    hot: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Pages in chunks of which owners announced copies, and how many workers serve each."""

    def on(self, digest: int) -> bool:
        """Whether bytes of this version belong to the fetch."""
        if self.digest is None:
            self.digest = digest
        return self.digest == digest


@dataclass(slots=True, eq=False)
class RangeRequest:
    """The parts asked of one worker.

    Attributes:
        member: the worker.
        channel: to it.
        was_kept: whether the connection had been used before.
        name: of the object.
        version: wanted; None for any.
        parts: in request order.
        agreed: shared with the other streams of the fetch.
        flags: of the request.
    """

    member: Member
    channel: NodeChannel
    was_kept: bool
    name: ObjectName
    version: Version | None
    parts: list[Part]
    agreed: Agreed
    flags: Flag = Flag.NONE
    heard: bool = False
    """Whether anything has arrived."""
    epoch: int = 0
    _asked: int = 0
    _batch: list[Part] = field(default_factory=list[Part])
    _waiting: set[int] = field(default_factory=set[int])

    def ask(self, epoch: int) -> None:
        """Sends the next request; raises :class:`PeerLostError`."""
        self.epoch = epoch
        batch: list[Part] = []
        total = 0
        for part in self.parts[self._asked : self._asked + MAX_BATCH]:
            total += len(part.target)
            if batch and total > MAX_RANGE_BYTES:
                break
            batch.append(part)
        self._batch = batch
        self._waiting = set(map(id, batch))
        self._asked += len(batch)
        ranges = tuple(Range(part.start, len(part.target)) for part in batch)
        self.channel.send_parts(
            (encode(Read(self.name.namespace, self.name.path, self.version, ranges, self.flags), epoch),)
        )

    def step(self) -> bool:
        """Receives one frame; whether every part now has its answer.

        Raises:
            PeerLostError: the worker is gone or silent.
            PeerRefusedError: it will not serve this object.
            WireError: what it sends is malformed.
        """
        header = self.channel.header()
        if header is None:
            raise PeerLostError("`peer` closed the connection")
        return self.take(header)

    def asked(self, epoch: int) -> None:
        """Adopts the only part, whose request was already sent."""
        self.epoch, self._asked, self._batch, self._waiting = epoch, 1, self.parts, {id(self.parts[0])}

    def take(self, header: FrameHeader[Kind]) -> bool:
        """Receives the rest of a frame whose header has come."""
        self.heard = True
        if header.kind is Kind.DATA:
            part = self._data(header.length)
        elif header.kind is Kind.FETCHING and not header.length:
            return False
        elif header.kind is Kind.HOT:
            self._hot(header)
            return False
        else:
            part = self._missed(header)
        if part.state is PartState.OPEN:
            return False
        self._waiting.discard(id(part))
        if self._waiting:
            return False
        if self._asked < len(self.parts):
            self.ask(self.epoch)
            return False
        return True

    def _data(self, length: int) -> Part:
        number, offset, digest, _ = self.channel.fields(DATA)
        part, size = self._part(number), length - DATA_BYTES
        if not 0 <= size <= len(part.target) - offset:
            raise WireError(f"`DATA` of {size} bytes at {offset} exceeds its range of {len(part.target)}")
        if part.state is not PartState.OPEN or not self.agreed.on(digest):
            self.channel.body(size)
            part.miss(Reason.CHANGED)
        else:
            self.channel.into(part.target[offset : offset + size])
            part.took(offset, size)
        return part

    def _hot(self, header: FrameHeader[Kind]) -> None:
        frame = decode_body(header.kind, self.channel.body(header.length))
        if isinstance(frame, Hot):
            self.agreed.hot.append((self._part(frame.number).page, frame.copies))

    def _missed(self, header: FrameHeader[Kind]) -> Part:
        if header.length > MAX_BODY_BYTES:
            raise WireError(f"`{header.kind.name}` is not an answer to a read")
        frame = decode_body(header.kind, self.channel.body(header.length))
        if isinstance(frame, Refused):
            raise PeerRefusedError(f"`{self.member.id}` refused: {frame.text}", reason=int(frame.reason))
        if not isinstance(frame, RangeMiss):
            raise WireError(f"`{header.kind.name}` is not an answer to a read")
        part = self._part(frame.number)
        part.miss(frame.reason)
        return part

    def _part(self, number: int) -> Part:
        if number >= len(self._batch):
            raise WireError(f"`peer` answers range {number} of {len(self._batch)}")
        return self._batch[number]
