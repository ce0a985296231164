"""The handshake of a connection: both sides prove that they know the secret, or on a Unix socket who they are.

A client that has a secret never talks to a TCP worker that cannot prove it, since it would take pages from anyone.
"""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass, field
from typing import TypeVar

from stoker._version import __version__
from stoker.cache.cluster.messages import frames
from stoker.cache.cluster.messages.frames import MAGIC, Challenge, Hello, Proof, Reason, Refused, Welcome
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.core.errors import PeerLostError, PeerRefusedError, WireError
from stoker.wire.secrets import DEFAULT_IDENTITY, PROOF_BYTES, SecretExchange, Secrets, new_nonce
from stoker.wire.sockets import user_of
from stoker.wire.tls import accepted

_PURPOSE = "stoker cache 1"
_PLAIN = MAGIC.to_bytes(2, "little")
"""How a client begins that does not encrypt."""
_MAX_BYTES = 4096
"""Most bytes of a frame before the peer is known."""
_Greeting = TypeVar("_Greeting", Hello, Challenge, Proof, Welcome)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is to others.

    Attributes:
        name: of the secret.
        secrets: None where there are only Unix sockets.
        node: id of the worker, empty for a client.
        process: tells this process's connections from others', so that workers can count their clients.
        users: whose Unix sockets are trusted besides this user's and root's.
    """

    name: str = DEFAULT_IDENTITY
    secrets: Secrets | None = None
    node: str = ""
    process: str = ""
    users: frozenset[int] = field(default_factory=frozenset[int])

    def trusts(self, sock: socket.socket) -> bool:
        """Whether the peer of a Unix socket runs as a trusted user."""
        return user_of(sock) in self.users | {os.geteuid(), 0}


def greet(channel: NodeChannel, identity: Identity, epoch: int) -> Welcome:
    """The client's part.

    Raises:
        PeerRefusedError: the worker does not take us, or is not the one that knows the secret.
        PeerLostError: the worker does not answer.
        WireError: what answers is no worker.
    """
    local = channel.sock.family == socket.AF_UNIX
    if local and not identity.trusts(channel.sock):
        raise PeerRefusedError("`peer` on the Unix socket must run as this user or root", uid=os.geteuid())
    secret = None if local or identity.secrets is None else identity.secrets.of(identity.name)
    if not local and secret is None:
        raise PeerRefusedError(f"`{identity.name}` has no secret, and TCP needs one; see --secret-file")
    hello = Hello(identity.name, identity.node, identity.process, frames.OLDEST_PROTOCOL, frames.PROTOCOL)
    channel.send(hello, epoch)
    challenge = _expect(channel, Challenge)
    exchange = SecretExchange(_PURPOSE, identity.name, new_nonce(), challenge.nonce)
    proof = bytes(PROOF_BYTES) if secret is None else exchange.proof(secret, "client")
    channel.send(Proof(exchange.client_nonce, proof), epoch)
    welcome = _expect(channel, Welcome)
    if secret is not None and not exchange.proves(welcome.proof, secret, "worker"):
        raise PeerRefusedError("`peer` does not know the secret; it is not one of this cluster's workers")
    if frames.agreed(welcome.protocol, welcome.protocol) is None:
        raise PeerRefusedError(f"`peer` {_speaks(welcome.protocol, welcome.protocol)}")
    return welcome


def receive(
    channel: NodeChannel, identity: Identity, clients: int, draining: bool, epoch: int, roots: tuple[str, ...] = ()
) -> Hello:
    """The worker's part; the name that it returns is proven (``uid:N`` on a Unix socket).

    Args:
        channel: to the client.
        identity: of the worker.
        clients: how many it serves.
        draining: whether it leaves.
        epoch: of the ring that it knows.
        roots: directories of its pages, sent to its own user only.

    Raises:
        PeerRefusedError: the client was rejected, and notified.
        PeerLostError: it went away.
        WireError: it is not a client.
    """
    hello = _expect(channel, Hello)
    protocol = frames.agreed(hello.oldest, hello.newest)
    if protocol is None:
        raise _refuse(channel, f"`client` {_speaks(hello.oldest, hello.newest)}", Reason.MALFORMED)
    local = channel.sock.family == socket.AF_UNIX
    if local and not identity.trusts(channel.sock):
        raise _refuse(channel, "this Unix socket serves the worker's own user")
    nonce = new_nonce()
    channel.send(Challenge(nonce, not local), epoch)
    proof = _expect(channel, Proof)
    secret = None if identity.secrets is None else identity.secrets.of(hello.identity)
    exchange = SecretExchange(_PURPOSE, hello.identity, proof.nonce, nonce)
    if not local and not exchange.proves(proof.proof, secret, "client"):
        raise _refuse(channel, f"identity {hello.identity!r} is unknown, or its secret differs")
    own = bytes(PROOF_BYTES) if local or secret is None else exchange.proof(secret, "worker")
    user = user_of(channel.sock) if local else None
    told = _tellable(roots) if user == os.geteuid() else ()
    channel.send(Welcome(own, identity.node, clients, draining, told, protocol), epoch)
    name = hello.identity if user is None else f"uid:{user}"
    return Hello(name, hello.node, hello.process)


def encrypted(plain: NodeChannel, context: ssl.SSLContext, timeout_s: float) -> NodeChannel:
    """Wraps a new connection in TLS; a client that does not encrypt gets a plain-text refusal.

    Args:
        plain: the accepted socket, from which nothing was received; it is closed.
        context: of the worker.
        timeout_s: for the handshake, and the longest silence afterwards.

    Raises:
        PeerRefusedError: the client does not encrypt.
        PeerLostError: the handshake failed.
    """
    if plain.wait(timeout_s) and plain.sock.recv(len(_PLAIN), socket.MSG_PEEK) == _PLAIN:
        plain.message(_MAX_BYTES)
        raise _refuse(plain, "this worker accepts TLS only; set its certificate authority with tls-ca")
    return NodeChannel(accepted(plain.sock, context, timeout_s), timeout_s)


def _tellable(roots: tuple[str, ...]) -> tuple[str, ...]:
    """Paths that go into a frame before the other side is known; of those that do not, pages are sent."""
    told = tuple(root for root in roots if root.isascii() or root.encode(errors="ignore").decode() == root)
    return told if sum(len(root.encode()) for root in told) <= _MAX_BYTES // 2 else ()


def _expect(channel: NodeChannel, kind: type[_Greeting]) -> _Greeting:
    frame = channel.message(_MAX_BYTES)
    if isinstance(frame, Refused):
        raise PeerRefusedError(f"`peer` refused: {frame.text}", reason=int(frame.reason))
    if not isinstance(frame, kind):
        raise WireError(f"`peer` must send {kind.__name__} now, got {type(frame).__name__}")
    return frame


def _speaks(oldest: int, newest: int) -> str:
    """The error for incompatible protocols of the peer, with the remedy."""
    ours = f"{frames.OLDEST_PROTOCOL} to {frames.PROTOCOL}"
    return (
        f"speaks the cache's protocols {oldest} to {newest}, and stoker {__version__} here {ours}; restart the older "
        "one with the version of the other"
    )


def _refuse(channel: NodeChannel, text: str, reason: Reason = Reason.NOT_AUTHENTICATED) -> PeerRefusedError:
    try:
        channel.send(Refused(reason, text))
    except PeerLostError:
        pass  # the peer did not wait for the answer
    return PeerRefusedError(f"`client` refused: {text}")
