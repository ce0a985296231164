"""What a worker needs of the page store and of the sources: the places where they are plugged in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.cache.names import ObjectName
from stoker.cache.policies import Life
from stoker.cache.versions import Version


class Pages(Protocol):
    """The part of a page store that serves and is filled; safe to use from many threads."""

    def lookup(self, key: bytes) -> Any:
        """The entry of a page (with ``version`` and ``length``), or None."""
        ...

    def read_into(self, key: bytes, entry: Any, start: int, buffer: memoryview) -> bool:
        """Fills the buffer from byte ``start`` of the page, verified; False when it is gone or damaged."""
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
        life: Life = Life.NORMAL,
        checked_at: float,
    ) -> bool:
        """Keeps a page if there is room and reason to."""
        ...

    def filling(self, key: bytes) -> AbstractContextManager[Any]:
        """Holds off other processes that would fetch the same page."""
        ...


class Described(Protocol):
    """What a source says of an object."""

    @property
    def version(self) -> Version:
        """Of the object now."""
        ...

    @property
    def is_file(self) -> bool:
        """Whether it has bytes."""
        ...


class Reads(Protocol):
    """The part of a source that a worker needs; safe to use from many threads."""

    def info(self, path: str) -> Described:
        """What the store says now; raises ``FileNotFoundError``."""
        ...

    def read(self, path: str, start: int, end: int, version: Version) -> bytes:
        """Bytes that are proven of this version; raises ``SourceChangedError`` when the object is of another."""
        ...


@dataclass(frozen=True, slots=True)
class Mount:
    """A store that this worker reads for others.

    Attributes:
        name: for people and the HTTP door (``s3``).
        namespace: of the store; what clients name.
        source: reads it; its credentials never leave this process.
    """

    name: str
    namespace: str
    source: Reads

    @property
    def protocol(self) -> str:
        """Of the store."""
        return self.namespace.partition("|")[0]
