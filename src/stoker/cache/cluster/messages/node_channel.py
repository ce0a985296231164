"""The cache's messages over a connection between nodes."""

from __future__ import annotations

import socket

from stoker.cache.cluster.messages.frames import FRAMING, Kind, Message, decode_body, encode
from stoker.core.errors import PeerLostError, WireError
from stoker.wire.blocking import BlockingChannel


class NodeChannel(BlockingChannel[Kind]):
    """Messages, and in the note of each header the epoch of the ring that its sender knows."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        super().__init__(sock, FRAMING, timeout_s)

    def send(self, message: Message, epoch: int = 0) -> None:
        """Sends one message; raises :class:`PeerLostError`."""
        self.send_all(encode(message, epoch))

    def message(self, max_bytes: int) -> Message:
        """The next message, whole; one that is longer is malformed."""
        header = self.header()
        if header is None:
            raise PeerLostError("`peer` closed the connection")
        if header.length > max_bytes:
            raise WireError(f"`{header.kind.name}` frame must be at most {max_bytes} bytes here, got {header.length}")
        return decode_body(header.kind, self.body(header.length))
