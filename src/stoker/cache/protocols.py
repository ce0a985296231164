"""What reading and serving need of the page store: the place where it is plugged in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from stoker.cache.names import ObjectName
from stoker.cache.policies import PageLife
from stoker.cache.versions import Version


class Reads(NamedTuple):
    """Reads of pages by all processes, since the store was made.

    Attributes:
        found: that found their page.
        missed: that did not: it was brought, and stored or refused.
    """

    found: int
    missed: int

    @property
    def hit_frac(self) -> float | None:
        """Hit ratio; None before the first read."""
        reads = self.found + self.missed
        return self.found / reads if reads else None


class Pages(Protocol):
    """The part of a page store that is read and filled; safe to use from many threads."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Directories that other processes of this user may open as well."""
        ...

    def lookup(self, key: bytes) -> Any:
        """The entry of a page (with ``version`` and ``length``), or None."""
        ...

    def read_into(self, key: bytes, entry: Any, start: int, buffer: memoryview) -> bool:
        """Fills the buffer from byte ``start`` of the page, verified; False if it is gone or damaged."""
        ...

    def view(self, key: bytes, entry: Any) -> memoryview | None:
        """The page's bytes in place, verified; None when it is gone or damaged."""
        ...

    def put(
        self,
        name: ObjectName,
        index: int,
        version: Version,
        payload: Any,
        *,
        rule: int = 0,
        life: PageLife = PageLife.NORMAL,
        checked_at: float,
    ) -> bool:
        """Caches a page, if it is admitted."""
        ...

    def put_many(
        self,
        pages: Sequence[tuple[ObjectName, int, Version, Any]],
        *,
        rule: int = 0,
        life: PageLife = PageLife.NORMAL,
        checked_at: float,
    ) -> list[bool]:
        """Keeps pages that came together: object, index, version and bytes of each."""
        ...

    def confirm(self, key: bytes, entry: Any, checked_at: float) -> None:
        """Notes that the store confirmed an entry's version."""
        ...

    def pinned_pages(self) -> Iterator[Any]:
        """Pages (with ``name``, ``page`` and ``version``) that only go when they are unpinned."""
        ...

    def reads(self) -> Reads:
        """Reads and hits."""
        ...

    def drop(self, *keys: bytes) -> None:
        """Drops pages."""
        ...

    def filling(self, key: bytes) -> AbstractContextManager[None]:
        """Holds off other processes that would fetch the same page."""
        ...
