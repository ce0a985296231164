"""Workers of this machine and user: their pages are read from their mapped files, not through their sockets.

A worker sends the directories of its pages to clients that connect over its Unix socket as the same user; the kernel
identifies the user. It sends nothing else: only that user may open the files. Reads there look pages up, verify
checksums and lock files against eviction as in the process's own directory. Missing pages are requested from the
worker.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stoker.cache.names import PAGE_BYTES, ObjectName, pages_of
from stoker.cache.store.layout import Layout
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Version
from stoker.core.errors import CacheError
from stoker.core.processes.forking import ForkedLock

MAX_ROOTS = 64


class SameHost:
    """The page stores of such workers, opened when a worker first names them. Safe for threads and forked children.

    Attributes:
        stores: opened so far.
    """

    def __init__(self) -> None:
        self._lock = ForkedLock()
        self._tried: set[str] = set()
        self.stores: tuple[PageStore, ...] = ()

    def told(self, roots: Sequence[str]) -> None:
        """Records the directories that a worker named.

        Args:
            roots: its directories; in a container they may be others, or none, with the same names.
        """
        with self._lock:
            for root in roots[:MAX_ROOTS]:
                if root not in self._tried and len(self._tried) < MAX_ROOTS:
                    self._tried.add(root)
                    if (store := _open(root)) is not None:
                        self.stores = (*self.stores, store)

    def read(
        self, name: ObjectName, version: Version, ranges: Sequence[tuple[int, int]], into: Sequence[memoryview]
    ) -> list[bool]:
        """Fills buffers with ranges of an object; returns which succeeded.

        Args:
            name: of the object.
            version: that the bytes have.
            ranges: start and end in the object.
            into: a buffer for each; undefined where the result is False.
        """
        digest = version.digest
        return [
            end <= version.size and self._range(name, digest, start, end, target)
            for (start, end), target in zip(ranges, into, strict=True)
        ]

    def _range(self, name: ObjectName, digest: int, start: int, end: int, target: memoryview) -> bool:
        view = target if target.format == "B" and target.ndim == 1 else target.cast("B")
        for page in pages_of(start, end):
            first = page * PAGE_BYTES
            low, high = max(start, first), min(end, first + PAGE_BYTES)
            if not self._piece(name.key(page), digest, low - first, view[low - start : high - start]):
                return False
        return len(view) == end - start

    def _piece(self, key: bytes, digest: int, start: int, into: memoryview) -> bool:
        for store in self.stores:
            try:
                entry = store.lookup(key)
                if entry is not None and entry.version == digest and store.read_into(key, entry, start, into):
                    return True
            except OSError:
                continue  # the worker reports a broken disk
        return False

    def close(self) -> None:
        """Unmaps all files."""
        with self._lock:
            stores, self.stores = self.stores, ()
        for store in stores:
            store.close()


def _open(root: str) -> PageStore | None:
    """The store of a directory of this user; None for anything else."""
    path = Path(root)
    try:
        if not path.is_absolute() or os.stat(path).st_uid != os.geteuid() or not Layout(path).is_made:
            return None
        return PageStore(path)
    except (OSError, ValueError, CacheError):
        return None  # requested through the socket, like others
