"""A host that a broker starts on a node: it lets in one gateway alone, and ends once nobody needs it.

Its parent tells it, line by line, that the broker lives. Ray's word about death is late, so the host watches itself.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
import time

import msgspec

from stoker.core.errors import StokerError
from stoker.core.processes.parents import die_with, set_name
from stoker.wire.certificates import create_certificate
from stoker.wire.sockets import address_of, listen
from stoker.wire.tls import TlsSocket, between

ALONE_S = 10.0
"""A host without a connection and without a word of its broker ends after this."""
_SHAKE_S = 5.0


class HostOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a host is started with."""

    listen: str
    """Address of its machine."""
    certificate: bytes
    """That of the gateway, in DER."""
    cores: float


class HostReady(msgspec.Struct, frozen=True, kw_only=True):
    """What it answers: where it listens and what it shows, or why it can't serve."""

    address: str = ""
    certificate: bytes = b""
    error: str = ""


class BrokerLease:
    """Words of the broker, on a pipe.

    Args:
        fd: of the pipe.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._heard_s = time.monotonic()

    def is_over(self, now_s: float, num_connections: int) -> bool:
        """Whether the host is to end."""
        with contextlib.suppress(BlockingIOError):
            if os.read(self._fd, 4096):
                self._heard_s = now_s
        return not num_connections and now_s - self._heard_s > ALONE_S


def main(parent_pid: int) -> None:
    """Entry point of the process: an order on standard input, the answer on standard output."""
    die_with(parent_pid)
    set_name(b"stoker_host")
    server = importlib.import_module("stoker.backends.remote.host.server")  # with torch: each program finds it loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = msgspec.json.decode(_first_line(sys.stdin.fileno()), type=HostOrder)
    try:
        own = create_certificate()
        asked = f"tcp://{f'[{order.listen}]' if ':' in order.listen else order.listen}:0"
        listener = listen(asked)
    except (StokerError, OSError) as error:
        _answer(HostReady(error=str(error.args[0] if isinstance(error, StokerError) else error)))
        return
    _answer(HostReady(address=address_of(listener, asked).removeprefix("tcp://"), certificate=own.der))
    lease = BrokerLease(sys.stdin.fileno())

    def admit(sock: socket.socket) -> TlsSocket:
        return between(sock, own, order.certificate, server_side=True, timeout_s=_SHAKE_S)

    server.HostServer(listener, admit, order.cores, lease.is_over).run()


def _first_line(fd: int) -> bytes:
    """What comes first, and no more: the lease reads on."""
    line = bytearray()
    while not line.endswith(b"\n") and (data := os.read(fd, 1)):
        line += data
    return bytes(line)


def _answer(ready: HostReady) -> None:
    sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
