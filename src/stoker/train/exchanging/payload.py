"""What ranks gather of a bucket: for each of its layers a header, then factors or rows in the room that was agreed on.

The room is the same on all ranks, so that no rank has to ask for sizes. The header says how much of it is filled, and
whether this rank doubts its own part: then that layer goes by all-reduce on all ranks, in this very step.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

_ALIGNED = 64
"""Bytes at which parts begin: a multiple of every element's size."""
_FIELDS = 4
"""Whole numbers of a header: rows, doubt, the hash of the weights, one to spare."""


class Doubt(enum.IntEnum):
    """Why a rank sends a layer by all-reduce in a step."""

    NONE = 0
    ROWS = 1
    PRODUCT = 2
    TYPE = 3
    FAILED = 4

    @property
    def words(self) -> str:
        """The reason, for people."""
        return _WORDS[self]


_WORDS = {
    Doubt.NONE: "",
    Doubt.ROWS: "more rows than agreed",
    Doubt.PRODUCT: "its gradient holds more than the product",
    Doubt.TYPE: "its factors are of a wider type than agreed",
    Doubt.FAILED: "its factors could not be read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredSegment:
    """A weight's part of a bucket that is not summed but gathered.

    Attributes:
        name: of the weight.
        method: ``late`` or ``rows``.
        start, stop: its elements in the bucket.
        shape: of its gradient as a matrix.
        room: rows that each rank may send.
        factor_type: of factors; of a table's rows it is the gradient's.
    """

    name: str
    method: str
    start: int
    stop: int
    shape: tuple[int, int]
    room: int
    factor_type: torch.dtype

    @property
    def parts(self) -> tuple[tuple[torch.dtype, int], ...]:
        """Types and widths of what is sent of each row."""
        if self.method == "rows":
            return ((torch.int64, 1), (self.factor_type, self.shape[1]))
        return tuple((self.factor_type, width) for width in self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of its room, header included."""
        return _aligned(8 * _FIELDS) + sum(_aligned(self.room * width * kind.itemsize) for kind, width in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a rank says of its part.

    Attributes:
        rows: that it has, also where they are more than the room.
        doubt: why they may not be used.
        weights: hash of its weights; 0 for none.
    """

    rows: int
    doubt: Doubt = Doubt.NONE
    weights: int = 0


class GatheredPayload:
    """The memory that is sent of some segments, laid out alike on all ranks."""

    def __init__(self, segments: Sequence[GatheredSegment], device: torch.device) -> None:
        self.segments = tuple(segments)
        self.offsets: list[int] = []
        size = 0
        for segment in self.segments:
            self.offsets.append(size)
            size += segment.bytes
        self.bytes = size
        self._device = device

    def empty(self) -> torch.Tensor:
        """Memory for one rank's part: bytes, none of them filled."""
        return torch.zeros(self.bytes, dtype=torch.uint8, device=self._device)

    def write(self, memory: torch.Tensor, place: int, header: Header, parts: Sequence[torch.Tensor]) -> None:
        """Fills in one segment.

        Args:
            memory: of :meth:`empty`.
            place: of the segment.
            header: its own.
            parts: what is sent, rows x width each; nothing for a doubt.
        """
        fields = [header.rows, int(header.doubt), header.weights, 0]
        at = self.offsets[place]
        memory[at : at + 8 * _FIELDS].view(torch.int64).copy_(torch.tensor(fields))
        for view, part in zip(self._views(memory, place), parts, strict=False):
            view[: part.shape[0]].copy_(part.reshape(part.shape[0], view.shape[1]))

    def headers(self, gathered: torch.Tensor) -> list[list[Header]]:
        """For each segment the headers of all ranks.

        Args:
            gathered: ranks x bytes.
        """
        found = [
            gathered[:, at : at + 8 * _FIELDS].contiguous().view(torch.int64).reshape(gathered.shape[0], _FIELDS)
            for at in self.offsets
        ]
        # One wait for a device, however many segments.
        numbers = cast("list[list[list[int]]]", torch.stack(found).tolist())  # pyright: ignore[reportUnknownMemberType]
        return [
            [Header(rows=row[0], doubt=Doubt(row[1]), weights=row[2]) for row in segment] for segment in numbers
        ]  # fmt: skip

    def read(self, memory: torch.Tensor, place: int, rows: int) -> list[torch.Tensor]:
        """One rank's parts of a segment, rows x width each.

        Args:
            memory: of that rank.
            place: of the segment.
            rows: that are filled.
        """
        return [view[:rows] for view in self._views(memory, place)]

    def _views(self, memory: torch.Tensor, place: int) -> list[torch.Tensor]:
        segment, at = self.segments[place], self.offsets[place] + _aligned(8 * _FIELDS)
        views: list[torch.Tensor] = []
        for kind, width in segment.parts:
            size = segment.room * width * kind.itemsize
            views.append(memory[at : at + size].view(kind).reshape(segment.room, width))
            at += _aligned(size)
        return views


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
