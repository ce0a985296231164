"""Holes of files that are mapped, filled where touching them would need room that a full disk has not.

What the store writes has no holes where it is read, but a copy of it has them wherever there were zeros. Touching one
through a map takes room: on every disk where it is written to, on some (tmpfs, and what lies on it) where it is read.
A full disk is then no error but a signal that ends the process (SIGBUS).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

Span = tuple[int, int]
"""First byte, and byte after the last."""


def flags_for(*, reads_only: bool) -> int:
    """How a file of the store is opened: made where it is missing, unless it may only be read."""
    return os.O_CLOEXEC | (os.O_RDONLY if reads_only else os.O_RDWR | os.O_CREAT)


def reading_takes_room(fd: int) -> bool:
    """Whether a hole of an open file may take room where it is read: on no filesystem of a block device."""
    return not os.major(os.fstat(fd).st_dev)


def holes(fd: int, spans: Iterable[Span]) -> Iterator[Span]:
    """Parts of these spans that have no bytes of their own on the disk.

    Args:
        fd: of an open file.
        spans: in it; what is beyond its end is left out.
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
                at = size  # there is nothing behind it
            yield hole, min(at, end)


def fill(fd: int, spans: Iterable[Span]) -> None:
    """Give the disk's bytes to the holes in these spans; they stay zeros.

    Args:
        fd: of a file that is open for writing.
        spans: in it.

    Raises:
        OSError: the disk is full.
    """
    for start, end in holes(fd, spans):
        os.posix_fallocate(fd, start, end - start)


def fill_for_reading(fd: int, path: Path, spans: Iterable[Span]) -> None:
    """The same for a file that is only read, where that takes room at all.

    Args:
        fd: of the file, open for reading.
        path: of it, to open it for writing where something is to be filled.
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
            return  # nobody else fills it up
        raise
    try:
        fill(writing, found)
    finally:
        os.close(writing)
