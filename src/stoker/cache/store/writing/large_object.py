"""A large object as a whole: which pages are present, its file once all are, and reading it in order."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from xxhash import xxh3_64_digest

from stoker.cache.names import PAGE_BYTES, ObjectName, key_of, pages_of, span_of
from stoker.cache.policies import PageLife
from stoker.cache.store.block_sum_cache import LONGEST_BYTES, PIECE_BYTES
from stoker.cache.store.files.checksums import BLOCK_BYTES, SUM_BYTES, Bytes
from stoker.cache.store.files.maps import WHOLE, Mapped
from stoker.cache.store.reclaim.access_log import tag_of
from stoker.cache.store.writing.large_files import has_page, locate_page
from stoker.cache.versions import Version

if TYPE_CHECKING:
    from stoker.cache.store.index.page_index import Entry
    from stoker.cache.store.layout import Layout
    from stoker.cache.store.reclaim.admission import Shelf

_ONCE: tuple[bytes, ...] = ()
_BLOCKS, _PIECES = PAGE_BYTES // BLOCK_BYTES, BLOCK_BYTES // PIECE_BYTES
_MOST_KNOWN = 1 << 14
"""Blocks of an open file whose pieces' sums are kept: of 1 GiB, in 4 MiB of memory."""
_COUNTED_TOGETHER = 8
"""Small reads: counting them one by one takes longer than copying them."""
_LOOKED_AT = 32
"""Pages that are checked at once, while a reader waits."""


class OwningStore(Protocol):
    """What a large object needs of its store."""

    @property
    def layout(self) -> Layout:
        """Its folders."""
        ...

    def lookup(self, key: bytes) -> Entry | None:
        """Where a page is."""
        ...

    def read_into(self, key: bytes, entry: Entry, start: int, buffer: memoryview) -> bool:
        """Copies bytes of a page; False if they are gone or damaged."""
        ...

    def put(
        self, name: ObjectName, index: int, version: Version, payload: Bytes, *,
        rule: int = 0, life: PageLife = PageLife.NORMAL, checked_at: float,
    ) -> bool:  # fmt: skip
        """Keeps a page."""
        ...


class LargeObject:
    """One version of a large object. The file stays in place while this lives, even if evicted.

    Attributes:
        name: of the object.
        version: of it.
        path: of the file; it has the object's bytes where pages are present, and 0 elsewhere. Never write to it.
    """

    def __init__(
        self, store: OwningStore, name: ObjectName, version: Version, mapped: Mapped, shelf: Shelf, checked_at: float
    ) -> None:
        self.name = name
        self.version = version
        self.path: Path = store.layout.large(mapped.number)
        self._store, self._mapped, self._shelf, self._checked_at = store, mapped, shelf, checked_at
        self._complete = False

    @property
    def num_pages(self) -> int:
        """Pages of the whole object."""
        return len(pages_of(0, self.version.size))

    def has(self, index: int) -> bool:
        """Whether a page is present (complete when it was written; reading compares its checksums)."""
        pages = self._mapped.large
        return pages is not None and has_page(pages.data, index)

    @property
    def complete(self) -> bool:
        """Whether all pages are present."""
        self._complete = self._complete or all(self.has(index) for index in range(self.num_pages))
        return self._complete

    def write(self, index: int, payload: Bytes) -> bool:
        """Add a page; False if there is no room for it."""
        return self._store.put(
            self.name, index, self.version, payload,
            rule=self._shelf.rule, life=self._shelf.life, checked_at=self._checked_at,
        )  # fmt: skip

    def read_into(self, start: int, buffer: memoryview) -> bool:
        """Copy bytes of the object, compared with their checksums; False if some are missing or damaged."""
        end = start + len(buffer)
        for index in pages_of(start, end):
            first, last = span_of(index, self.version.size)
            low, high = max(start, first), min(end, last)
            key = self.name.key(index)
            entry = self._store.lookup(key)
            if entry is None or entry.version != self.version.digest:
                return False
            if not self._store.read_into(key, entry, low - first, buffer[low - start : high - start]):
                return False
        return end <= self.version.size

    def is_intact(self) -> bool:
        """Whether all pages are present and match their checksums; reads the whole file."""
        page = memoryview(bytearray(PAGE_BYTES))
        for index in range(self.num_pages):
            first, last = span_of(index, self.version.size)
            if not self.read_into(first, page[: last - first]):
                return False
        return True


