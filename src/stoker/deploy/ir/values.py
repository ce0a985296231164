"""What goes along an edge of the graph, and what enters and leaves it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Dtype: TypeAlias = Literal["float32", "int64", "bool"]
"""What a caller's array holds."""
MOST_BITS = 16
"""Widest value on an edge; accumulators are wider and never leave their operation."""
MOST_INDEX_BITS = 32
"""Widest integer input: row numbers of embedding tables."""


class IntegerValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An integer tensor on an edge; it stands for ``scale * (q - zero_point)``."""

    name: str
    shape: tuple[int, ...]
    """Without the batch, which is axis 0 of every array; channels are last."""
    bits: int
    signed: bool
    scale: float
    """Real units of one step; 1 for row numbers."""
    zero_point: int
    low: int
    high: int
    """The least and the largest number that can occur, derived from the weights; within the type's."""
    highs: tuple[int, ...] = ()
    """The largest row number at each place of the shape, flattened, where places differ; -1 where nothing reads one,
    and a caller's number is taken as 0. Empty: ``high`` everywhere."""

    @property
    def type_low(self) -> int:
        """The least number that the bits hold."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def type_high(self) -> int:
        """The largest number that the bits hold."""
        return (1 << (self.bits - self.signed)) - 1

    @property
    def elements(self) -> int:
        """Numbers of one sample."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class ModelPort(msgspec.Struct, frozen=True, kw_only=True):
    """An input or an output as the model's caller sees it.

    Whole numbers are taken as they are, truth values as 0 and 1. A float input is quantised as
    ``clamp(rint(x * (1 / scale)) + zero_point)`` in double precision, halves to the even step; NaN becomes the zero
    point. A float output is ``(q - zero_point) * scale``, computed in double precision and rounded once to float32.
    """

    name: str
    value: str
    """Name of the graph's value."""
    dtype: Dtype
    shape: tuple[int, ...]
    """The caller's, without the batch: channels where torch has them."""
    order: tuple[int, ...]
    """Axes of the caller's array (without the batch, from 0) in the order in which the graph's value has them."""


def type_range(bits: int, signed: bool) -> tuple[int, int]:
    """The least and the largest number of a type."""
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def bits_of(low: int, high: int) -> int:
    """The fewest bits of a two's complement number that holds all of a range, sign bit included."""
    return max(low if low >= 0 else ~low, high if high >= 0 else ~high).bit_length() + 1
