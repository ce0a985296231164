"""What is kept of an object beside its bytes: its whole version, and what its store said of it, as JSON."""

from __future__ import annotations

import datetime
import json
from typing import Any, NamedTuple

from stoker.cache.versions import Strength, Version

_TIME = "$time"


class Description(NamedTuple):
    """One object.

    Attributes:
        version: of the object.
        details: as the store's filesystem returned them; None if they hold what JSON cannot.
    """

    version: Version
    details: dict[str, Any] | None

    def encode(self) -> bytes:
        """As bytes for the page store."""
        version = [int(self.version.strength), self.version.token, self.version.size]
        try:
            data = json.dumps({"version": version, "details": self.details}, default=_encoded).encode()
            if Description.decode(data).details == self.details:
                return data
        except TypeError:
            pass  # what is not of JSON is asked of the store again
        return json.dumps({"version": version, "details": None}).encode()

    @staticmethod
    def decode(data: bytes | bytearray | memoryview) -> Description:
        """From bytes that :meth:`encode` wrote."""
        found: Any = _decode(str(data, "utf-8"))
        strength, token, size = found["version"]
        return Description(Version(Strength(strength), token, size), found["details"])


def _encoded(value: object) -> object:
    if isinstance(value, datetime.datetime):
        return {_TIME: value.isoformat()}
    raise TypeError(type(value))


def _decoded(found: dict[str, Any]) -> object:
    if len(found) == 1 and _TIME in found:
        return datetime.datetime.fromisoformat(found[_TIME])
    return found


_decode = json.JSONDecoder(object_hook=_decoded).decode
