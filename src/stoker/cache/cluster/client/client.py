"""Asks the nodes of a cluster for pages: the owner by the ring, a successor when it is lost, else the caller's store.

A read never fails here and never waits for etcd: what no worker sends comes back as False, and the caller reads the
store. A worker that is lost costs one time-out once; many such reads together keep to the store's budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stoker.cache.cluster.client.budget import StoreBudget
from stoker.cache.cluster.client.client_settings import ClientCounts, ClientSettings
from stoker.cache.cluster.client.connection_pool import ConnectionPool
from stoker.cache.cluster.client.gather import Gathering
from stoker.cache.cluster.client.hedging import Hedging
from stoker.cache.cluster.client.lanes import Lane, Lanes
from stoker.cache.cluster.client.range_request import CHUNK_BYTES, Agreed, Part, PartState, RangeRequest, parts_of
from stoker.cache.cluster.membership.hot_chunks import MOST_COPIES, Announced
from stoker.cache.cluster.membership.joining import open_membership
from stoker.cache.cluster.membership.membership import Membership
from stoker.cache.cluster.membership.ring import CHUNK_PAGES, HashRing, Member, RingRecord, decode_record
from stoker.cache.cluster.messages.frames import (
    MAX_RING_BYTES,
    Blob,
    Flag,
    Kind,
    Message,
    Object,
    Reason,
    Stat,
    fits,
)
from stoker.cache.cluster.messages.handshake import Identity
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.versions import Version
from stoker.core.errors import ClusterError, ConfigError, PeerRefusedError, WireError
from stoker.core.processes.forking import ForkedLock, at_fork
from stoker.core.saying import say
from stoker.wire.framing import FrameHeader
from stoker.wire.secrets import load_secrets
from stoker.wire.tls import client_context

REFUSED_S = 60.0
"""How long to avoid a worker for a mount that it does not serve."""
_CHECKED = 3
_OWNERS = MOST_COPIES + 2
"""Most workers to try for a page: its copies, and one or two more in case some are lost."""


class _Group(NamedTuple):
    """Parts of a fetch that go to one worker in one request."""

    member: Member
    flags: Flag
    parts: list[Part]


class PeerClient:
    """The nodes of a cluster, as a program sees them. Safe for threads, for forked children, and to pickle.

    Args:
        settings: how to join.
        node: id of this node if it is a worker itself; it is never asked.
        membership: instead of the one that ``settings.join`` names; a client with it cannot be pickled.
    """

    def __init__(self, settings: ClientSettings, *, node: str = "", membership: Membership | None = None) -> None:
        self.settings = settings
        self._node = node
        self._membership = membership or open_membership(settings.join, settings.state_dir)
        secrets = None if settings.secret_file is None else load_secrets(settings.secret_file)
        identity = Identity(settings.identity, secrets, node)
        tls = None if settings.tls_ca is None else client_context(settings.tls_ca)
        self._pool = ConnectionPool(identity, settings.timeout_s, self._membership.refresh, tls, mapped=settings.mapped)
        at_fork(self._membership.forked)
        self._hedging = Hedging()
        self._budget = StoreBudget(settings.store_per_s, settings.isolated_per_s, settings.wait_s)
        self._budget_lock = ForkedLock()
        self._announced = Announced()
        self._ring: HashRing | None = None
        self._lanes = Lanes()
        self._refused: dict[tuple[str, str], float] = {}
        self._picklable = membership is None
        self.counts = ClientCounts()

    def __reduce__(self) -> tuple[object, ...]:
        if not self._picklable:
            raise TypeError("a `PeerClient` with its own membership cannot be pickled: pass its settings instead")
        return PeerClient, (self.settings,)

    def fetch(
        self, name: ObjectName, version: Version | None, ranges: list[tuple[int, int]], into: list[memoryview]
    ) -> list[bool]:
        """Fills buffers with ranges of an object; returns which succeeded, and their common version.

        Args:
            name: of the object.
            version: that the bytes must have; None for any one that the workers' policy allows.
            ranges: start and end in the object.
            into: a buffer for each, writable, of the range's length; undefined where the result is False.
        """
        if version is None or not self._pool.same_host.stores:
            return self._fetch(name, version, ranges, into)
        came = self._pool.same_host.read(name, version, ranges, into)
        left = [number for number, is_here in enumerate(came) if not is_here]
        self.counts.ranges += len(came) - len(left)
        self.counts.mapped += len(came) - len(left)
        if left:
            asked, buffers = [ranges[number] for number in left], [into[number] for number in left]
            for number, is_here in zip(left, self._fetch(name, version, asked, buffers), strict=True):
                came[number] = is_here
        return came

    def _fetch(
        self, name: ObjectName, version: Version | None, ranges: list[tuple[int, int]], into: list[memoryview]
    ) -> list[bool]:
        """Asks the workers."""
        if len(ranges) == 1 and version is not None:
            came = self._fetch_one(name, version, ranges[0], into[0])
            if came is not None:
                return [came]
        ring = self._current()
        if not fits(name.namespace, name.path, version):
            self.counts.ranges += len(ranges)
            self.counts.missed += len(ranges)
            return [False] * len(ranges)
        parts = list(parts_of(ranges, into))
        self.counts.ranges += len(ranges)
        agreed = Agreed(None if version is None else version.digest)
        if ring is not None and self._pool.owing and version is not None:
            self._ask_replicas(ring, parts, name, version, agreed)
        open_parts = [part for part in parts if part.state is PartState.OPEN]
        for _ in range(self.settings.attempts if ring is not None else 0):
            assert ring is not None
            groups = self._assign(ring, name, open_parts)
            if not groups:
                break
            self._round(ring, groups, name, version, agreed)
            open_parts = [part for part in open_parts if part.state is PartState.OPEN]
        self._note_hot(name, agreed)
        came = [True] * len(ranges)
        for part in parts:
            came[part.number] &= part.state is PartState.DONE
        self._account(came, parts)
        return came

    def _fetch_one(self, name: ObjectName, version: Version, asked: tuple[int, int], buffer: memoryview) -> bool | None:
        """Reads one range of one owner over a kept connection, with least overhead; None if that is not possible."""
        start, end = asked
        size = end - start
        if not 0 < size <= PAGE_BYTES or size != buffer.nbytes or start % CHUNK_BYTES + size > CHUNK_BYTES:
            return None
        lane = self._lanes.find(name, version, start, self._membership.record())
        if lane is None:
            lane = self._lane(name, version, start, size)
        if lane is None or not lane.idle or (self._refused and self._refuses(lane.member, name)):
            return None
        if self._pool.owing and self._pool.is_silent(lane.member):
            return None
        target = buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
        channel, header = None, None
        try:
            channel, _ = lane.idle.pop()
            answered_at = lane.ask(channel, start, target, self.settings.timeout_s, self._hedging)
            if answered_at is None and channel.buffered:
                header = channel.header()
        except IndexError:
            return None  # another thread was faster
        except (ClusterError, WireError):
            if channel is not None:
                channel.close()  # idle for too long: the slow path retries, and judges the worker
            return None
        self._hedging.count()
        self.counts.ranges += 1
        if answered_at is None:
            ring = self._current()
            if ring is None or ring.record is not lane.record:
                channel.close()  # the ring changed meanwhile
                self.counts.ranges -= 1
                return None
            return self._fetch_on(ring, name, version, Part(0, start, target), lane.member, channel, header)
        self.counts.served += 1
        if lane.idle.holds:
            lane.idle.append((channel, answered_at))
        else:
            channel.close()
        return True

    def _lane(self, name: ObjectName, version: Version, start: int, size: int) -> Lane | None:
        """The lane to the worker that owns this offset of an object; None if there is none."""
        page, ring = start // PAGE_BYTES, self._current()
        if ring is None or not fits(name.namespace, name.path, version):
            return None
        owners = self._candidates(ring, name, page, size)
        if not owners:
            return None
        member, flags = owners[0], self._flags(ring, name, page, owners[0])
        record = ring.record
        lane = Lane(name, version, start // CHUNK_BYTES, member, flags, record, self._pool.idle(member.id))
        if not self._announced and member is _owners(ring, name, page)[0]:
            self._lanes.keep(lane)
        return lane

    def _fetch_on(
        self, ring: HashRing, name: ObjectName, version: Version, part: Part, member: Member, channel: NodeChannel,
        header: FrameHeader[Kind] | None,
    ) -> bool | None:  # fmt: skip
        """Continues a request whose answer is slow or has several frames; None if another worker must be tried."""
        agreed = Agreed(version.digest)
        stream = RangeRequest(member, channel, True, name, version, [part], agreed)
        stream.asked(ring.record.epoch)
        gathering = Gathering(self._pool, self.settings.timeout_s, ring.record.epoch)
        gathering.adopt(stream)
        started = time.monotonic()
        if header is None:
            self._hedge(gathering, ring, stream)
        else:
            gathering.step(stream, header)
        gathering.run()
        if stream.heard and header is None:
            self._hedging.of(member.id, len(part.target)).add(time.monotonic() - started)
        self._settle(gathering, name)
        self._note_hot(name, agreed)
        if part.state is PartState.OPEN:
            self.counts.ranges -= 1  # counted again with the next worker
            return None
        self.counts.served += part.state is PartState.DONE
        self.counts.missed += part.state is PartState.MISSED
        return part.state is PartState.DONE

    def stat(self, name: ObjectName, max_age_s: float = math.inf) -> Object | None:
        """The owner's metadata of the object, if recent enough; None if the owner is lost or refuses."""
        ring = self._current() if fits(name.namespace, name.path, None) else None
        max_age_ms = 0 if math.isinf(max_age_s) else max(1, int(max_age_s * 1000))
        owners = [] if ring is None else self._candidates(ring, name, 0)
        for member in owners[: self.settings.attempts]:
            frame = self._question(member, Stat(name.namespace, name.path, max_age_ms))
            if frame is not None:
                return frame if isinstance(frame, Object) else None
        return None

    def status(self, member_id: str) -> dict[str, Any] | None:
        """The status of a worker; None if it is lost."""
        ring = self._current()
        member = None if ring is None else ring.members.get(member_id)
        frame = None if member is None else self._question(member, Blob(Kind.ASK_STATUS))
        return msgspec.json.decode(frame.body, type=dict[str, Any]) if isinstance(frame, Blob) else None

    def ask_one(
        self, member: Member, name: ObjectName, version: Version, start: int, target: memoryview,
        flags: Flag = Flag.ONLY_IF_CACHED,
    ) -> bool:  # fmt: skip
        """Asks one worker, as a rule for what it holds; for a worker that takes over from another."""
        if not self._pool.usable(member.id):
            return False
        part = Part(0, start, target)
        self._ask(member, [part], name, version, Agreed(version.digest), flags)
        return part.state is PartState.DONE

    def fault(self, member_id: str) -> str:
        """What went wrong when a worker was last connected to; empty for nothing."""
        return str(self._pool.faults.get(member_id, ""))

    def check(self) -> None:
        """Connects to a worker, so that a refusal shows now and not at the first read.

        Raises:
            ConfigError: the workers refuse this client: a wrong secret, or a certificate that is not trusted. Workers
                that do not answer raise nothing, since they may be back at the first read.
        """
        ring = self._current()
        for member in () if ring is None else list(ring.members.values())[:_CHECKED]:
            try:
                channel, _ = self._pool.take(member, 0)
            except PeerRefusedError as error:
                raise ConfigError(
                    f"the cache's workers refuse this client: {error}; see --cache-secret-file, --cache-tls-ca"
                ) from None
            except WireError as error:
                raise ConfigError(
                    f"`{member.id}` must be a cache worker, but its answer is not one's: {error}"
                ) from None
            except ClusterError:
                continue
            return self._pool.give(member, channel)

    def tell_refusals(self) -> None:
        """Reports once if workers refuse this client: its reads alone would not show it."""

        def tell(why: str) -> None:
            say(
                f"cache: the workers of `{self.settings.join}` reject this program, so it reads the "
                f"stores directly: {why}; see secret_file and tls_ca, or --cache-secret-file and --cache-tls-ca"
            )

        self._pool.tell = tell

    def hold(
        self, member: Member, name: ObjectName, version: Version, pages: Sequence[int], flags: Flag = Flag.NONE
    ) -> list[Part]:
        """Makes one worker cache pages, or with ``ONLY_IF_CACHED`` checks whether it has them; returns a byte of each.

        Args:
            member: of the ring.
            name: of the object.
            version: of it.
            pages: their indexes.
            flags: of the request.
        """
        parts = [Part(number, page * PAGE_BYTES, memoryview(bytearray(1))) for number, page in enumerate(pages)]
        if self.usable(member.id):
            self._ask(member, parts, name, version, Agreed(version.digest), flags)
        return parts

    def patient(self, timeout_s: float) -> PeerClient:
        """Another client of the same cluster, for work that no read waits for; to be closed before this one."""
        settings = replace(self.settings, timeout_s=timeout_s)
        return PeerClient(settings, node=self._node, membership=self._membership)

    def usable(self, member_id: str) -> bool:
        """Whether a worker answers, as far as this client knows."""
        return self._pool.usable(member_id)

    def keep_only(self, member_ids: set[str]) -> None:
        """Forgets workers that left the ring."""
        self._pool.keep_only(member_ids)

    @property
    def record(self) -> RingRecord | None:
        """The current ring."""
        return self._membership.record()

    @property
    def epoch(self) -> int:
        """Epoch of the current ring; 0 without one."""
        record = self._membership.record()
        return 0 if record is None else record.epoch

    @property
    def hedges(self) -> int:
        """Requests that were also sent to a replica."""
        return self._hedging.hedges

    def lost(self) -> list[str]:
        """Ids of the workers that are avoided now."""
        ring = self._current()
        return [] if ring is None else [one for one in ring.members if not self._pool.usable(one)]

    def silent(self) -> list[str]:
        """Ids of the workers whose answer is outstanding because a replica was faster."""
        return sorted(self._pool.owing)

    def close(self) -> None:
        """Closes connections and ends threads."""
        self._pool.close()
        self._pool.same_host.close()
        if self._picklable:
            self._membership.close()

    def _current(self) -> HashRing | None:
        """The ring of the newest record; built once for each."""
        record = self._membership.record()
        ring = self._ring
        if record is None:
            self._pool.isolated()
            return None
        if ring is None or ring.record is not record:
            ring = self._ring = HashRing(record)
            self._pool.keep_only(set(ring.members))
        return ring

    def _candidates(self, ring: HashRing, name: ObjectName, page: int, size: int = 0) -> list[Member]:
        """Workers to try for a page: the owner first, or for a hot chunk one that holds a copy."""
        found = [
            member for member in _owners(ring, name, page) if member.id != self._node and self._pool.usable(member.id)
        ]
        if self._announced and found:
            chunk = name, page // CHUNK_PAGES
            chosen = self._announced.choose(
                chunk, len(found), time.monotonic(), lambda number: self._hedging.of(found[number].id, size).last_s
            )
            found.insert(0, found.pop(chosen))
        return found

    def _flags(self, ring: HashRing, name: ObjectName, page: int, member: Member) -> Flag:
        """Flags of a request to a member, which say whether it is asked as a replica."""
        if not self._announced:
            return Flag.NONE
        owner = _owners(ring, name, page)[0]
        return Flag.COPY if member is not owner and self._pool.usable(owner.id) else Flag.NONE

    def _note_hot(self, name: ObjectName, agreed: Agreed) -> None:
        if not agreed.hot or self._ring is None or len(self._ring.members) < 2:
            return  # no other worker has copies
        self._lanes = Lanes()
        for page, copies in agreed.hot:
            self._announced.tell((name, page // CHUNK_PAGES), copies, time.monotonic())

    def _assign(self, ring: HashRing, name: ObjectName, parts: Sequence[Part]) -> list[_Group]:
        groups: dict[tuple[str, Flag], _Group] = {}
        for part in parts:
            candidates = self._candidates(ring, name, part.page, len(part.target))
            if candidates and self._refuses(candidates[0], name):
                part.miss(Reason.NOT_MOUNTED)
            elif candidates:
                flags = self._flags(ring, name, part.page, candidates[0])
                group = groups.setdefault((candidates[0].id, flags), _Group(candidates[0], flags, []))
                group.parts.append(part)
        return list(groups.values())

    def _refuses(self, member: Member, name: ObjectName) -> bool:
        """Whether the worker lately refused this mount."""
        return bool(self._refused) and self._refused.get((member.id, name.namespace), 0.0) > time.monotonic()

    def _round(
        self, ring: HashRing, groups: list[_Group], name: ObjectName, version: Version | None, agreed: Agreed
    ) -> None:
        """Requests each group's parts from its worker; parts that stay open belong to a lost worker."""
        if len(groups) == 1:
            (group,) = groups
            self._ask(group.member, group.parts, name, version, agreed, group.flags, ring)
            return
        gathering = Gathering(self._pool, self.settings.timeout_s, ring.record.epoch)
        for group in groups:
            gathering.open(group.member, group.parts, name, version, agreed, group.flags)
        gathering.run()
        self._settle(gathering, name)

    def _ask(
        self, member: Member, parts: list[Part], name: ObjectName, version: Version | None, agreed: Agreed,
        flags: Flag, ring: HashRing | None = None,
    ) -> None:  # fmt: skip
        """Asks one worker, and a replica if it is slow."""
        epoch = 0 if ring is None else ring.record.epoch
        gathering = Gathering(self._pool, self.settings.timeout_s, epoch)
        stream = gathering.open(member, parts, name, version, agreed, flags)
        if stream is not None:
            size = sum(len(part.target) for part in parts)
            self._hedging.count()
            started = time.monotonic()
            recent = self._hedging.of(member.id, size)
            delay_s = None if ring is None else recent.delay_s
            if ring is not None and delay_s is not None and not stream.channel.wait(delay_s):
                self._hedge(gathering, ring, stream)
                gathering.run()
            else:
                gathering.step(stream)
            if stream.heard:
                recent.add(time.monotonic() - started)
            gathering.run()
        self._settle(gathering, name)

    def _ask_replicas(
        self, ring: HashRing, parts: list[Part], name: ObjectName, version: Version, agreed: Agreed
    ) -> None:  # fmt: skip
        """Requests a silent worker's pages from the next worker; what that one lacks stays open."""
        asked: dict[str, tuple[Member, list[Part]]] = {}
        for part in parts:
            candidates = self._candidates(ring, name, part.page, len(part.target))
            if len(candidates) > 1 and self._pool.is_silent(candidates[0]):
                asked.setdefault(candidates[1].id, (candidates[1], []))[1].append(part)
        for replica, theirs in asked.values():
            self._ask(replica, theirs, name, version, agreed, Flag.ONLY_IF_CACHED)
            for part in theirs:
                if part.state is PartState.MISSED:
                    part.restart()

    def _hedge(self, gathering: Gathering, ring: HashRing, slow: RangeRequest) -> None:
        """Requests cached pages of the same parts from the next worker, if the hedging budget allows."""
        page = slow.parts[0].page
        replicas = [one for one in self._candidates(ring, slow.name, page) if one.id != slow.member.id]
        one_chunk = all(part.page // CHUNK_PAGES == page // CHUNK_PAGES for part in slow.parts)
        if replicas and one_chunk and self._hedging.take():
            gathering.hedge(slow, replicas[0])

    def _settle(self, gathering: Gathering, name: ObjectName) -> None:
        """Records what the streams learned about workers and the ring."""
        for member, error in gathering.failures:
            reason = error.fields.get("reason") if isinstance(error, PeerRefusedError) else None
            if reason == Reason.NOT_MOUNTED:
                self._refused[(member.id, name.namespace)] = time.monotonic() + REFUSED_S
            elif reason != Reason.NOT_ALLOWED:
                self.counts.found_lost += 1
        for member, channel in gathering.owing:
            self._pool.owe(member, channel)
        for member, channel in gathering.finished:
            self._done(self._ring, member, channel)

    def _done(self, ring: HashRing | None, member: Member, channel: NodeChannel) -> None:
        """Handles a complete answer: keeps the connection, and learns of a newer ring."""
        if channel.note > (ring.record.epoch if ring is not None else 0):
            self._learn_ring(member, channel)
        else:
            self._pool.give(member, channel)

    def _learn_ring(self, member: Member, channel: NodeChannel) -> None:
        """Asks a worker that has just answered for the ring that it knows."""
        try:
            channel.send(Blob(Kind.ASK_RING))
            frame = channel.message(MAX_RING_BYTES)
            if isinstance(frame, Blob) and frame.kind is Kind.RING:
                self._membership.learn(decode_record(frame.body, f"ring of {member.id}"))
            self._pool.give(member, channel)
        except (ClusterError, WireError):
            channel.close()  # the next answer repeats the epoch

    def _question(self, member: Member, question: Message) -> Message | None:
        """A worker's answer to a short question; None if it is lost."""
        for fresh in (False, True):
            channel, was_kept = None, False
            try:
                channel, was_kept = self._pool.take(member, 0, fresh=fresh)
                channel.send(question)
                frame: Message = Blob(Kind.FETCHING)
                while isinstance(frame, Blob) and frame.kind is Kind.FETCHING:
                    frame = channel.message(MAX_RING_BYTES)
            except (ClusterError, WireError):
                if channel is not None:
                    channel.close()
                if not was_kept:
                    break
            else:
                self._pool.give(member, channel)
                return frame
        self._pool.fail(member)
        return None

    def _account(self, came: list[bool], parts: Sequence[Part]) -> None:
        """Updates the counters and, if no worker was available, waits for the store budget."""
        lost = len({part.number for part in parts if part.state is PartState.OPEN})
        served = sum(came)
        self.counts.served += served
        self.counts.lost += lost
        self.counts.missed += len(came) - served - lost
        if not lost:
            return
        self._pool.isolated()
        with self._budget_lock:
            self._budget.share(self._pool.num_clients())
            wait_s = self._budget.spend(lost, time.monotonic())
        self.counts.waited_s += wait_s
        if wait_s > 0.0:
            time.sleep(wait_s)


def _owners(ring: HashRing, name: ObjectName, page: int) -> list[Member]:
    """The owner of a page and those that follow it."""
    return [ring.members[one] for one in ring.owners(name, page, _OWNERS)]


def for_node(settings: ClientSettings, node: str, membership: Membership) -> PeerClient:
    """The client that a worker uses for other workers."""
    return PeerClient(replace(settings, attempts=1), node=node, membership=membership)
