"""What a request over gRPC holds, measured on its bytes: messages take many times these once they are made; pure.

An empty message in another takes 2 bytes and is made of 90; a small whole number takes 1, and 8 as a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stoker.serve.refusals import malformed
from stoker.wire.protobuf import BYTES, fields

_MOST_FIELDS = 16_384
"""In all messages of a request: raw numbers are one field for each input, and other numbers are packed into one."""
_NAME, _INPUTS, _OUTPUTS = 1, 5, 6
_SHAPE, _CONTENTS = 3, 5
_SIZES = {6: 4, 7: 8}
"""Bytes of each number in packed fields of contents; others take what they need."""
_TEXTS = 8


class MeasuredRequest(NamedTuple):
    """What is known of a request before it is read.

    Attributes:
        model: its name; empty where it has none.
        inputs: that it has.
        outputs: that it asks for.
        numbers: in its contents and shapes, raw ones apart.
    """

    model: str
    inputs: int
    outputs: int
    numbers: int


def measured(raw: bytes) -> MeasuredRequest:
    """What a ``ModelInferRequest`` holds.

    Raises:
        RequestRefused: it is no message, or has more fields than any request needs.
    """
    walk = _Walk(raw)
    try:
        return walk.request()
    except IndexError:
        raise malformed("`ModelInferRequest` must be a message of the protocol, got other bytes") from None


class _Walk:
    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._left = _MOST_FIELDS

    def request(self) -> MeasuredRequest:
        model, inputs, outputs, numbers = b"", 0, 0, 0
        for number, kind, start, end in self._fields(0, len(self._raw)):
            if kind != BYTES:
                continue
            if number == _NAME:
                model = self._raw[start:end]
            elif number == _INPUTS:
                inputs += 1
                numbers += self._of_input(start, end)
            elif number == _OUTPUTS:
                outputs += 1
                for _ in self._fields(start, end):
                    pass  # each is made of many bytes; entries of maps are merged, and hold no more
        return MeasuredRequest(model.decode("utf-8", "replace"), inputs, outputs, numbers)

    def _of_input(self, start: int, end: int) -> int:
        numbers = 0
        for number, kind, first, last in self._fields(start, end):
            if number == _SHAPE:
                numbers += self._packed(first, last) if kind == BYTES else 1
            elif number == _CONTENTS and kind == BYTES:
                numbers += sum(self._of_contents(*each) for each in self._fields(first, last))
        return numbers

    def _of_contents(self, number: int, kind: int, start: int, end: int) -> int:
        if kind != BYTES or number == _TEXTS:
            return 1
        size = _SIZES.get(number)
        return self._packed(start, end) if size is None else (end - start) // size

    def _packed(self, start: int, end: int) -> int:
        """Numbers of a packed field: the last byte of each is below 128."""
        return int(np.count_nonzero(np.frombuffer(self._raw, np.uint8, end - start, start) < 128))

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        for found in fields(self._raw, start, end):
            self._left -= 1
            if self._left < 0:
                raise malformed(
                    f"`ModelInferRequest` must have at most {_MOST_FIELDS} fields; numbers are packed into one, or raw"
                )
            yield found
