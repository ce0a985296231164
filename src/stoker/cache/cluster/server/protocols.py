"""What a worker needs of the sources: the place where they are plugged in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.cache.versions import Version


class Described(Protocol):
    """What a source says of an object."""

    @property
    def version(self) -> Version:
        """The object's current version."""
        ...

    @property
    def details(self) -> Mapping[str, Any]:
        """All that the store said."""
        ...

    @property
    def is_file(self) -> bool:
        """Whether it has bytes."""
        ...


class MountedSource(Protocol):
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
    source: MountedSource

    @property
    def protocol(self) -> str:
        """Protocol of the store."""
        return self.namespace.partition("|")[0]
