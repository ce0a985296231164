"""Versions of objects: what tells the bytes of one moment from those of another, and how far that can be trusted."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import xxhash

SETTLING_S = 2.0
"""A modification time that is younger than this when the bytes are read may be that of the write before, too."""


class Strength(enum.IntEnum):
    """How sure a version is, from none to best."""

    NONE = 0
    """Nothing tells versions apart: bytes are kept no longer than the handle that read them."""
    DATED = 1
    """Size and modification time in whole seconds, at least :data:`SETTLING_S` old when it was read."""
    FILE = 2
    """Inode, size, and times in nanoseconds of a local file."""
    ETAG = 3
    """A strong ETag."""
    VERSIONED = 4
    """The store's own version or generation number."""


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an object.

    Attributes:
        strength: what the token is made of.
        token: equal tokens of one object mean equal bytes, as far as ``strength`` goes.
        size: bytes of the object.
    """

    strength: Strength
    token: str
    size: int

    @property
    def digest(self) -> int:
        """A number of 64 bits that stands for the version where room is scarce."""
        text = f"{int(self.strength)}|{self.size}|{self.token}"
        return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogateescape"))

    @property
    def storable(self) -> bool:
        """Whether pages of it may be kept beyond one handle."""
        return self.strength is not Strength.NONE
