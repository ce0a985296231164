"""A replay of torch's caching allocator for CUDA: which addresses it gives, and what it reserves.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.x, default settings and expandable segments, one stream. Requests
are rounded up to 512 bytes. Those of at most 1 MiB come from segments of 2 MiB, those below 10 MiB from segments of
20 MiB, larger ones from a segment of their size, rounded up to 2 MiB. The best fit by size, then address, is taken, and
split if its rest is worth it; neighbours that are free merge.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_ROUND = 512
_SMALL = 1 << 20
_SMALL_SEGMENT, _LARGE_SEGMENT = 2 << 20, 20 << 20
_LEAST_OWN = 10 << 20
"""Requests of this size and more get a segment of their size."""
_ROUND_OWN = 2 << 20
_GAP = 1 << 45
"""Bytes between the address ranges of two expandable segments: more than any GPU has."""


def rounded(size: int) -> int:
    """Bytes of the block that a request takes at least."""
    return max(_ROUND, -(-size // _ROUND) * _ROUND)


def segment_bytes(size: int) -> int:
    """Bytes of the segment that is reserved for a block of ``size`` bytes."""
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if size < _LEAST_OWN else -(-size // _ROUND_OWN) * _ROUND_OWN


def splits(rest: int, *, small: bool) -> bool:
    """Whether a block is split for a request that leaves ``rest`` bytes of it."""
    return rest >= _ROUND if small else rest > _SMALL


class DeviceFullError(Exception):
    """A replayed request does not fit the device, also after the release of what is reserved and free.

    Attributes:
        size: requested bytes.
        reserved: bytes that are reserved at that time.
    """

    def __init__(self, size: int, reserved: int) -> None:
        super().__init__(f"`size` must fit the device, got {size} bytes on top of {reserved} reserved")
        self.size, self.reserved = size, reserved


@dataclass(slots=True, eq=False)
class _Block:
    address: int
    size: int
    small: bool
    segment: int
    """Address of its segment."""
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None


class AllocatorReplay:
    """The allocator's state; requests and frees change it.

    Args:
        expandable: whether ``expandable_segments:True`` is set: each kind of request has one segment that grows.
        limit: bytes that may be reserved; infinite by default.
        address_of: gives the address of a new segment from its bytes, as the driver would; by default, one after the
            other.
    """

    def __init__(
        self, *, expandable: bool = False, limit: float = math.inf, address_of: Callable[[int], int] | None = None
    ) -> None:
        self._expandable, self._limit = expandable, limit
        self._address_of = address_of or self._next
        self._blocks: dict[int, _Block] = {}
        """Allocated blocks by address."""
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        """Size and address of free blocks in ascending order; of small requests, and of others."""
        self._at: dict[int, _Block] = {}
        """Free blocks by address."""
        self.segments: dict[int, int] = {}
        """Bytes of each segment by address."""
        self._tails: dict[int, _Block] = {}
        """The last block of each segment."""
        self._end = 0
        self.reserved = 0
        self.allocated = 0
        """Bytes of allocated blocks, rounding included."""
        self.peak_reserved = 0
        self.peak_allocated = 0

    def restore(self, segments: Iterable[tuple[int, int, bool]], blocks: Iterable[tuple[int, int]]) -> None:
        """Starts from a state: segments as (address, bytes, whether of small requests), blocks as (address, bytes)."""
        taken = sorted(blocks)
        for address, size, small in sorted(segments):
            self._reserve(address, size)
            start = bisect_left(taken, (address, 0))
            at, last = address, None
            for place, length in taken[start:]:
                if place >= address + size:
                    break
                if place > at:
                    last = self._append(last, _Block(at, place - at, small, address))
                last = self._append(last, _Block(place, length, small, address, free=False))
                at = place + length
            if at < address + size:
                self._append(last, _Block(at, address + size - at, small, address))

    def allocate(self, size: int) -> int:
        """Address of a block of at least ``size`` bytes.

        Raises:
            DeviceFullError: the limit does not allow it.
        """
        wanted = rounded(size)
        small = wanted <= _SMALL
        free = self._free[small]
        place = self._best(wanted, free)
        if place < len(free):
            block = self._at.pop(free.pop(place)[1])
        else:
            block = self._grown(wanted, small) if self._expandable else self._reserved_for(wanted, small)
        rest = block.size - wanted
        if splits(rest, small=small or self._expandable):
            left = _Block(block.address + wanted, rest, small, block.segment, before=block, after=block.after)
            if left.after is not None:
                left.after.before = left
            else:
                self._tails[block.segment] = left
            block.size, block.after = wanted, left
            self._put_in(left)
        block.free = False
        self._blocks[block.address] = block
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block.address

    def free(self, address: int) -> None:
        """Frees the block at an address."""
        block = self._blocks.pop(address)
        self.allocated -= block.size
        block.free = True
        if block.before is not None and block.before.free:
            self._take_out(block.before)
            block = self._merged(block.before, block)
        if block.after is not None and block.after.free:
            self._take_out(block.after)
            block = self._merged(block, block.after)
        self._put_in(block)

    def release(self, address: int) -> None:
        """Returns a segment without allocated blocks to the driver, as ``empty_cache`` does."""
        block = self._at[address]
        assert block.before is None
        assert block.after is None
        self._take_out(block)
        self.reserved -= self.segments.pop(address)

    def release_all(self) -> None:
        """Returns every segment without allocated blocks; segments that grow keep what they have."""
        if not self._expandable:
            whole = [block for block in self._at.values() if block.size == self.segments[block.segment]]
            for block in whole:
                self.release(block.address)

    def blocks(self) -> list[tuple[int, int]]:
        """Address and bytes of each allocated block, in the order of addresses."""
        return sorted((address, block.size) for address, block in self._blocks.items())

    def _best(self, wanted: int, free: list[tuple[int, int]]) -> int:
        """Place of the best fit among free blocks; their number if none fits."""
        place = bisect_left(free, (wanted, 0))
        if self._expandable and place + 1 < len(free) and self._at[free[place][1]].after is None:
            # The end of a segment that grows counts as large as it may become.
            place += 1
        return place

    def _reserved_for(self, wanted: int, small: bool) -> _Block:
        """A segment, whole and not among free blocks yet."""
        size = segment_bytes(wanted)
        self._make_room(size)
        address = self._address_of(size)
        self._reserve(address, size)
        return _Block(address, size, small, address)

    def _grown(self, wanted: int, small: bool) -> _Block:
        """The end of the segment, extended by as many pages as the request lacks, and taken out of free blocks."""
        segment = 0 if small else _GAP
        last = self._tails.get(segment)
        has = last.size if last is not None and last.free else 0
        page = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        more = -(-(wanted - has) // page) * page
        self._make_room(more)
        end = segment + self.segments.get(segment, 0)
        self._reserve(segment, more)
        if last is not None and last.free:
            self._take_out(last)
            last.size += more
            return last
        return self._linked(last, _Block(end, more, small, segment))

    def _make_room(self, more: int) -> None:
        """Returns free segments if the limit asks for it, as the allocator does when the driver refuses."""
        if self.reserved + more <= self._limit:
            return
        self.release_all()
        if self.reserved + more > self._limit:
            raise DeviceFullError(more, self.reserved)

    def _reserve(self, address: int, size: int) -> None:
        self.segments[address] = self.segments.get(address, 0) + size
        self._end = max(self._end, address + size)
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _next(self, _: int) -> int:
        return self._end

    def _append(self, last: _Block | None, block: _Block) -> _Block:
        """Puts a block behind the last one of its segment, free or allocated."""
        self._linked(last, block)
        if block.free:
            self._put_in(block)
        else:
            self._blocks[block.address] = block
            self.allocated += block.size
            self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def _linked(self, last: _Block | None, block: _Block) -> _Block:
        block.before = last
        if last is not None:
            last.after = block
        self._tails[block.segment] = block
        return block

    def _merged(self, first: _Block, second: _Block) -> _Block:
        first.size += second.size
        first.free = True
        first.after = second.after
        if first.after is not None:
            first.after.before = first
        else:
            self._tails[first.segment] = first
        return first

    def _put_in(self, block: _Block) -> None:
        insort(self._free[block.small], (block.size, block.address))
        self._at[block.address] = block

    def _take_out(self, block: _Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.address))]
        del self._at[block.address]
