"""A worker's server: listens, greets, and answers each connection in a thread of its own until it drains.

Owns sockets, connections and what this worker knows of the ring. What is answered is in ``serving``, what is fetched
in ``fills``.

Note: fetches run in other threads of the same process. While a thread of Python computes (TLS, parsing a listing), a
hit may wait for the interpreter lock up to the switch interval, which ``worker`` shortens.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from stoker._version import __version__
from stoker.cache.cluster import channel as channels
from stoker.cache.cluster.channel import Channel
from stoker.cache.cluster.client import PeerClient
from stoker.cache.cluster.fills import FETCH_THREADS, Fills
from stoker.cache.cluster.frames import (
    MAX_BODY_BYTES,
    Blob,
    Hello,
    Kind,
    Read,
    Reason,
    Refused,
    Stat,
    decode_body,
)
from stoker.cache.cluster.greeting import Identity, receive
from stoker.cache.cluster.heat import HOT_PER_S, Heat
from stoker.cache.cluster.links import machine_id
from stoker.cache.cluster.membership import Membership
from stoker.cache.cluster.ports import Mount
from stoker.cache.cluster.ring import Member, Ring, RingRecord
from stoker.cache.cluster.security import EVERYONE, Grant
from stoker.cache.cluster.serving import Counts, Outgoing, Recent, Serving
from stoker.cache.names import ObjectName, span_of
from stoker.cache.pages import Pages
from stoker.cache.policies import Rule
from stoker.cache.versions import Version
from stoker.core.errors import ConfigError, PeerLostError, PeerRefusedError, WireError

GREETING_S = 5.0
"""For a client to say who it is."""
STUCK_S = 30.0
"""A client that takes nothing of its answer for this long is gone."""
DRAIN_S = 25.0
"""Below the 30 s that Kubernetes and systemd commonly grant."""
MOVED_S = 600.0
"""How long after a change of the ring the previous owner is asked for a page."""
_IDLE_S = 1.0
_CLIENT_KINDS = frozenset({Kind.READ, Kind.STAT, Kind.ASK_RING, Kind.ASK_STATUS, Kind.PING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What a worker is.

    Attributes:
        node: its id, stable over restarts.
        listen: addresses, ``tcp://host:port`` (port 0 for a free one) or ``unix:///path``.
        advertise: addresses that others use instead of those listened on (behind a proxy, or for ``0.0.0.0``).
        weight: in the ring.
        grants: who may read what.
        rules: freshness and lives by path.
        max_connections: more are refused.
        fetch_threads: store reads at the same time.
        hot_per_s: requests a second for one chunk from which on another worker serves it as well.
    """

    node: str
    listen: tuple[str, ...]
    advertise: tuple[str, ...] = ()
    weight: float = 1.0
    grants: tuple[Grant, ...] = EVERYONE
    rules: tuple[Rule, ...] = (Rule(),)
    max_connections: int = 2048
    fetch_threads: int = FETCH_THREADS
    hot_per_s: float = HOT_PER_S

    def __post_init__(self) -> None:
        if not self.node or not self.listen:
            raise ValueError("`node` and `listen` of a worker must not be empty")
        for address in (*self.listen, *self.advertise):
            host, _ = channels.check_address(address)
            if host in ("0.0.0.0", "::") and not self.advertise:
                raise ValueError(f"`listen` on {address} needs `advertise`: others cannot connect to a wildcard")


@dataclass(slots=True, eq=False)
class _Connection:
    channel: Channel
    hello: Hello | None = None
    epoch: int = 0
    busy: bool = True
    used_at: float = 0.0
    counts: Counts = field(default_factory=Counts)


