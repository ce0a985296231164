"""Any fsspec filesystem as a source: equal metadata before and after a read proves the bytes."""

from __future__ import annotations

import time
from typing import Any

from stoker.cache.sources.source import ObjectInfo, changed, check_length, is_same, version_of
from stoker.cache.versions import Version


class GenericSource:
    """Reads through ``cat_file`` of a filesystem, between two queries of the object's metadata."""

    def __init__(self, target: Any, namespace: str) -> None:
        """Wraps a filesystem.

        Args:
            target: a private instance that caches no listings.
            namespace: tells this store from every other.
        """
        self.target = target
        self.namespace = namespace

    def info(self, path: str) -> ObjectInfo:
        """The store's current metadata."""
        self.target.invalidate_cache(path)
        details = dict(self.target.info(path))
        return ObjectInfo(version_of(details, time.time()), details)

    def read(self, path: str, start: int, end: int, version: Version) -> bytes:
        """Bytes that were read while the object's description stayed the version's."""
        self._must_be(path, version)
        try:
            data = bytes(self.target.cat_file(path, start, end))
        except FileNotFoundError:
            raise changed(path, "is gone") from None
        self._must_be(path, version)
        return check_length(path, start, end, data)

    def first(self, path: str, length: int) -> tuple[ObjectInfo, bytes]:
        """The first bytes, and the description before and after them."""
        info = self.info(path)
        end = min(length, info.version.size)
        if not info.is_file or end == 0:
            return info, b""
        data = bytes(self.target.cat_file(path, 0, end))
        self._must_be(path, info.version)
        return info, check_length(path, 0, end, data)

    def _must_be(self, path: str, version: Version) -> None:
        try:
            now = self.info(path).version
        except FileNotFoundError:
            raise changed(path, "is gone") from None
        if not is_same(now, version):
            raise changed(path)
