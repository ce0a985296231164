"""How a connection begins: both sides show that they know the secret, or on a Unix socket who they are.

A client that has a secret never talks to a TCP worker that cannot prove it, since it would take pages from anyone.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import TypeVar

from stoker._version import __version__
from stoker.cache.cluster import frames, security
from stoker.cache.cluster.channel import Channel
from stoker.cache.cluster.frames import PROOF_BYTES, Challenge, Hello, Proof, Reason, Refused, Welcome
from stoker.cache.cluster.security import Secrets
from stoker.core.errors import PeerLostError, PeerRefusedError, WireError

_MAX_BYTES = 4096
"""Of a frame before the other side is known."""
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

    name: str = security.DEFAULT_IDENTITY
    secrets: Secrets | None = None
    node: str = ""
    process: str = ""
    users: frozenset[int] = field(default_factory=frozenset[int])

    def trusts(self, sock: socket.socket) -> bool:
        """Whether the process behind a Unix socket is one of the trusted users'."""
        return security.user_of(sock) in self.users | {os.geteuid(), 0}


def greet(channel: Channel, identity: Identity, epoch: int) -> Welcome:
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
    nonce = security.new_nonce()
    words = (identity.name, nonce, challenge.nonce)
    proof = bytes(PROOF_BYTES) if secret is None else security.prove(secret, "client", *words)
    channel.send(Proof(nonce, proof), epoch)
    welcome = _expect(channel, Welcome)
    if secret is not None and not security.proves(welcome.proof, secret, "worker", *words):
        raise PeerRefusedError("`peer` does not know the secret; it is not one of this cluster's workers")
    if frames.agreed(welcome.protocol, welcome.protocol) is None:
        raise PeerRefusedError(f"`peer` {_speaks(welcome.protocol, welcome.protocol)}")
    return welcome


def receive(
    channel: Channel, identity: Identity, clients: int, draining: bool, epoch: int, roots: tuple[str, ...] = ()
) -> Hello:
    """The worker's part; the name that it returns is proven (``uid:N`` on a Unix socket).

    Args:
        channel: to the client.
        identity: of the worker.
        clients: how many it serves.
        draining: whether it leaves.
        epoch: of the ring that it knows.
        roots: directories of its pages, told to its own user alone.

    Raises:
        PeerRefusedError: the client is not let in; it has been told.
        PeerLostError: it went away.
        WireError: it is no client.
    """
    hello = _expect(channel, Hello)
    protocol = frames.agreed(hello.oldest, hello.newest)
    if protocol is None:
        raise _refuse(channel, f"`client` {_speaks(hello.oldest, hello.newest)}", Reason.MALFORMED)
    local = channel.sock.family == socket.AF_UNIX
    if local and not identity.trusts(channel.sock):
        raise _refuse(channel, "this Unix socket serves the worker's own user")
    nonce = security.new_nonce()
    channel.send(Challenge(nonce, not local), epoch)
    proof = _expect(channel, Proof)
    # An unknown name is compared with a secret as well, so that time does not tell which names there are.
    known = None if identity.secrets is None else identity.secrets.of(hello.identity)
    secret = known or security.new_nonce()
    words = (hello.identity, proof.nonce, nonce)
    if not local and not (security.proves(proof.proof, secret, "client", *words) and known):
        raise _refuse(channel, f"identity {hello.identity!r} is unknown or its secret is another")
    own = bytes(PROOF_BYTES) if local else security.prove(secret, "worker", *words)
    user = security.user_of(channel.sock) if local else None
    told = _tellable(roots) if user == os.geteuid() else ()
    channel.send(Welcome(own, identity.node, clients, draining, told, protocol), epoch)
    name = hello.identity if user is None else f"uid:{user}"
    return Hello(name, hello.node, hello.process)


def _tellable(roots: tuple[str, ...]) -> tuple[str, ...]:
    """Paths that go into a frame before the other side is known; of those that do not, pages are sent."""
    told = tuple(root for root in roots if root.isascii() or root.encode(errors="ignore").decode() == root)
    return told if sum(len(root.encode()) for root in told) <= _MAX_BYTES // 2 else ()


def _expect(channel: Channel, kind: type[_Greeting]) -> _Greeting:
    frame = channel.frame(_MAX_BYTES)
    if isinstance(frame, Refused):
        raise PeerRefusedError(f"`peer` refused: {frame.text}", reason=int(frame.reason))
    if not isinstance(frame, kind):
        raise WireError(f"`peer` must send {kind.__name__} now, got {type(frame).__name__}")
    return frame


def _speaks(oldest: int, newest: int) -> str:
    """What is wrong with the protocols of the other side, and what to do."""
    ours = f"{frames.OLDEST_PROTOCOL} to {frames.PROTOCOL}"
    return (
        f"speaks the cache's protocols {oldest} to {newest}, and stoker {__version__} here {ours}; start the older one "
        "anew with the version of the other"
    )


def _refuse(channel: Channel, text: str, reason: Reason = Reason.NOT_AUTHENTICATED) -> PeerRefusedError:
    try:
        channel.send(Refused(reason, text))
    except PeerLostError:
        pass  # it did not wait for the answer
    return PeerRefusedError(f"`client` refused: {text}")