class LargePages:
    """Pages of one version of a large object, found in its file instead of the index.

    Pins nothing. For a reader of that version: its pages may have been dropped from the index since as stale.

    Attributes:
        is_complete: whether all pages are known to be present (:meth:`look_on`).
    """

    def __init__(
        self, name: ObjectName, version: Version, number: int, file_of: Callable[[int], Mapped | None],
        hit: Callable[[int, int, int], None], *, always: bool,
    ) -> None:  # fmt: skip
        """Reads nothing yet.

        Args:
            name: of the object.
            version: of it.
            number: of the file.
            file_of: returns the mapped file of a number; None if it is gone.
            hit: called with the tag of a read page, the row of its file, and the number of reads to count.
            always: whether checksums are verified at every read.
        """
        self._encoded, self._digest, self._size = name.encoded, version.digest, version.size
        self._num_small = 0
        self._known: dict[int, bytes] = {}
        """Checksums of blocks of the file that were read; unless verified at every read, only their presence counts."""
        self._pieces: dict[int, tuple[bytes, ...]] = {}
        """Checksums of the pieces of blocks of which small parts were read at least twice."""
        self._known_of: Callable[[], Mapped | None] = _nothing
        self.is_complete = False
        self._num_looked = 0
        self._number, self._file_of, self._hit, self._always = number, file_of, hit, always

    def _mapped(self) -> Mapped | None:
        """The file, as long as it may be read."""
        try:
            mapped = self._file_of(self._number)
        except OSError:
            return None  # no descriptors or no memory for one more map
        if mapped is None or mapped.expires is None or mapped.expires > time.time():
            return mapped
        return None

    def has(self, index: int) -> bool:
        """Whether a page is present (complete when it was written; reading compares its checksums)."""
        mapped = self._mapped()
        return mapped is not None and mapped.large is not None and has_page(mapped.large.data, index)

    def look_on(self) -> None:
        """Check some more pages, until all are known to be present."""
        until = min(self._num_looked + _LOOKED_AT, -(-self._size // PAGE_BYTES))
        while self._num_looked < until and self.has(self._num_looked):
            self._num_looked += 1
        self.is_complete = self._num_looked * PAGE_BYTES >= self._size

    def read_known(self, start: int, buffer: memoryview) -> bool:
        """Copy bytes of blocks that were read before, verified as always; False if that takes :meth:`read_into`.

        The path of random reads: any further step would take longer than checksum and copy together.
        """
        end = start + len(buffer)
        if end - start > BLOCK_BYTES or end > self._size:
            return False
        try:
            mapped = self._file_of(self._number)
        except OSError:
            return False
        if mapped is None or mapped is not self._known_of() or mapped.expires is not None:
            return False
        view, first, last = mapped.view, start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        if not self._always:
            if first not in self._known or (last != first and last not in self._known):
                return False
        elif not (self._pieces_hold if end - start <= LONGEST_BYTES else self._blocks_hold)(view, start, end):
            return False
        buffer[:] = view[start:end]
        self._num_small += 1
        if self._num_small >= _COUNTED_TOGETHER:
            self._count(start, mapped)
        return True

    def _pieces_hold(self, view: memoryview, start: int, end: int) -> bool:
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        sums = self._pieces.get(first)
        then, behind = sums if last == first else self._pieces.get(last), (first + 1) * BLOCK_BYTES
        if not sums or not then:
            return False
        for at in range(start - start % PIECE_BYTES, end, PIECE_BYTES):
            wanted = (sums if at < behind else then)[at // PIECE_BYTES % _PIECES]
            if xxh3_64_digest(view[at : at + PIECE_BYTES]) != wanted:
                return False
        return True

    def _blocks_hold(self, view: memoryview, start: int, end: int) -> bool:
        for at in range(start - start % BLOCK_BYTES, end, BLOCK_BYTES):
            wanted = self._known.get(at // BLOCK_BYTES)
            if wanted is None or xxh3_64_digest(view[at : at + BLOCK_BYTES]) != wanted:
                return False
        return True

    def _count(self, start: int, mapped: Mapped) -> None:
        """Count reads of small parts of pages."""
        self._hit(tag_of(key_of(self._encoded, start // PAGE_BYTES)), mapped.row, self._num_small)
        self._num_small = 0

    def _note_known(self, mapped: Mapped, sums: bytes, start: int, num_bytes: int) -> None:
        """Note the checksums of a part of a page that was read in the ordinary way, and was intact."""
        if mapped is not self._known_of() or len(self._known) >= _MOST_KNOWN:
            self._known_of, self._known, self._pieces = weakref.ref(mapped), {}, {}
        first, last = start // BLOCK_BYTES, (start + num_bytes - 1) // BLOCK_BYTES
        for block in range(first, last + 1):
            is_only = self._size - block // _BLOCKS * PAGE_BYTES <= BLOCK_BYTES
            begin = 0 if is_only else SUM_BYTES * (1 + block % _BLOCKS)
            self._known[block] = sums[begin : begin + SUM_BYTES]
        if self._always and first == last and num_bytes <= LONGEST_BYTES:
            self._pieces[first] = self._sums_of(mapped, first) if first in self._pieces else _ONCE

    def _sums_of(self, mapped: Mapped, block: int) -> tuple[bytes, ...]:
        """Checksums of a block's pieces, from a copy that matches the block's; none if it does not match."""
        copy = bytes(mapped.view[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
        if xxh3_64_digest(copy) != self._known[block]:
            return _ONCE
        return tuple(xxh3_64_digest(copy[at : at + PIECE_BYTES]) for at in range(0, len(copy), PIECE_BYTES))

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Copy verified bytes up to the first page that is missing or damaged; return their number."""
        num_bytes = len(buffer)
        offset = start % PAGE_BYTES
        if offset + num_bytes > PAGE_BYTES:
            return self._read_pages(start, buffer)
        mapped = self._mapped()
        if mapped is None or mapped.large is None:
            return 0
        key = key_of(self._encoded, start // PAGE_BYTES)
        page_start = start - offset
        sums = b""
        if not self._always and mapped.has_seen(page_start + WHOLE):
            buffer[:] = mapped.view[start : start + num_bytes]
        else:
            length = min(PAGE_BYTES, self._size - page_start)
            found = locate_page(mapped.large.data, key, self._digest, page_start, length)
            if found is None or not mapped.read(page_start, length, found[1], offset, buffer, always=self._always):
                return 0
            sums = found[1]
        if num_bytes <= BLOCK_BYTES:
            self._note_known(mapped, sums, start, num_bytes)
        self._hit(tag_of(key), mapped.row, 1)
        return num_bytes

    def _read_pages(self, start: int, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer):
            at = start + done
            part = buffer[done : done + PAGE_BYTES - at % PAGE_BYTES]
            if not self.read_into(at, part):
                break
            done += len(part)
        return done


def _nothing() -> None:
    """No file is known."""
