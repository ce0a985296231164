# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Files that pyarrow reads: mapped if the cache has all of one, else with columns of Parquet prefetched."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.cache.filesystem.files import CachedFile
from stoker.cache.filesystem.parquet_ahead import Chunk, chunks_of, touched, wanted
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import pages_of
from stoker.cache.reading.fetching import Snapshot
from stoker.core.processes.forking import ForkedLock

_MAGIC = b"PAR1"
_FOOTER_BYTES = 8

_columns: dict[str, frozenset[str]] = {}
"""Columns that a program is reading of files, by path."""
_columns_lock = ForkedLock()
_mapped: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Keeps the page store from dropping the bytes of mapped files."""
_lent: weakref.WeakSet[Any] = weakref.WeakSet()
"""Files that pyarrow's threads hold."""
_RETURN_S = 0.2


class ParquetFile(CachedFile):
    """A file that may be Parquet; the columns that pyarrow will read are prefetched in parallel."""

    def __init__(self, filesystem: StokerFileSystem, snapshot: Snapshot) -> None:
        """Opens one version.

        Args:
            filesystem: that the file is of.
            snapshot: of the object.
        """
        super().__init__(filesystem, filesystem.reader, snapshot)
        self._filesystem = filesystem
        self._snapshot = snapshot
        self._chunks: list[Chunk] | None = None
        self._seen: set[str] = set()

    def read(self, size: int | None = -1, /) -> bytes:
        """Bytes from here on."""
        if size is not None and size > 0:
            self._look(self.tell(), size)
        return super().read(size)

    def _look(self, start: int, size: int) -> None:
        """Fetches the chunks of this read, and those that the next reads most likely need."""
        if self._chunks is None:
            if start + size + _FOOTER_BYTES >= self._snapshot.size:
                return  # this read covers the footer; we read that at the next one
            self._chunks = self._read_chunks()
        now = touched(self._chunks, start, start + size)
        if not now:
            return
        self._seen.update(chunk.column for chunk in now)
        hinted = _columns.get(self.path)
        columns = self._seen if hinted is None else self._seen | hinted
        pages = {page for chunk in wanted(self._chunks, now, columns) for page in pages_of(chunk.start, chunk.end)}
        self.bring_ahead(sorted(pages))

    def _read_chunks(self) -> list[Chunk]:
        with CachedFile(self._filesystem, self._filesystem.reader, self._snapshot) as file:
            file.seek(-min(len(_MAGIC), self._snapshot.size), 2)
            if file.read() != _MAGIC:
                return []
            file.seek(0)
            try:
                return chunks_of(pq.read_metadata(file))
            except (pa.ArrowException, OSError):
                return []  # encrypted, or not Parquet after all: read on demand


def open_file(filesystem: StokerFileSystem, path: str) -> Any:
    """A file of the cache for pyarrow.

    Args:
        filesystem: that the file is of.
        path: of the object.

    Raises:
        FileNotFoundError: there is none.
    """
    path = filesystem._strip_protocol(path)  # pyright: ignore[reportPrivateUsage]
    _, rule = filesystem.reader.rules.of(path)
    if not rule.cached:
        return _lend(filesystem.open(path, "rb"))
    snapshot = filesystem.reader.snapshot(path)
    if not snapshot.is_file:
        raise FileNotFoundError(path)
    return _map(filesystem, snapshot) or _lend(ParquetFile(filesystem, snapshot))


def _lend(file: Any) -> Any:
    _lent.add(file)
    return pa.PythonFile(file, mode="r")


@atexit.register
def _await_return() -> None:
    """Waits for pyarrow's threads to drop their files, except those that the program still holds.

    A thread of C++ that asks for the interpreter while it ends is ended by it, and with it the process ("terminate
    called without an active exception", before Python 3.14).
    """
    end_s = time.monotonic() + _RETURN_S
    while len(_lent) and time.monotonic() < end_s:
        time.sleep(0.001)


def _map(filesystem: StokerFileSystem, snapshot: Snapshot) -> Any:
    """The object's file in the page store, if it is complete and its checksums match."""
    large = filesystem.pages.large(snapshot.name, snapshot.version)
    if large is None or not large.complete or not large.is_intact():
        return None
    try:
        file = pa.memory_map(str(large.path), "r")
    except OSError:
        return None  # evicted since
    if file.size() != snapshot.size:
        return None
    _mapped[file] = large
    return file


@contextmanager
def reading_columns(paths: Collection[str], columns: Collection[str] | None) -> Generator[None]:
    """Says which columns of files are about to be read.

    Args:
        paths: of the files, as their filesystem strips them.
        columns: names at the top of the schema; None says nothing.
    """
    if columns is None:
        yield
        return
    names = frozenset(str(column).partition(".")[0] for column in columns)
    with _columns_lock:
        before = {path: _columns.get(path) for path in paths}
        _columns.update(dict.fromkeys(paths, names))
    try:
        yield
    finally:
        with _columns_lock:
            for path, old in before.items():
                if old is None:
                    _columns.pop(path, None)
                else:
                    _columns[path] = old
