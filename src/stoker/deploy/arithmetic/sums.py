"""The accumulators of operations with weights and of sums, before their requantiser.

Sums of products are computed by double-precision matrix multiplication: whole numbers of at most 53 bits stay exact in
any order, and the checked widths say that they have no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.arithmetic.windows import padded, taps
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import Integers
from stoker.deploy.ir.values import IntegerValue

Double = NDArray[np.float64]
Array = NDArray[Any]


def linear(operation: op.Linear, source: Integers, constants: Mapping[str, Integers]) -> Double:
    """Accumulators (batch, …, outputs)."""
    weight = constants[operation.weight].astype(np.float64)
    return source.astype(np.float64) @ weight.T + constants[operation.bias]


def convolution(
    operation: op.Convolution, source: Integers, value: IntegerValue, constants: Mapping[str, Integers]
) -> Double:
    """Accumulators (batch, height, width, outputs)."""
    weight = constants[operation.weight].astype(np.float64)
    outputs, *kernel, depth = weight.shape
    groups = operation.groups
    image = padded(source, operation.padding, value.zero_point).astype(np.float64)
    parts = [part for _, _, part in taps(image, (kernel[0], kernel[1]), operation.stride, operation.dilation)]
    batch, height, width, _ = parts[0].shape
    if depth == 1 and outputs == groups:
        by_tap = weight.reshape(outputs, -1)
        total = sum(part * by_tap[:, at] for at, part in enumerate(parts))
    else:
        seen = np.stack(parts, axis=3).reshape(batch * height * width, len(parts), groups, depth)
        seen = seen.transpose(2, 0, 1, 3).reshape(groups, batch * height * width, -1)
        rows = weight.reshape(groups, outputs // groups, -1).transpose(0, 2, 1)
        total = (seen @ rows).transpose(1, 0, 2).reshape(batch, height, width, outputs)
    return np.asarray(total + constants[operation.bias], np.float64)


def sum_pool(operation: op.SumPool, source: Integers, value: IntegerValue) -> Array:
    """Sums of windows less the zero point, (batch, height, width, channels)."""
    image = padded(source, operation.padding, value.zero_point).astype(np.int64)
    parts = [part for _, _, part in taps(image, operation.kernel, operation.stride, (1, 1))]
    return np.sum(parts, axis=0) - len(parts) * value.zero_point


def max_pool(operation: op.MaxPool, source: Integers, value: IntegerValue) -> Integers:
    """The largest of each window."""
    image = padded(source, operation.padding, value.low)
    parts = [part for _, _, part in taps(image, operation.kernel, operation.stride, operation.dilation)]
    return np.maximum.reduce(parts)


def mean(operation: op.Mean, source: Integers, value: IntegerValue) -> Array:
    """Sums over axes less the zero point, axes kept."""
    count = math.prod(value.shape[axis] for axis in operation.axes)
    axes = tuple(axis + 1 for axis in operation.axes)
    return source.sum(axis=axes, keepdims=True, dtype=np.int64) - count * value.zero_point


def matmul(operation: op.MatMul, first: Integers, second: Integers, values: Mapping[str, IntegerValue]) -> Double:
    """Products of two tensors, less their zero points."""
    left, right = (
        array.astype(np.float64) - values[name].zero_point
        for array, name in zip((first, second), operation.sources, strict=True)
    )
    return left @ (right.swapaxes(-1, -2) if operation.transposed else right)


def add(operation: op.Add, sources: list[Integers], values: Mapping[str, IntegerValue]) -> Array:
    """The weighted sum."""
    terms = zip(sources, operation.sources, operation.multipliers, strict=True)
    return np.asarray(sum((array.astype(np.int64) - values[name].zero_point) * by for array, name, by in terms))
