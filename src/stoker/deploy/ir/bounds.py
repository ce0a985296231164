"""What accumulators and values can hold, derived from the actual weights: nothing in the graph can overflow.

An accumulator's ``low`` and ``high`` are attained: by the input that takes its largest number where a weight is
positive and its least where it is negative. Sums in any order stay within ``partial_low`` and ``partial_high``, in
which each term counts only towards its own side; registers are as wide as those need.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.row_numbers import moved_highs, stated
from stoker.deploy.ir.shapes import shape_of
from stoker.deploy.ir.values import IntegerValue, bits_of

Whole = NDArray[np.int64]
DOUBLE_BITS = 53
"""Whole numbers of up to so many bits are exact in double precision, and so are their sums."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The range of an operation's sums before its requantiser.

    Attributes:
        low: least finished sum; broadcasts over the result, by channel where weights differ by channel.
        high: largest finished sum.
        partial_low: least sum on the way, in any order.
        partial_high: largest sum on the way.
    """

    low: Whole
    high: Whole
    partial_low: int
    partial_high: int

    @property
    def bits(self) -> int:
        """Width of a signed register that no sum overflows."""
        return bits_of(self.partial_low, self.partial_high)


def accumulator(
    operation: op.Operation, values: Mapping[str, IntegerValue], constants: Mapping[str, Integers]
) -> Accumulator:
    """The range of an operation's accumulator.

    Raises:
        ValueError: it has none.
    """
    sources = [values[name] for name in op.sources_of(operation)]
    match operation:
        case op.Linear():
            return _weighted(constants[operation.weight], constants[operation.bias], sources[0])
        case op.Convolution():
            weight = constants[operation.weight]
            pad = sources[0].zero_point if any(operation.padding) else None
            return _weighted(weight.reshape(len(weight), -1), constants[operation.bias], sources[0], pad)
        case op.SumPool():
            return _summed(sources[0], operation.kernel[0] * operation.kernel[1])
        case op.Mean():
            return _summed(sources[0], math.prod(sources[0].shape[axis] for axis in operation.axes))
        case op.Rescale():
            return _summed(sources[0], 1)
        case op.Add():
            ends = [
                _products(_centred(each), (by, by)) for each, by in zip(sources, operation.multipliers, strict=True)
            ]
            low, high = sum(end[0] for end in ends), sum(end[1] for end in ends)
            return _plain(low, high, sum(min(0, end[0]) for end in ends), sum(max(0, end[1]) for end in ends))
        case op.Multiply():
            return _plain(*_products(_centred(sources[0]), _centred(sources[1])))
        case op.MatMul():
            low, high = _products(_centred(sources[0]), _centred(sources[1]))
            count = sources[0].shape[-1]
            return _plain(count * low, count * high)
        case op.EmbeddingBag():
            rows = constants[operation.table][sources[0].low : sources[0].high + 1].astype(np.int64)
            count = sources[0].shape[-1]
            return _channels(count * rows.min(axis=0), count * rows.max(axis=0))
        case op.LayerNorm():
            most = normal_bound(operation, sources[0].shape[-1])
            gain, offset = constants[operation.gain].astype(np.int64), constants[operation.offset].astype(np.int64)
            return _channels(offset - most * np.abs(gain), offset + most * np.abs(gain))
        case _:
            raise ValueError(f"`{operation.output}` must have an accumulator, got {type(operation).__name__}")


def normal_bound(operation: op.LayerNorm, size: int) -> int:
    """The largest magnitude of a normalised number, in steps of ``normal_bits`` of fraction.

    A centred element is at most sqrt((D - 1) q / D), and t + 1 is more than ``2^root_bits sqrt(q / D)``; t is at least
    1, so n is at most ``2^normal_bits * 2 sqrt(D - 1)``, and a step for rounding.
    """
    return math.isqrt((size - 1) << (2 * operation.normal_bits + 2)) + 2


def centred_squares(source: IntegerValue, size: int) -> int:
    """The largest sum of squares of ``D * x - sum(x)`` over a row: half of it at either end of the range."""
    return size**3 * (source.high - source.low) ** 2 // 4


def value_range(
    operation: op.Operation, values: Mapping[str, IntegerValue], constants: Mapping[str, Integers]
) -> tuple[int, int]:
    """The least and the largest number of an operation's result."""
    sources = [values[name] for name in op.sources_of(operation)]
    match operation:
        case op.Table():
            first = sources[0].low - sources[0].type_low
            return _ends(constants[operation.table][first : first + sources[0].high - sources[0].low + 1])
        case op.Embedding():
            return _ends(constants[operation.table][sources[0].low : sources[0].high + 1])
        case op.Softmax():
            return 0, values[operation.output].type_high
        case op.FixedValue():
            return _ends(constants[operation.array])
        case op.MaxPool() | op.Concat() | op.Reshape() | op.Permute() | op.Slice():
            highs = moved_highs(operation, values)
            high = max(each.high for each in sources) if highs is None else stated(highs)[0]
            return min(each.low for each in sources), high
        case _:
            found = accumulator(operation, values, constants)
            by = operation.requantiser
            return min(requantised(found.low, by, constants)), max(requantised(found.high, by, constants))


