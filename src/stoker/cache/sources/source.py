"""The interface of a source, and how an object's version follows from its store's metadata."""

from __future__ import annotations

import datetime
import email.utils
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from stoker.cache.versions import SETTLING_S, Strength, Version
from stoker.core.errors import SourceChangedError, SourceReadError


class ObjectInfo(NamedTuple):
    """The store's current metadata of an object.

    Attributes:
        version: of the object; of strength ``NONE`` for a directory.
        details: as the store's filesystem returns them from ``info``.
    """

    version: Version
    details: Mapping[str, Any]

    @property
    def is_file(self) -> bool:
        """Whether it has bytes and a known length; objects of unknown length are not cached."""
        return self.details.get("type") == "file" and self.details.get("size") is not None


class Source(Protocol):
    """Reads one store. Implementations are safe to call from several threads, in the process that built them."""

    @property
    def namespace(self) -> str:
        """Identifies this store."""
        ...

    @property
    def target(self) -> Any:
        """The store's own filesystem, a private instance without a listings cache."""
        ...

    def info(self, path: str) -> ObjectInfo:
        """The store's current metadata, never from a cache.

        Raises:
            FileNotFoundError: there is no such object.
        """
        ...

    def read(self, path: str, start: int, end: int, version: Version) -> bytes:
        """The bytes from ``start`` to before ``end``, proven of this version and of exactly this length.

        Raises:
            SourceChangedError: the object is of another version, or gone.
            SourceReadError: the store kept answering wrongly.
        """
        ...

    def first(self, path: str, length: int) -> tuple[ObjectInfo, bytes]:
        """The first bytes of an unknown object, in as few requests as the store allows.

        Args:
            path: of the object.
            length: most bytes to return; fewer come where the object is shorter.
        """
        ...


def is_same(one: Version, other: Version) -> bool:
    """Whether two versions of an object mean the same bytes; a date that has settled since is still that date."""
    return one.token == other.token and one.size == other.size


def changed(path: str, reason: str = "has another version now") -> SourceChangedError:
    """The error for an object whose bytes are not the wanted ones."""
    return SourceChangedError(f"`{path}` {reason}; open it again to read the new one", path=path)


def misread(path: str, start: int, end: int, found: str) -> SourceReadError:
    """The error for an answer that must be wrong.

    Args:
        path: of the object.
        start: first byte that was asked for.
        end: byte after the last.
        found: what arrived instead, as the end of a sentence.
    """
    message = f"reading bytes {start} to {end} of `{path}` from its store failed: {found}"
    return SourceReadError(message, path=path, start=start, end=end)


def check_version(
    source: Source, path: str, start: int, end: int, found: Version | None, wanted: Version
) -> None:  # fmt: skip
    """Returns if an answer states the requested version, raises otherwise.

    Args:
        source: of the object; asked for the current version if the answer may be a change or an error.
        path: of the object.
        start: first byte that was asked for.
        end: byte after the last.
        found: what the answer states; None if it says that the object has no such bytes.
        wanted: the requested version.

    Raises:
        SourceChangedError: the object has another version now, or is gone.
        SourceReadError: the object is unchanged, so the answer is wrong.
    """
    if found is not None and is_same(found, wanted):
        return
    # Some servers look at the range before they look at `If-Match`: the object may be a shorter one now.
    if found is None or found.token == wanted.token:
        try:
            now = source.info(path).version
        except FileNotFoundError:
            raise changed(path, "is gone") from None
        if is_same(now, wanted):
            size = "fewer" if found is None else str(found.size)
            raise misread(path, start, end, f"it reports {wanted.size} bytes, but returned {size}")
    raise changed(path)


def check_length(path: str, start: int, end: int, data: bytes) -> bytes:
    """The data, if it has the requested length.

    Raises:
        SourceReadError: it has not.
    """
    if len(data) != end - start:
        raise misread(path, start, end, f"{len(data)} bytes came")
    return data


def version_of(details: Mapping[str, Any], now: float) -> Version:
    """The version in a store's metadata of an object.

    Args:
        details: as an fsspec filesystem returns them from ``info``.
        now: of the clock that the modification time is from, as far as it is known (seconds since the epoch).
    """
    if details.get("type") != "file" or details.get("size") is None:
        return Version(Strength.NONE, "", int(details.get("size") or 0))
    size = int(details["size"])
    if generation := details.get("generation"):
        return Version(Strength.VERSIONED, str(generation), size)
    if etag := strong_etag(details):
        return Version(Strength.ETAG, etag, size)
    return dated_version(_first(details, _TIMES), size, now, extra=str(_first(details, _ETAGS) or ""))


def dated_version(modified: Any, size: int, now: float, *, extra: str = "") -> Version:
    """The version that a modification time stands for; of no strength while the time is too young to be one.

    Args:
        modified: in seconds, as a date, or as the text of one; None where the store says nothing.
        size: of the object (bytes).
        now: of the same clock.
        extra: what else tells versions apart, but not surely (a weak ETag).
    """
    seconds = _seconds(modified)
    if seconds is None:
        return Version(Strength.NONE, extra, size)
    strength = Strength.DATED if now - seconds >= SETTLING_S else Strength.NONE
    return Version(strength, f"{seconds!r} {extra}".rstrip(), size)


def strong_etag(details: Mapping[str, Any]) -> str:
    """The ETag of a description, empty if it has none or a weak one."""
    etag = str(_first(details, _ETAGS) or "")
    return "" if etag.startswith("W/") else etag


_ETAGS = ("ETag", "etag", "blob_id")
"""The last is a hash of the content, as Hugging Face's filesystem has it."""
_TIMES = (
    *("LastModified", "Last-Modified", "last_modified", "mtime", "modified"),
    *("updated", "timeModified", "modificationTime"),
)
"""A creation time is not among them: an object that is overwritten in place keeps it."""
_MOST_SECONDS = 1e11
"""Larger numbers are milliseconds."""


def _first(details: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((details[name] for name in names if details.get(name)), None)


def _seconds(time: Any) -> float | None:
    if isinstance(time, datetime.datetime):
        return time.timestamp()
    if isinstance(time, int | float):
        return float(time) if time < _MOST_SECONDS else time / 1000
    if not isinstance(time, str):
        return None
    for parse in (datetime.datetime.fromisoformat, email.utils.parsedate_to_datetime):
        try:
            return parse(time).timestamp()
        except ValueError:
            continue
    return None
