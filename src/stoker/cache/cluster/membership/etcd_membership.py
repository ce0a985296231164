"""Membership in etcd: places that outlive their worker by ten minutes, and one ring record that all follow.

Workers write their place under a lease, watch the record, and update it by compare-and-swap, so that everyone sees the
same sequence of epochs. Clients read the record once and learn of newer ones from workers' replies. While etcd is down,
the last record stays valid. If etcd comes back empty, the places of the last record are restored first.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stoker.cache.cluster.membership.etcd import Etcd, KeyValue, KeyWatch
from stoker.cache.cluster.membership.membership import KnownRecord
from stoker.cache.cluster.membership.ring import Member, RingRecord, decode_member, decode_record
from stoker.core.errors import MembershipError

ALIVE_TTL_S = (10, 15)
"""Bounds of the liveness lease of a worker: shorter ones flap on busy machines, and equal ones renew at the same
time."""
PLACE_TTL_S = 600
"""How long a lost worker keeps its place: its pages are still on its disk, and a restart is more likely than not."""
_BEAT_FRAC = 1 / 3
_RETRY_S = (0.5, 1.5)
_ATTEMPTS = 8


class EtcdMembership:
    """The ring record in etcd.

    Args:
        endpoints: ``host:port`` of each member of etcd.
        cluster: name of the cache's cluster; others in the same etcd are not seen.
        state_dir: where the last record is kept.
        timeout_s: of each call.
    """

    def __init__(
        self, endpoints: Sequence[str], cluster: str, state_dir: Path | None, *, timeout_s: float = 1.0
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._prefix = f"/stoker/{cluster}/"
        self._timeout_s = timeout_s
        self._etcd = Etcd(endpoints, timeout_s)
        self._known = KnownRecord(state_dir, f"etcd {','.join(endpoints)} {cluster}")
        self._asking = threading.Lock()  # the connection is for one thread at a time
        self._member: Member | None = None
        self._leases: dict[str, int] = {}
        self._ttl_s = random.randint(*ALIVE_TTL_S)
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._watching: KeyWatch | None = None
        if self._known.record is None:
            self.refresh()

    def record(self) -> RingRecord | None:
        """The newest record known, from memory."""
        return self._known.record

    def learn(self, record: RingRecord) -> None:
        """Keeps the record if it is newer."""
        self._known.learn(record)

    def refresh(self) -> RingRecord | None:
        """Reads the record from etcd; the known one stays if etcd does not answer."""
        with self._asking:
            try:
                self._read()
            except MembershipError:
                pass  # etcd is away: nothing depends on it being there
        return self._known.record

    def alive(self) -> frozenset[str]:
        """Ids of the workers with a live lease, for display; raises :class:`MembershipError`."""
        with self._asking:
            return frozenset(item.key.rsplit("/", 1)[-1] for item in self._etcd.range(self._prefix + "alive/"))

    def join(self, member: Member) -> None:
        """Takes a place and keeps it; needs etcd to answer this once."""
        self._member = member
        with self._asking:
            self._place(member)
            self._reconcile()
        self._begin()

    def leave(self) -> None:
        """Gives the place up, in the ring first."""
        member, self._member = self._member, None
        if member is None:
            return
        with self._asking:
            try:
                self._etcd.delete(f"{self._prefix}place/{member.id}")
                self._reconcile()
                for lease in self._leases.values():
                    self._etcd.revoke(lease)
            except MembershipError:
                pass  # etcd is away: the leases end by themselves
            self._leases.clear()

    def watch(self, changed: Callable[[RingRecord], None]) -> None:
        """Follows etcd from threads until :meth:`close`."""
        self._known.on_change(changed)
        self._begin()

    def close(self) -> None:
        """Ends the threads; leases end by themselves unless :meth:`leave` came first."""
        self._ended.set()
        self._wake.set()
        watching = self._watching
        if watching is not None:
            watching.close()
        for thread in self._threads:
            # The watching thread may be waiting for etcd to accept it, a time-out at most.
            thread.join(timeout=2 * self._timeout_s)
        self._etcd.close()

    def forked(self) -> None:
        """Resets a forked child: no threads, no place, and a new connection."""
        self._known.forked()
        self._asking = threading.Lock()
        self._etcd = Etcd(self._endpoints, self._timeout_s)  # closing the old one closes this process's copy alone
        self._member, self._leases, self._threads, self._watching = None, {}, [], None
        self._wake, self._ended = threading.Event(), threading.Event()

    def _begin(self) -> None:
        if not self._threads:
            for target, name in ((self._beat, "stoker-etcd-beat"), (self._follow, "stoker-etcd-watch")):
                thread = threading.Thread(target=target, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _beat(self) -> None:
        """Keeps leases alive and the record right, at each change and every few seconds."""
        while not self._ended.is_set():
            self._wake.wait(self._ttl_s * _BEAT_FRAC * random.uniform(0.8, 1.0))
            self._wake.clear()
            if self._ended.is_set():
                return
            with self._asking:
                member = self._member
                try:
                    if member is None:
                        self._read()
                    else:
                        self._place(member)
                        self._reconcile()
                except MembershipError:
                    pass  # etcd is away; the next beat tries again

    def _follow(self) -> None:
        """Wakes the beat at each change in etcd."""
        turn = 0
        while not self._ended.is_set():
            self._watching = KeyWatch(self._endpoints[turn % len(self._endpoints)], self._prefix, self._timeout_s)
            turn += 1
            try:
                self._watching.run(self._wake.set)
            except (OSError, http.client.HTTPException, ValueError):
                pass  # etcd is away
            finally:
                self._watching.close()
            self._ended.wait(random.uniform(*_RETRY_S))

    def _place(self, member: Member) -> None:
        """Renews both leases, or writes the keys under new ones where a lease has ended."""
        for kind, ttl_s in (("place", PLACE_TTL_S), ("alive", self._ttl_s)):
            lease = self._leases.get(kind)
            if lease is not None and self._etcd.keep_alive(lease):
                continue
            lease = self._leases[kind] = self._etcd.grant(ttl_s)
            self._etcd.put(f"{self._prefix}{kind}/{member.id}", msgspec.json.encode(member), lease)

    def _read(self) -> KeyValue | None:
        """The record's key; what it holds is learned."""
        item = self._etcd.get(self._prefix + "ring")
        if item is not None:
            self._known.learn(decode_record(item.value, f"etcd {item.key}"))
        return item

    def _reconcile(self) -> None:
        """Updates the record from the places; a concurrent second update changes nothing."""
        for _ in range(_ATTEMPTS):
            item = self._read()
            if item is None:
                self._put_back()
            members = self._places()
            known = self._known.record
            current = None if item is None else decode_record(item.value, f"etcd {item.key}")
            if current is not None and current.members == members and current == known:
                return
            following = RingRecord(epoch=(known.epoch if known else 0) + 1, members=members)
            if self._etcd.swap(self._prefix + "ring", item.revision if item else 0, following.encode()):
                self._known.learn(following)
                return
            self._ended.wait(random.uniform(0.0, 0.05))  # other processes are writing: let them finish
        raise MembershipError(f"`ring` in etcd kept changing over {_ATTEMPTS} attempts to update it")

    def _put_back(self) -> None:
        """Restores the places of the last record with fresh leases, after etcd lost its data."""
        known = self._known.record
        taken = {member.id for member in self._places()}
        for member in known.members if known else ():
            if member.id not in taken:
                lease = self._etcd.grant(PLACE_TTL_S)
                self._etcd.put(f"{self._prefix}place/{member.id}", msgspec.json.encode(member), lease)

    def _places(self) -> tuple[Member, ...]:
        members: dict[str, Member] = {}
        for item in self._etcd.range(self._prefix + "place/"):
            try:
                member = decode_member(item.value)
            except msgspec.MsgspecError:
                continue  # a foreign key: not a worker
            members[member.id] = member
        return tuple(members[name] for name in sorted(members))