def requantised(sums: Whole, by: op.Requantiser, constants: Mapping[str, Integers]) -> list[int]:
    """The law over the ends of an accumulator, in whole numbers of any size."""
    multiplier = np.ones(1, np.int64) if by.multiplier is None else constants[by.multiplier].astype(np.int64)
    if multiplier.ndim > 1:
        multiplier = multiplier.ravel()[:, None]
    half = (1 << by.shift) >> 1
    both = np.broadcast_arrays(sums, multiplier)
    pairs = zip(both[0].ravel().tolist(), both[1].ravel().tolist(), strict=True)
    return [min(max(((total * factor + half) >> by.shift) + by.zero_point, by.low), by.high) for total, factor in pairs]


def product_bits(found: Accumulator, by: op.Requantiser, constants: Mapping[str, Integers]) -> int:
    """Width of ``acc * M + 2^(S-1)``; up to :data:`DOUBLE_BITS` and a sign, double precision computes it exactly."""
    most = 1 if by.multiplier is None else int(constants[by.multiplier].max())
    half = (1 << by.shift) >> 1
    return bits_of(min(found.partial_low * most, 0), max(found.partial_high * most, 0) + half)


def with_ranges(graph: IntegerGraph) -> IntegerGraph:
    """The graph with the shape and the range of every value but the inputs derived.

    Raises:
        ValueError: shapes do not fit each other.
    """
    values = dict(graph.values)
    for operation in graph.operations:
        shape = shape_of(operation, values, graph.constants)
        low, high = value_range(operation, values, graph.constants)
        old = values[operation.output]
        highs = moved_highs(operation, values)
        values[operation.output] = IntegerValue(
            name=old.name, shape=shape, bits=old.bits, signed=old.signed, scale=old.scale, zero_point=old.zero_point,
            low=low, high=high, highs=() if highs is None else stated(highs)[1],
        )  # fmt: skip
    return IntegerGraph(
        inputs=graph.inputs, outputs=graph.outputs, values=values, operations=graph.operations,
        constants=graph.constants,
    )  # fmt: skip


def _weighted(weight: Integers, bias: Integers, source: IntegerValue, pad: int | None = None) -> Accumulator:
    """Sums of rows of weights with numbers of a range, which the padding may widen."""
    least = source.low if pad is None else min(source.low, pad)
    most = source.high if pad is None else max(source.high, pad)
    taps, start = weight.astype(np.int64), bias.astype(np.int64)
    positive, negative = np.maximum(taps, 0), np.minimum(taps, 0)
    low = (positive * least + negative * most).sum(axis=1) + start
    high = (positive * most + negative * least).sum(axis=1) + start
    ends = np.minimum(np.minimum(taps * least, taps * most), 0), np.maximum(np.maximum(taps * least, taps * most), 0)
    return Accumulator(
        low,
        high,
        int((ends[0].sum(axis=1) + np.minimum(start, 0)).min(initial=0)),
        int((ends[1].sum(axis=1) + np.maximum(start, 0)).max(initial=0)),
    )


def _summed(source: IntegerValue, count: int) -> Accumulator:
    low, high = _centred(source)
    return _plain(count * low, count * high, count * min(low, 0), count * max(high, 0))


def _plain(low: int, high: int, partial_low: int | None = None, partial_high: int | None = None) -> Accumulator:
    return Accumulator(
        np.array([low]),
        np.array([high]),
        min(low, 0) if partial_low is None else partial_low,
        max(high, 0) if partial_high is None else partial_high,
    )


def _channels(low: Whole, high: Whole) -> Accumulator:
    return Accumulator(low, high, min(0, int(low.min())), max(0, int(high.max())))


def _centred(value: IntegerValue) -> tuple[int, int]:
    return value.low - value.zero_point, value.high - value.zero_point


def _products(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    """The ends of products of numbers of two ranges."""
    found = [a * b for a in first for b in second]
    return min(found), max(found)


def _ends(array: Integers) -> tuple[int, int]:
    return int(array.min()), int(array.max())
