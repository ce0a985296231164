"""Frames that come and go without waiting: for who has many connections and looks where something has arrived.

Frames may take descriptors along, over a Unix socket.
"""

from __future__ import annotations

import array
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Generic

import numpy as np

from stoker.wire.framing import Frame, FrameDecoder, Framing, K, Placing

_MAX_FDS = 16
_FDS_BYTES = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
_NOW, _CLOEXEC = int(socket.MSG_DONTWAIT), int(socket.MSG_CMSG_CLOEXEC)
"""Plain numbers: combining flags of an enumeration takes longer than receiving a small frame."""
_RECEIVE_BYTES = 1 << 18
"""Room for what arrives at once, kept by each channel: fresh memory of that size costs 25 us a message. It is not
filled with zeros, which takes longer than to connect: only what is used takes memory."""


class PolledChannel(Generic[K]):
    """One end of a connection: sends frames without ever blocking on a full peer, receives whole frames.

    Args:
        sock: a connected stream socket (``AF_UNIX`` where descriptors are sent); owned by the channel from here on.
        framing: of the protocol; the note of its headers counts descriptors.
        blocking: True for a process with this peer alone, which waits for it. False for one that must never wait: bytes
            that the socket does not accept are buffered and sent by later calls of :meth:`flush`.
        placing: where large bodies are received; None to collect them.
    """

    def __init__(
        self, sock: socket.socket, framing: Framing[K], *, blocking: bool, placing: Placing[K] | None = None
    ) -> None:
        self.sock = sock
        self.sock.setblocking(blocking)
        self._framing = framing
        self._pending: Callable[[], int] | None = getattr(sock, "pending", None)
        # A plain socket obeys its blocking mode; one that decrypts gets a flag with each call.
        self._flags = 0 if blocking or self._pending is None else _NOW
        self._decoder = FrameDecoder(framing, placing)
        self._in = np.empty(_RECEIVE_BYTES, np.uint8).data
        self._out: deque[tuple[bytes | memoryview, tuple[int, ...]]] = deque()
        self._held = b""
        self.num_received = 0
        """Bytes received so far: a peer that is in the middle of a long frame is not silent."""
        self.unsent = False
        """Whether bytes wait for the peer to read, or for the frame that they go with."""

    def fileno(self) -> int:
        """Descriptor to poll."""
        return self.sock.fileno()

    def hold(self, kind: K, body: bytes = b"") -> None:
        """Keeps one frame until the next is sent or :meth:`flush` is called: the peer is woken once for both."""
        self._held += self._framing.pack(kind, len(body), 0) + body
        self.unsent = True

    def send(self, kind: K, body: bytes = b"", fds: tuple[int, ...] = (), tail: memoryview | None = None) -> None:
        """Queues one frame (``tail`` continues the body without a copy) and sends what the socket takes.

        ``fds`` are duplicated by the kernel when sent; with a non-blocking channel the caller keeps them open until
        :attr:`unsent` is False. Raises ``OSError`` when the peer is gone.
        """
        length = len(body) + (len(tail) if tail is not None else 0)
        held, self._held = self._held, b""
        self._out.append((held + self._framing.pack(kind, length, len(fds)) + body, fds))
        if tail is not None and len(tail):
            self._out.append((tail, ()))
        self.flush()

    def flush(self) -> None:
        """Sends queued bytes until all are sent or the socket is full."""
        if self._held:
            self._out.append((self._held, ()))
            self._held = b""
        while self._out:
            data, fds = self._out[0]
            try:
                if fds:
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                    sent = self.sock.sendmsg([data], ancillary)
                else:
                    sent = self.sock.send(data, self._flags)
            except (BlockingIOError, InterruptedError):
                self.unsent = True
                return
            if sent == len(data):
                self._out.popleft()
            else:
                self._out[0] = (memoryview(data)[sent:], ())
        self.unsent = False

    def receive(self, *, wait: bool = True) -> list[Frame[K]] | None:
        """Frames that have arrived; None when the peer is gone.

        A blocking channel waits for at least some bytes, unless told not to ``wait``.
        """
        flags, decoder = self._flags if wait else _NOW, self._decoder
        try:
            if decoder.target is not None:
                return self._into(decoder.target, flags)
            if self._pending is None:
                size, ancillary, _, _ = self.sock.recvmsg_into([self._in], _FDS_BYTES, flags | _CLOEXEC)
            else:  # the buffer holds all that is decrypted at once: nothing is left that a poll does not show
                size, ancillary = self.sock.recv_into(self._in, 0, flags), []
        except (BlockingIOError, InterruptedError):
            return []
        except ConnectionError:
            return None
        if not size:
            return None
        self.num_received += size
        return decoder.feed(self._in[:size], _descriptors_in(ancillary) if ancillary else ())

    def _into(self, target: memoryview, flags: int) -> list[Frame[K]] | None:
        size = filled = self.sock.recv_into(target, 0, flags)
        if not size:
            return None
        while filled < len(target):  # what is decrypted at once is 16 KiB: as many of it as have come
            try:
                size = self.sock.recv_into(target[filled:], 0, _NOW)
            except (BlockingIOError, InterruptedError):
                break
            if not size:
                break  # the peer is gone, as the next call finds
            filled += size
        self.num_received += filled
        frames = self._decoder.filled(filled)
        if self._pending is not None and self._pending():  # the rest of the decrypted bytes, which a poll does not show
            frames += self.receive(wait=False) or []
        return frames

    def await_frames(self, timeout_s: float) -> None:
        """Returns when there is something to receive, or the peer is gone, or the time is up."""
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        poller.poll(timeout_s * 1e3)

    def abandon(self) -> None:
        """Closes this process's copy (in a forked child), without the destructor closing the number once more."""
        fd = self.sock.detach()
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Closes the socket and every received descriptor that was not taken."""
        for fd in self._decoder.close():
            os.close(fd)
        self._out.clear()
        self._held, self.unsent = b"", False
        self.sock.close()


def _descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return tuple(fds)
