"""One connection of the gateway to a host: calls it, has it load a program, and tells when it is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from stoker.backends.remote import messages
from stoker.backends.remote.admission import this_caller
from stoker.backends.remote.messages import FRAMING, LOAD_S, LOST_S, PART_BYTES, PING_S, PURPOSE, RemoteKind
from stoker.core.errors import StokerError
from stoker.wire.framing import Placing
from stoker.wire.greeting import greet
from stoker.wire.polled import PolledChannel
from stoker.wire.secrets import Secrets
from stoker.wire.sockets import dial
from stoker.wire.tls import OwnCertificate, TlsSocket

CALL_S = 5.0
"""How long connecting, greeting and the handshake may take, each."""


@dataclass(slots=True)
class Credentials:
    """What a gateway calls hosts with."""

    secrets: Secrets
    own: OwnCertificate
    arrived: Callable[[], None]
    """Wakes the gateway; called in another thread."""


class HostCall:
    """Connects to a host, in a thread: a host that does not answer must not hold up the others."""

    def __init__(self, address: str, caller: Credentials) -> None:
        self._address = address
        self._caller = caller
        self.sock: TlsSocket | None = None
        self.error = ""
        self.is_over = False
        threading.Thread(target=self._run, name=f"stoker-call-{address}", daemon=True).start()

    def _run(self) -> None:
        try:
            sock = dial(f"tcp://{self._address}", CALL_S)
            sock.settimeout(None)
            self.sock = greet(sock, self._caller.secrets, self._caller.own, PURPOSE, CALL_S)
        except StokerError as error:
            self.error = str(error.args[0])
        except OSError as error:
            self.error = str(error)
        self.is_over = True
        self._caller.arrived()


@dataclass(eq=False, slots=True)
class Link:
    """A host that was called, with the program that it is to have."""

    address: str
    program: bytes
    """Fingerprint of it."""
    call: HostCall | None
    channel: PolledChannel[RemoteKind] | None = None
    cores: float = 0.0
    is_admitted: bool = False
    has_digest: bool = False
    sent_bytes: int = 0
    heard_s: float = 0.0
    pinged_s: float = 0.0
    num_workers: int = 0
    lost: str = ""
    """Why it serves no more; empty while it does or may."""
    is_refused: bool = False
    """It said no, and would say so again."""
    since_s: float = field(default_factory=time.monotonic)

    @property
    def room(self) -> int:
        """Workers that it takes."""
        return max(1, int(self.cores)) if self.is_admitted and not self.lost else 0

    def open(self, sock: TlsSocket, placing: Placing[RemoteKind]) -> PolledChannel[RemoteKind]:
        """Begins to speak over an encrypted connection."""
        self.channel = PolledChannel(sock, FRAMING, blocking=False, placing=placing)
        self.heard_s = self.since_s = time.monotonic()
        self.channel.send(RemoteKind.HERE, msgspec.msgpack.encode(this_caller()))
        return self.channel

    def announce(self, num_bytes: int, sample: bytes, stall_timeout_s: float) -> None:
        """Has the host expect a program of so many bytes, which :meth:`feed` sends."""
        assert self.channel is not None
        announced = messages.ProgramAhead(num_bytes, sample, stall_timeout_s)
        self.channel.send(RemoteKind.PROGRAM, msgspec.msgpack.encode(announced))
        self.since_s = time.monotonic()

    def feed(self, parcel: bytes) -> None:
        """Sends as much of the program as the connection takes."""
        channel = self.channel
        assert channel is not None
        while self.sent_bytes < len(parcel) and not channel.unsent:
            part = memoryview(parcel)[self.sent_bytes : self.sent_bytes + PART_BYTES]
            channel.send(RemoteKind.PART, tail=part)
            self.sent_bytes += len(part)

    def send(self, kind: RemoteKind, body: bytes) -> None:
        """Sends a message; a host that is gone is found at the next look."""
        if self.channel is None:
            return
        try:
            self.channel.send(kind, body)
        except OSError as error:
            self.lost = self.lost or f"it is gone ({error.strerror or error})"

    def look(self, now_s: float) -> None:
        """Pings the host, and finds it lost after too long a silence."""
        if self.lost:
            return
        if self.is_admitted:
            if now_s - self.heard_s > LOST_S:
                self.lost = f"it was silent for {now_s - self.heard_s:.1f} s"
            elif now_s - self.pinged_s >= PING_S:
                self.pinged_s = now_s
                self.send(RemoteKind.PING, b"")
        elif now_s - max(self.since_s, self.heard_s) > LOAD_S:
            self.lost = f"it has not loaded the program in {LOAD_S:.0f} s"

    def close(self) -> None:
        """Closes the connection: from here on nothing is received from that host."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        if self.call is not None and self.call.sock is not None:
            self.call.sock.close()


def wake_pipe() -> tuple[int, Callable[[], None]]:
    """A descriptor that becomes readable by a call from another thread."""
    ours, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake() -> None:
        try:
            os.write(theirs, b"x")
        except BlockingIOError:
            pass  # full: it is readable

    return ours, wake
