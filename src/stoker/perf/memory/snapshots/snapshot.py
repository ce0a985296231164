"""What a memory snapshot of torch says: when each buffer lived, which line made it, and what the allocator had.

A snapshot holds the segments at its end and the latest events before it. Undoing these from the end gives the state at
their start, so that nothing needs to be known of what was before.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import PurePosixPath
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from stoker.perf.memory.allocator import AllocatorReplay, rounded, splits
from stoker.perf.memory.snapshots.snapshot_file import CudaSnapshot, SnapshotBlock, SnapshotEvent, SnapshotSegment

Pool = tuple[int, int, int]
"""Stream, and id of the memory pool: their blocks never serve others."""
_AFTER_ALL = 1 << 60
"""Addresses of segments that the recorded run did not ask for: above all that a device has."""
_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib/python3\.\d+/|/torch/(nn|autograd|optim|utils|_\w+|distributed|amp|cuda|functional)\b|^<"
)
BACKWARD = "(backward pass)"
"""Stands for the line of what autograd's own threads made: they run no line of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBuffer:
    """A requested piece of memory.

    Attributes:
        address: of its block.
        bytes: requested.
        block: bytes of its block; 0 where no record has them.
        birth: events until it was there; 0 if it was before the first one.
        death: events until it was free again; one more than all events if it never was.
        line: of the program that made it; empty if that is not known.
        pool: that it came from.
    """

    address: int
    bytes: int
    block: int
    birth: int
    death: int
    line: str
    pool: Pool

    @property
    def held(self) -> int:
        """Bytes of its block, at least."""
        return self.block or rounded(self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHistory:
    """A device's memory from the first recorded event to the end.

    Attributes:
        device: its number.
        events: what the allocator did.
        buffers: in the order of their births.
        segments: address, bytes and whether of small requests, by pool, before the first event.
        reserved: bytes that the allocator had before the first event and after each; shape (events + 1,).
        expandable: whether segments grow.
        lines: lines that asked when memory ran out, by the number of events before.
    """

    device: int
    events: tuple[SnapshotEvent, ...]
    buffers: tuple[SnapshotBuffer, ...]
    segments: Mapping[Pool, tuple[tuple[int, int, bool], ...]]
    reserved: NDArray[np.int64]
    expandable: bool
    lines: Mapping[int, str]

    @property
    def requested(self) -> NDArray[np.int64]:
        """Bytes of buffers before the first event and after each; shape (events + 1,)."""
        change = np.zeros(len(self.events) + 2, dtype=np.int64)
        for each in self.buffers:
            change[each.birth] += each.bytes
            change[each.death] -= each.bytes
        return np.cumsum(change[:-1])

    @property
    def ran_out(self) -> int | None:
        """Events before memory ran out for the last time; None if it never did."""
        return next((at for at in reversed(range(len(self.events))) if self.events[at].action == "oom"), None)

    def alive(self, at: int) -> list[SnapshotBuffer]:
        """Buffers after so many events."""
        return [each for each in self.buffers if each.birth <= at < each.death]


def devices_of(snapshot: CudaSnapshot) -> list[int]:
    """Devices that the process had memory of, the most interesting first: where it ran out, then by reserved bytes."""
    reserved: dict[int, int] = {}
    for segment in snapshot.segments:
        reserved[segment.device] = reserved.get(segment.device, 0) + segment.total_size
    for device, events in enumerate(snapshot.device_traces):
        if events:
            reserved.setdefault(device, 0)

    def interest(device: int) -> tuple[bool, int]:
        events = snapshot.device_traces[device] if 0 <= device < len(snapshot.device_traces) else []
        return any(event.action == "oom" for event in events), reserved[device]

    return sorted(reserved, key=interest, reverse=True)


def history_of(snapshot: CudaSnapshot, device: int) -> SnapshotHistory:
    """The history of a device of :func:`devices_of`."""
    events = tuple(snapshot.device_traces[device]) if 0 <= device < len(snapshot.device_traces) else ()
    segments = [segment for segment in snapshot.segments if segment.device == device]
    lines = _Lines()
    ends = _Ends(len(events) + 1)
    for segment in segments:
        for block in segment.blocks:
            if block.state != "inactive":
                ends.add(block, _pool(segment), lines.of(block.frames))
    ranges = _Ranges((segment.address, segment.total_size) for segment in segments)
    reserved = np.zeros(len(events) + 1, dtype=np.int64)
    reserved[-1] = ranges.total
    # Backwards: an allocation ends the life that began with it, a free begins one.
    for at in range(len(events), 0, -1):
        ends.undo(events[at - 1], at, lines)
        ranges.undo(events[at - 1])
        reserved[at - 1] = ranges.total
    buffers = ends.finished()
    pools = {segment.address: _pool(segment) for segment in segments}
    pools |= {event.addr: (event.stream, *event.pool_id) for event in events if event.action == "segment_alloc"}
    return SnapshotHistory(
        device=device, events=events, buffers=buffers, segments=_by_pool(ranges, pools, segments, buffers),
        reserved=reserved, expandable=any(segment.is_expandable for segment in segments) or any(
            event.action == "segment_map" for event in events
        ),
        lines={at: lines.of(event.frames) for at, event in enumerate(events) if event.action == "oom"},
    )  # fmt: skip


def pieces_at(snapshot: CudaSnapshot, history: SnapshotHistory, at: int) -> dict[int, int]:
    """Bytes by address of what the allocator had from the device after so many events."""
    ranges = _Ranges(
        (segment.address, segment.total_size) for segment in snapshot.segments if segment.device == history.device
    )
    for event in reversed(history.events[at:]):
        ranges.undo(event)
    return ranges.pieces


def _pool(segment: SnapshotSegment) -> Pool:
    return (segment.stream, *segment.segment_pool_id)


@dataclass(slots=True)
class _Life:
    """A buffer whose beginning is not reached yet."""

    address: int
    bytes: int
    block: int
    death: int
    line: str
    pool: Pool


class _Ends:
    """Lives of buffers, found from their ends."""

    def __init__(self, never: int) -> None:
        self._never = never
        self._open: dict[int, _Life] = {}
        self._found: list[tuple[_Life, int]] = []

    def add(self, block: SnapshotBlock, pool: Pool, line: str) -> None:
        """A buffer that is there at the end."""
        self._open[block.address] = _Life(
            block.address, block.requested_size or block.size, block.size, self._never, line, pool
        )  # fmt: skip

    def undo(self, event: SnapshotEvent, at: int, lines: _Lines) -> None:
        """Takes back an event, the ``at``-th one counted from 1."""
        if event.action == "alloc":
            life = self._open.pop(event.addr, None)
            if life is not None:
                life.line = lines.of(event.frames) or life.line
                self._found.append((life, at))
        elif event.action == "free_completed":
            other = self._open.pop(event.addr, None)
            if other is not None:  # its allocation is missing
                self._found.append((other, at))
            size, pool = event.size, (event.stream, *event.pool_id)
            self._open[event.addr] = _Life(event.addr, size, 0, at, "", pool)

    def finished(self) -> tuple[SnapshotBuffer, ...]:
        """All lives, in the order of their births."""
        found = [*self._found, *((life, 0) for life in self._open.values())]
        buffers = [
            SnapshotBuffer(
                address=life.address, bytes=life.bytes, block=life.block, birth=birth, death=life.death,
                line=life.line, pool=life.pool,
            )
            for life, birth in found
        ]  # fmt: skip
        return tuple(sorted(buffers, key=lambda each: (each.birth, each.address)))


class _Ranges:
    """Memory that the allocator has: pieces by address."""

    def __init__(self, pieces: Iterable[tuple[int, int]]) -> None:
        self.pieces = dict(pieces)
        self.total = sum(self.pieces.values())

    def undo(self, event: SnapshotEvent) -> None:
        """Takes back what an event did to them."""
        if event.action in ("segment_alloc", "segment_map"):
            self._take(event.addr, event.size)
        elif event.action in ("segment_free", "segment_unmap") and event.size:
            self.total += event.size - self.pieces.get(event.addr, 0)
            self.pieces[event.addr] = event.size

    def _take(self, address: int, size: int) -> None:
        """Takes a range out of the piece that holds it; a piece that grows is left in two parts."""
        start = address if address in self.pieces else next(
            (start for start, length in self.pieces.items() if start <= address < start + length), None
        )  # fmt: skip
        if start is None:
            return
        length = self.pieces.pop(start)
        end, self.total = min(address + size, start + length), self.total - length
        for left, right in ((start, address), (end, start + length)):
            if right > left:
                self.pieces[left] = right - left
                self.total += right - left


class _Lines:
    """Lines of the program by stacks; files under one name where that name is unique."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, frames: list[Any]) -> str:
        """The innermost line of a stack that is neither a library's nor torch's, as ``/path/train.py:31``."""
        found = self._known.get(id(frames))
        if found is None:
            found = self._known[id(frames)] = _line_of(frames)
        return found


def _line_of(frames: list[Any]) -> str:
    by_autograd = False
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        known = cast("dict[str, object]", frame)
        filename, line = known.get("filename"), known.get("line")
        by_autograd = by_autograd or "autograd::Engine" in str(known.get("name", ""))
        if isinstance(filename, str) and filename.endswith(".py") and not _LIBRARY.search(filename):
            return f"{filename}:{line if isinstance(line, int) else 0}"
    return BACKWARD if by_autograd else ""


def short_lines(lines: Iterable[str]) -> dict[str, str]:
    """Lines with as little of their paths as tells the files apart."""
    files = {line: line.rpartition(":")[0] for line in lines}
    names: dict[str, set[str]] = {}
    for file in files.values():
        names.setdefault(PurePosixPath(file).name, set()).add(file)

    def shown(line: str, file: str) -> str:
        name = PurePosixPath(file).name
        return f"{name}{line[len(file) :]}" if file and len(names[name]) == 1 else line

    return {line: shown(line, file) for line, file in files.items()}


def _by_pool(
    ranges: _Ranges, pools: Mapping[int, Pool], segments: Sequence[SnapshotSegment],
    buffers: Sequence[SnapshotBuffer],
) -> dict[Pool, tuple[tuple[int, int, bool], ...]]:  # fmt: skip
    """Segments before the first event by pool; where no record names it, the pool of the buffers inside."""
    small = {segment.address: segment.segment_type == "small" for segment in segments}
    first = sorted((each.address, each.pool) for each in buffers if each.birth == 0)
    found: dict[Pool, list[tuple[int, int, bool]]] = {}
    for address, size in sorted(ranges.pieces.items()):
        place = bisect_right(first, (address, (-1 << 62, 0, 0)))
        inside = first[place][1] if place < len(first) and first[place][0] < address + size else (0, 0, 0)
        pool = pools.get(address, inside)
        found.setdefault(pool, []).append((address, size, small.get(address, size <= 2 << 20)))
    return {pool: tuple(pieces) for pool, pieces in found.items()}


@dataclass(frozen=True, slots=True)
class SnapshotReplay:
    """What another run of the same requests reserves.

    Attributes:
        reserved: most bytes.
        requests: that were replayed.
        equal: of these, how many got the recorded address.
    """

    reserved: int
    requests: int
    equal: int


def replay_snapshot(history: SnapshotHistory, *, expandable: bool) -> SnapshotReplay | None:
    """The recorded requests under torch's default settings, or with expandable segments.

    Without expandable segments, neither recorded nor asked for, the replay begins with the recorded segments and gets
    the recorded addresses of new ones; otherwise it begins with nothing. None if the records contradict each other.
    """
    from_start = not expandable and not history.expandable
    run = _SnapshotRun(history, expandable, from_start)
    if from_start:
        if not run.restore():
            return None
    else:
        for place, each in enumerate(history.buffers):
            if each.birth == 0:
                run.allocate(place)
    run.play()
    return SnapshotReplay(run.most, run.requests, run.equal)


@dataclass(slots=True)
class _SnapshotRun:
    """The replays of all pools."""

    history: SnapshotHistory
    expandable: bool
    from_start: bool
    most: int = 0
    requests: int = 0
    equal: int = 0
    _pools: dict[Pool, AllocatorReplay] = field(default_factory=dict[Pool, AllocatorReplay])
    _given: dict[Pool, list[tuple[int, int]]] = field(default_factory=dict[Pool, list[tuple[int, int]]])
    _addresses: dict[int, int] = field(default_factory=dict[int, int])
    _above: int = _AFTER_ALL

    def restore(self) -> bool:
        """Begins with the recorded segments; False if what is alive does not fit them."""
        alive: dict[Pool, list[SnapshotBuffer]] = {}
        for place, each in enumerate(self.history.buffers):
            if each.birth == 0:
                alive.setdefault(each.pool, []).append(each)
                self._addresses[place] = each.address
        ranges = sorted(segment for each in self.history.segments.values() for segment in each)
        overlap = any(one[0] + one[1] > two[0] for one, two in pairwise(ranges))
        if overlap or not set(alive) <= set(self.history.segments):
            return False
        for pool, segments in self.history.segments.items():
            blocks = _blocks_in(segments, alive.get(pool, []))
            if blocks is None:
                return False
            self._of(pool).restore(segments, blocks)
        self.most = self._reserved()
        return True

    def play(self) -> None:
        """Replays all events."""
        births: dict[int, int] = {}
        deaths: dict[int, int] = {}
        for place, each in enumerate(self.history.buffers):
            if each.birth:
                births[each.birth] = place
            deaths[each.death] = place
        if self.from_start:
            for event in reversed(self.history.events):
                if event.action == "segment_alloc":
                    given = self._given.setdefault((event.stream, *event.pool_id), [])
                    given.append((event.size, event.addr))
        for at, event in enumerate(self.history.events, start=1):
            if event.action == "alloc" and at in births:
                self.requests += 1
                self.equal += self.allocate(births[at]) == event.addr
            elif event.action == "free_completed" and at in deaths:
                buffer = self.history.buffers[deaths[at]]
                address = self._addresses.pop(deaths[at], None)
                if address is not None:
                    self._of(buffer.pool).free(address)
            elif event.action == "segment_free":
                self._of((event.stream, *event.pool_id)).release_all()

    def allocate(self, place: int) -> int:
        """The address that the buffer at this place gets."""
        buffer = self.history.buffers[place]
        address = self._addresses[place] = self._of(buffer.pool).allocate(buffer.bytes)
        self.most = max(self.most, self._reserved())
        return address

    def _reserved(self) -> int:
        return sum(each.reserved for each in self._pools.values())

    def _of(self, pool: Pool) -> AllocatorReplay:
        if pool not in self._pools:
            self._pools[pool] = AllocatorReplay(
                expandable=self.expandable,
                address_of=(lambda size: self._next(pool, size)) if self.from_start else None,
            )
        return self._pools[pool]

    def _next(self, pool: Pool, size: int) -> int:
        """The recorded address of the next segment if that has this size and is free, else one that no segment has."""
        given = self._given.get(pool, [])
        if given and given[-1][0] == size:
            address = given.pop()[1]
            others = (item for each in self._pools.values() for item in each.segments.items())
            if all(address + size <= start or start + length <= address for start, length in others):
                return address
        self._above += size
        return self._above - size


def _blocks_in(
    segments: Sequence[tuple[int, int, bool]], buffers: Sequence[SnapshotBuffer]
) -> list[tuple[int, int]] | None:
    """Address and bytes of blocks, those with a rest that is too small to split off included; None if some overlap.

    A block that is freed among the events left no record of such a rest.
    """
    found: list[tuple[int, int]] = []
    taken = sorted(buffers, key=lambda each: each.address)
    starts = [segment[0] for segment in segments]
    for each, after in zip_longest(taken, taken[1:]):
        place = bisect_right(starts, each.address) - 1
        if place < 0:
            return None
        start, size, small = segments[place]
        end = start + size if after is None else min(start + size, after.address)
        rest = end - each.address - each.held
        if rest < 0:
            return None
        found.append((each.address, each.held if each.block or splits(rest, small=small) else each.held + rest))
    return found
