"""How frames begin, and bytes cut into frames: a header of fixed size, checked before what it announces is received.

Pure. Any bytes give frames or :class:`WireError`, never anything else.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

import msgspec

from stoker.core.errors import WireError

K = TypeVar("K", bound=enum.IntEnum)


# Structs of msgspec: each is made in C, for every frame.
class FrameHeader(msgspec.Struct, Generic[K], frozen=True):
    """The fixed part of a frame.

    Attributes:
        kind: what the frame is for.
        length: of the body that follows (bytes).
        note: the number that its protocol sends with each frame.
    """

    kind: K
    length: int
    note: int


class Framing(Generic[K]):
    """How the frames of one protocol begin.

    Args:
        layout: magic number, protocol, kind, length and note.
        magic: to recognise peers of other protocols.
        protocol: version of the header and of what follows it.
        kinds: all kinds of frames.
        max_bytes: longest body; ``limits`` has those of kinds that differ.
        hints: advice for a wrong magic number, and for a wrong protocol.
    """

    def __init__(
        self, layout: str, magic: int, protocol: int, kinds: type[K], max_bytes: int,
        limits: Mapping[K, int] | None = None, *, hints: tuple[str, str] = ("", ""),
    ) -> None:  # fmt: skip
        self.layout = struct.Struct(layout)
        self.num_bytes = self.layout.size
        self.magic = magic
        self.protocol = protocol
        self._kinds = {int(kind): (kind, (limits or {}).get(kind, max_bytes)) for kind in kinds}
        self._hints = hints
        self.pack: Callable[[K, int, int], bytes] = functools.partial(self.layout.pack, magic, protocol)
        """A header of a kind, a length and a note; in C, for every frame."""

    def limit(self, kind: K) -> int:
        """The longest body of a kind (bytes)."""
        return self._kinds[kind][1]

    def header(self, data: bytes | bytearray | memoryview, start: int = 0, end: int | None = None) -> FrameHeader[K]:
        """The header at ``start`` of data that ends at ``end``; raises :class:`WireError` for anything else."""
        size = (len(data) if end is None else end) - start
        if size < self.num_bytes:
            raise WireError(f"`frame` header must be {self.num_bytes} bytes, got {size}")
        magic, protocol, number, length, note = self.layout.unpack_from(data, start)
        known = self._kinds.get(number)
        if magic == self.magic and protocol == self.protocol and known is not None and length <= known[1]:
            return FrameHeader(known[0], length, note)
        if magic != self.magic:
            raise WireError(f"`frame` must begin with {self.magic:#06x}, got {magic:#06x}{self._hints[0]}")
        if protocol != self.protocol:
            raise WireError(f"`frame` must have protocol {self.protocol}, got {protocol}{self._hints[1]}")
        if known is None:
            raise WireError(f"`frame` kind {number} is unknown")
        raise WireError(f"`{known[0].name}` frame must be at most {known[1]} bytes, got {length}")


class Frame(msgspec.Struct, Generic[K]):
    """One message: kind, body and the descriptors that came with it; and the end of the body, where that was placed."""

    kind: K
    body: bytes
    fds: tuple[int, ...] = ()
    payload: memoryview | None = None


class Placing(NamedTuple, Generic[K]):
    """Where the ends of large bodies go, so that they are received there and copied nowhere.

    Attributes:
        head_bytes: of a body, from which :attr:`find` can tell.
        find: from a header and that much of its body (less only where there is no more): from where in the body on it
            goes elsewhere, and the memory for just the bytes from there; None where all of it is collected. Asked
            again if it names a place that has not come yet. Raises :class:`WireError` for bytes that fit nowhere.
    """

    head_bytes: int
    find: Callable[[FrameHeader[K], bytes], tuple[int, memoryview] | None]


class FrameDecoder(Generic[K]):
    """Turns a byte stream (in pieces of any size) and its descriptors into frames; the note counts descriptors.

    Args:
        framing: of the protocol.
        placing: None where all bodies are collected.
    """

    def __init__(self, framing: Framing[K], placing: Placing[K] | None = None) -> None:
        self._framing = framing
        self._placing = placing
        self._bytes = bytearray()
        self._fds: deque[int] = deque()
        self._placed: Frame[K] | None = None
        self.target: memoryview | None = None
        """Buffer for the next bytes of the stream; report them by :meth:`filled`. None for any buffer."""

    def feed(self, data: bytes | memoryview, fds: tuple[int, ...] = ()) -> list[Frame[K]]:
        """The frames completed by ``data``; raises :class:`WireError` at the first malformed one."""
        self._fds.extend(fds)
        if self._bytes:
            self._bytes += data
            frames, used = self._parse(self._bytes)
            del self._bytes[:used]
        else:  # usually whole frames arrive: they are not collected first
            frames, used = self._parse(data)
            self._bytes += data[used:]
        return frames

    def filled(self, length: int) -> list[Frame[K]]:
        """So many bytes were received into :attr:`target`; the frame, if that is its end."""
        assert self.target is not None
        assert self._placed is not None
        self.target = self.target[length:] or None
        return [self._placed] if self.target is None else []

    def _parse(self, data: bytes | bytearray | memoryview) -> tuple[list[Frame[K]], int]:
        """The frames at the head of ``data``, and how many of its bytes are used up."""
        frames: list[Frame[K]] = []
        start, size, header_bytes = 0, len(data), self._framing.num_bytes
        while size - start >= header_bytes or self.target is not None:
            if self.target is not None:
                came = min(size - start, len(self.target))
                if not came:
                    break
                self.target[:came] = memoryview(data)[start : start + came]
                frames += self.filled(came)
                start += came
                continue
            header = self._framing.header(data, start, size)
            first = start + header_bytes
            end = first + header.length
            if self._placing is not None and (at := self._place(header, data, first)) is not None:
                start = at
                continue
            if end > size:
                break
            frames.append(self._frame(header, data, first, end))
            start = end
        return frames, start

    def _place(self, header: FrameHeader[K], data: bytes | bytearray | memoryview, first: int) -> int | None:
        """Start of the placed body, which is :attr:`target` from now on; None without one."""
        assert self._placing is not None
        head_bytes = min(self._placing.head_bytes, header.length)
        if len(data) - first < head_bytes:
            return None
        found = self._placing.find(header, bytes(data[first : first + head_bytes]))
        if found is None:
            return None
        offset, target = found
        if len(target) != header.length - offset:
            raise WireError(
                f"`{header.kind.name}` frame has {header.length - offset} bytes for a place of {len(target)}"
            )
        if not target or len(data) - first < offset:
            return None
        self._placed = self._frame(header, data, first, first + offset)
        self._placed.payload = self.target = target
        return first + offset

    def _frame(self, header: FrameHeader[K], data: bytes | bytearray | memoryview, first: int, end: int) -> Frame[K]:
        num_fds = header.note
        if num_fds > len(self._fds):
            raise WireError(f"`frame` announces {num_fds} descriptors, {len(self._fds)} arrived")
        fds = tuple(self._fds.popleft() for _ in range(num_fds)) if num_fds else ()
        return Frame(header.kind, bytes(memoryview(data)[first:end]), fds)

    def close(self) -> list[int]:
        """Descriptors received but not yet handed out; the caller closes them."""
        left = list(self._fds)
        self._fds.clear()
        return left
