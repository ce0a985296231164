"""Files of the store that this process has mapped, with locks that show this to other processes.

A mapped file is read-locked through the description that the map keeps (Python's maps duplicate their descriptor). So
the lock lives exactly as long as the map, also in forked children and under views, and the evicting process sees that
an evicted file is still in use.
"""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Callable, Iterable
from pathlib import Path

from stoker.cache.store.files.checksums import BLOCK_BYTES, copy_verified, is_intact
from stoker.cache.store.files.holes import Span, fill_for_reading
from stoker.cache.store.files.records import ALIGN
from stoker.cache.store.files.table import Row
from stoker.cache.store.locks import try_lock

IN_USE = 0
"""Byte of a page file that is locked while the file is mapped."""
WHOLE = ALIGN
"""Offset of the extra mark of a page of several blocks that was verified as a whole."""


def open_locked(path: Path, flags: int) -> int | None:
    """Open a file of pages and mark it as in use; None if it is gone."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    # A process that removes a file locks it first; no link means that the removal came before this lock.
    if not try_lock(fd, IN_USE, shared=True) or not os.fstat(fd).st_nlink:
        os.close(fd)
        return None
    return fd


def is_in_use(path: Path) -> bool:
    """Whether a process has a file of pages mapped."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(fd, IN_USE)
    finally:
        os.close(fd)


def remove_unused(path: Path) -> bool:
    """Remove a file of pages unless a process has it mapped; return whether it is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if not try_lock(fd, IN_USE):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


class Mapped:
    """A page file that this process reads.

    Attributes:
        number: of the file.
        row: of the table.
        data: its bytes.
        view: the same, to take parts without copying.
        expires: when its pages are no longer served (seconds since the epoch); None: never.
        large: descriptions of a large object's pages; None for a segment.
    """

    __slots__ = ("__weakref__", "_seen", "data", "expires", "large", "number", "row", "size", "view")

    def __init__(
        self, row: int, content: Row, path: Path, fd: int, parts: Iterable[Span], large: Mapped | None = None
    ) -> None:
        """Takes ownership of the descriptor.

        Args:
            row: of the table.
            content: of that row.
            path: of the file.
            fd: of the file, open for reading.
            parts: of it that are read; parts that are written later have their space by then.
            large: descriptions of a large object's pages.

        Raises:
            OSError: no descriptors, no memory, or a full disk below a copied store.
        """
        try:
            fill_for_reading(fd, path, parts)
            self.data = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self.number = content.id
        self.row = row
        self.view = memoryview(self.data)
        self.size = len(self.view)
        self.expires = None if content.expires == float("inf") else content.expires
        self.large = large
        self._seen: bytearray | None = None

    def read(self, at: int, length: int, sums: bytes, start: int, into: memoryview, *, always: bool) -> bool:
        """Copy bytes of the page at ``at``; False if its checksums differ."""
        if always:
            return copy_verified(self.view[at : at + length], sums, start, into)
        end = start + len(into)
        if length > BLOCK_BYTES and self.has_seen(at + WHOLE):
            into[:] = self.view[at + start : at + end]
            return True
        blocks = range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        if not all(self.has_seen(at + block * BLOCK_BYTES) for block in blocks):
            if not copy_verified(self.view[at : at + length], sums, start, into):
                return False
            for block in blocks:
                self.note_seen(at + block * BLOCK_BYTES)
            if length > BLOCK_BYTES and end - start == length:
                self.note_seen(at + WHOLE)
            return True
        into[:] = self.view[at + start : at + end]
        return True

    def page(self, at: int, length: int, sums: bytes, *, always: bool) -> memoryview | None:
        """A read-only view of a page; None if its checksums differ."""
        page = self.view[at : at + length]
        starts = range(at, at + length, BLOCK_BYTES)
        if always or not all(self.has_seen(start) for start in starts):
            if not is_intact(page, sums, 0, length):
                return None
            if not always:
                for start in starts:
                    self.note_seen(start)
        return page

    def has_seen(self, at: int) -> bool:
        """Whether what begins at ``at`` (a record, or a block of a page) was found intact by this process."""
        seen, unit = self._seen, at // ALIGN
        return seen is not None and bool(seen[unit >> 3] >> (unit & 7) & 1)

    def note_seen(self, at: int) -> None:
        """Records that what begins at ``at`` is intact."""
        if self._seen is None:
            self._seen = bytearray(self.size // ALIGN // 8 + 1)
        unit = at // ALIGN
        # Threads may lose each other's bits; then something is verified once more.
        self._seen[unit >> 3] |= 1 << (unit & 7)


class Maps:
    """The mapped files of this process, up to a number that the limit of descriptors allows.

    Args:
        open_file: maps a file by its number; None if it is gone.
    """

    def __init__(self, open_file: Callable[[int], Mapped | None]) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(8, min(1024, soft // 4))
        self._open_file = open_file
        self.files: dict[int, Mapped] = {}

    def get(self, number: int) -> Mapped | None:
        """A file by its number; None if it is gone."""
        mapped = self.files.get(number)
        if mapped is None:
            mapped = self._open_file(number)
            if mapped is not None:
                self._make_place()
                mapped = self.files.setdefault(number, mapped)
        return mapped

    def _make_place(self) -> None:
        while len(self.files) >= self._most:
            try:
                # The oldest map; the kernel keeps its pages, mapping it again is cheap.
                self.files.pop(next(iter(self.files)), None)
            except (StopIteration, RuntimeError):
                return  # another thread was making place too

    def let_go(self, numbers: Iterable[int]) -> None:
        """Unmap these files; views keep theirs."""
        for number in numbers:
            self.files.pop(number, None)

    def keep_only(self, alive: set[int]) -> None:
        """Unmap all files that are not among these; views keep theirs."""
        for number in list(self.files):
            if number not in alive:
                self.files.pop(number, None)