class Server:
    """Serves a page store to clients.

    Args:
        pages: what is held and filled.
        mounts: stores that are read for clients.
        membership: where this worker takes its place.
        identity: its secrets and users.
        settings: what it is.
        peers: asks other workers; None where there are none.
    """

    def __init__(
        self,
        pages: Pages,
        mounts: Sequence[Mount],
        membership: Membership,
        identity: Identity,
        settings: ServerSettings,
        peers: PeerClient | None = None,
    ) -> None:
        if identity.secrets is None and any(address.startswith("tcp:") for address in settings.listen):
            raise ConfigError(
                "`--listen` on TCP needs `--secret-file`, also on loopback; stoker cache secret writes one"
            )
        self.settings = settings
        self._membership = membership
        self._identity = identity
        self._peers = peers
        self._fills = Fills(pages, settings.rules, self._elsewhere, threads=settings.fetch_threads)
        self._serving = Serving(pages, self._fills, mounts, settings.grants, Heat(settings.hot_per_s))
        self._mounts = tuple(mounts)
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._ended = Counts()
        self._listeners: list[socket.socket] = []
        self._paths: dict[str, int] = {}
        """Of Unix sockets, and the inode of each: a newer worker may have put its own in place."""
        self._threads: list[threading.Thread] = []
        self._ring = Ring(RingRecord(epoch=0, members=()))
        self._previous: tuple[Ring, float] | None = None
        self._started_at = time.time()
        self.addresses: tuple[str, ...] = ()
        self.draining = False
        self.faults = 0

    def start(self) -> None:
        """Listens and takes the place in the ring.

        Raises:
            OSError: an address cannot be listened on.
            MembershipError: the place cannot be taken.
        """
        try:
            self._listeners = [channels.listen(address) for address in self.settings.listen]
            paths = [channels.check_address(one)[0] for one in self.settings.listen if one.startswith("unix:")]
            self._paths = {path: os.stat(path).st_ino for path in paths}
            bound = zip(self._listeners, self.settings.listen, strict=True)
            self.addresses = tuple(channels.address_of(sock, asked) for sock, asked in bound)
            for sock in self._listeners:
                thread = threading.Thread(target=self._accept, args=(sock,), name="stoker-accept", daemon=True)
                thread.start()
                self._threads.append(thread)
            self._membership.watch(self._follow)
            advertised = self.settings.advertise or self.addresses
            self._membership.join(
                Member(id=self.settings.node, addresses=advertised, weight=self.settings.weight, machine=machine_id())
            )
        except BaseException:
            self.close()
            raise

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Leaves the ring, serves what is held until all clients know, then closes; whether all came to know."""
        self.draining = True
        self._membership.leave()
        deadline = time.monotonic() + timeout_s
        while (waiting := self._unaware()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.close()
        return not waiting

    def close(self) -> None:
        """Ends listening and all connections."""
        for sock in self._listeners:
            _shut(sock)
            sock.close()
        for path, inode in self._paths.items():
            _unlink(path, inode)
        self._listeners, self._paths = [], {}
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            _shut(connection.channel.sock)
        for thread in self._threads:
            thread.join(timeout=5.0)
        self._fills.close()

    def status(self) -> dict[str, Any]:
        """What this worker is and has done, for people and monitoring."""
        with self._lock:
            connections = list(self._connections)
            total = Counts()
            total.add(self._ended)
        for connection in connections:
            total.add(connection.counts)
        record = self._membership.record()
        return {
            "node": self.settings.node, "version": __version__, "addresses": self.addresses,
            "epoch": 0 if record is None else record.epoch, "members": 0 if record is None else len(record.members),
            "draining": self.draining, "uptime_s": time.time() - self._started_at,
            "connections": len(connections), "clients": self._num_clients(),
            "mounts": [mount.name for mount in self._mounts], "fetching": self._fills.in_flight,
            "fetches": self._fills.fetches, "fetched_bytes": self._fills.fetched_bytes, "moved": self._fills.moved,
            "store_failures": self._fills.failures, "faults": self.faults, **asdict(total),
        }  # fmt: skip

    @property
    def _epoch(self) -> int:
        record = self._membership.record()
        return 0 if record is None else record.epoch

    def _unaware(self) -> list[_Connection]:
        """Connections that are in use and whose client does not know the new ring yet."""
        now, epoch = time.monotonic(), self._epoch
        with self._lock:
            return [one for one in self._connections if one.busy or (one.epoch < epoch and now - one.used_at < _IDLE_S)]

    def _num_clients(self) -> int:
        with self._lock:
            return len({one.hello.process for one in self._connections if one.hello and not one.hello.node})

    def _follow(self, record: RingRecord) -> None:
        """The ring changed."""
        ring = Ring(record)
        with self._lock:
            if self._ring.record.members and self._ring.record.members != record.members:
                self._previous = (self._ring, time.monotonic())
            self._ring = ring
        if self._peers is not None:
            self._peers.keep_only({member.id for member in record.members})

    def _elsewhere(self, name: ObjectName, index: int, version: Version, copy: bool) -> bytes | None:
        """A page from another worker: for a copy its owner, else who owned it before the ring changed."""
        if self._peers is None:
            return None
        with self._lock:
            ring, previous = self._ring, self._previous
        owners = ring.owners(name, index)
        if copy and owners and owners[0] != self.settings.node:
            member = ring.members[owners[0]]
        elif previous is not None and time.monotonic() - previous[1] <= MOVED_S and owners == [self.settings.node]:
            before = previous[0].owners(name, index)
            if before in ([], owners):
                return None
            member = previous[0].members[before[0]]
        else:
            return None
        start, end = span_of(index, version.size)
        target = bytearray(end - start)
        came = self._peers.ask_one(member, name, version, start, memoryview(target))
        return bytes(target) if came else None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                if not self._listeners or listener.fileno() < 0 or self.draining:
                    return  # closed
                time.sleep(0.05)  # out of descriptors: what is open goes on
                continue
            with self._lock:
                full = len(self._connections) >= self.settings.max_connections
            if full:
                sock.close()
                continue
            threading.Thread(target=self._converse, args=(sock,), name="stoker-serve", daemon=True).start()

    def _converse(self, sock: socket.socket) -> None:
        channels.keep_watch(sock)
        connection = _Connection(Channel(sock, GREETING_S))
        with self._lock:
            self._connections.add(connection)
        try:
            identity = self._identity
            connection.channel.deadline = time.monotonic() + GREETING_S
            connection.hello = receive(connection.channel, identity, self._num_clients(), self.draining, self._epoch)
            connection.channel.deadline = None
            connection.channel.bound(0.0, STUCK_S)
            self._answer(connection, connection.hello.identity)
        except WireError as error:
            self._complain(connection.channel, str(error))
        except (PeerLostError, PeerRefusedError):
            pass  # it left, or has been told
        except Exception:  # a connection's boundary: counted, and the others go on
            self.faults += 1
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._ended.add(connection.counts)
            connection.channel.close()

    def _complain(self, channel: Channel, text: str) -> None:
        try:
            channel.send(Refused(Reason.MALFORMED, text))
        except PeerLostError:
            pass  # it did not wait for the answer

    def _answer(self, connection: _Connection, identity: str) -> None:
        """Answers requests until the client leaves."""
        channel, out, recent = connection.channel, Outgoing(connection.channel), Recent()
        while True:
            connection.busy = False
            header = channel.header()
            if header is None:
                return
            connection.epoch, connection.busy, connection.used_at = header.epoch, True, time.monotonic()
            if header.kind not in _CLIENT_KINDS or header.length > MAX_BODY_BYTES:
                raise WireError(f"`{header.kind.name}` frame of {header.length} bytes is no request")
            body = channel.body(header.length)
            out.epoch = self._epoch
            if header.kind is Kind.READ and self._serving.again(out, body, recent, connection.counts):
                continue
            frame = decode_body(header.kind, body)
            match frame:
                case Read():
                    self._serving.read(out, frame, identity, connection.counts, recent, filling=not self.draining)
                case Stat():
                    self._serving.stat(out, frame, identity, connection.counts)
                case _:
                    channel.send(self._tell(header.kind), out.epoch)

    def _tell(self, kind: Kind) -> Blob:
        if kind is Kind.PING:
            return Blob(Kind.PONG)
        if kind is Kind.ASK_STATUS:
            return Blob(Kind.STATUS, msgspec.json.encode(self.status()))
        record = self._membership.record() or RingRecord(epoch=0, members=())
        return Blob(Kind.RING, record.encode())


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already


def _unlink(path: str, inode: int) -> None:
    try:
        if os.stat(path).st_ino == inode:
            os.unlink(path)
    except OSError:
        pass  # it is gone
