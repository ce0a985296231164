"""fsspec's memory filesystem as a source; it is one per process, and so is its namespace."""

from __future__ import annotations

from typing import Any

from stoker.cache.sources.source import ObjectInfo, changed, check_length
from stoker.cache.versions import Strength, Version


class MemorySource:
    """Reads the objects of the process itself; mostly for tests."""

    def __init__(self, target: Any, namespace: str) -> None:
        """Wraps a filesystem.

        Args:
            target: an instance with the store that all instances of the process share.
            namespace: of this process.
        """
        self.target = target
        self.namespace = namespace

    def info(self, path: str) -> ObjectInfo:
        """The object's current metadata."""
        details = dict(self.target.info(path))
        file = self.target.store.get(path) if details["type"] == "file" else None
        return ObjectInfo(_version(file) if file is not None else Version(Strength.NONE, "", 0), details)

    def read(self, path: str, start: int, end: int, version: Version) -> bytes:
        """Bytes of one file object: overwriting a path puts another in its place."""
        file = self.target.store.get(path)
        if file is None:
            raise changed(path, "is gone")
        with file.getbuffer() as view:
            is_same = _version(file) == version and len(view) == version.size
            data = bytes(view[start:end])
        if not is_same:
            raise changed(path)
        return check_length(path, start, end, data)

    def first(self, path: str, length: int) -> tuple[ObjectInfo, bytes]:
        """The first bytes and their version."""
        info = self.info(path)
        if not info.is_file:
            return info, b""
        return info, self.read(path, 0, min(length, info.version.size), info.version)


def _version(file: Any) -> Version:
    # In the process itself the time of creation, in microseconds, is never that of the write before.
    return Version(Strength.FILE, f"{file.created.isoformat()} {file.modified.isoformat()}", file.size)
