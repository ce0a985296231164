"""Fills holes of mapped files, because touching one may need space that a full disk lacks.

The store writes no holes where it reads, but a copy of its files has one wherever there were zeros. Touching a hole
through a map allocates space: a write on every disk, a read on some (tmpfs, and filesystems on top of it). On a full
disk that raises no error, but kills the process by a signal (SIGBUS).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

Span = tuple[int, int]
"""First byte, and byte after the last."""


def flags_for(*, reads_only: bool) -> int:
    """Flags to open a file of the store, which is created if missing, unless it may only be read."""
    return os.O_CLOEXEC | (os.O_RDONLY if reads_only else os.O_RDWR | os.O_CREAT)


def reading_takes_room(fd: int) -> bool:
    """Whether reading a hole of an open file may allocate space: never on a filesystem of a block device."""
    return not os.major(os.fstat(fd).st_dev)


def holes(fd: int, spans: Iterable[Span]) -> Iterator[Span]:
    """Parts of these spans that are holes.

    Args:
        fd: of an open file.
        spans: in it; parts beyond its end are ignored.
    """
    size = os.fstat(fd).st_size
    for start, end in spans:
        at, end = start, min(end, size)
        while at < end and (hole := os.lseek(fd, at, os.SEEK_HOLE)) < end:
            try:
                at = os.lseek(fd, hole, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                at = size  # no data follows
            yield hole, min(at, end)


def fill(fd: int, spans: Iterable[Span]) -> None:
    """Allocate space for the holes in these spans; their bytes stay zero.

    Args:
        fd: of a file that is open for writing.
        spans: in it.

    Raises:
        OSError: the disk is full.
    """
    for start, end in holes(fd, spans):
        os.posix_fallocate(fd, start, end - start)


def fill_for_reading(fd: int, path: Path, spans: Iterable[Span]) -> None:
    """The same for a file that is only read, if reading allocates space at all.

    Args:
        fd: of the file, open for reading.
        path: of it, to open it for writing if holes must be filled.
        spans: in it.

    Raises:
        OSError: the disk is full, or the file may not be written.
    """
    if not reading_takes_room(fd) or not (found := list(holes(fd, spans))):
        return
    try:
        writing = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        disk = os.fstatvfs(fd)
        if error.errno == errno.EROFS and sum(end - start for start, end in found) <= disk.f_bavail * disk.f_frsize:
            return  # no other process can fill it up
        raise
    try:
        fill(writing, found)
    finally:
        os.close(writing)
