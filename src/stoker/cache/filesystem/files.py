# pyright: reportUnknownMemberType=false
"""Files open for reading: one version of an object from open to close, read ahead where it is read in order."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from stoker.cache.names import PAGE_BYTES
from stoker.cache.reading.fetching import Snapshot, pool
from stoker.cache.reading.readahead import ReadaheadState, share
from stoker.cache.reading.reader import Reader, filled
from stoker.cache.reading.request_planning import PARALLEL, requests_for
from stoker.cache.store.block_sum_cache import PIECE_BYTES
from stoker.cache.store.writing.large_object import LargePages
from stoker.core.errors import SourceChangedError
from stoker.core.processes.forking import ForkedLock, Owner

BUFFER_BYTES = 1 << 16
"""One block of checksums: reading less of a page would verify as much."""
_HELD_PAGES = 2
_AHEAD_PARALLEL = 2
"""Requests for each piece of a window; several pieces are under way."""

_Read = TypeVar("_Read")
_readers: weakref.WeakSet[_PageReader] = weakref.WeakSet()
"""Open files of this process that use or used readahead."""
_readers_lock = ForkedLock()


class _PageReader(io.RawIOBase):
    """Unbuffered reads of one object."""

    def __init__(self, reader: Reader, snapshot: Snapshot) -> None:
        super().__init__()
        self.mode = "rb"
        self.name = snapshot.name.path
        self.reader = reader
        self.snapshot = snapshot
        self.position = 0
        self.is_committed = False
        self.wanted: int | None = 0
        """Bytes that the last caller asked for; 0, less or nothing for any number."""
        self._behind = 0
        self._fill_bytes = BUFFER_BYTES
        self._window = ReadaheadState()
        self._is_steered = False
        self._pending: dict[int, Future[None]] = {}
        self._held: dict[int, memoryview] = {}
        self._large: LargePages | None = None
        self._whole: LargePages | None = None
        """The same, where all of it is here and the caller keeps to this version."""
        self._asking = Owner()
        """The requester of the pages in flight."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_SET and offset >= 0:
            self.position = offset
            return offset
        if whence == io.SEEK_SET:
            pass
        elif whence == io.SEEK_CUR:
            offset += self.position
        elif whence == io.SEEK_END:
            self.is_committed = True
            offset += self.snapshot.size
        else:
            raise ValueError(f"`whence` must be 0, 1 or 2, got {whence}")
        if offset < 0:
            raise ValueError(f"`offset` must not lead before the start of the file, got {offset}")
        self.position = offset
        return offset

    def readinto(self, buffer: Any, /) -> int:
        view = buffer if buffer.__class__ is memoryview and buffer.format == "B" else memoryview(buffer).cast("B")
        start, fill_bytes = self.position, self._fill_bytes
        if start != self._behind:
            # A jump: only the wanted bytes, up to the end of their last piece, whose checksum is compared anyway.
            wanted = self.wanted
            fill_bytes = wanted + -(start + wanted) % PIECE_BYTES if wanted is not None and wanted > 0 else BUFFER_BYTES
        if fill_bytes < len(view) <= BUFFER_BYTES:
            view = view[:fill_bytes]
            fill_bytes *= 4  # reads that continue here are in order again
        self._fill_bytes = fill_bytes
        if self._whole is not None and self._whole.read_known(start, view):
            counts, done = self.reader.counts, len(view)
            counts.asked_bytes += done
            counts.hit_bytes += done
            self.position = self._behind = start + done
            return done
        done = self._read(view) if self.is_committed else self._first(lambda: self._read(view))
        self._behind = self.position
        large = self._large
        self._whole = large if large is not None and large.is_complete and self.is_committed else None
        return done

    def readall(self) -> bytes:
        return self._rest() if self.is_committed else self._first(self._rest)

    def close(self) -> None:
        if not self.closed:
            self._stop()
            self._held.clear()
            with _readers_lock:
                _readers.discard(self)
        super().close()

    def _first(self, read: Callable[[], _Read]) -> _Read:
        """The first read: it may switch to a new version, since the caller has seen nothing of the object yet."""
        try:
            found = read()
        except SourceChangedError:
            self._stop()
            self._held.clear()
            self._large = None
            self.snapshot = self.reader.snapshot(self.snapshot.name.path, ask=True)
            found = read()
        self.is_committed = True
        return found

    def _rest(self) -> bytes:
        length = max(0, self.snapshot.size - self.position)
        if not length:
            return b""
        if length == self.snapshot.size <= PAGE_BYTES and (data := self._only_page()) is not None:
            self.position = length
            return data
        return filled(length, self._read)

    def _only_page(self) -> bytes | None:
        """All of an object of one page, if it is cached: what a program that reads small files whole asks for."""
        reader, key = self.reader, self.snapshot.name.key(0)
        entry = reader.pages.lookup(key)
        if entry is None or entry.version != self.snapshot.digest or (page := reader.pages.view(key, entry)) is None:
            return None
        reader.counts.asked_bytes += len(page)
        reader.counts.hit_bytes += len(page)
        return bytes(page)

    def _read(self, view: memoryview) -> int:
        start = self.position
        length = min(len(view), self.snapshot.version.size - start)
        if length <= 0:
            return 0
        if length < len(view):
            view = view[:length]
        large = self._large
        # No read-ahead for an object that is cached as a whole.
        if not (self._is_steered or (large is not None and large.is_complete)):
            moved = self._window.read(start // PAGE_BYTES, (start + length - 1) // PAGE_BYTES)
            if moved is not self._window:
                self._move(moved)
                large = self._large
        done = 0
        if large is not None:
            done = large.read_into(start, view)
            counts = self.reader.counts
            counts.asked_bytes += done
            counts.hit_bytes += done
        if done < length:
            self._large = None  # its file may have been evicted; the next move looks for it
            self._read_pages(start + done, view[done:])
        self.position = start + length
        return length

    def _read_pages(self, start: int, part: memoryview) -> None:
        first, last = start // PAGE_BYTES, (start + len(part) - 1) // PAGE_BYTES
        # Fast path: most reads are of one page that is cached.
        if (
            first < last or self._pending or self._held
            or not self.reader.read_one(self.snapshot, first, start - first * PAGE_BYTES, part)
        ):  # fmt: skip
            given = {index: data for index in range(first, last + 1) if (data := self._ahead(index)) is not None}
            self.reader.read_into(self.snapshot, start, part, given, self._hold)

    def _move(self, window: ReadaheadState) -> None:
        """Follows the reader: prefetches what it will need, and nothing after a random access."""
        if self._large is not None:
            self._large.look_on()
        elif window.page > 0:
            self._large = self.reader.pages.large_pages(self.snapshot.name, self.snapshot.version)
        if window.ahead == 0:
            self._window = window
            self._stop()
            self._held.clear()
            return
        if self._held:
            self._held = {index: data for index, data in self._held.items() if index >= window.page}
        size_pages = -(-self.snapshot.size // PAGE_BYTES)
        wanted = window.wanted(size_pages)
        if wanted:
            self._pending = {index: future for index, future in self._pending.items() if index >= window.page}
            wanted = window.wanted(size_pages, self._share())
        self._window = window.having_asked(wanted)
        if wanted:
            self._ask(wanted, _AHEAD_PARALLEL)

    def steer(self, pages: Sequence[int]) -> None:
        """Prefetches pages that the caller knows to be needed; from then on readahead does not guess.

        Args:
            pages: of the object, ascending.
        """
        self._is_steered = True
        kept = self._held.keys() & set(pages)
        self._held = {index: self._held[index] for index in kept}
        self._pending = {index: future for index, future in self._pending.items() if not future.done()}
        wanted = [index for index in pages if index not in self._pending and index not in self._held]
        # Pages beyond the share are fetched when they are read.
        self._ask(wanted[: max(0, self._share() - self.num_ahead)], PARALLEL)

    def _share(self) -> int:
        """Pages that this file may read ahead, given the other files of the process."""
        with _readers_lock:
            _readers.add(self)
            others = [reader for reader in _readers if reader is not self]
        return share(self.num_ahead, [reader.num_ahead for reader in others])

    @property
    def num_ahead(self) -> int:
        """Pages ahead of the reader, in flight or in memory."""
        if not self._asking.is_here:
            return 0  # the parent's: a forked child has none of the parent's threads, and shares its memory
        return len(self._held) + sum(not future.done() for future in list(self._pending.values()))

    def _ask(self, pages: Sequence[int], parallel: int) -> None:
        missing = [index for index in pages if not self._has(index)]
        for run in requests_for(missing, parallel):
            future = pool().submit(self.reader.fetcher.bring_run, self.snapshot, run, self._hold_ahead)
            self._pending.update(dict.fromkeys(run, future))
            self._asking = Owner()

    def _has(self, index: int) -> bool:
        return (self._large is not None and self._large.has(index)) or self.reader.has(self.snapshot, index)

    def _ahead(self, index: int) -> memoryview | None:
        """A page that was read ahead and that the page store did not take."""
        future = self._pending.pop(index, None) if self._pending else None
        # A forked child has the parent's futures, but none of its threads.
        if future is not None and self._asking.is_here and not future.cancelled():
            future.exception()  # a failure shows when the page itself is read
        return self._held.get(index)

    def _hold_ahead(self, index: int, data: memoryview) -> None:
        if not self.reader.has(self.snapshot, index):
            self._held[index] = data

    def _hold(self, index: int, data: memoryview) -> None:
        """Keeps the last pages that the page store did not take, for the next small read."""
        if not self.reader.has(self.snapshot, index):
            self._held[index] = memoryview(bytes(data))
            for old in sorted(self._held)[: max(0, len(self._held) - _HELD_PAGES - self._window.ahead)]:
                self._held.pop(old, None)

    def _stop(self) -> None:
        if not self._pending:
            return
        for future in set(self._pending.values()):
            future.cancel()
        self._pending.clear()


_read = io.BufferedReader.read
_readinto = io.BufferedReader.readinto


class CachedFile(io.BufferedReader):
    """A file of a cached store, open for reading in binary.

    Small reads, lines and seeks are Python's own buffered ones; large reads go straight into the caller's buffer.
    """

    def __init__(self, filesystem: Any, reader: Reader, snapshot: Snapshot) -> None:
        """Opens one version.

        Args:
            filesystem: that the file is of.
            reader: of its store.
            snapshot: of the object.
        """
        self._pages = _PageReader(reader, snapshot)
        super().__init__(self._pages, BUFFER_BYTES)
        self.fs = filesystem
        self.path = snapshot.name.path
        self.blocksize = PAGE_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        """Bytes from here on; all of them for a negative number."""
        self._pages.wanted = size
        return _read(self, size)

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer from here on."""
        self._pages.wanted = len(buffer)
        return _readinto(self, buffer)

    @property
    def size(self) -> int:
        """Bytes of the object."""
        self._pages.is_committed = True
        return self._pages.snapshot.size

    @property
    def details(self) -> dict[str, Any]:
        """The store's metadata of the object when it was opened."""
        self._pages.is_committed = True
        details = self._pages.snapshot.details
        return dict(details) if details is not None else self.fs.info(self.path)

    @property
    def loc(self) -> int:
        """Where the next read starts, as files of fsspec call it."""
        return self.tell()

    @property
    def full_name(self) -> str:
        """The name with its protocol."""
        return self.fs.unstrip_protocol(self.path)

    def info(self) -> dict[str, Any]:
        """The store's metadata of the object when it was opened."""
        return self.details

    def bring_ahead(self, pages: Sequence[int]) -> None:
        """Prefetches pages in the background, for a caller that knows its next reads.

        Args:
            pages: indexes, ascending.
        """
        self._pages.steer(pages)

    def readuntil(self, char: bytes = b"\n", blocks: int | None = None) -> bytes:
        """Data up to and with the next occurrence of some bytes, or to the end.

        Args:
            char: to find.
            blocks: bytes to read in one go.
        """
        parts: list[bytes] = []
        while part := self.read(blocks or BUFFER_BYTES):
            start = self.tell() - len(part)
            found = part.find(char)
            if found >= 0:
                parts.append(part[: found + len(char)])
                self.seek(start + found + len(char))
                break
            parts.append(part)
        return b"".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.fs, self.path, self.tell())

    def __repr__(self) -> str:
        return f"<file of {type(self.fs).__name__}: {self.path}>"


def _reopened(filesystem: Any, path: str, position: int) -> CachedFile:
    file = filesystem.open(path, "rb")
    file.seek(position)
    return file
