"""Local files as a source: ``fstat`` before and after on one descriptor proves the bytes read in between."""

from __future__ import annotations

import os
import time
from typing import Any

from stoker.cache.sources.source import ObjectInfo, changed, check_length
from stoker.cache.versions import Strength, Version

CLOCK_TICK_S = 0.02
"""Kernels stamp files with a clock that moves in steps of up to 10 ms; a second write within a step leaves no trace."""
_MAX_LOOKS = 50


class LocalSource:
    """Reads files of this machine. ``file://`` is cached only where a rule says so."""

    def __init__(self, target: Any, namespace: str) -> None:
        """Wraps a filesystem.

        Args:
            target: a ``LocalFileSystem``.
            namespace: of this machine.
        """
        self.target = target
        self.namespace = namespace

    def info(self, path: str) -> ObjectInfo:
        """The file's current metadata."""
        details = dict(self.target.info(path))
        if details["type"] != "file":
            return ObjectInfo(Version(Strength.NONE, "", 0), details)
        return ObjectInfo(_version(os.stat(path)), details)

    def read(self, path: str, start: int, end: int, version: Version) -> bytes:
        """Bytes of a file whose stamps were the version's before and after."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise changed(path, "is gone") from None
        try:
            if _version(_settled(descriptor, path)) != version:
                raise changed(path)
            data = _pread(descriptor, start, end)
            if _version(os.fstat(descriptor)) != version:
                raise changed(path)
        finally:
            os.close(descriptor)
        return check_length(path, start, end, data)

    def first(self, path: str, length: int) -> tuple[ObjectInfo, bytes]:
        """The first bytes and their version."""
        info = self.info(path)
        if not info.is_file:
            return info, b""
        return info, self.read(path, 0, min(length, info.version.size), info.version)


def _settled(descriptor: int, path: str) -> os.stat_result:
    """The stamps of a file, as soon as a write after them would change them."""
    for _ in range(_MAX_LOOKS):
        found = os.fstat(descriptor)
        # Every write sets the change time, no program can; one in the future is of a clock that was set back since.
        age_s = abs(time.time() - found.st_ctime_ns / 1e9)
        if age_s >= CLOCK_TICK_S:
            return found
        time.sleep(CLOCK_TICK_S - age_s)
    raise changed(path, "is being written continuously")


def _pread(descriptor: int, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    while start < end and (part := os.pread(descriptor, end - start, start)):
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _version(found: os.stat_result) -> Version:
    token = f"{found.st_dev}:{found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"
    return Version(Strength.FILE, token, found.st_size)
