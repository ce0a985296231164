# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
"""Web servers as a source: status, range, length and ETag of every answer are checked.

``HTTPFileSystem.cat_file`` takes a whole file for the range that it asked for when a server knows no ranges, so the
session is used directly.
"""

from __future__ import annotations

import email.utils
import time
from typing import Any

from fsspec.asyn import sync

from stoker.cache.sources.retrying import retried
from stoker.cache.sources.source import ObjectInfo, changed, check_length, check_version, is_same, misread, version_of
from stoker.cache.versions import Strength, Version
from stoker.core.errors import CacheError, SourceReadError

_PIECE_BYTES = 1 << 18
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpSource:
    """Reads files of web servers by range requests."""

    def __init__(self, target: Any, namespace: str) -> None:
        """Wraps a filesystem.

        Args:
            target: a private ``HTTPFileSystem``.
            namespace: of the protocol; hosts are part of the paths.
        """
        self.target = target
        self.namespace = namespace

    def info(self, path: str) -> ObjectInfo:
        """What a HEAD says now.

        Raises:
            SourceReadError: the server does not answer, or only that it is in trouble.
        """
        details = retried(lambda: self._details(path))
        return ObjectInfo(version_of(details, time.time()), details)

    def _details(self, path: str) -> dict[str, Any]:
        try:
            return dict(self.target.info(path))
        except FileNotFoundError as error:
            # The filesystem says so of every failure; a server that is overloaded has the file all the same.
            cause, status = error.__cause__, getattr(error.__cause__, "status", None)
            if cause is None or isinstance(cause, FileNotFoundError) or (status and status not in _TRY_AGAIN):
                raise
            raise SourceReadError(
                f"asking for `{path}` failed: {type(cause).__name__}: {cause}"[:300], path=path, start=0, end=0
            ) from error

    def read(self, path: str, start: int, end: int, version: Version) -> bytes:
        """Bytes of an answer that carries the version's ETag or date."""
        if end <= start:
            return b""
        return retried(lambda: self._read(path, start, end, version))

    def first(self, path: str, length: int) -> tuple[ObjectInfo, bytes]:
        """The first bytes and their version."""
        info = self.info(path)
        end = min(length, info.version.size)
        return info, self.read(path, 0, end, info.version)

    def _read(self, path: str, start: int, end: int, version: Version) -> bytes:
        try:
            answer: Any = sync(self.target.loop, self._read_async, path, start, end, version)
        except CacheError:
            raise
        except Exception as error:
            # Whatever the HTTP library makes of a connection that broke, stalled or lied about its length.
            raise misread(path, start, end, f"{type(error).__name__}: {error}"[:200]) from error
        found, data = answer
        check_version(self, path, start, end, found, version)
        return check_length(path, start, end, data)

    async def _read_async(self, path: str, start: int, end: int, version: Version) -> tuple[Version | None, bytes]:
        """The version that the answer states, None where there are no such bytes; its bytes if it is the wanted one."""
        options = dict(self.target.kwargs)
        headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        if version.strength is Strength.ETAG:
            headers["If-Match"] = version.token
        session = await self.target.set_session()
        async with session.get(self.target.encode_url(path), headers=headers, **options) as answer:
            if answer.status in (404, 410):
                raise changed(path, "is gone")
            if answer.status == 412:
                raise changed(path)
            if answer.status == 416:
                return None, b""
            if answer.status not in (200, 206):
                raise misread(path, start, end, f"the server answered {answer.status}")
            first, last, size = _range_of(answer)
            found = _version(answer.headers, size)
            if not is_same(found, version):
                return found, b""
            if first > start or last < end:
                raise misread(path, start, end, f"the server sent bytes {first} to {last}")
            return found, await _part(answer, start - first, end - first)


def _version(headers: Any, size: int) -> Version:
    dates = [email.utils.parsedate_to_datetime(headers["Date"]).timestamp()] if headers.get("Date") else []
    details = {"type": "file", "size": size, "ETag": headers.get("ETag"), "Last-Modified": headers.get("Last-Modified")}
    return version_of(details, min([time.time(), *dates]))


def _range_of(answer: Any) -> tuple[int, int, int]:
    """First byte, byte after the last, and size of the file; a server that knows no ranges sends all of it."""
    length = int(answer.headers["Content-Length"])
    if answer.status == 200:
        return 0, length, length
    span, _, total = answer.headers["Content-Range"].removeprefix("bytes").strip().partition("/")
    first, _, last = span.partition("-")
    return int(first), int(last) + 1, int(total)


async def _part(answer: Any, start: int, end: int) -> bytes:
    """Bytes of a body, of which no more is kept than asked for."""
    kept = bytearray()
    position = 0
    while position < end and (piece := await answer.content.read(_PIECE_BYTES)):
        kept += piece[max(0, start - position) : max(0, end - position)]
        position += len(piece)
    return bytes(kept)
