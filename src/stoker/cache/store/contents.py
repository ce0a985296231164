"""What is in the store, by name: listed from the files and confirmed by the index."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from stoker.cache.names import ObjectName, pages_of, span_of
from stoker.cache.store.files.maps import Mapped
from stoker.cache.store.files.segments import listing
from stoker.cache.store.files.table import FileKind, FileTable, Row, RowState
from stoker.cache.store.index.page_index import Entry, Index
from stoker.cache.store.writing.large_files import LARGE_INDEX, has_page, head_of
from stoker.cache.versions import Version


class HeldPage(NamedTuple):
    """A page that is in the store.

    Attributes:
        name: of the object.
        page: index of the page.
        version: of the object.
        life: of the file that it is in (:class:`stoker.cache.policies.PageLife`).
        entry: where it is.
    """

    name: ObjectName
    page: int
    version: Version
    life: int
    entry: Entry

    @property
    def key(self) -> bytes:
        """Key of the page."""
        return self.name.key(self.page)


def is_under(name: ObjectName, prefix: ObjectName | None) -> bool:
    """Whether a name begins with a prefix: the same namespace, and a path that begins so; None matches all."""
    return prefix is None or (name.namespace == prefix.namespace and name.path.startswith(prefix.path))


class Contents:
    """Lists the pages of a store.

    Args:
        table: of files.
        index: of pages.
        open_file: maps a file by its number; None if it is gone.
    """

    def __init__(self, table: FileTable, index: Index, open_file: Callable[[int], Mapped | None]) -> None:
        self._table, self._index, self._open_file = table, index, open_file

    def rows(self) -> list[int]:
        """Rows of all files whose pages are served, the oldest first."""
        rows = self._table.rows()
        alive = np.flatnonzero((rows["state"] == RowState.OPEN) | (rows["state"] == RowState.SEALED))
        return sorted(alive.tolist(), key=lambda row: int(rows["id"][row]))

    def held(self, prefix: ObjectName | None = None, life: int | None = None) -> Iterator[HeldPage]:
        """All pages under a prefix; with one life given, files of other lives are skipped."""
        for row in self.rows():
            if life is None or self._table.get(row).life == life:
                yield from self.of_row(row, prefix)

    def of_row(self, row: int, prefix: ObjectName | None = None) -> Iterator[HeldPage]:
        """Pages of one file."""
        content = self._table.get(row)
        for name, page, version, entry in self._recorded(content):
            if is_under(name, prefix):
                found = self._index.find(name.key(page))
                if found is not None and (found.segment, found.offset) == (entry.segment, entry.offset):
                    yield HeldPage(name, page, version, content.life, found)

    def _recorded(self, row: Row) -> Iterator[tuple[ObjectName, int, Version, Entry]]:
        """The pages in a file's records, whether or not they are still current."""
        mapped = self._open_file(row.id)
        if mapped is None:
            return
        if mapped.large is None:
            for offset, header in listing(mapped.data, row.tail):
                entry = Entry(
                    header.version.digest, header.version.size, header.checked_at, row.id, offset, header.length,
                    header.rule,
                )  # fmt: skip
                yield header.name, header.page, header.version, entry
            return
        pages = mapped.large.data
        head = head_of(pages)
        if head is None:
            return
        digest, size = head.version.digest, head.version.size
        for page in pages_of(0, size):
            if has_page(pages, page):
                first, last = span_of(page, size)
                entry = Entry(digest, size, head.checked_at, row.id, first, last - first, head.rule)
                yield head.name, page, head.version, entry

    def reindex(self, wait_s: float) -> list[int]:
        """Rebuild a lost index from the records, the newest first. Under the publish lock.

        Returns:
            Rows that were not reached in time, or whose records are unreadable.

        Raises:
            OSError: the disk is full.
        """
        deadline = time.monotonic() + wait_s
        left: list[int] = []
        for row in reversed(self.rows()):
            content = self._table.get(row)
            records = list(self._recorded(content)) if time.monotonic() < deadline else []
            live_bytes = live_pages = 0
            for name, page, _, entry in reversed(records):
                if self._index.find(name.key(page)) is None:
                    self._index.put(name.key(page), entry)
                    live_bytes, live_pages = live_bytes + entry.length, live_pages + 1
            self._table.extend(row, content.tail, live_bytes, live_pages)
            if content.kind == FileKind.LARGE and records:
                name, _, _, entry = records[0]
                self._index.put(name.key(LARGE_INDEX), entry._replace(offset=0, length=0))
            if not records:
                left.append(row)
        return left
