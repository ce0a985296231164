"""Windows of convolutions and pools over arrays of (batch, height, width, channels)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def padded(array: Array, padding: tuple[int, int, int, int], fill: int) -> Array:
    """The array with rows above and below and columns left and right."""
    top, bottom, left, right = padding
    if not any(padding):
        return array
    return np.pad(array, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)


def taps(
    array: Array, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> Iterator[tuple[int, int, Array]]:
    """For each place in the kernel, its row and column and what lies under it in every window: views, one a place."""
    height = (array.shape[1] - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    width = (array.shape[2] - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            top, left = row * dilation[0], column * dilation[1]
            down, along = top + (height - 1) * stride[0] + 1, left + (width - 1) * stride[1] + 1
            yield row, column, array[:, top : down : stride[0], left : along : stride[1]]


def window_counts(
    size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int, int, int],
    counted: tuple[int, int, int, int],
) -> Any:  # fmt: skip
    """Elements that each window of a mean counts: one number, or (height, width, 1) where borders differ.

    Args:
        size: rows and columns of what is read.
        kernel: rows, columns.
        stride: rows, columns.
        padding: rows above and below, columns left and right.
        counted: of the padding, as elements.
    """
    by_axis: list[Any] = []
    for axis in (0, 1):
        before, after = padding[2 * axis : 2 * axis + 2]
        own = counted[2 * axis : 2 * axis + 2]
        starts = np.arange((size[axis] + before + after - kernel[axis]) // stride[axis] + 1) * stride[axis] - before
        low, high = np.maximum(starts, -own[0]), np.minimum(starts + kernel[axis], size[axis] + own[1])
        by_axis.append(high - low)
    counts = by_axis[0][:, None, None] * by_axis[1][None, :, None]
    return float(counts.flat[0]) if (counts == counts.flat[0]).all() else counts.astype(np.float64)
