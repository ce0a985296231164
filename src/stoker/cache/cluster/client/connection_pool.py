"""A client's connections to workers: kept for the next request, opened on demand, and avoided after a failure.

Belongs to one process: a forked child drops what it inherited and makes its own. Reads never try a worker that has
failed; a thread that sleeps between its probes does, and ends when all workers answer.
"""

from __future__ import annotations

import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stoker.cache.cluster.client.breaker import Breaker
from stoker.cache.cluster.client.same_host import SameHost
from stoker.cache.cluster.membership.ring import Member
from stoker.cache.cluster.messages.frames import Blob, Kind, Reason
from stoker.cache.cluster.messages.handshake import Identity, greet
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.core.errors import ClusterError, PeerLostError, WireError
from stoker.core.processes.forking import at_fork
from stoker.wire.sockets import check_address, dial
from stoker.wire.tls import dialled

KEPT_PER_WORKER = 16
"""Idle connections; more than the threads that a program reads with are of no use."""
_TRUSTED_IDLE_S = 1.0
"""A connection that was used this recently is not checked for a close by the worker."""
REFRESH_S = 5.0
"""How often the membership is refreshed while a worker is lost."""
_PONG_BYTES = 4096
_TOLD_S = 600.0
"""How long a worker's client count is valid; connections are kept, so it arrives rarely."""


