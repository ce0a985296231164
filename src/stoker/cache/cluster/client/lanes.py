"""The fast path to a range that one worker sends in one frame: it keeps what requests and answers share as bytes.

A lane belongs to a chunk of an object's version, which has one owner. It is valid as long as the ring and the state of
its workers are unchanged. Everything unusual takes the normal path.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from stoker.cache.cluster.client.connection_pool import Idle
from stoker.cache.cluster.client.hedging import Durations, Hedging
from stoker.cache.cluster.client.range_request import CHUNK_BYTES
from stoker.cache.cluster.membership.ring import Member, RingRecord
from stoker.cache.cluster.messages.frames import FRAMING, RANGE, Flag, Kind, data_head, read_head
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.names import ObjectName
from stoker.cache.versions import Version

_LANES_KEPT = 4096
_SIZES_KEPT = 64


@dataclass(slots=True, eq=False)
class Lane:
    """The fast path to one chunk.

    Attributes:
        name: of the object.
        version: of it.
        chunk: number of the chunk.
        member: the worker that serves it.
        flags: of requests.
        record: of the ring that says so.
        idle: kept connections to the worker.
        asking: requests up to their range.
        expected: by the number of bytes asked for: what stands before them in an answer, and how long such take.
    """

    name: ObjectName
    version: Version
    chunk: int
    member: Member
    flags: Flag
    record: RingRecord
    idle: Idle
    asking: bytes = b""
    expected: dict[int, tuple[bytes, Durations]] = field(default_factory=dict[int, tuple[bytes, Durations]])

    def __post_init__(self) -> None:
        head = read_head(self.name.namespace, self.name.path, self.version, 1, self.flags)
        length = len(head) + RANGE.size
        self.asking = FRAMING.pack(Kind.READ, length, self.record.epoch) + head

    def ask(
        self, channel: NodeChannel, start: int, target: memoryview, timeout_s: float, hedging: Hedging
    ) -> float | None:
        """Requests a range and waits for the usual time; returns when one frame with all of it arrived (monotonic).

        On None, received bytes stay in the channel.

        Raises:
            PeerLostError: the worker is gone.
        """
        size = len(target)
        found = self.expected.get(size)
        if found is None:
            found = self._expect(size, hedging)
        head, recent = found
        delay_s = recent.delay_s
        tick_s = timeout_s if delay_s is None or delay_s > timeout_s else delay_s
        started = time.monotonic()
        if not channel.ask(self.asking + RANGE.pack(start, size), head, target, tick_s):
            return None
        answered_at = time.monotonic()
        recent.add(answered_at - started)
        return answered_at

    def _expect(self, size: int, hedging: Hedging) -> tuple[bytes, Durations]:
        if len(self.expected) >= _SIZES_KEPT:
            self.expected.clear()
        head = data_head(0, 0, self.version.digest, self.version.size, size, self.record.epoch)
        found = self.expected[size] = head, hedging.of(self.member.id, size)
        return found


class Lanes:
    """The lanes of a client; approximate where threads race, which costs a lane."""

    def __init__(self) -> None:
        self._last: Lane | None = None
        self._lanes: dict[tuple[ObjectName, Version, int], Lane] = {}

    def find(self, name: ObjectName, version: Version, start: int, record: RingRecord | None) -> Lane | None:
        """The lane to an offset of an object, if a valid one exists."""
        chunk, lane = start // CHUNK_BYTES, self._last
        if lane is None or lane.name is not name or lane.version is not version or lane.chunk != chunk:
            lane = self._lanes.get((name, version, chunk))
            if lane is None:
                return None
        if lane.record is not record or not lane.idle.holds:
            return None
        self._last = lane
        return lane

    def keep(self, lane: Lane) -> None:
        """Keeps a lane."""
        if len(self._lanes) >= _LANES_KEPT:
            self._lanes.clear()
        self._lanes[lane.name, lane.version, lane.chunk] = lane
