"""The access log: the shared clock of reads, and when each file was last read.

All processes map the file for writing. A process collects its reads and writes them in batches, without locks and
system calls; processes may lose each other's counts, which only makes estimates worse. Every byte is first written by
``pwrite``, so that a full disk is an error there and not a signal here.
"""

from __future__ import annotations

import enum
import mmap
import os
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stoker.cache.store.files.holes import fill, flags_for
from stoker.cache.store.files.table import MOST_ROWS
from stoker.cache.store.reclaim.epoch_clock import COUNTERS_AT, NUM_CELLS, ReadClock

_MARK_CELLS = 4
_LAST_READ, _LAST_TIME, _NUM_READS, _PASSED = range(_MARK_CELLS)
_FIXED_CELLS = -(-NUM_CELLS // 512) * 512
_BATCH = 32
"""Reads that are noted together."""
_NO_ROW = -1


class Count(enum.IntEnum):
    """What is counted over the life of the store."""

    HITS = 0
    PUTS = 1
    REFUSED = 2
    EVICTED_PAGES = 3
    EVICTED_BYTES = 4
    DAMAGED = 5


def tag_of(key: bytes) -> int:
    """The part of a page's key that the clock of reads uses."""
    return int.from_bytes(key[8:], "little")


class AccessRecord(NamedTuple):
    """How a file was used: see :class:`stoker.cache.store.reclaim.eviction.FileState`."""

    last_read: int
    last_time: int
    num_reads: int
    passed: int


class Pulse:
    """The clock and the marks of a store, in this process.

    Args:
        path: of the file.
        group_of_row: the group of a row's pages.
        num_rows: rows used so far.
        reads_only: the file may not be written; reads are not counted.
    """

    def __init__(
        self, path: Path, group_of_row: Callable[[int], int], num_rows: int, *, reads_only: bool = False
    ) -> None:
        self._fd = os.open(path, flags_for(reads_only=reads_only), 0o600)
        size = 8 * (_FIXED_CELLS + _MARK_CELLS * MOST_ROWS)
        self._map = mmap.mmap(-1, size) if reads_only else self._shared(size, num_rows)
        self._cells = memoryview(self._map).cast("Q")
        self._group_of_row = group_of_row
        self.clock = ReadClock(self._cells)
        self.reset()

    def _shared(self, size: int, num_rows: int) -> mmap.mmap:
        if os.fstat(self._fd).st_size != size:
            os.pwrite(self._fd, bytes(8 * _FIXED_CELLS), 0)
            os.ftruncate(self._fd, size)
        fill(self._fd, [(0, 8 * self._mark(num_rows))])
        return mmap.mmap(self._fd, size)

    def reset(self) -> None:
        """Drop collected reads (in a forked child: they are the parent's)."""
        # Tags as plain numbers: what was read in between has driven objects out of the processor's cache.
        self._tags, self._rows = array("Q"), list[int]()

    @property
    def num_bytes(self) -> int:
        """Bytes that the file takes on disk."""
        return os.fstat(self._fd).st_blocks * 512

    def close(self) -> None:
        """Write the collected reads and unmap the file."""
        self.flush()
        self._cells.release()
        os.close(self._fd)

    def begin(self, row: int) -> None:
        """Begin the marks of a row's new file. Under the publish lock.

        Raises:
            OSError: the disk is full.
        """
        mark = (self.clock.reads, int(time.time()), 0, 0)
        os.pwrite(self._fd, b"".join(cell.to_bytes(8, "little") for cell in mark), 8 * self._mark(row))

    @staticmethod
    def _mark(row: int) -> int:
        return _FIXED_CELLS + _MARK_CELLS * row

    def hit(self, key: bytes, row: int) -> None:
        """Count a read of a row's page."""
        self._tags.append(int.from_bytes(key[8:], "little"))
        rows = self._rows
        rows.append(row)
        if len(rows) >= _BATCH:
            self.flush()

    def hit_tagged(self, tag: int, row: int, number: int) -> None:
        """Count ``number`` reads of a row's pages, one of them of a key with this tag."""
        self._tags.append(tag)
        rows = self._rows
        rows += (row,) * number
        if len(rows) >= _BATCH:
            self.flush()

    def ask(self, key: bytes) -> None:
        """Count a miss."""
        self.hit(key, _NO_ROW)

    def written(self, row: int) -> None:
        """Note that a page was added to a row."""
        mark = self._mark(row)
        self._cells[mark + _LAST_READ] = self.clock.reads
        self._cells[mark + _LAST_TIME] = int(time.time())

    def flush(self) -> None:
        """Write the collected reads."""
        tags, rows = tuple(self._tags), tuple(self._rows)  # another thread may still append to the old ones
        self.reset()
        clock, cells = self.clock, self._cells
        clock.advance(len(rows))
        now_reads, now = clock.reads, int(time.time())
        groups: dict[int, int] = {}
        for row in set(rows) - {_NO_ROW}:
            number = rows.count(row)
            mark = self._mark(row)
            cells[mark + _LAST_READ] = now_reads
            cells[mark + _LAST_TIME] = now
            cells[mark + _NUM_READS] += number
            group = self._group_of_row(row)
            groups[group] = groups.get(group, 0) + number
        clock.note_hits(groups)
        mask = clock.sample_mask
        clock.ask([tag for tag in tags if not tag & mask])
        if groups:
            self.count(Count.HITS, sum(groups.values()))

    def mark(self, row: int) -> AccessRecord:
        """How a row's file was used."""
        first = self._mark(row)
        return AccessRecord(*self._cells[first : first + _MARK_CELLS])

    def spare(self, row: int) -> None:
        """Note that the policy spared a file."""
        self._cells[self._mark(row) + _PASSED] = max(1, self.clock.reads)

    def count(self, what: Count, number: int = 1) -> None:
        """Count something."""
        self._cells[COUNTERS_AT + what] += number

    def counted(self, what: Count) -> int:
        """How often something was counted, by all processes."""
        return self._cells[COUNTERS_AT + what]
