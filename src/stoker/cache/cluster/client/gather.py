"""Receives several workers' answers concurrently in one thread, and races a slow worker with its replica."""

from __future__ import annotations

import select
import time

from stoker.cache.cluster.client.connection_pool import ConnectionPool
from stoker.cache.cluster.client.range_request import Agreed, Part, PartState, RangeRequest
from stoker.cache.cluster.membership.ring import Member
from stoker.cache.cluster.messages.frames import Flag, Kind, Reason
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.names import ObjectName
from stoker.cache.versions import Version
from stoker.core.errors import ClusterError, PeerLostError, PeerRefusedError, WireError
from stoker.wire.framing import FrameHeader


class Gathering:
    """The streams of one round of a fetch.

    Attributes:
        failures: workers that gave no answer, and why.
        owing: connections to workers that lost a race, whose answers are still under way.
        finished: connections whose answers were received to the end.
    """

    def __init__(self, pool: ConnectionPool, timeout_s: float, epoch: int) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._epoch = epoch
        self._streams: list[RangeRequest] = []
        self._slow: RangeRequest | None = None
        self._hedge: RangeRequest | None = None
        self.failures: list[tuple[Member, Exception]] = []
        self.owing: list[tuple[Member, NodeChannel]] = []
        self.finished: list[tuple[Member, NodeChannel]] = []

    def open(
        self, member: Member, parts: list[Part], name: ObjectName, version: Version | None, agreed: Agreed,
        flags: Flag = Flag.NONE, *, fresh: bool = False,
    ) -> RangeRequest | None:  # fmt: skip
        """Requests parts from a worker; None if it is unavailable."""
        try:
            channel, was_kept = self._pool.take(member, self._epoch, fresh=fresh)
        except (ClusterError, WireError) as error:
            self._pool.fail(member)
            self.failures.append((member, error))
            return None
        stream = RangeRequest(member, channel, was_kept, name, version, parts, agreed, flags)
        try:
            stream.ask(self._epoch)
        except PeerLostError as error:
            return self._failed(stream, error)
        self._streams.append(stream)
        return stream

    def adopt(self, stream: RangeRequest) -> None:
        """Takes over a stream whose request was sent already."""
        self._streams.append(stream)

    def hedge(self, slow: RangeRequest, replica: Member) -> None:
        """Requests the same parts from a replica into separate buffers, racing the slow worker."""
        copies = [Part(number, part.start, memoryview(bytearray(len(part.target)))) for number, part in _open(slow)]
        # If the caller named no version, a replica that knows an older one must not decide it.
        if slow.agreed.digest is None or not copies:
            return
        self._slow = slow
        self._hedge = self.open(
            replica, copies, slow.name, slow.version, Agreed(slow.agreed.digest), Flag.ONLY_IF_CACHED
        )

    def step(self, stream: RangeRequest, header: FrameHeader[Kind] | None = None) -> None:
        """Receives one frame (of which the header may have come), and all that have come with it."""
        try:
            done = stream.step() if header is None else stream.take(header)
            while not done and stream.channel.buffered:
                done = stream.step()
        except (ClusterError, WireError, ValueError) as error:
            self._drop(stream)
            self._failed(stream, error)
            return
        if done:
            self._drop(stream)
            self.finished.append((stream.member, stream.channel))
            self._end_race(stream)

    def run(self) -> None:
        """Receives until every stream has ended."""
        while len(self._streams) == 1:  # the usual case: the kernel's time-out on the connection bounds the silence
            self.step(self._streams[0])
        heard_at = dict.fromkeys(map(id, self._streams), time.monotonic())
        poll = select.poll()
        while self._streams:
            by_number = {stream.channel.fileno(): stream for stream in self._streams}
            for number in by_number:
                poll.register(number, select.POLLIN)
            ready = {number for number, _ in poll.poll(self._timeout_s * 1000 / 4)}
            for number, stream in by_number.items():
                poll.unregister(number)
                if stream not in self._streams:  # it lost the race in this turn
                    continue
                if number in ready:
                    heard_at[id(stream)] = time.monotonic()
                    self.step(stream)
                elif time.monotonic() - heard_at.setdefault(id(stream), time.monotonic()) > self._timeout_s:
                    self._drop(stream)
                    self._failed(stream, PeerLostError(f"`{stream.member.id}` is silent", silent=True))

    def _failed(self, stream: RangeRequest, error: Exception) -> RangeRequest | None:
        """Handles a worker that did not answer; retries once over a fresh connection if the kept one was stale."""
        stream.channel.close()
        if stream is self._hedge:
            self._hedge = None
        refused = error.fields.get("reason") if isinstance(error, PeerRefusedError) else None
        for part in stream.parts:
            if part.state is PartState.OPEN and refused is not None:
                part.miss(Reason(refused))
            elif part.state is PartState.OPEN:
                part.restart()
        if refused is not None:
            self.failures.append((stream.member, error))
            return None
        if stream.was_kept and not stream.heard and not _is_silence(error) and stream is not self._hedge:
            left = [part for part in stream.parts if part.state is PartState.OPEN]
            return self.open(stream.member, left, stream.name, stream.version, stream.agreed, stream.flags, fresh=True)
        self._pool.fail(stream.member)
        self.failures.append((stream.member, error))
        return None

    def _end_race(self, winner: RangeRequest) -> None:
        """The first whole answer counts; the other's is still under way."""
        slow, hedge = self._slow, self._hedge
        if slow is None or hedge is None or winner not in (slow, hedge):
            return
        if winner is hedge:
            if any(part.state is not PartState.DONE for part in hedge.parts):
                self._hedge = None  # the replica does not have it: wait for the slow worker
                return
            for copy in hedge.parts:
                part = slow.parts[copy.number]
                part.target[:] = copy.target
                part.state = PartState.DONE
        loser = slow if winner is hedge else hedge
        self._slow = self._hedge = None
        if loser in self._streams:
            self._drop(loser)
            if loser is slow:
                self.owing.append((loser.member, loser.channel))
            else:
                loser.channel.close()

    def _drop(self, stream: RangeRequest) -> None:
        self._streams = [one for one in self._streams if one is not stream]


def _open(stream: RangeRequest) -> list[tuple[int, Part]]:
    return [(number, part) for number, part in enumerate(stream.parts) if part.state is PartState.OPEN]


def _is_silence(error: Exception) -> bool:
    return isinstance(error, PeerLostError) and bool(error.fields.get("silent"))
