"""What layers read at a time: patches of a value as rows of numbers, and their moments over samples. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stoker.deploy.floating.operations import FloatConvolution, FloatLinear, FloatScale

Real = NDArray[np.float64]
WeightedLayer: TypeAlias = FloatLinear | FloatConvolution | FloatScale
WIDEST = 4608
"""Inputs of a patch up to which covariances are kept: 512 channels under a kernel of 3 by 3."""
_NUMBERS = 1 << 20
"""Numbers in the patches that are taken of a batch, within the bounds below."""
_FEWEST, _MOST = 64, 2048
"""Patches of a batch: neighbours are nearly equal, so more of them say little."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PatchMoments:
    """Mean and covariance of what a layer reads at a time, over samples.

    Attributes:
        mean: (groups, inputs of a patch), in the order of the weight's axes after the first.
        covariance: (groups, inputs, inputs), kept in single precision; None of patches wider than :data:`WIDEST`.
    """

    mean: Real
    covariance: NDArray[np.float32] | None

    def second(self, *, centred: bool) -> Real | None:
        """The covariance, or with the mean the second moment about 0: ``C + m m^T``; None where none is kept."""
        if self.covariance is None:
            return None
        covariance = self.covariance.astype(np.float64)
        return covariance if centred else covariance + self.mean[:, :, None] * self.mean[:, None, :]


class PatchTotals:
    """Sums over patches, from which their moments come.

    Args:
        layer: that reads them.
    """

    def __init__(self, layer: WeightedLayer) -> None:
        groups, inputs = patch_shape(layer)
        self._about = self._first = np.zeros((groups, inputs))
        kept = groups * inputs**2 <= WIDEST**2
        self._second = np.zeros((groups, inputs, inputs)) if kept else None
        self._count = 0

    def add(self, patches: Real) -> None:
        """Takes patches, (patches, groups, inputs).

        Sums are about the first batch's mean: about 0, a mean far larger than what differs would drown it.
        """
        if not self._count:
            self._about = patches.mean(axis=0)
        away = np.ascontiguousarray((patches - self._about).transpose(1, 0, 2))
        self._first = self._first + away.sum(axis=1)
        if self._second is not None:
            self._second += away.transpose(0, 2, 1) @ away
        self._count += len(patches)

    def moments(self) -> PatchMoments | None:
        """Those of all patches so far; None of none."""
        if not self._count:
            return None
        mean, covariance = self._first / self._count, None
        if self._second is not None:
            covariance = (self._second / self._count - mean[:, :, None] * mean[:, None, :]).astype(np.float32)
        return PatchMoments(mean=self._about + mean, covariance=covariance)


def patch_shape(layer: WeightedLayer) -> tuple[int, int]:
    """Groups of a layer's inputs, and inputs of a patch in one group."""
    match layer:
        case FloatLinear():
            return 1, layer.weight.shape[1]
        case FloatConvolution():
            return layer.groups, int(np.prod(layer.weight.shape[1:]))
        case FloatScale():
            return len(layer.factor), 1


def patches_of(layer: WeightedLayer, source: Real, chance: np.random.Generator) -> Real | None:
    """Some of the patches that a layer reads of a batch, or all where they are few.

    Args:
        layer: that reads the value.
        source: the value, with torch's axes; what a convolution pads are zeros.
        chance: draws places without replacement.

    Returns:
        (patches, groups, inputs); None where the value is not of the layer's shape.
    """
    groups, inputs = patch_shape(layer)
    most = min(_MOST, max(_FEWEST, _NUMBERS // (groups * inputs)))
    match layer:
        case FloatLinear():
            if source.shape[-1:] != (inputs,):
                return None
            rows = source.reshape(-1, 1, inputs)
            return rows[_places(len(rows), most, chance)]
        case FloatScale():
            if source.shape[1:2] != (groups,):
                return None
            rows = np.moveaxis(source, 1, -1).reshape(-1, groups, 1)
            return rows[_places(len(rows), most, chance)]
        case FloatConvolution():
            image = source[:, :, None] if layer.flat and source.ndim == 3 else source
            if image.ndim != 4 or image.shape[1] != groups * layer.weight.shape[1]:
                return None
            windows = _windows(layer, image)
            counts = (windows.shape[0], *windows.shape[2:4])
            sample, row, column = np.unravel_index(_places(int(np.prod(counts)), most, chance), counts)
            return windows[sample, :, row, column].reshape(len(sample), groups, inputs)


def _windows(layer: FloatConvolution, image: Real) -> NDArray[Any]:
    """Views of an image, (batch, channels, rows, columns, height, width)."""
    top, bottom, left, right = layer.padding
    padded = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [step * (size - 1) + 1 for step, size in zip(layer.dilation, layer.weight.shape[2:], strict=True)]
    every = sliding_window_view(padded, reach, axis=(2, 3))
    return every[:, :, :: layer.stride[0], :: layer.stride[1], :: layer.dilation[0], :: layer.dilation[1]]


def _places(count: int, most: int, chance: np.random.Generator) -> NDArray[np.intp]:
    return np.arange(count) if count <= most else np.sort(chance.choice(count, most, replace=False))
