"""Segments: files of one size that pages are appended to by one process at a time.

The first 4096 bytes say which row of the table a segment has. Records follow. When a segment is full, the headers of
its records are written once more, packed, at its end: names can be listed without reading the pages. A segment is
preallocated, so that its maps never reach beyond the disk, and never shortened or written to again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from xxhash import xxh3_64_intdigest

from stoker.cache.store.files.checksums import Readable
from stoker.cache.store.files.holes import Span
from stoker.cache.store.files.records import PageHeader, aligned, parse

FIRST_RECORD_AT = 4096
_MAGIC = b"STKSEGM1"
_FRONT = struct.Struct("<8sII")
_TRAILER = struct.Struct("<8sQQQ")
"""Magic, offset of the footer, its bytes, its checksum."""
_PLACE = struct.Struct("<II")
_MOST_AT_ONCE = 64
"""Records that are written, and then published, together: other processes wait meanwhile."""


def make_segment(path: Path, number: int, row: int, size: int) -> int:
    """Create a segment's file; return its descriptor.

    Raises:
        OSError: the disk is full; nothing is left behind.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        os.pwrite(fd, _FRONT.pack(_MAGIC, number, row), 0)
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd


class SegmentWriter:
    """Appends records to a segment that this process has claimed.

    Attributes:
        fd: of the file.
        number: of the segment.
        row: of the table.
        tail: start of the next record; published records lie before it.
        until: when the segment is to be sealed, full or not (seconds since the epoch).
    """

    def __init__(self, fd: int, number: int, row: int, tail: int, until: float = float("inf")) -> None:
        """Takes over the descriptor and appends at ``tail``."""
        self.until = until
        self.fd = fd
        self.number = number
        self.row = row
        self._size = os.fstat(fd).st_size
        self.tail = tail = min(aligned(tail), self._size)  # anything, in a row that was damaged on disk
        self._heads: list[bytes] = []
        self._footer_bytes = _TRAILER.size
        if tail > FIRST_RECORD_AT:
            data = os.pread(fd, tail, 0)
            for offset, header in walk(data, tail):
                self._note(offset, data[offset : offset + header.payload])

    def has_room(self, header_bytes: int, length: int) -> bool:
        """Whether a page fits, and its header once more into the footer."""
        footer_bytes = self._footer_bytes + _PLACE.size + header_bytes
        return self.tail + aligned(header_bytes + length) + footer_bytes <= self._size

    def append(self, records: Sequence[tuple[bytes, memoryview]]) -> list[int]:
        """Write as many records at ``tail`` as fit and return the end of each. Unless advanced, they are overwritten.

        Args:
            records: header and payload of each.

        Raises:
            OSError: the disk is full (some filesystems find that out here), or broken.
        """
        ends: list[int] = []
        parts: list[bytes | memoryview] = []
        end, footer_bytes = self.tail, self._footer_bytes
        for header, payload in records[:_MOST_AT_ONCE]:
            size = len(header) + len(payload)
            footer_bytes += _PLACE.size + len(header)
            if end + aligned(size) + footer_bytes > self._size:
                break
            end += aligned(size)
            ends.append(end)
            parts += (header, payload, bytes(aligned(size) - size))
        done = os.pwritev(self.fd, parts, self.tail)
        if done < end - self.tail:
            rest = memoryview(b"".join(parts))
            while done < len(rest):
                done += os.pwrite(self.fd, rest[done:], self.tail + done)
        return ends

    def advance(self, header: bytes, end: int) -> None:
        """Commit the record at ``tail``: the next one is written at its end."""
        self._note(self.tail, header)
        self.tail = end

    def _note(self, offset: int, header: bytes) -> None:
        self._heads.append(_PLACE.pack(offset, len(header)) + header)
        self._footer_bytes += _PLACE.size + len(header)

    def seal(self) -> None:
        """Write the footer."""
        footer = b"".join(self._heads)
        at = self._size - _TRAILER.size - len(footer)
        os.pwrite(self.fd, footer + _TRAILER.pack(_MAGIC, at, len(footer), xxh3_64_intdigest(footer)), at)

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


def parts_read(fd: int, tail: int) -> list[Span]:
    """Parts of a segment to read: its records, and what may be the end of a footer.

    Args:
        fd: of its file.
        tail: bytes of its whole records.
    """
    size = os.fstat(fd).st_size
    return [(0, tail), (max(0, size - _TRAILER.size), size)]


def walk(data: Readable, tail: int) -> Iterator[tuple[int, PageHeader]]:
    """Records of a segment up to ``tail``, or to the first one that is damaged: offset and header."""
    offset = FIRST_RECORD_AT
    while offset < tail:
        header = parse(data, offset, len(data))
        if header is None:
            return
        yield offset, header
        offset += header.total


def listing(data: Readable, tail: int) -> Iterator[tuple[int, PageHeader]]:
    """The same, from the footer if there is one."""
    size = len(data)
    magic, at, length, check = _TRAILER.unpack_from(data, size - _TRAILER.size)
    footer = bytes(data[at : at + length]) if magic == _MAGIC and at + length <= size else b""
    if not footer or xxh3_64_intdigest(footer) != check:
        yield from walk(data, tail)
        return
    pos = 0
    while pos < len(footer):
        offset, head_bytes = _PLACE.unpack_from(footer, pos)
        pos += _PLACE.size
        header = parse(footer, pos, pos + head_bytes)
        if header is not None:
            yield offset, header
        pos += head_bytes
