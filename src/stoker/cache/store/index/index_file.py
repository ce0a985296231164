"""The index file: directory, table descriptors, buckets, and their free list.

A sparse file, mapped for reading and written by ``pwrite``. A table is rewritten into free buckets, and then the
directory is switched to it, so that readers without a lock find either the old table or the new one. A process that
dies between two writes leaves some unused buckets, nothing worse.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoker.cache.store.files.holes import Span, fill_for_reading, flags_for

SLOT_BYTES = 48
SLOTS = 85
"""Slots of a bucket; a flag after them says that an entry of this bucket is in a later one."""
BUCKET_BYTES = 4096
OVERFLOW_AT = SLOTS * SLOT_BYTES
MOST_BUCKETS_OF_TABLE = 16
FILL_FRAC = 0.87
"""Load of a table that was just rewritten."""

_MAGIC = int.from_bytes(b"STKINDX1", "little")
DEPTH, _BUCKETS, _FREE_BUCKETS, _TABLES, _FREE_TABLES = 1, 2, 3, 4, 5
MOST_DEPTH = 18
_MOST_TABLES = 1 << MOST_DEPTH
_MOST_BUCKETS = 1 << 22
_DIRECTORY_AT = 4096
DIRECTORY_CELL = _DIRECTORY_AT >> 3
TABLE_WORDS = 32
_TABLES_AT = _DIRECTORY_AT + (16 << MOST_DEPTH)
TABLES_WORD = _TABLES_AT >> 2
_FREE_BUCKETS_AT = _TABLES_AT + 4 * TABLE_WORDS * _MOST_TABLES
_FREE_TABLES_AT = _FREE_BUCKETS_AT + 4 * _MOST_BUCKETS
BUCKETS_AT = _FREE_TABLES_AT + 4 * _MOST_TABLES
_SMALLEST_BYTES = BUCKETS_AT + (1 << 20)
_U64 = struct.Struct("<Q")
_HASHES = struct.Struct("<QI")
_SEGMENT_CELL = slice(36, 40)
_BUCKET_HASH = slice(8, 12)
_SLOT_VALUE = np.dtype((np.void, SLOT_BYTES))

Slots = np.ndarray[Any, np.dtype[np.uint8]]


class MappedIndex(NamedTuple):
    """The file as currently mapped: its bytes, its cells of 64 and of 32 bits."""

    data: mmap.mmap
    cells: memoryview[int]
    words: memoryview[int]


class KeyPlace(NamedTuple):
    """Where a key belongs.

    Attributes:
        data: the mapped file.
        words: its cells of 32 bits.
        buckets: cell that holds the number of the table's first bucket; the others follow.
        num_buckets: of the table.
        first: which bucket is searched first.
    """

    data: mmap.mmap
    words: memoryview[int]
    buckets: int
    num_buckets: int
    first: int


class IndexFile:
    """The index on disk. All but :meth:`place` and :attr:`view` needs the publish lock.

    Attributes:
        view: the file as currently mapped.
    """

    def __init__(self, path: Path, *, reads_only: bool = False) -> None:
        self._fd = os.open(path, flags_for(reads_only=reads_only), 0o600)
        if not self._is_valid():
            if reads_only:
                raise OSError(errno.EIO, "the page index is damaged")
            # Only power loss can do this: a new file, since other processes may have this one mapped.
            os.close(self._fd)
            path.unlink()
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, _SMALLEST_BYTES)
            # The directory is read before there is a table, which needs space on some filesystems.
            self.write(0, _U64.pack(_MAGIC).ljust(2 * _DIRECTORY_AT, b"\0"))
        fill_for_reading(self._fd, path, self._used())
        self.remap()

    def _used(self) -> list[Span]:
        """Parts of the file that are read."""
        _, depth, buckets, free_buckets, tables, free_tables = struct.unpack("<6Q", os.pread(self._fd, 48, 0))
        return [
            (0, _DIRECTORY_AT + (16 << depth)),
            (_TABLES_AT, _TABLES_AT + 4 * TABLE_WORDS * tables),
            (_FREE_BUCKETS_AT, _FREE_BUCKETS_AT + 4 * free_buckets),
            (_FREE_TABLES_AT, _FREE_TABLES_AT + 4 * free_tables),
            (BUCKETS_AT, BUCKETS_AT + BUCKET_BYTES * buckets),
        ]

    def _is_valid(self) -> bool:
        size = os.fstat(self._fd).st_size
        if not size:
            return True
        head = os.pread(self._fd, 48, 0)
        if len(head) < 48 or size < _SMALLEST_BYTES:
            return False
        magic, depth, buckets, free_buckets, tables, free_tables = struct.unpack("<6Q", head)
        return (
            magic in (0, _MAGIC)
            and depth <= MOST_DEPTH
            and free_buckets <= buckets <= _MOST_BUCKETS
            and free_tables <= tables <= _MOST_TABLES
        )

    def close(self) -> None:
        """Unmap the file; the map goes with its last reader."""
        os.close(self._fd)
        self._fd = -1

    @property
    def num_bytes(self) -> int:
        """Bytes of the file that are on disk."""
        return os.fstat(self._fd).st_blocks * 512

    @property
    def num_buckets(self) -> int:
        """Buckets that were ever used."""
        return self.view.cells[_BUCKETS]

    @property
    def is_empty(self) -> bool:
        """Whether there never was a table."""
        return not self.view.cells[_TABLES]

    def remap(self) -> None:
        """Map all of a file that has grown."""
        size = os.fstat(self._fd).st_size
        data = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        whole = memoryview(data)
        self.view = MappedIndex(data, whole.cast("Q"), whole.cast("I"))

    def remap_if_longer(self) -> bool:
        """Remap the file if it has grown; return whether it had."""
        if os.fstat(self._fd).st_size <= len(self.view.data):
            return False
        self.remap()
        return True

    def write(self, offset: int, content: bytes) -> None:
        """Write into the file.

        Raises:
            OSError: the disk is full.
        """
        done = os.pwrite(self._fd, content, offset)
        if done != len(content):
            raise OSError(errno.ENOSPC, "the page index could not be written")

    def place(self, key: bytes) -> KeyPlace | None:
        """Where a key belongs; None if there is no table for it yet.

        Raises:
            IndexError: the file is damaged, or longer than it is mapped.
        """
        data, cells, words = self.view
        hashes: tuple[int, int] = _HASHES.unpack_from(key)
        high, low = hashes
        depth = cells[DEPTH]
        if depth > MOST_DEPTH:
            raise IndexError(depth)
        entry = cells[DIRECTORY_CELL + (1 << depth) + (high >> (64 - depth))]
        if not entry:
            return None
        table = (entry & 0xFFFFFFFF) - 1
        num_buckets = entry >> 32 & 0xFF
        return KeyPlace(data, words, TABLES_WORD + table * TABLE_WORDS, num_buckets, low * num_buckets >> 32)

    def rewrite(self, key: bytes, alive: np.ndarray[Any, np.dtype[Any]]) -> None:
        """Rewrite the table of a key, without dead slots and with room for more.

        Args:
            key: any key of the table.
            alive: numbers of the files whose slots stay, sorted.

        Raises:
            OSError: the disk is full, or the index damaged or as large as it can be; nothing has changed.
        """
        if not self._is_valid():
            raise OSError(errno.EIO, "the page index is damaged")
        cells = self.view.cells
        high = int.from_bytes(key[:8], "little")
        depth = cells[DEPTH]
        entry = cells[DIRECTORY_CELL + (1 << depth) + (high >> (64 - depth))]
        local = entry >> 40 & 0xFF if entry else depth
        slots = self._slots_of(entry)
        if len(slots):
            numbers = np.ascontiguousarray(slots[:, _SEGMENT_CELL]).view("<u4")[:, 0]
            # As `np.isin`, which takes several times longer for so few.
            places = np.searchsorted(alive, numbers)
            slots = slots[np.append(alive, 0)[places] == numbers]
        if _buckets_for(len(slots)) <= MOST_BUCKETS_OF_TABLE:
            self._switch(high, local, [slots])
        else:
            if local == depth:
                self._double()
            hashes = np.ascontiguousarray(slots[:, :8]).view("<u8")[:, 0]
            upper = (hashes >> np.uint64(63 - local) & np.uint64(1)).astype(bool)
            self._switch(high, local, [slots[~upper], slots[upper]])
        self._release(entry)

    def _slots_of(self, entry: int) -> Slots:
        """All used slots of a table."""
        parts = [
            np.frombuffer(self.view.data, np.uint8, OVERFLOW_AT, BUCKETS_AT + bucket * BUCKET_BYTES)
            for bucket in self._buckets_of(entry)
        ]
        if not parts:
            return np.empty((0, SLOT_BYTES), np.uint8)
        slots = np.concatenate(parts).reshape(-1, SLOT_BYTES)
        return slots[slots[:, -1] != 0]

    def _buckets_of(self, entry: int) -> list[int]:
        if not entry:
            return []
        first = TABLES_WORD + ((entry & 0xFFFFFFFF) - 1) * TABLE_WORDS
        return self.view.words[first : first + (entry >> 32 & 0xFF)].tolist()

    def _switch(self, high: int, local: int, parts: Sequence[Slots]) -> None:
        """Write one table, or two for the halves of its keys, and switch the directory to them."""
        depth = self.view.cells[DEPTH]
        entries: list[int] = []
        try:
            for slots in parts:
                entries.append(self._write_table(slots))  # noqa: PERF401 - those before a failure are released
        except OSError:
            for entry in entries:
                self._release(entry)
            raise
        bits = local + len(parts) - 1
        each = 1 << (depth - bits)
        content = b"".join(_U64.pack(entry | bits << 40) * each for entry in entries)
        first = (high >> (64 - local)) << (depth - local)
        self.write(_DIRECTORY_AT + 8 * ((1 << depth) + first), content)

    def _double(self) -> None:
        """Extend the directory by one bit."""
        cells = self.view.cells
        depth = cells[DEPTH]
        if depth == MOST_DEPTH:
            raise OSError(errno.ENOSPC, "the page index has reached its largest size")
        first = DIRECTORY_CELL + (1 << depth)
        entries = np.array(cells[first : first + (1 << depth)], "<u8").repeat(2)
        self.write(_DIRECTORY_AT + (16 << depth), entries.tobytes())
        self.write(8 * DEPTH, _U64.pack(depth + 1))

    def _write_table(self, slots: Slots) -> int:
        """Write a table into free buckets; return its directory entry without the depth."""
        # One of two halves may have all keys, which fitted into the most buckets before.
        number = min(_buckets_for(len(slots)), MOST_BUCKETS_OF_TABLE)
        buckets = self._take(number, _BUCKETS, _FREE_BUCKETS, _FREE_BUCKETS_AT, _MOST_BUCKETS)
        try:
            self._reach(max(buckets))
            for bucket, content in zip(buckets, _bucket_contents(slots, number), strict=True):
                self.write(BUCKETS_AT + bucket * BUCKET_BYTES, content)
            table = self._take(1, _TABLES, _FREE_TABLES, _FREE_TABLES_AT, _MOST_TABLES)[0]
            self.write(_TABLES_AT + 4 * TABLE_WORDS * table, struct.pack(f"<{number}I", *buckets))
        except OSError:
            self._give(buckets, _FREE_BUCKETS, _FREE_BUCKETS_AT)
            raise
        return table + 1 | number << 32

    def _release(self, entry: int) -> None:
        """Free the buckets of a table that is no longer used."""
        if entry:
            self._give(self._buckets_of(entry), _FREE_BUCKETS, _FREE_BUCKETS_AT)
            self._give([(entry & 0xFFFFFFFF) - 1], _FREE_TABLES, _FREE_TABLES_AT)

    def _take(self, number: int, used_cell: int, free_cell: int, stack_at: int, most: int) -> list[int]:
        """Numbers from a stack of free ones, and fresh ones if these are not enough."""
        cells, words = self.view.cells, self.view.words
        free, used = cells[free_cell], cells[used_cell]
        from_stack = min(free, number)
        fresh = number - from_stack
        if used + fresh > most:
            raise OSError(errno.ENOSPC, "the page index has reached its largest size")
        top = (stack_at >> 2) + free
        numbers = [*words[top - from_stack : top].tolist(), *range(used, used + fresh)]
        self.write(8 * free_cell, _U64.pack(free - from_stack))
        self.write(8 * used_cell, _U64.pack(used + fresh))
        return numbers

    def _give(self, numbers: Sequence[int], free_cell: int, stack_at: int) -> None:
        free = self.view.cells[free_cell]
        self.write(stack_at + 4 * free, struct.pack(f"<{len(numbers)}I", *numbers))
        self.write(8 * free_cell, _U64.pack(free + len(numbers)))

    def _reach(self, bucket: int) -> None:
        """Make the file long enough for a bucket."""
        needed = BUCKETS_AT + (bucket + 1) * BUCKET_BYTES
        size = os.fstat(self._fd).st_size
        if needed > size:
            # Twice as many buckets: each remapping faults the file in again, so remappings must be rare.
            os.ftruncate(self._fd, BUCKETS_AT + 2 * (size - BUCKETS_AT))
        if needed > len(self.view.data):
            self.remap()


def _buckets_for(num_slots: int) -> int:
    return max(1, int(np.ceil(num_slots / (SLOTS * FILL_FRAC))))


def _bucket_contents(slots: Slots, number: int) -> list[bytes]:
    """Slots distributed to ``number`` buckets by their keys; those without room go to the next one."""
    homes = (np.ascontiguousarray(slots[:, _BUCKET_HASH]).view("<u4")[:, 0].astype(np.uint64) * number) >> np.uint64(32)
    order = np.argsort(homes, kind="stable")
    homes = homes[order].astype(np.intp)
    # As one value each: copying rows of bytes takes several times longer.
    values = np.ascontiguousarray(slots).view(_SLOT_VALUE)[:, 0][order]
    rank = np.arange(len(values)) - np.searchsorted(homes, np.arange(number))[homes]
    content = np.zeros(number * SLOTS, _SLOT_VALUE)
    at_home = rank < SLOTS
    content[homes[at_home] * SLOTS + rank[at_home]] = values[at_home]
    filled = np.minimum(np.bincount(homes, minlength=number), SLOTS).tolist()
    overflows = np.zeros(number, np.uint8)
    for home, value in zip(homes[~at_home].tolist(), values[~at_home], strict=True):
        bucket = home
        while filled[bucket] == SLOTS:
            overflows[bucket] = 1
            bucket = (bucket + 1) % number
        content[bucket * SLOTS + filled[bucket]] = value
        filled[bucket] += 1
    table = np.zeros((number, BUCKET_BYTES), np.uint8)
    table[:, :OVERFLOW_AT] = content.view(np.uint8).reshape(number, OVERFLOW_AT)
    table[:, OVERFLOW_AT] = overflows
    return [bucket.tobytes() for bucket in table]
