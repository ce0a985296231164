"""Which workers hold a page: a consistent-hash ring, and the record by which everyone builds the same one.

Pure. Equal records give equal rings in every process and release: the number of points and the name of the hash are
part of the record, and a golden test pins the positions. Owns no liveness: a worker that is lost keeps its place.

Source: Karger et al. 1997. 1000 points per unit of weight, since the largest share of 32 equal workers is then 1.08 of
the mean (200 points: 1.15, 100 points: 1.20; measured).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import cached_property

import msgspec
import xxhash

from stoker.cache.names import ObjectName
from stoker.core.errors import MembershipError

CHUNK_PAGES = 64
"""Neighbouring pages that have one owner, so that a sequential reader keeps one stream (64 MiB)."""
POINTS = 1000
"""Points on the ring of a worker of weight 1."""
HASH = "xxh3_64"
MAX_MEMBERS = 4096
MAX_WEIGHT = 100.0
MAX_RECORD_BYTES = 4 << 20
_TOP = 1 << 64


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A worker's place in the ring.

    Attributes:
        id: stable over restarts; its points depend on nothing else.
        addresses: where it listens, ``tcp://host:port`` and ``unix:///path``.
        weight: capacity against the others.
        machine: tells whether a Unix socket's path means this machine's.
    """

    id: str
    addresses: tuple[str, ...] = ()
    weight: float = 1.0
    machine: str = ""


class RingRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The record that all agree on.

    Attributes:
        epoch: rises with every change; of two records the one with the higher epoch holds.
        members: in any order, ids unique.
        points: on the ring, per unit of weight.
        hash: name of the hash function.
    """

    epoch: int
    members: tuple[Member, ...]
    points: int = POINTS
    hash: str = HASH

    def __post_init__(self) -> None:
        if self.hash != HASH:
            raise ValueError(f"`hash` of a ring must be {HASH!r}, got {self.hash!r}; run one version of stoker")
        if not 1 <= self.points <= 10 * POINTS:
            raise ValueError(f"`points` of a ring must be 1 to {10 * POINTS}, got {self.points}")
        if self.epoch < 0 or len(self.members) > MAX_MEMBERS:
            raise ValueError(f"a ring has an epoch >= 0 and at most {MAX_MEMBERS} members, got epoch {self.epoch}")
        for member in self.members:
            if not member.id or not (0.0 < member.weight <= MAX_WEIGHT):
                raise ValueError(
                    f"member {member.id!r} must have an id and a weight above 0, at most {MAX_WEIGHT}, "
                    f"got {member.weight}"
                )
        if len({member.id for member in self.members}) != len(self.members):
            raise ValueError(f"ids of members must be unique, got {sorted(member.id for member in self.members)}")

    def encode(self) -> bytes:
        """The record as JSON."""
        return msgspec.json.encode(self)


# Made once, by one thread: msgspec may crash where two threads first decode a type at the same time.
_MEMBERS, _RECORDS = msgspec.json.Decoder(Member), msgspec.json.Decoder(RingRecord)


def decode_member(data: bytes) -> Member:
    """A member from JSON; raises :class:`msgspec.MsgspecError` for anything else."""
    return _MEMBERS.decode(data)


def decode_record(data: bytes, origin: str) -> RingRecord:
    """A record from JSON.

    Args:
        data: as :meth:`RingRecord.encode` writes it.
        origin: what to name in the error.

    Raises:
        MembershipError: it is not a ring record, or one that this release cannot follow.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise MembershipError(f"`{origin}` must be at most {MAX_RECORD_BYTES} bytes, got {len(data)}", origin=origin)
    try:
        return _RECORDS.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MembershipError(f"`{origin}` must hold a ring record as JSON: {error}", origin=origin) from None


@dataclass(frozen=True)
class HashRing:
    """The ring of a record.

    Attributes:
        record: that it was built from.
    """

    record: RingRecord

    @cached_property
    def members(self) -> dict[str, Member]:
        """Members by id."""
        return {member.id: member for member in self.record.members}

    @cached_property
    def _points(self) -> tuple[list[int], list[int]]:
        """Positions in rising order, and the number of the member at each."""
        placed = [
            (xxhash.xxh3_64_intdigest(f"{member.id}#{number}".encode()), member.id, holder)
            for holder, member in enumerate(self.record.members)
            for number in range(max(1, round(self.record.points * member.weight)))
        ]
        placed.sort()  # by id where positions are equal: the order of the record does not matter
        return [point for point, _, _ in placed], [holder for _, _, holder in placed]

    def owners(self, name: ObjectName, index: int, count: int = 1) -> list[str]:
        """Ids of the owner of a page and of those that follow it, nearest first; fewer where there are not so many.

        Args:
            name: of the object.
            index: of the page.
            count: how many different members.
        """
        positions, holders = self._points
        wanted = min(count, len(self.record.members))
        start = bisect.bisect_right(positions, chunk_position(name, index))
        found: list[int] = []
        for step in range(len(positions)):
            holder = holders[(start + step) % len(positions)]
            if holder not in found:
                found.append(holder)
                if len(found) >= wanted:
                    break
        return [self.record.members[holder].id for holder in found[:wanted]]

    def shares(self) -> dict[str, float]:
        """The part of all chunks that each member owns (fractions, sum 1)."""
        positions, holders = self._points
        arcs = [0] * len(self.record.members)
        previous = positions[-1] - _TOP if positions else 0
        for position, holder in zip(positions, holders, strict=True):
            arcs[holder] += position - previous
            previous = position
        return {member.id: arc / _TOP for member, arc in zip(self.record.members, arcs, strict=True)}


def chunk_position(name: ObjectName, index: int) -> int:
    """Where the chunk of a page lies on every ring (64 bits)."""
    text = f"{len(name.namespace)}:{name.namespace}{name.path}".encode("utf-8", "surrogateescape")
    return xxhash.xxh3_64_intdigest((index // CHUNK_PAGES).to_bytes(8, "little") + text)


def newest(first: RingRecord | None, second: RingRecord | None) -> RingRecord | None:
    """The newer of two records, each of which may be missing; the first if both have one epoch."""
    if first is None or second is None:
        return first if second is None else second
    return second if second.epoch > first.epoch else first
