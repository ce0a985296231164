"""What a gateway and its broker say to each other: how many workers are wanted, and which hosts there are.

A broker obtains processors of a cluster; it is a child of the gateway, and both write JSON objects, one a line.
"""

from __future__ import annotations

import socket
from typing import TypeVar

import msgspec

from stoker.core.errors import WireError

GRACE_S = 5.0
"""Workers whose processors were taken back have so long to finish what they hold, unless people chose another time."""
_MOST_BYTES = 1 << 24
_SEND_S = 1.0


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker is started for."""

    job: str
    """As people see it among those of the cluster."""
    insecure: bool = False
    """Whether a cluster without authentication is taken."""
    cores: int = 1
    """That a cluster which is started for the run has."""
    shared: str = ""
    """What the run's ranks on this machine have in common, and no others: they share that cluster."""


class LinkUse(msgspec.Struct, frozen=True, kw_only=True):
    """A host's connections, now."""

    address: str
    workers: int
    bytes_per_s: int


class SeenQueue(msgspec.Struct, frozen=True, kw_only=True):
    """What a crew's queue showed while its workers did not change."""

    near: int
    """Workers on the machine of the program, at work all the time."""
    away: int
    """Workers elsewhere."""
    batches_per_s: float
    """Delivered."""
    starved_frac: float
    """Share of steps that found the queue empty."""
    blocked_frac: float
    """Share of workers' time in which they had nothing to do."""
    computing_frac: float
    """Share of time in which the program did not wait for input."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """To a broker."""

    workers: int
    refused: tuple[str, ...] = ()
    """Addresses of hosts that can't serve: their CPUs are for others."""
    links: tuple[LinkUse, ...] = ()
    queue: SeenQueue | None = None
    """The last that was seen; None before."""
    queues: int = 0
    """How many were seen: another number is a new one, though it be equal."""


class KnownHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that may be called."""

    address: str
    name: str
    """As people see it."""
    cores: int
    """That are granted; so many workers it takes."""
    certificate: bytes
    """Its process's, in DER: the only one that it may show."""


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    """From a broker: all that there are now, and lines for the user."""

    hosts: tuple[KnownHost, ...] = ()
    texts: tuple[str, ...] = ()
    grace_s: float = GRACE_S
    """Time to finish the items at work on CPUs that are taken back."""


_S = TypeVar("_S", bound=msgspec.Struct)


class Lines:
    """One end of the socket between them; receiving does not wait.

    Args:
        sock: connected.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._buffer = bytearray()

    def fileno(self) -> int:
        """Its descriptor."""
        return self.sock.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Sends a message; raises ``OSError`` if the other side is gone, or stopped and does not read."""
        self.sock.settimeout(_SEND_S)
        try:
            self.sock.sendall(msgspec.json.encode(message) + b"\n")
        finally:
            self.sock.setblocking(False)

    def receive(self, kind: type[_S]) -> list[_S] | None:
        """The messages that have come; None once the other side is gone. Raises :class:`WireError`."""
        is_over = self._fill()
        *lines, rest = self._buffer.split(b"\n")
        if len(rest) > _MOST_BYTES:
            raise WireError(f"`{kind.__name__}` must have at most {_MOST_BYTES} bytes, got {len(rest)}")
        self._buffer = bytearray(rest)
        try:
            found = [msgspec.json.decode(line, type=kind) for line in lines]
        except msgspec.MsgspecError as error:
            raise WireError(f"`{kind.__name__}` is malformed: {error}") from None
        return found if found or not is_over else None

    def _fill(self) -> bool:
        """Receives what is there; whether the other side is gone."""
        while True:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not data:
                return True
            self._buffer += data
