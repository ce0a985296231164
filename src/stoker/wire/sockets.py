"""Creates, connects and listens on sockets, and identifies peers."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from stoker.core.errors import PeerLostError

_BACKLOG = 256
_USER_TIMEOUT_MS = 30_000
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred


def check_address(url: str) -> tuple[str, int]:
    """Host and port of ``tcp://host:port``, or path and 0 of ``unix:///path``; ``ValueError`` for anything else."""
    if url.startswith("unix:///"):
        return url.removeprefix("unix://"), 0
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    if not url.startswith("tcp://") or not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"`{url}` must be tcp://host:port or unix:///path")
    return host.strip("[]"), int(port)


def dial(address: str, timeout_s: float) -> socket.socket:
    """A socket connected to ``tcp://host:port`` or ``unix:///path``; raises :class:`PeerLostError`."""
    try:
        host, port = check_address(address)
        if address.startswith("unix:"):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                sock.settimeout(timeout_s)
                sock.connect(host)
            except BaseException:
                sock.close()
                raise
            return sock
        return socket.create_connection((host, port), timeout=timeout_s)
    except (OSError, ValueError) as error:  # a ring record may name anything
        raise PeerLostError(f"`{address}` does not accept a connection: {error}", address=address) from None


def listen(address: str) -> socket.socket:
    """A listening socket on ``tcp://host:port`` (port 0 for a free one) or ``unix:///path`` (mode 0600)."""
    host, port = check_address(address)
    if not address.startswith("unix:"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=False)
    path = Path(host)
    # Bound under another name, then renamed: no client connects before the mode is set; a dead worker's is replaced.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        beside.unlink(missing_ok=True)
        sock.bind(str(beside))
        os.chmod(beside, 0o600)
        sock.listen(_BACKLOG)
        os.replace(beside, path)
    except BaseException:
        sock.close()
        raise
    return sock


def address_of(sock: socket.socket, asked: str) -> str:
    """Where a listening socket can be dialled, with the port that it was given."""
    if asked.startswith("unix:"):
        return asked
    host = check_address(asked)[0]
    return f"tcp://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"


def keep_watch(sock: socket.socket) -> None:
    """Lets the kernel end an accepted connection whose other side has vanished."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)


def shut(sock: socket.socket) -> None:
    """Shuts a socket down; waiting threads notice."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # already closed


def user_of(sock: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket, as the kernel recorded it at connect."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(data)[1]