def machine_id() -> str:
    """Identifies this machine until it reboots; containers share it but not their folders."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class Idle(list["tuple[NodeChannel, float]"]):
    """Kept connections to one worker, and when each was last used; adding and taking are atomic.

    Attributes:
        holds: False once all were closed, because the worker was lost or left, or this is a forked child's copy.
    """

    holds = True


class ConnectionPool:
    """Connections to the workers of one cluster.

    Args:
        identity: of this node.
        timeout_s: longest silence of a live worker.
        refresh: refreshes the membership; called from the probing thread.
        tls: for TCP; None where nothing is encrypted.
        mapped: whether files of this machine's workers are opened.
    """

    def __init__(
        self, identity: Identity, timeout_s: float, refresh: Callable[[], object], tls: ssl.SSLContext | None = None,
        *, mapped: bool = True,
    ) -> None:  # fmt: skip
        self._identity = identity
        self._tls = tls
        self._timeout_s = timeout_s
        self._refresh = refresh
        self._machine = machine_id()
        self._mapped = mapped
        self.same_host = SameHost()
        self.tell: Callable[[str], object] | None = None
        """Called once with the reason when workers refuse this client; not again in forked children."""
        self._clients: tuple[int, float] | None = None
        self._reset()
        at_fork(self._in_child)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, Idle] = {}
        self._breakers: dict[str, Breaker] = {}
        self._lost: dict[str, Member] = {}
        self.owing: dict[str, tuple[NodeChannel, float]] = {}
        """Workers that lost a race, and since when nothing of their answers has come."""
        self.faults: dict[str, Exception] = {}
        """What went wrong when workers were last connected to, by their ids."""
        self._prober: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False
        self._refreshed_at = -REFRESH_S
        self.identity = replace(self._identity, process=f"{os.getpid()}-{random.SystemRandom().getrandbits(64):016x}")

    def _in_child(self) -> None:
        """Closes its copies of the parent's connections."""
        idle, owing = self._idle, self.owing
        self._reset()
        for channels in idle.values():
            _give_up(channels)
        for channel, _ in owing.values():
            channel.close()

    def usable(self, member_id: str) -> bool:
        """Whether reads may ask this worker now."""
        breaker = self._breakers.get(member_id)
        return breaker is None or breaker.allows

    def num_clients(self) -> int | None:
        """Clients of the worker that was last connected to, as it counts them; None if that is long ago."""
        told = self._clients
        return told[0] if told is not None and time.monotonic() - told[1] < _TOLD_S else None

    def idle(self, member_id: str) -> Idle:
        """Kept connections to a worker, to take and return directly."""
        with self._lock:
            return self._idle.setdefault(member_id, Idle())

    def take(self, member: Member, epoch: int, *, fresh: bool = False) -> tuple[NodeChannel, bool]:
        """A connection for one request, and whether it was used before.

        Args:
            member: to ask.
            epoch: of the ring that this node knows.
            fresh: makes a new one: the kept ones are from before the worker restarted.

        Raises:
            ClusterError: none can be made.
            WireError: what answers is no worker.
        """
        now = time.monotonic()
        while not fresh:
            with self._lock:
                kept = self._idle.get(member.id)
                channel, used_at = kept.pop() if kept else (None, 0.0)
            if channel is None:
                break
            # A worker sends nothing unasked: bytes or an end mean that it has closed.
            if now - used_at < _TRUSTED_IDLE_S or not channel.wait(0.0):
                return channel, True
            channel.close()
        return self._connect(member, epoch), False

    def give(self, member: Member, channel: NodeChannel) -> None:
        """Keeps a connection whose last answer was received to its end."""
        with self._lock:
            kept = self._idle.setdefault(member.id, Idle())
            if len(kept) < KEPT_PER_WORKER and not self._closed and member.id not in self._lost:
                kept.append((channel, time.monotonic()))
                return
        channel.close()

    def owe(self, member: Member, channel: NodeChannel) -> None:
        """The worker lost a race; reads ask its replicas first until something of its answer has come."""
        with self._lock:
            kept, _ = self.owing.setdefault(member.id, (channel, time.monotonic()))
        if kept is not channel:
            channel.close()

    def is_silent(self, member: Member) -> bool:
        """Whether an answer of the worker is outstanding; a worker that is silent for too long is lost."""
        with self._lock:
            channel, since = self.owing.get(member.id, (None, 0.0))
            if channel is None:
                return False
            has_come, is_lost = channel.wait(0.0), time.monotonic() - since > self._timeout_s
            if not has_come and not is_lost:
                return True
            del self.owing[member.id]
        channel.close()
        if not has_come:
            self.fail(member)
        return not has_come

    def fail(self, member: Member) -> None:
        """Marks a worker that did not answer: it is avoided until a probe succeeds."""
        with self._lock:
            self._breakers.setdefault(member.id, Breaker()).fail(time.monotonic())
            self._lost[member.id] = member
            idle = self._idle.pop(member.id, Idle())
            self._probe_soon()
        _give_up(idle)

    def isolated(self) -> None:
        """Refreshes the membership in the background, because no worker is available."""
        with self._lock:
            if time.monotonic() - self._refreshed_at >= REFRESH_S:
                self._probe_soon()

    def keep_only(self, member_ids: set[str]) -> None:
        """Drops connections of workers that left the ring."""
        with self._lock:
            gone = [name for name in {*self._idle, *self._lost, *self._breakers, *self.owing} if name not in member_ids]
            idle = [self._idle.pop(name, Idle()) for name in gone]
            owing = [self.owing.pop(name)[0] for name in gone if name in self.owing]
            for name in gone:
                self._lost.pop(name, None)
                self._breakers.pop(name, None)
        for kept in idle:
            _give_up(kept)
        for channel in owing:
            channel.close()

    def close(self) -> None:
        """Closes all connections and ends the probing thread."""
        with self._lock:
            self._closed = True
            idle, owing = list(self._idle.values()), [channel for channel, _ in self.owing.values()]
            self._idle.clear()
            self.owing.clear()
            prober = self._prober
        self._wake.set()
        for kept in idle:
            _give_up(kept)
        for channel in owing:
            channel.close()
        if prober is not None:
            prober.join(timeout=3 * self._timeout_s)

    def _connect(self, member: Member, epoch: int) -> NodeChannel:
        error: ClusterError = PeerLostError(f"`{member.id}` has no address", member=member.id)
        for address in sorted(member.addresses, reverse=True):  # unix: before tcp:
            if address.startswith("unix:") and member.machine not in ("", self._machine):
                continue
            try:
                channel = self._greeted(address, epoch)
            except (ClusterError, WireError) as lost:
                self.faults[member.id] = lost
                self._tell(lost)
                if isinstance(lost, WireError):
                    raise
                error = lost
            else:
                self.faults.pop(member.id, None)
                return channel
        raise error

    def _tell(self, error: ClusterError | WireError) -> None:
        passes = error.fields.get("reason") in (Reason.BUSY, Reason.DRAINING)
        if self.tell is not None and not isinstance(error, PeerLostError) and not passes:
            tell, self.tell = self.tell, None
            tell(error.args[0])

    def _greeted(self, address: str, epoch: int) -> NodeChannel:
        sock = dial(address, self._timeout_s)
        if self._tls is not None and not address.startswith("unix:"):
            sock = dialled(sock, address, check_address(address)[0], self._tls, self._timeout_s)
        channel = NodeChannel(sock, self._timeout_s)
        try:
            welcome = greet(channel, self.identity, epoch)
            self._clients = welcome.clients, time.monotonic()
            if self._mapped and sock.family == socket.AF_UNIX:
                self.same_host.told(welcome.roots)
        except BaseException:
            channel.close()
            raise
        return channel

    def _probe_soon(self) -> None:
        """Starts the probing thread, or wakes it; the lock is held."""
        if self._closed:
            return
        if self._prober is None:
            self._prober = threading.Thread(target=self._probe, name="stoker-cache-probe", daemon=True)
            self._prober.start()
        self._wake.set()

    def _probe(self) -> None:
        while not self._closed:
            self._wake.clear()
            now = time.monotonic()
            if now - self._refreshed_at >= REFRESH_S:
                self._refreshed_at = now
                self._refresh()
            for member in self._due(now):
                self._try(member)
            with self._lock:
                waits = [wait_s for one in self._breakers.values() if (wait_s := one.next_probe_s(now)) is not None]
                if not waits:  # all members answer
                    self._prober = None
                    return
            self._wake.wait(min(REFRESH_S, max(0.02, min(waits))))

    def _due(self, now: float) -> list[Member]:
        with self._lock:
            return [member for name, member in self._lost.items() if self._breakers[name].take_probe(now)]

    def _try(self, member: Member) -> None:
        try:
            channel = self._connect(member, 0)
        except (ClusterError, WireError):
            channel = None
        if channel is not None:
            try:
                channel.send(Blob(Kind.PING))
                answered = channel.message(_PONG_BYTES) == Blob(Kind.PONG)
            except (ClusterError, WireError):
                answered = False
            if answered:
                with self._lock:
                    self._breakers.pop(member.id, None)
                    self._lost.pop(member.id, None)
                self.give(member, channel)
                return
            channel.close()
        with self._lock:
            if member.id in self._breakers:
                self._breakers[member.id].fail(time.monotonic())


def _give_up(idle: Idle) -> None:
    idle.holds = False
    while idle:
        try:
            idle.pop()[0].close()
        except IndexError:
            return  # another thread has taken it, and will close it
