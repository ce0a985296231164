"""The metadata of a cached object: its full version and the store's details."""

from __future__ import annotations

import datetime
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from stoker.cache.versions import Strength, Version

_TIME = "$time"
_TEXT = ("utf-8", "surrogateescape")
_HEAD = struct.Struct("<BQI")
"""Strength and size of the version, bytes of its token; the token and the details follow."""


class Details(Mapping[str, Any]):
    """A store's details of an object, parsed from JSON only on access: most files are opened just to be read."""

    __slots__ = ("_found", "_text")

    def __init__(self, text: bytes | bytearray | memoryview) -> None:
        """Decodes nothing yet."""
        self._text = text
        self._found: dict[str, Any] | None = None

    def _decoded(self) -> dict[str, Any]:
        if self._found is None:
            self._found = cast("dict[str, Any]", _decode(str(self._text, *_TEXT)))
        return self._found

    def __getitem__(self, name: str) -> Any:
        return self._decoded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())


class Description(NamedTuple):
    """One object.

    Attributes:
        version: of the object.
        details: as the store's filesystem returned them; None if they hold what JSON cannot.
    """

    version: Version
    details: Mapping[str, Any] | None

    def encode(self) -> bytes:
        """The description as bytes for the page store."""
        strength, token, size = int(self.version.strength), self.version.token.encode(*_TEXT), self.version.size
        details = _written(self.details) or ""
        return _HEAD.pack(strength, size, len(token)) + token + details.encode(*_TEXT)

    @staticmethod
    def decode(data: bytes | bytearray | memoryview) -> Description:
        """The description that :meth:`encode` wrote.

        Raises:
            ValueError: they are none of these.
        """
        if len(data) < _HEAD.size:
            raise ValueError("a description must not be truncated")
        strength, size, length = _HEAD.unpack_from(data)
        begin, end = _HEAD.size, _HEAD.size + length
        version = Version(Strength(strength), str(data[begin:end], *_TEXT), size)
        return Description(version, Details(data[end:]) if len(data) > end else None)


def _written(details: Mapping[str, Any] | None) -> str | None:
    """Details as JSON; None if they would not survive a round trip. The store is asked again for those."""
    if details is None:
        return None
    try:
        text = json.dumps(dict(details), default=_encoded)
    except TypeError:
        return None
    return text if _decode(text) == details else None


def _encoded(value: object) -> object:
    if isinstance(value, datetime.datetime):
        return {_TIME: value.isoformat()}
    raise TypeError(type(value))


def _decoded(found: dict[str, Any]) -> object:
    if len(found) == 1 and _TIME in found:
        return datetime.datetime.fromisoformat(found[_TIME])
    return found


_decode = json.JSONDecoder(object_hook=_decoded).decode
