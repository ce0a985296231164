"""A large object as a whole: what of it is here, and its file once all is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cache.names import PAGE_BYTES, ObjectName, pages_of, span_of
from stoker.cache.store.checksums import Bytes
from stoker.cache.store.large import has_page
from stoker.cache.store.maps import Mapped
from stoker.cache.versions import Version

if TYPE_CHECKING:
    from stoker.cache.store.page_store import PageStore
    from stoker.cache.store.refusals import Shelf


class LargeObject:
    """One version of a large object. As long as this lives, the file stays where it is, evicted or not.

    Attributes:
        name: of the object.
        version: of it.
        path: of the file; its bytes are the object's where pages are there, and 0 elsewhere. Never write to it.
    """

    def __init__(
        self, store: PageStore, name: ObjectName, version: Version, mapped: Mapped, shelf: Shelf, checked_at: float
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
        """Whether a page is there (whole when it was written; reading compares its checksums)."""
        pages = self._mapped.large
        return pages is not None and has_page(pages.data, index)

    @property
    def complete(self) -> bool:
        """Whether all pages are there."""
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
        """Whether all pages are there and have their checksums; reads the whole file."""
        page = memoryview(bytearray(PAGE_BYTES))
        for index in range(self.num_pages):
            first, last = span_of(index, self.version.size)
            if not self.read_into(first, page[: last - first]):
                return False
        return True
