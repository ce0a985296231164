"""A worker's server: listens and accepts clients until it drains.

Owns the listening sockets and this worker's copy of the ring. ``reactor`` waits for requests, ``serving`` answers them
and ``fills`` fetches missing pages.

Note: fetches run in other threads of the same process. While a thread of Python computes (TLS, parsing a listing), a
hit may wait for the interpreter lock up to the switch interval, which ``worker`` shortens.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from stoker._version import __version__
from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.connection_pool import machine_id
from stoker.cache.cluster.membership.hot_chunks import HOT_PER_S, Heat
from stoker.cache.cluster.membership.membership import Membership
from stoker.cache.cluster.membership.ring import MAX_WEIGHT, HashRing, Member, RingRecord
from stoker.cache.cluster.messages.frames import Blob, Flag, Hello, Kind, Read, Reason
from stoker.cache.cluster.messages.handshake import Identity, encrypted, receive
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.cluster.server.fills import FETCH_THREADS, Fills, NotServed
from stoker.cache.cluster.server.grants import EVERYONE, Grant
from stoker.cache.cluster.server.pin_transfer import PinTransfer
from stoker.cache.cluster.server.protocols import Mount
from stoker.cache.cluster.server.reactor import GREETING_S, Connection, Reactor
from stoker.cache.cluster.server.recent_rates import STEP_S, Done, RecentRates
from stoker.cache.cluster.server.serving import PageServing
from stoker.cache.names import ObjectName, span_of
from stoker.cache.policies import Rule
from stoker.cache.protocols import Pages
from stoker.cache.versions import Version
from stoker.core.errors import ConfigError, WireError
from stoker.wire import sockets
from stoker.wire.tls import Certificate, worker_context

DRAIN_S = 25.0
"""Below the 30 s that Kubernetes and systemd commonly grant."""
MOVED_S = 600.0
"""How long after a change of the ring pages are requested from their previous owner."""
_EARLIER = 4
"""Rings that are remembered: workers that start or end one after another change it several times."""
_ASKED = 3
"""Most previous owners to try for a page, in case several workers joined one after another."""
_IDLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a worker.

    Attributes:
        node: its id, stable over restarts.
        listen: addresses, ``tcp://host:port`` (port 0 for a free one) or ``unix:///path``.
        advertise: addresses that others use instead of those listened on (behind a proxy, or for ``0.0.0.0``).
        weight: in the ring.
        grants: which clients may read which paths.
        rules: freshness and lives by path.
        max_connections: more are refused.
        fetch_threads: store reads at the same time.
        hot_per_s: rate of requests for one chunk at which another worker serves it too.
        certificate: for TLS over TCP; None does not encrypt.
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
    certificate: Certificate | None = None

    def __post_init__(self) -> None:
        if not self.node or not self.listen:
            raise ValueError("`node` and `listen` of a worker must not be empty")
        if not 0.0 < self.weight <= MAX_WEIGHT:
            raise ValueError(f"`weight` must be above 0 and at most {MAX_WEIGHT:g}, got {self.weight:g}")
        for address in (*self.listen, *self.advertise):
            host, _ = sockets.check_address(address)
            if host in ("0.0.0.0", "::") and not self.advertise:
                raise ValueError(f"`listen` on {address} needs `advertise`: others cannot connect to a wildcard")


class Server:
    """Serves a page store to clients.

    Args:
        pages: the page store.
        mounts: stores that are read for clients.
        membership: where this worker takes its place.
        identity: its secrets and users.
        settings: of this worker.
        peers: client of the other workers; None without any.
        directories: returns the state of each directory of the pages.
    """

    def __init__(
        self,
        pages: Pages,
        mounts: Sequence[Mount],
        membership: Membership,
        identity: Identity,
        settings: ServerSettings,
        peers: PeerClient | None = None,
        directories: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        if identity.secrets is None and any(address.startswith("tcp:") for address in settings.listen):
            raise ConfigError(
                "`--listen` on TCP needs `--secret-file`, also on loopback; stoker cache secret writes one"
            )
        self.settings = settings
        self._tls = None if settings.certificate is None else worker_context(settings.certificate)
        self._membership = membership
        self._identity = identity
        self._peers = peers
        self._directories = directories
        self._pages = pages
        self._fills = Fills(pages, settings.rules, self._elsewhere, self._owns, threads=settings.fetch_threads)
        self._serving = PageServing(pages, self._fills, mounts, settings.grants, Heat(settings.hot_per_s))
        self._mounts = tuple(mounts)
        self._lock = threading.Lock()
        self._connections = Reactor(self, self._serving)
        self._listeners: list[socket.socket] = []
        self._paths: dict[str, int] = {}
        """Paths and inodes of the Unix sockets; a newer worker may have replaced one."""
        self._threads: list[threading.Thread] = []
        self._ring = HashRing(RingRecord(epoch=0, members=()))
        self._earlier: deque[tuple[HashRing, float]] = deque(maxlen=_EARLIER)
        self._handover: PinTransfer | None = None
        self._lately = RecentRates()
        self._closing = threading.Event()
        self._started_at = time.time()
        self.addresses: tuple[str, ...] = ()
        self.draining = False

    def start(self) -> None:
        """Listens and takes the place in the ring.

        Raises:
            OSError: an address cannot be listened on.
            MembershipError: the place cannot be taken.
        """
        try:
            self._connections.start()
            self._listeners = [sockets.listen(address) for address in self.settings.listen]
            paths = [sockets.check_address(one)[0] for one in self.settings.listen if one.startswith("unix:")]
            self._paths = {path: os.stat(path).st_ino for path in paths}
            bound = zip(self._listeners, self.settings.listen, strict=True)
            self.addresses = tuple(sockets.address_of(sock, asked) for sock, asked in bound)
            for sock in self._listeners:
                thread = threading.Thread(target=self._accept, args=(sock,), name="stoker-accept", daemon=True)
                thread.start()
                self._threads.append(thread)
            sampler = threading.Thread(target=self._sample, name="stoker-rates", daemon=True)
            sampler.start()
            self._threads.append(sampler)
            self._membership.watch(self._follow)
            advertised = self.settings.advertise or self.addresses
            self._membership.join(
                Member(id=self.settings.node, addresses=advertised, weight=self.settings.weight, machine=machine_id())
            )
        except BaseException:
            self.close()
            raise

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Leaves the ring, transfers pinned pages, serves until all clients know the new ring, then closes.

        Returns:
            Whether all clients know the new ring and all pinned pages were transferred.
        """
        self.draining = True
        deadline = time.monotonic() + timeout_s
        self._membership.leave()
        record, handed = self._membership.record(), True
        if self._peers is not None and record is not None:
            ring = HashRing(record)
            namespaces = [mount.namespace for mount in self._mounts]
            self._handover = PinTransfer(self._pages, self._peers, ring, self.settings.node, namespaces)
            self._handover.start()
            handed = self._handover.wait(deadline)
        while (waiting := self._unaware()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.close()
        return handed and not waiting

    @property
    def handed_over(self) -> tuple[int, int]:
        """Pinned pages that other workers hold since this one leaves, and how many there were."""
        return (0, 0) if self._handover is None else (self._handover.done, self._handover.planned)

    def close(self) -> None:
        """Ends listening and all connections."""
        self._closing.set()
        for sock in self._listeners:
            sockets.shut(sock)
            sock.close()
        for path, inode in self._paths.items():
            _unlink(path, inode)
        self._listeners, self._paths = [], {}
        self._connections.close()
        for thread in self._threads:
            thread.join(timeout=5.0)
        self._fills.close()

    def status(self) -> dict[str, Any]:
        """Status and counters of this worker, for display and monitoring."""
        record, done = self._membership.record(), self._done()
        return {
            "node": self.settings.node, "version": __version__, "addresses": self.addresses,
            "epoch": 0 if record is None else record.epoch, "members": 0 if record is None else len(record.members),
            "draining": self.draining, "uptime_s": time.time() - self._started_at,
            "connections": len(self._connections), "clients": self._connections.num_clients(),
            "mounts": [mount.name for mount in self._mounts], "fetching": self._fills.in_flight,
            "fetches": self._fills.fetches, "fetched_bytes": self._fills.fetched_bytes, "moved": self._fills.moved,
            "moved_bytes": self._fills.moved_bytes, "found": done.found, "missed": done.missed,
            "store_failures": self._fills.failures, "faults": self._connections.faults,
            **asdict(self._connections.totals()), "lately": self._lately.rates(time.monotonic(), done),
            "directories": self._directories(),
        }  # fmt: skip

    def _sample(self) -> None:
        """Samples counters while the server runs."""
        while not self._closing.is_set():
            self._lately.note(time.monotonic(), self._done())
            self._closing.wait(STEP_S)

    def _done(self) -> Done:
        sent_bytes = self._connections.totals().sent_bytes
        return Done(*self._pages.reads(), sent_bytes, self._fills.fetched_bytes, self._fills.moved_bytes)

    @property
    def epoch(self) -> int:
        """Epoch of the ring that is known."""
        record = self._membership.record()
        return 0 if record is None else record.epoch

    def _unaware(self) -> list[Connection]:
        """Connections that are in use and whose client does not know the new ring yet."""
        now, epoch = time.monotonic(), self.epoch
        return [
            one for one in self._connections.all() if one.busy or (one.epoch < epoch and now - one.used_at < _IDLE_S)
        ]

    def _follow(self, record: RingRecord) -> None:
        """The ring changed."""
        ring = HashRing(record)
        with self._lock:
            if self._ring.record.members and self._ring.record.members != record.members:
                self._earlier.append((self._ring, time.monotonic()))
            self._ring = ring
        if self._peers is not None:
            self._peers.keep_only({member.id for member in record.members})

    def _owns(self, name: ObjectName, index: int) -> bool:
        """Whether a page is this worker's by the ring; others that it serves are copies."""
        owners = self._ring.owners(name, index)
        return not owners or owners[0] == self.settings.node

    def _elsewhere(self, name: ObjectName, index: int, version: Version, copy: bool) -> bytes | None:
        """A page from another worker: for a copy its owner, else who owned it before the ring changed.

        Raises:
            NotServed: the owner of a copy answers that it cannot be had.
        """
        if self._peers is None:
            return None
        with self._lock:
            ring, earlier = self._ring, list(self._earlier)
        start, end = span_of(index, version.size)
        target = memoryview(bytearray(end - start))
        owner = next((ring.members[one] for one in ring.owners(name, index)), None)
        if copy and owner is not None and owner.id != self.settings.node:
            if self._peers.ask_one(owner, name, version, start, target, Flag.NONE):
                return target.tobytes()
            if self._peers.usable(owner.id):
                raise NotServed(Reason.NOT_CACHED)
        for member in self._earlier_owners(name, index, earlier):
            if self._peers.ask_one(member, name, version, start, target):
                return target.tobytes()
        return None

    def _earlier_owners(self, name: ObjectName, index: int, earlier: list[tuple[HashRing, float]]) -> list[Member]:
        """Workers that may have a page from before the ring changed.

        In a ring that workers have joined, those that follow the owner are the owners from before they came.
        """
        found: dict[str, Member] = {}
        for before, until in reversed(earlier):
            if time.monotonic() - until <= MOVED_S:
                for one in before.owners(name, index, _ASKED):
                    found.setdefault(one, before.members[one])
        found.pop(self.settings.node, None)
        return list(found.values())[:_ASKED]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                if not self._listeners or listener.fileno() < 0 or self.draining:
                    return  # closed
                time.sleep(0.05)  # out of descriptors: open connections continue
                continue
            if len(self._connections) >= self.settings.max_connections:
                sock.close()
                continue
            sockets.keep_watch(sock)
            self._connections.begin(NodeChannel(sock, GREETING_S))

    def secured(self, channel: NodeChannel) -> NodeChannel:
        """A new connection's channel, encrypted if it is one of those that are."""
        if self._tls is None or channel.sock.family == socket.AF_UNIX:
            return channel
        return encrypted(channel, self._tls, GREETING_S)

    def greet(self, channel: NodeChannel) -> Hello:
        """Lets a client in, or raises."""
        clients = self._connections.num_clients()
        return receive(channel, self._identity, clients, self.draining, self.epoch, self._pages.roots)

    def check(self, connection: Connection, request: Read) -> None:
        """Raises :class:`WireError` for a request that this client may not make."""
        if request.flags & Flag.PIN and not self._is_worker(connection.hello):
            raise WireError("`PIN` is for workers")

    def answer(self, connection: Connection, kind: Kind) -> None:
        """Answers requests that are not about an object."""
        connection.channel.send(self._tell(kind), self.epoch)

    def _is_worker(self, hello: Hello | None) -> bool:
        """Whether the peer is a worker: it says so, and has the workers' secret or runs as this user."""
        own = (self._identity.name, f"uid:{os.geteuid()}")
        return hello is not None and bool(hello.node) and hello.identity in own

    def _tell(self, kind: Kind) -> Blob:
        if kind is Kind.PING:
            return Blob(Kind.PONG)
        if kind is Kind.ASK_STATUS:
            return Blob(Kind.STATUS, msgspec.json.encode(self.status()))
        record = self._membership.record() or RingRecord(epoch=0, members=())
        return Blob(Kind.RING, record.encode())


def _unlink(path: str, inode: int) -> None:
    try:
        if os.stat(path).st_ino == inode:
            os.unlink(path)
    except OSError:
        pass  # it is gone
