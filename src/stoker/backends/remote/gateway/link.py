"""One connection of the gateway to a host: calls it, has it load a program, and tells when it is lost."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from stoker.backends.remote import messages
from stoker.backends.remote.admission import this_caller
from stoker.backends.remote.brokering import KnownHost
from stoker.backends.remote.messages import FRAMING, LOAD_S, LOST_S, PART_BYTES, PING_S, PURPOSE, RemoteKind
from stoker.core.errors import StokerError
from stoker.core.units import format_bytes
from stoker.wire.framing import Placing
from stoker.wire.greeting import greet
from stoker.wire.polled import PolledChannel
from stoker.wire.secrets import Secrets
from stoker.wire.sockets import dial
from stoker.wire.tls import OwnCertificate, TlsSocket, between

_PONGS = 7
"""A link is judged by so many answers to pings: three seconds."""
_FULL = 0.8
"""Share of that time for which bytes wait at a link that carries no more."""
_TELL_S = (10.0, 30.0, 60.0, 120.0, 300.0)
"""A host that does not serve after these times is a line each."""
MOST_LOADS = 3
"""A host that has loaded the program so often for one link, and has it no more when it is called, is lost."""
CALL_S = 5.0
"""How long connecting, greeting and the handshake may take, each."""


@dataclass(slots=True)
class Credentials:
    """What a gateway calls hosts with."""

    secrets: Secrets | None
    """None where hosts are known by their certificates."""
    own: OwnCertificate
    arrived: Callable[[], None]
    """Wakes the gateway; called in another thread."""


class HostCall:
    """Connects to a host, in a thread: a host that does not answer must not hold up the others.

    Args:
        host: to be called; one that is known by no certificate has to know the secret.
        caller: who calls.
        program: fingerprint of what it is to run.
    """

    def __init__(self, host: KnownHost, caller: Credentials, program: bytes) -> None:
        self._program = program
        self._address = host.address
        self._certificate = host.certificate
        self._caller = caller
        self.sock: TlsSocket | None = None
        self.error = ""
        self.is_over = False
        threading.Thread(target=self._run, name=f"stoker-call-{host.address}", daemon=True).start()

    def _run(self) -> None:
        try:
            sock = dial(f"tcp://{self._address}", CALL_S)
            sock.settimeout(None)
            sock.sendall(messages.pack_call(self._program))
            own, secrets = self._caller.own, self._caller.secrets
            if self._certificate:
                self.sock = between(sock, own, self._certificate, server_side=False, timeout_s=CALL_S)
            elif secrets is not None:
                self.sock = greet(sock, secrets, own, PURPOSE, CALL_S)
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
    name: str
    """The host's, as people see it."""
    program: bytes
    """Fingerprint of it, and of what it needs besides."""
    call: HostCall | None
    num_bytes: int = 0
    """Size of the program, once it was announced."""
    channel: PolledChannel[RemoteKind] | None = None
    cores: float = 0.0
    granted: int | None = None
    """Cores that a broker has obtained there; None where the host itself says what it lends."""
    taken_back_s: float | None = None
    """When it has lost them."""
    is_admitted: bool = False
    has_digest: bool = False
    is_wanted: bool = False
    """The host has asked for the program."""
    sent_bytes: int = 0
    num_loads: int = 0
    """Times that it was called again since it had loaded the program."""
    progressed_s: float = 0.0
    """When it last got on with the program."""
    num_told: int = 0
    """Lines for people on how long it takes."""
    heard_s: float = 0.0
    pinged_s: float = 0.0
    num_workers: int = 0
    num_faults: int = 0
    """Items that raised there since it made a batch."""
    lost: str = ""
    """Why it serves no more; empty while it does or may."""
    is_refused: bool = False
    """It said no, and would say so again."""
    since_s: float = field(default_factory=time.monotonic)
    pongs: deque[tuple[float, messages.SentSoFar]] = field(default_factory=lambda: deque(maxlen=_PONGS))
    """What it had sent by the latest answers, and when these came."""

    @property
    def room(self) -> int:
        """Workers that it takes."""
        if not self.is_admitted or self.lost:
            return 0
        return max(1, int(self.cores)) if self.granted is None else self.granted

    def open(self, sock: TlsSocket, placing: Placing[RemoteKind]) -> PolledChannel[RemoteKind]:
        """Begins to speak over an encrypted connection."""
        self.channel = PolledChannel(sock, FRAMING, blocking=False, placing=placing)
        self.heard_s = self.progressed_s = time.monotonic()
        self.channel.send(RemoteKind.HERE, msgspec.msgpack.encode(this_caller()))
        return self.channel

    def announce(self, announced: messages.ProgramAhead) -> None:
        """Has the host expect a program of so many bytes, which :meth:`feed` sends."""
        assert self.channel is not None
        self.channel.send(RemoteKind.PROGRAM, msgspec.msgpack.encode(announced))
        self.num_bytes, self.progressed_s = announced.num_bytes, time.monotonic()

    def call_again(self, call: HostCall) -> None:
        """Leaves the connection for another one, to the process on that host that has loaded the program."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        self.call, self.num_loads = call, self.num_loads + 1
        self.has_digest = self.is_wanted = False
        self.cores, self.sent_bytes, self.num_bytes = 0.0, 0, 0

    def feed(self, parcel: bytes) -> None:
        """Sends as much of the program as the connection takes, if the host wants it."""
        channel = self.channel
        assert channel is not None
        if not self.is_wanted:
            return
        while self.sent_bytes < len(parcel) and not channel.unsent:
            part = memoryview(parcel)[self.sent_bytes : self.sent_bytes + PART_BYTES]
            channel.send(RemoteKind.PART, tail=part)
            self.sent_bytes += len(part)
            self.progressed_s = time.monotonic()

    @property
    def limit(self) -> str:
        """What the link to it carries, if it has lately carried no more; else empty."""
        if len(self.pongs) < _PONGS:
            return ""
        (since_s, before), (now_s, now) = self.pongs[0], self.pongs[-1]
        span_s = now_s - since_s
        if now.full_s - before.full_s < _FULL * span_s or now.batches == before.batches:
            return ""
        rate, batches = (now.num_bytes - before.num_bytes) / span_s, (now.batches - before.batches) / span_s
        return f"the link to `{self.name}` carries {rate / 1e6:.2g} MB/s, {batches:.2g} batches/s"

    def send(self, kind: RemoteKind, body: bytes) -> None:
        """Sends a message; a host that is gone is found at the next look."""
        if self.channel is None:
            return
        try:
            self.channel.send(kind, body)
        except OSError as error:
            self.lost = self.lost or f"it is gone ({error.strerror or error})"

    def look(self, now_s: float) -> str:
        """Pings the host, and finds it lost after too long a silence; a line for people where it takes long."""
        if self.lost:
            return ""
        if self.is_admitted and now_s - self.heard_s > LOST_S:
            self.lost = f"it was silent for {now_s - self.heard_s:.1f} s"
        elif not self.is_admitted and now_s - max(self.since_s, self.progressed_s) > LOAD_S:
            self.lost = f"it has not loaded the program in {LOAD_S:.0f} s"
        elif self.num_bytes and now_s - self.pinged_s >= PING_S:
            self.pinged_s = now_s
            self.send(RemoteKind.PING, b"")
        return self._takes_long(now_s - self.since_s)

    def _takes_long(self, waited_s: float) -> str:
        """A line on what it waits for, the first after ten seconds."""
        if self.is_admitted or self.lost or self.num_told >= len(_TELL_S) or waited_s < _TELL_S[self.num_told]:
            return ""
        self.num_told = sum(waited_s >= told_s for told_s in _TELL_S)
        return f"`{self.name}` gets data workers later: {self._waits_for()}, for {waited_s:.0f} s so far"

    def _waits_for(self) -> str:
        if self.call is not None:
            return "it is being called"
        if self.sent_bytes < self.num_bytes and self.is_wanted:
            sent, size = format_bytes(self.sent_bytes), format_bytes(self.num_bytes)
            return f"the program is on its way, {sent} of {size}"
        return "it loads the program and makes an item of it"

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
