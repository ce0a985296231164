"""Checksums of small pieces of pages that are read again and again.

Verifying 4 KiB takes the checksum of their whole block: 64 KiB that evict everything else from the L1 cache, which
costs more than the rest of a hit. So when small pieces of a block are read for the second time, checksums of its pieces
are computed from a verified copy of the block, and kept in memory for later reads. Every read is still verified.
"""

from __future__ import annotations

import time

from xxhash import xxh3_64_digest

from stoker.cache.store.files.checksums import BLOCK_BYTES, SUM_BYTES
from stoker.cache.store.files.maps import Mapped
from stoker.cache.store.index.page_index import Entry

PIECE_BYTES = 4096
LONGEST_BYTES = 4 * PIECE_BYTES
"""Longer reads sum blocks."""
_MOST_PAGES = 8192
"""Pages of 1 MiB, each with 2 KiB of checksums and as much overhead: at most 32 MiB of memory."""
_ONCE = b""


class _Page:
    """A page of which pieces are read.

    Attributes:
        entry: where the index says that it is.
        at: where it begins in its file.
        sums: of its blocks, as on disk.
        pieces: checksums of the pieces of each block; empty after its first read.
    """

    __slots__ = ("at", "entry", "pieces", "sums")

    def __init__(self, entry: Entry, at: int, sums: bytes) -> None:
        self.entry, self.at, self.sums = entry, at, sums
        self.pieces: dict[int, bytes] = {}

    def learn(self, mapped: Mapped, block: int) -> None:
        """Notes a read of a block with its checksum; at the second, computes checksums of its pieces."""
        if block not in self.pieces:
            self.pieces[block] = _ONCE
            return
        length = self.entry.length
        first = block * BLOCK_BYTES
        copy = bytes(mapped.view[self.at + first : self.at + min(length, first + BLOCK_BYTES)])
        begin = SUM_BYTES * (1 + block) if length > BLOCK_BYTES else 0
        if xxh3_64_digest(copy) == self.sums[begin : begin + SUM_BYTES]:
            self.pieces[block] = b"".join(
                [xxh3_64_digest(copy[at : at + PIECE_BYTES]) for at in range(0, len(copy), PIECE_BYTES)]
            )

    def read(self, mapped: Mapped, start: int, into: memoryview) -> bool:
        """Copies bytes within one block if the sums of their pieces are known and match; else False."""
        block, offset = divmod(start, BLOCK_BYTES)
        sums, end = self.pieces.get(block), offset + len(into)
        if not sums or end > BLOCK_BYTES or start + len(into) > self.entry.length:
            return False
        base = self.at + block * BLOCK_BYTES
        held = mapped.view[base : min(base + BLOCK_BYTES, self.at + self.entry.length)]
        for piece in range(offset // PIECE_BYTES, -(-end // PIECE_BYTES)):
            at = piece * PIECE_BYTES
            if xxh3_64_digest(held[at : at + PIECE_BYTES]) != sums[SUM_BYTES * piece : SUM_BYTES * (piece + 1)]:
                return False
        into[:] = held[offset:end]
        return True


class Pieces:
    """The checksums of pieces in this process. Entries are valid while their file is mapped: files never change."""

    def __init__(self) -> None:
        self._pages: dict[bytes, _Page] = {}

    def read(self, mapped: Mapped | None, key: bytes, entry: Entry, start: int, into: memoryview) -> Mapped | None:
        """Copies bytes of a page, compared with their sums.

        Args:
            mapped: the page's file.
            key: of the page.
            entry: where it is.
            start: first byte in the page.
            into: filled completely.

        Returns:
            The file; None if it is no longer served, or sums are unknown or differ.
        """
        page = self._pages.get(key)
        if page is None or mapped is None or not (page.entry is entry or page.entry == entry):
            return None
        if mapped.expires is not None and mapped.expires <= time.time():
            return None
        return mapped if page.read(mapped, start, into) else None

    def note(self, mapped: Mapped, key: bytes, entry: Entry, at: int, sums: bytes, start: int) -> None:
        """Records that a small part of a page was read in the ordinary way, and was intact.

        Args:
            mapped: its file.
            key: of the page.
            entry: where it is.
            at: where it begins in the file.
            sums: of the page.
            start: of the part.
        """
        page = self._pages.get(key)
        if page is None or page.entry != entry:
            if len(self._pages) >= _MOST_PAGES:
                self._pages.clear()
            page = self._pages[key] = _Page(entry, at, sums)
        page.learn(mapped, start // BLOCK_BYTES)
