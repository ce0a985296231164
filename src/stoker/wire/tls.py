"""TLS on TCP connections: certificates from files, and a socket that behaves as plain ones do here.

The secret says who may connect, with TLS or without; TLS keeps data from being read on the way, and shows clients that
a worker is the one whose name they dialled. Unix sockets are never encrypted.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.core.errors import ConfigError, PeerLostError, PeerRefusedError
from stoker.wire.blocking import TIMEVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a worker shows.

    Attributes:
        cert: file with its certificate, followed by those between it and the authority.
        key: file with its private key; None if that is in the same file.
    """

    cert: Path
    key: Path | None = None


class TlsSocket(ssl.SSLSocket):
    """An encrypted socket whose calls wait, end and fail as those of a plain one with the kernel's own time-outs."""

    receive_s: float | None = None
    """Silence after which receiving raises ``BlockingIOError``."""
    send_s: float | None = None

    def setsockopt(self, level: int, option: int, value: Any, *more: Any) -> None:
        """Sets an option; the kernel's time-outs are kept here, since it would see encrypted bytes come and go."""
        if level != socket.SOL_SOCKET or option not in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            return super().setsockopt(level, option, value, *more)
        seconds, micros = TIMEVAL.unpack(value)
        bound_s = seconds + micros / 1e6 or None
        if option == socket.SO_RCVTIMEO:
            self.receive_s = bound_s
        else:
            self.send_s = bound_s

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receives the available bytes, or waits for the first; may return fewer than requested, with any ``flags``."""
        self.settimeout(0.0 if flags & socket.MSG_DONTWAIT else self.receive_s)
        try:
            return super().recv_into(buffer, nbytes or None)
        except ssl.SSLError as error:
            raise _as_plain(error) from None
        except TimeoutError:
            raise BlockingIOError("nothing was received") from None

    def send(self, data: Any, flags: int = 0) -> int:
        """Sends some of the bytes."""
        self.settimeout(0.0 if flags & socket.MSG_DONTWAIT else self.send_s)
        try:
            return super().send(data)
        except ssl.SSLError as error:
            raise _as_plain(error) from None
        except TimeoutError:
            raise BlockingIOError("nothing was taken") from None

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Sends all bytes."""
        left = memoryview(data).cast("B")
        while left:
            left = left[self.send(left) :]

    def sendmsg(self, buffers: Sequence[Any], *_: Any) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Sends all bytes of several places."""
        for buffer in buffers:
            self.sendall(buffer)
        return sum(map(len, buffers))

    def shutdown(self, how: int) -> None:
        """Ends the connection under another thread, which finds it closed."""
        socket.socket.shutdown(self, how)


def _as_plain(error: ssl.SSLError) -> OSError:
    if isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
        return BlockingIOError("not without waiting")
    return ConnectionAbortedError(errno.ECONNABORTED, _words(error))


def worker_context(certificate: Certificate) -> ssl.SSLContext:
    """Context for accepting connections; raises :class:`ConfigError` if the files are unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    try:
        context.load_cert_chain(certificate.cert, certificate.key)
    except (OSError, ValueError) as error:
        key = certificate.key or certificate.cert
        raise ConfigError(
            f"`--tls-cert` and `--tls-key` must be a certificate and its key in PEM, got {certificate.cert} and {key}: "
            f"{_words(error)}"
        ) from None
    return context


def client_context(ca: str | Path) -> ssl.SSLContext:
    """Context for connecting; raises :class:`ConfigError` if the file is unusable."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise ConfigError(f"`tls-ca` must be certificates in PEM, got {ca}: {_words(error)}") from None
    return context


def dialled(sock: socket.socket, address: str, host: str, context: ssl.SSLContext, timeout_s: float) -> TlsSocket:
    """An encrypted socket over a connection that we made.

    Args:
        sock: connected; is closed if this fails.
        address: of the worker, for errors.
        host: of it, which its certificate must name.
        context: see :func:`client_context`.
        timeout_s: for the handshake.

    Raises:
        PeerRefusedError: the worker's certificate is not one that we trust, or it speaks no TLS.
        PeerLostError: it went away.
    """
    try:
        return _shaken(sock, context, timeout_s, server_side=False, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise PeerRefusedError(
            f"`{address}` has a certificate that `tls-ca` does not verify: {error.verify_message}", address=address
        ) from None
    except ssl.SSLError as error:
        raise PeerRefusedError(
            f"`{address}` must speak TLS since `tls-ca` is set, and does not, or not with us: {_words(error)}",
            address=address,
        ) from None
    except OSError as error:
        raise PeerLostError(f"`{address}` aborts the handshake: {_words(error)}", address=address) from None


def accepted(sock: socket.socket, context: ssl.SSLContext, timeout_s: float) -> TlsSocket:
    """An encrypted socket over a connection that a client made.

    Args:
        sock: of which nothing was received; it is closed if this fails.
        context: see :func:`worker_context`.
        timeout_s: for the handshake.

    Raises:
        PeerLostError: there was no handshake that we understand.
    """
    try:
        return _shaken(sock, context, timeout_s, server_side=True)
    except OSError as error:
        raise PeerLostError(f"`client` does not complete its handshake: {_words(error)}") from None


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """A certificate that a process has made for itself.

    Attributes:
        fd: descriptor of a file with certificate and key, in PEM.
        der: the certificate alone, as it is handed over.
    """

    fd: int
    der: bytes


def between(
    sock: socket.socket, own: OwnCertificate, other_der: bytes, *, server_side: bool, timeout_s: float
) -> TlsSocket:
    """An encrypted socket between two that know each other's certificates, and take no others.

    Raises:
        PeerRefusedError: the other side has another certificate, or speaks no TLS.
        PeerLostError: it went away.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is known
    context.verify_mode = ssl.CERT_REQUIRED
    if server_side:
        context.num_tickets = 0
    try:
        context.load_cert_chain(f"/proc/self/fd/{own.fd}")
        context.load_verify_locations(cadata=other_der)
        return _shaken(sock, context, timeout_s, server_side=server_side)
    except ssl.SSLError as error:
        raise PeerRefusedError(f"`peer` must show the certificate that it has announced: {_words(error)}") from None
    except OSError as error:
        raise PeerLostError(f"`peer` aborts the handshake: {_words(error)}") from None


def _shaken(
    sock: socket.socket,
    context: ssl.SSLContext,
    timeout_s: float,
    *,
    server_side: bool,
    server_hostname: str | None = None,
) -> TlsSocket:
    context.sslsocket_class = TlsSocket
    with sock:  # it is empty once it is wrapped
        wrapped = context.wrap_socket(
            sock, server_side=server_side, do_handshake_on_connect=False, server_hostname=server_hostname
        )
    try:
        _shake(wrapped, time.monotonic() + timeout_s)
    except BaseException:
        wrapped.close()
        raise
    assert isinstance(wrapped, TlsSocket)
    return wrapped


def _shake(sock: ssl.SSLSocket, deadline: float) -> None:
    """The handshake; who sends a byte now and then does not make it last longer."""
    sock.setblocking(False)
    poll = select.poll()
    while True:
        try:
            return sock.do_handshake()
        except ssl.SSLWantReadError:
            poll.register(sock, select.POLLIN)
        except ssl.SSLWantWriteError:
            poll.register(sock, select.POLLOUT)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError("it takes too long")


def _words(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split()) or type(error).__name__
