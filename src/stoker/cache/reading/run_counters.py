"""What all processes of a run read through the cache, counted in one small file that they map.

Each process has a row and writes it without locks, so the figures of a killed process count too. Each run has a
separate file, which is removed when the run has reported.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stoker.cache.reading.read_counters import ReadCounts
from stoker.core.processes.forking import at_fork

_ROW_BYTES = 64
_OLD_S = 7 * 86400.0


@dataclass(slots=True)
class Totals(ReadCounts):
    """Counters of all processes.

    Attributes:
        processes: that did it.
    """

    processes: int = 0


FIELDS = tuple(field.name for field in fields(ReadCounts))
"""In the order of a row."""


class RunCounts(ReadCounts):
    """The counts of this process, where other processes can see them.

    Note: threads add without a lock, as they do there.
    """

    def __init__(self, path: Path) -> None:
        """Takes a row with the first count, and another one in each forked child.

        Args:
            path: of the file, which must exist.
        """
        self._path = path
        self._cells: Any = None
        at_fork(self._in_child)

    def _in_child(self) -> None:
        self._cells = None

    def get(self, number: int) -> int:
        """A count by the number of its field."""
        if self._cells is None:
            self._cells = _claim_row(self._path)
        return self._cells[number]

    def put(self, number: int, value: int) -> None:
        """Sets it."""
        if self._cells is None:
            self._cells = _claim_row(self._path)
        self._cells[number] = value


def _field(number: int) -> property:
    return property(lambda ledger: ledger.get(number), lambda ledger, value: ledger.put(number, value))


for _number, _name in enumerate(FIELDS):
    setattr(RunCounts, _name, _field(_number))


def _claim_row(path: Path) -> Any:
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return [0] * len(FIELDS)  # the run has reported already: later reads count nowhere
    try:
        os.write(fd, bytes(_ROW_BYTES))
        end = os.lseek(fd, 0, os.SEEK_CUR)
        return memoryview(mmap.mmap(fd, end)).cast("Q")[(end - _ROW_BYTES) // 8 :]
    except OSError:
        return [0] * len(FIELDS)  # a full disk: likewise
    finally:
        os.close(fd)


def create_ledger(directory: Path, name: str) -> Path:
    """Creates an empty file for a run and returns its path; deletes old files that runs left behind.

    For a read-only cache, the file is in the temporary folder. If the disk is full, there is no file and the run's
    reads are not counted.

    Args:
        directory: of the cache.
        name: of the run.
    """
    folder = directory / "runs"
    if not os.access(directory, os.W_OK, effective_ids=True):
        folder = Path(tempfile.gettempdir()) / f"stoker-runs-{os.geteuid()}"
    path = folder / name
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.lstat().st_uid != os.geteuid():
            return path  # its owner could replace the file
        for old in folder.iterdir():
            with contextlib.suppress(OSError):  # another launcher deleted it
                if time.time() - old.stat().st_mtime > _OLD_S:
                    old.unlink()
        path.touch(mode=0o600)
    return path


def read_ledger(path: Path) -> Totals:
    """The sum over all processes.

    Raises:
        OSError: there is no such file.
    """
    data = path.read_bytes()
    rows = memoryview(data[: len(data) // _ROW_BYTES * _ROW_BYTES]).cast("Q")
    width = _ROW_BYTES // 8
    return Totals(*(sum(rows[number::width]) for number in range(len(FIELDS))), processes=len(rows) // width)
