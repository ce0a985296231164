"""Fields of protobuf messages found without a schema, before anything is made of them.

Source: the wire format (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields that are there; groups are taken for damage."""


def fields(data: bytes | mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, kind, start and end of each field of a message; of one with bytes they are where these are.

    Args:
        data: that holds it.
        at: where it begins.
        end: where it ends.

    Raises:
        IndexError: it is no message.
    """
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind == VARINT:
            size = _varint(data, at)[1] - at
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise IndexError(at)
        if at + size > end:
            raise IndexError(at)
        yield tag >> 3, kind, at, at + size
        at += size


def _varint(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """A number and the place behind it."""
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at
        if shift > 63:
            raise IndexError(at)
