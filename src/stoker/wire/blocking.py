"""Frames received and sent one after another by who waits for them, with bounds for how long.

A receiver takes what has arrived into one small buffer, so that a short answer costs one call of the kernel; of a long
payload only the first bytes pass through it, the rest goes straight to where the caller wants it.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Generic

from stoker.core.errors import PeerLostError
from stoker.wire.framing import FrameHeader, Framing, K
from stoker.wire.sockets import shut

BUFFER_BYTES = 16 << 10
"""Holds a header and a page of 4 KiB, or a request of hundreds of ranges, as it arrives."""
TIMEVAL = struct.Struct("ll")
"""How the kernel takes a time-out: seconds and microseconds, 0 for none."""
_SLOWEST_BYTES_PER_S = 1e6
"""Least throughput of an answer; below it the peer counts as lost."""


class BlockingChannel(Generic[K]):
    """Frames over a connected stream socket, which it owns. For one thread at a time.

    Args:
        sock: connected, blocking.
        framing: of the protocol.
        timeout_s: longest silence, receiving and sending; 0 for no bound.
    """

    def __init__(self, sock: socket.socket, framing: Framing[K], timeout_s: float) -> None:
        self.sock = sock
        self._framing = framing
        self._header_bytes = framing.num_bytes
        self._pending: Callable[[], int] | None = getattr(sock, "pending", None)
        self.note = 0
        """Note of the last header."""
        self.received = bytearray(BUFFER_BYTES)
        self._view = memoryview(self.received)
        self._start: int = 0
        self._end: int = 0
        self._timeout_s = 0.0
        self._tick_s = -1.0
        self.deadline: float | None = None
        """On the monotonic clock; an unauthenticated peer must not hold a thread by sending a byte now and then."""
        sock.settimeout(None)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.bound(timeout_s, timeout_s)

    def bound(self, receive_s: float, send_s: float) -> None:
        """Sets the longest silences; the kernel keeps them, since Python's own time-outs cost a poll for each call."""
        self._timeout_s = receive_s
        self.tick(receive_s)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(send_s))

    def tick(self, tick_s: float) -> None:
        """Sets after how much silence :meth:`ask` returns; the longest silence is unchanged."""
        if tick_s != self._tick_s:
            self._tick_s = tick_s
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(tick_s))

    def fileno(self) -> int:
        """Descriptor to poll; :attr:`buffered` bytes do not show there."""
        return self.sock.fileno()

    @property
    def direct(self) -> bool:
        """Whether what the kernel says of the socket is all there is: nothing is decrypted on the way."""
        return self._pending is None

    @property
    def buffered(self) -> bool:
        """Whether bytes were received that no frame has used yet, and that a poll does not show."""
        return self._end > self._start or (self._pending is not None and self._pending() > 0)

    def wait(self, timeout_s: float | None) -> bool:
        """Whether something can be received within ``timeout_s`` (None: wait for ever)."""
        if self.buffered:
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))

    def ask(self, request: bytes, head: bytes, target: memoryview, tick_s: float) -> bool:
        """Sends a request and receives an answer that is ``head`` and ``target``; False for any other.

        What has come of another answer is left in the buffer, which must be empty before; nothing after ``tick_s``.

        Raises:
            PeerLostError: the peer is gone.
        """
        if tick_s != self._tick_s:
            self.tick(tick_s)
        self._start = self._end = 0
        self.send_all(request)
        try:
            end = self._end = self.sock.recv_into(self._view)
        except BlockingIOError:
            return False
        except OSError as error:
            raise _lost("send", error) from None
        first = len(head)
        if end < first or not self.received.startswith(head):
            if not end:
                raise PeerLostError("`peer` closed the connection")
            return False
        self._start = first
        if end - first == len(target):
            target[:] = self._view[first:end]
            self._start = end
        else:
            self.into(target)
        return True

    def send_all(self, data: bytes | memoryview) -> None:
        """Sends bytes; raises :class:`PeerLostError`."""
        try:
            sent = self.sock.send(data)
            if sent < len(data):
                self.sock.sendall(memoryview(data)[sent:])
        except OSError as error:
            raise _lost("take", error) from None

    def send_now(self, data: bytes | memoryview) -> int:
        """Sends what can be sent without waiting, and says how much that was; raises :class:`PeerLostError`."""
        try:
            return self.sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _lost("take", error) from None

    def send_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Sends bytes from several places with as few calls as it takes; raises :class:`PeerLostError`."""
        try:
            total = sum(map(len, parts))
            sent = self.sock.sendmsg(parts)
            if sent < total:
                for part in parts:
                    if sent < len(part):
                        self.sock.sendall(memoryview(part)[sent:])
                    sent = max(0, sent - len(part))
        except OSError as error:
            raise _lost("take", error) from None

    def header(self) -> FrameHeader[K] | None:
        """The header of the next frame; None when the other side has closed between frames.

        Raises:
            PeerLostError: it closed in the midst of one, or was silent for too long.
            WireError: the bytes are not a frame.
        """
        if self._end - self._start < self._header_bytes and not self._collect(self._header_bytes):
            return None
        header = self._framing.header(self.received, self._start, self._end)
        self._start += self._header_bytes
        self.note = header.note
        return header

    def behind(self, prefix: bytes, length: int) -> int:
        """Start in :attr:`received` of the ``length`` bytes after a prefix, if they come next, else -1.

        Consumes nothing.
        """
        at = self._start + len(prefix)
        return at if at + length <= self._end and self.received.startswith(prefix, self._start) else -1

    def skip(self, length: int) -> None:
        """Consumes received bytes."""
        self._start += length

    def arrived(self) -> bool:
        """Receives without waiting; False for nothing or the end. Only for an empty buffer.

        Raises:
            PeerLostError: the peer is gone.
        """
        self._start = self._end = 0
        try:
            self._end = self.sock.recv_into(self._view, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise _lost("send", error) from None
        return self._end > 0

    def whole_frame(self) -> tuple[FrameHeader[K], memoryview] | None:
        """The next frame if it is complete, without consuming it; the body is valid until the next receive.

        Raises:
            WireError: the bytes are not a frame.
        """
        first = self._start + self._header_bytes
        if first > self._end:
            return None
        header = self._framing.header(self.received, self._start, self._end)
        last = first + header.length
        return (header, self._view[first:last]) if last <= self._end else None

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """The next bytes as the numbers of a short layout."""
        if self._end - self._start < layout.size and not self._collect(layout.size):
            raise PeerLostError("`peer` closed the connection within a frame")
        values = layout.unpack_from(self.received, self._start)
        self._start += layout.size
        return values

    def _collect(self, length: int) -> bool:
        """Receives until the buffer has ``length`` bytes; False when the other side closed before the first."""
        until = 0.0
        while self._end - self._start < length:
            if self._end > self._start:
                until = self._in_time(until, length)
            if not self._receive():
                if self._end == self._start:
                    return False
                raise PeerLostError("`peer` closed the connection within a frame")
        return True

    def body(self, length: int) -> bytes:
        """The next ``length`` bytes."""
        end = self._start + length
        if end <= self._end:
            data = bytes(self._view[self._start : end])
            self._start = end
            return data
        target = bytearray(length)
        self.into(memoryview(target))
        return bytes(target)

    def into(self, target: memoryview) -> None:
        """Fills ``target`` with the next bytes; raises :class:`PeerLostError` when they do not come."""
        filled = min(len(target), self._end - self._start)
        if filled:
            target[:filled] = self._view[self._start : self._start + filled]
            self._start += filled
        until = 0.0
        while filled < len(target):
            until = self._in_time(until, len(target) - filled)
            taken = self._take(target[filled:], socket.MSG_WAITALL)
            if not taken:
                raise PeerLostError("`peer` closed the connection within a frame")
            filled += taken

    def _in_time(self, until: float, left: int) -> float:
        """When so many bytes are to be there, told at the first of them; raises if that is past.

        A byte now and then is no silence, and would keep a reader for as long as the other side likes.
        """
        now = time.monotonic()
        if not until:
            return now + self._timeout_s + left / _SLOWEST_BYTES_PER_S
        if self._timeout_s and now > until:
            raise PeerLostError("`peer` sends too slowly", silent=True)
        return until

    def _receive(self) -> int:
        """Appends the next bytes to the buffer, waiting for them; 0 when the peer has closed."""
        if self._start == self._end:
            self._start, self._end = 0, 0
        elif self._end > BUFFER_BYTES // 2:
            kept = bytes(self._view[self._start : self._end])
            self._view[: len(kept)] = kept
            self._start, self._end = 0, len(kept)
        received = self._take(self._view[self._end :])
        self._end += received
        return received

    def _take(self, target: memoryview, flags: int = 0) -> int:
        waited_s = 0.0
        while True:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise PeerLostError("`peer` took too long to authenticate")
            try:
                return self.sock.recv_into(target, 0, flags)
            except BlockingIOError as error:  # a tick of silence
                waited_s += self._tick_s
                if waited_s >= self._timeout_s:
                    raise _lost("send", error) from None
            except OSError as error:
                raise _lost("send", error) from None

    def shut(self) -> None:
        """Shuts the connection down for both sides; waiting threads notice."""
        shut(self.sock)

    def close(self) -> None:
        """Closes the connection."""
        self.sock.close()


def _timeval(seconds: float) -> bytes:
    return TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))


def _lost(verb: str, error: OSError) -> PeerLostError:
    if isinstance(error, BlockingIOError):
        return PeerLostError(f"`peer` did not {verb} anything for too long", silent=True)
    return PeerLostError(f"`peer` is gone: {error.strerror or type(error).__name__}")
