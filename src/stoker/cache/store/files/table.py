"""The table of files: one row per segment or large object, with the data that eviction needs.

Rows are written under the publish lock, by ``pwrite`` (so a full disk is an error and not a signal), and read from a
map. Readers without the lock may see a half-written row, so they treat it as a hint.
"""

from __future__ import annotations

import enum
import errno
import mmap
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoker.cache.store.files.holes import fill_for_reading, flags_for
from stoker.core.errors import CacheDirectoryError

_MAGIC = b"STKTABL1"
_HEADER_BYTES = 4096
ROW_BYTES = 128
MOST_ROWS = 1 << 20
"""Most files at a time; the table is a sparse file of this size, so that it is mapped once."""
_NEXT_ID, _NUM_ROWS, _CHANGES, _PINS = 8, 16, 24, 32
CHANGES_CELL = _CHANGES // 8
_U64 = struct.Struct("<Q")
_ROW = struct.Struct("<IBBBBQQQQIIddd")
_LIVE = struct.Struct("<QQI")
_LIVE_OF_ROW = struct.Struct("<IB27xQI").unpack_from
_GROUP_AT, _ALLOCATED_AT, _TAIL_AT = 8, 16, 24

ROWS = np.dtype(
    {
        "names": ["id", "state", "kind", "life", "rule", "group", "allocated", "tail", "live_bytes", "live_pages",
                  "created", "expires", "doomed"],
        "formats": ["<u4", "u1", "u1", "u1", "u1", "<u8", "<u8", "<u8", "<u8", "<u4", "<f8", "<f8", "<f8"],
        "offsets": [0, 4, 5, 6, 7, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": ROW_BYTES,
    }
)  # fmt: skip


class RowState(enum.IntEnum):
    """What a row stands for."""

    FREE = 0
    MAKING = 1
    """Its file is being created by the process that holds its claim."""
    OPEN = 2
    """Pages are added."""
    SEALED = 3
    DOOMED = 4
    """Its pages are gone; its file is removed once no process has it mapped."""


class FileKind(enum.IntEnum):
    """What a file holds: many small pages, or a large object."""

    SEGMENT = 0
    LARGE = 1


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        id: number of the file, never reused.
        state: of the file.
        kind: segment or large object.
        life: of its pages.
        rule: number of the rule of its pages.
        group: hash of the store and the first part of the path, which its pages share.
        allocated: bytes that it counts for.
        tail: where its complete records end.
        live_bytes: of pages that have not been replaced; a hint.
        live_pages: their number; a hint.
        created: when (seconds since the epoch).
        expires: when its pages are no longer served.
        doomed: when it was evicted; 0 before.
    """

    id: int
    state: int
    kind: int
    life: int
    rule: int
    group: int
    allocated: int
    tail: int = 0
    live_bytes: int = 0
    live_pages: int = 0
    created: float = 0.0
    expires: float = float("inf")
    doomed: float = 0.0


class FileTable:
    """The rows of a store. Methods that change something are called under the publish lock.

    Attributes:
        cells: the file's first numbers, of which readers watch :data:`CHANGES_CELL`.
    """

    def __init__(self, path: Path, *, reads_only: bool = False) -> None:
        self._fd = os.open(path, flags_for(reads_only=reads_only), 0o600)
        head = os.pread(self._fd, 8, 0)
        if head not in (b"", bytes(8), _MAGIC):
            raise CacheDirectoryError(f"`{path}` must be a table of pages; delete the directory {path.parent}.")
        size = _HEADER_BYTES + MOST_ROWS * ROW_BYTES
        if os.fstat(self._fd).st_size < size:
            os.ftruncate(self._fd, size)
            os.pwrite(self._fd, _MAGIC, 0)
        rows = min(_U64.unpack(os.pread(self._fd, 8, _NUM_ROWS))[0], MOST_ROWS)
        fill_for_reading(self._fd, path, [(0, _HEADER_BYTES + rows * ROW_BYTES)])
        self._map = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        self.cells = memoryview(self._map).cast("Q")

    @property
    def num_bytes(self) -> int:
        """Bytes that the file takes on disk."""
        return os.fstat(self._fd).st_blocks * 512

    def close(self) -> None:
        """Unmap the file."""
        self.cells.release()
        os.close(self._fd)
        self._fd = -1

    @property
    def changes(self) -> int:
        """A number that grows whenever a file is doomed."""
        return self.cells[CHANGES_CELL]

    @property
    def pins(self) -> int:
        """A number that grows whenever the pinned prefixes change."""
        return self.cells[_PINS // 8]

    def note_pins(self) -> None:
        """Announce that the pinned prefixes have changed."""
        os.pwrite(self._fd, _U64.pack(self.pins + 1), _PINS)

    @property
    def num_rows(self) -> int:
        """Rows that were ever used."""
        return min(self.cells[_NUM_ROWS // 8], MOST_ROWS)

    def rows(self) -> np.ndarray[Any, np.dtype[Any]]:
        """A copy of all rows."""
        return np.frombuffer(self._map, ROWS, self.num_rows, _HEADER_BYTES).copy()

    def allocated_bytes(self, rule: int | None = None) -> int:
        """Bytes that all files count for, or those of one rule."""
        rows = np.frombuffer(self._map, ROWS, self.num_rows, _HEADER_BYTES)
        allocated = rows["allocated"]
        return int(allocated.sum() if rule is None else allocated[rows["rule"] == rule].sum())

    def alive(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Numbers of the files whose pages are served, sorted."""
        rows = np.frombuffer(self._map, ROWS, self.num_rows, _HEADER_BYTES)
        return np.sort(rows["id"][(rows["state"] == RowState.OPEN) | (rows["state"] == RowState.SEALED)])

    def get(self, row: int) -> Row:
        """One row."""
        fields = _ROW.unpack_from(self._map, _HEADER_BYTES + row * ROW_BYTES)
        return Row(*fields[:10], *fields[11:])

    def live(self, row: int) -> tuple[int, int, int, int]:
        """Number of a row's file, its state, live bytes, live pages."""
        return _LIVE_OF_ROW(self._map, _HEADER_BYTES + row * ROW_BYTES)

    def group(self, row: int) -> int:
        """Hash of what the pages of one row have in common."""
        return _U64.unpack_from(self._map, _HEADER_BYTES + row * ROW_BYTES + _GROUP_AT)[0]

    def find(self, number: int) -> int:
        """Row of a file by its number; -1 if it has none."""
        ids = np.frombuffer(self._map, ROWS, self.num_rows, _HEADER_BYTES)["id"]
        found = np.flatnonzero(ids == number)
        return int(found[0]) if len(found) else -1

    def add(self, **fields: Any) -> tuple[int, Row]:
        """Add a row with a number that was never used; return row and content.

        Raises:
            OSError: the disk is full, or the table damaged.
        """
        number = self.cells[_NEXT_ID // 8] + 1
        if self.is_out_of_numbers:
            raise OSError(errno.EIO, "the page table is damaged")
        os.pwrite(self._fd, _U64.pack(number), _NEXT_ID)
        states = np.frombuffer(self._map, ROWS, self.num_rows, _HEADER_BYTES)["state"]
        free = np.flatnonzero(states == RowState.FREE)
        row = int(free[0]) if len(free) else len(states)
        if row >= MOST_ROWS:
            raise OSError(errno.ENOSPC, "the page table is full")
        content = Row(id=number, **fields)
        self.put(row, content)
        if row == len(states):
            os.pwrite(self._fd, _U64.pack(row + 1), _NUM_ROWS)
        return row, content

    @property
    def is_out_of_numbers(self) -> bool:
        """Whether no file can be added: no store lives so long, so the next number was damaged on disk."""
        return self.cells[_NEXT_ID // 8] + 1 >= 1 << 32

    def renumber(self) -> None:
        """Continue after the highest number of a row."""
        highest = int(self.rows()["id"].max(initial=0))
        os.pwrite(self._fd, _U64.pack(min(highest, 1 << 31)), _NEXT_ID)

    def put(self, row: int, content: Row) -> None:
        """Write a row."""
        packed = _ROW.pack(*content[:10], 0, *content[10:])
        os.pwrite(self._fd, packed, _HEADER_BYTES + row * ROW_BYTES)

    def update(self, row: int, **fields: Any) -> Row:
        """Change fields of a row; return its new content."""
        content = self.get(row)._replace(**fields)
        self.put(row, content)
        return content

    def allocate(self, row: int, allocated: int) -> None:
        """Set the bytes that a row counts for."""
        os.pwrite(self._fd, _U64.pack(allocated), _HEADER_BYTES + row * ROW_BYTES + _ALLOCATED_AT)

    def extend(self, row: int, tail: int, live_bytes: int, live_pages: int) -> None:
        """Set a row's tail and live pages after a change."""
        os.pwrite(self._fd, _LIVE.pack(tail, live_bytes, live_pages), _HEADER_BYTES + row * ROW_BYTES + _TAIL_AT)

    def doom(self, row: int, now: float) -> None:
        """Evict the pages of a row; its file is removed once no process has it mapped."""
        self.update(row, state=RowState.DOOMED, doomed=now, live_bytes=0, live_pages=0)
        os.pwrite(self._fd, _U64.pack(self.changes + 1), _CHANGES)

    def free(self, row: int) -> None:
        """Free a row whose file is gone."""
        self.put(row, Row(0, RowState.FREE, 0, 0, 0, 0, 0, created=0.0, expires=0.0))
