"""The board: one small shared page on which each data worker notes the sample it is working on.

The training process reads there which sample to blame for a worker's sudden death, and how long a silent worker has
been at its sample. Plain stores, no locks: each row has one writer, and is read only once that writer is dead or
presumed dead.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass

from stoker.core.slots.ring import create_memory

_ROW = struct.Struct("<qqd")  # seq (-1: none), position in the batch (-1: collate), monotonic seconds
_ROW_BYTES = 64
_POSITION = struct.Struct("<qd")


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What a worker was doing when it last wrote."""

    seq: int
    """Work item, or -1 when it had none."""
    position: int
    """Sample in the batch, or -1 for the batch as a whole."""
    since_s: float
    """Monotonic time at which it began that sample."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A worker that is certainly gone: it no longer writes to its memory."""

    worker: int
    pid: int
    expected: bool
    """Whether stoker stopped it (drained or recycled)."""
    cause: str
    whereabouts: Whereabouts
    stack: str = ""
    was_killed: bool = False
    """Whether it died of a SIGKILL that stoker did not send."""
    place: str = ""
    """The machine that it was on; empty for this one."""
    blames: bool = True
    """Whether the sample that it was at may be the cause: not where its whole machine was lost."""


class Board:
    """All rows of one crew; created by the training process, inherited or mapped by the workers."""

    def __init__(self, num_rows: int, fd: int | None = None) -> None:
        self.num_rows = num_rows
        self.fd = create_memory("stoker-board", num_rows * _ROW_BYTES) if fd is None else fd
        self._map = mmap.mmap(self.fd, num_rows * _ROW_BYTES)

    @classmethod
    def inherit(cls, fd: int) -> Board:
        """The same board in another process, from its descriptor."""
        return cls(os.fstat(fd).st_size // _ROW_BYTES, fd)

    def read(self, row: int) -> Whereabouts:
        """The row as last written."""
        return Whereabouts(*_ROW.unpack_from(self._map, row * _ROW_BYTES))

    def reset(self, row: int) -> None:
        """Empties a row before a new worker gets it."""
        _ROW.pack_into(self._map, row * _ROW_BYTES, -1, -1, 0.0)

    def writer(self, row: int) -> BoardWriter:
        """The worker's side of one row."""
        return BoardWriter(self._map, row * _ROW_BYTES)

    def close(self) -> None:
        """Unmaps and closes."""
        self._map.close()
        os.close(self.fd)


class BoardWriter:
    """Writes one row."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory = memory
        self._offset = offset

    def begin(self, seq: int) -> None:
        """Notes that a work item begins."""
        _ROW.pack_into(self._memory, self._offset, seq, -1, time.monotonic())

    def at(self, position: int) -> None:
        """Notes that a sample of it begins (-1: work on the batch as a whole)."""
        _POSITION.pack_into(self._memory, self._offset + 8, position, time.monotonic())

    def clear(self) -> None:
        """Notes that the item is done."""
        _ROW.pack_into(self._memory, self._offset, -1, -1, time.monotonic())
