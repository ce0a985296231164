"""The greeting of two machines that share a secret: each proves it, and hands over the certificate for what follows.

The proofs cover both certificates, each made for its process, so that each is the other's only anchor: TLS then begins
between just these two, and nobody between them can put in another. Nothing else is sent before.
"""

from __future__ import annotations

import enum
import hashlib
import socket
import time

import msgspec

from stoker.core.errors import PeerLostError, PeerRefusedError, WireError
from stoker.wire.blocking import BlockingChannel
from stoker.wire.framing import Framing
from stoker.wire.secrets import NONCE_BYTES, PROOF_BYTES, SecretExchange, Secrets, new_nonce
from stoker.wire.tls import OwnCertificate, TlsSocket, between

MAX_BYTES = 4096
"""Most bytes of a frame before the other side is known."""


class GreetingKind(enum.IntEnum):
    """What a frame of the greeting is."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5


FRAMING = Framing(
    "<HBBIB", 0x5347, 1, GreetingKind, MAX_BYTES,
    hints=("; it is no `stoker cluster host`, or no stoker that calls one", "; run the same stoker on both machines"),
)  # fmt: skip


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """HELLO, and CHALLENGE: who speaks, a fresh nonce, and the certificate."""

    identity: str
    nonce: bytes
    certificate: bytes


def greet(sock: socket.socket, secrets: Secrets, own: OwnCertificate, purpose: str, timeout_s: float) -> TlsSocket:
    """The part of the side that connected; the encrypted connection.

    Args:
        sock: connected; is closed if this fails.
        secrets: of which the only one, or the default one, is used.
        own: certificate of this process.
        purpose: of the connection; a proof for one is none for another.
        timeout_s: for all of it.

    Raises:
        PeerRefusedError: the other side does not know the secret, or says that we do not.
        PeerLostError: it went away, or takes too long.
        WireError: it speaks something else.
    """
    theirs = introduce(sock, secrets, own.der, purpose, timeout_s)
    return _encrypted(sock, own, theirs, server_side=False, timeout_s=timeout_s)


def receive(sock: socket.socket, secrets: Secrets, own: OwnCertificate, purpose: str, timeout_s: float) -> TlsSocket:
    """The part of the side that was connected to; the encrypted connection. Arguments and errors as :func:`greet`."""
    theirs = admit(sock, secrets, own.der, purpose, timeout_s)
    return _encrypted(sock, own, theirs, server_side=True, timeout_s=timeout_s)


def introduce(sock: socket.socket, secrets: Secrets, card: bytes, purpose: str, timeout_s: float) -> bytes:
    """The proofs alone, of the side that connected; the other side's card. Arguments and errors as :func:`greet`.

    A card is handed over in the certificate's place, and proven with it.
    """
    try:
        channel = BlockingChannel(sock, FRAMING, timeout_s)
        channel.deadline = time.monotonic() + timeout_s
        identity, nonce = secrets.own, new_nonce()
        secret = secrets.of(identity)
        if secret is None:
            raise PeerRefusedError(f"`{identity}` has no secret in the file; name one secret, or one `{identity}`")
        _send(channel, GreetingKind.HELLO, Opening(identity, nonce, card))
        challenge = _opening(channel, GreetingKind.CHALLENGE)
        exchange = _exchange(purpose, identity, (nonce, card), (challenge.nonce, challenge.certificate))
        channel.send_all(_frame(GreetingKind.PROOF, exchange.proof(secret, "client")))
        proof = _receive(channel, GreetingKind.WELCOME)
        if not exchange.proves(proof, secret, "worker"):
            raise PeerRefusedError("`peer` does not know the secret; it is no host of this cluster")
        return challenge.certificate
    except BaseException:
        sock.close()
        raise


def admit(sock: socket.socket, secrets: Secrets, card: bytes, purpose: str, timeout_s: float) -> bytes:
    """The proofs alone, of the side that was connected to; the other side's card. As :func:`introduce`."""
    try:
        channel = BlockingChannel(sock, FRAMING, timeout_s)
        channel.deadline = time.monotonic() + timeout_s
        hello = _opening(channel, GreetingKind.HELLO)
        nonce = new_nonce()
        _send(channel, GreetingKind.CHALLENGE, Opening("", nonce, card))
        exchange = _exchange(purpose, hello.identity, (hello.nonce, hello.certificate), (nonce, card))
        secret = secrets.of(hello.identity)
        if not exchange.proves(_receive(channel, GreetingKind.PROOF), secret, "client"):
            text = "the secret differs; use a copy of the host's --secret-file"
            channel.send_all(_frame(GreetingKind.REFUSED, text.encode()))
            raise PeerRefusedError(f"`client` refused: {text}")
        assert secret is not None  # nobody proves to know none
        channel.send_all(_frame(GreetingKind.WELCOME, exchange.proof(secret, "worker")))
        return hello.certificate
    except BaseException:
        sock.close()
        raise


def _encrypted(
    sock: socket.socket, own: OwnCertificate, theirs: bytes, *, server_side: bool, timeout_s: float
) -> TlsSocket:
    try:
        return between(sock, own, theirs, server_side=server_side, timeout_s=timeout_s)
    except BaseException:
        sock.close()
        raise


def _exchange(purpose: str, identity: str, client: tuple[bytes, bytes], worker: tuple[bytes, bytes]) -> SecretExchange:
    """What is proven: nonces, and the certificates with them."""
    ours, theirs = (nonce + hashlib.sha256(certificate).digest() for nonce, certificate in (client, worker))
    return SecretExchange(purpose, identity, ours, theirs)


def _frame(kind: GreetingKind, body: bytes) -> bytes:
    return FRAMING.pack(kind, len(body), 0) + body


def _send(channel: BlockingChannel[GreetingKind], kind: GreetingKind, opening: Opening) -> None:
    channel.send_all(_frame(kind, msgspec.msgpack.encode(opening)))


def _opening(channel: BlockingChannel[GreetingKind], kind: GreetingKind) -> Opening:
    return read_opening(_receive(channel, kind))


def read_opening(body: bytes) -> Opening:
    """The content of HELLO or CHALLENGE; raises :class:`WireError` for anything else."""
    try:
        opening = msgspec.msgpack.decode(body, type=Opening)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"`greeting` of {len(body)} bytes is malformed: {error}") from None
    if len(opening.nonce) != NONCE_BYTES or not opening.certificate:
        raise WireError(f"`greeting` must have a nonce of {NONCE_BYTES} bytes and a certificate")
    return opening


def _receive(channel: BlockingChannel[GreetingKind], kind: GreetingKind) -> bytes:
    """The body of the next frame, which must be of that kind."""
    header = channel.header()
    if header is None:
        raise PeerLostError("`peer` closed the connection")
    body = channel.body(header.length)
    if header.kind is GreetingKind.REFUSED:
        raise PeerRefusedError(f"`peer` refused: {body.decode(errors='replace')[:200]}")
    if header.kind is not kind:
        raise WireError(f"`peer` must send {kind.name} now, got {header.kind.name}")
    if kind in (GreetingKind.PROOF, GreetingKind.WELCOME) and len(body) != PROOF_BYTES:
        raise WireError(f"`{kind.name}` must be {PROOF_BYTES} bytes, got {len(body)}")
    return body
