"""Weights as whole numbers, by output channel, and the bias that makes up for what rounding shifts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.observation import Real

RoundingRule = Literal["compensated", "nearest"]
ROUNDING_RULES: tuple[RoundingRule, ...] = ("compensated", "nearest")
CUTS = np.linspace(1.0, 0.4, 25)
"""Shares of a channel's largest weight at which the range may end."""
_BIAS_BITS = 24
"""A bias of more bits than this would need accumulators far wider than the products do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundedRows:
    """Weights as rows, an output channel each.

    Attributes:
        whole: numbers, (rows, inputs).
        scales: by row.
    """

    whole: NDArray[np.int8]
    scales: Real


RowRounding: TypeAlias = Callable[[Real, int, Real | None, int | None], RoundedRows]
"""Rows as whole numbers, of the rows, bits, given scales and least whole number, as :func:`nearest_rows`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedWeights:
    """Weights and bias of a layer.

    Attributes:
        weight: whole numbers, of the shape of the real ones.
        scales: by output channel.
        bias: whole numbers in steps of the input's scale times the channel's; the input's zero point is folded in.
    """

    weight: NDArray[np.int8]
    scales: Real
    bias: NDArray[np.int64]


def round_weights(
    weight: Real, bias: Real, source: Grid, bits: int, *, means: Real | None = None,
    given: Real | None = None, least: int | None = None, by: RowRounding | None = None,
) -> RoundedWeights:  # fmt: skip
    """Weights rounded by channel, biases corrected for the mean error.

    Bias correction (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019,
    section 3.2, with observed means): what rounding the weights adds to a channel's mean is taken from its bias.

    Args:
        weight: first axis output channels, those of a group together; the others are what is summed over.
        bias: by output channel.
        source: the input's grid.
        bits: of weights.
        means: of what the layer reads at a time, (groups, inputs of a patch); None: no correction.
        given: scales to use instead, by output channel.
        least: whole number; the negative of the largest by default.
        by: how rows are rounded; :func:`nearest_rows` by default.
    """
    by = by or nearest_rows
    rows = weight.reshape(len(weight), -1)
    made = by(rows, bits, given, least)
    needed = np.abs(bias) / (source.scale * (1 << _BIAS_BITS))
    if (made.scales < needed).any():
        made = by(rows, bits, np.maximum(made.scales, needed), least)
    whole, scales = made.whole.astype(np.float64), made.scales
    if means is not None:
        error = (whole * scales[:, None] - rows).reshape(len(means), -1, means.shape[1])
        bias = bias - np.einsum("goi,gi->go", error, means).ravel()
    steps = np.rint(bias / (scales * source.scale)) - source.zero_point * whole.sum(axis=1)
    return RoundedWeights(weight=made.whole.reshape(weight.shape), scales=scales, bias=steps.astype(np.int64))


def nearest_rows(rows: Real, bits: int, given: Real | None = None, least: int | None = None) -> RoundedRows:
    """Each weight to the nearest step, at the scale of least squared error of a row.

    Args:
        rows: (rows, inputs).
        bits: of the whole numbers.
        given: scales to use instead, by row.
        least: whole number; the negative of the largest by default.
    """
    scales = _scales(rows, bits) if given is None else given
    low, high = ends(bits, least)
    return RoundedRows(whole=np.clip(np.rint(rows / scales[:, None]), low, high).astype(np.int8), scales=scales)


def ends(bits: int, least: int | None = None) -> tuple[int, int]:
    """The least and the largest whole number of weights: as many negative as positive ones unless given."""
    most = (1 << (bits - 1)) - 1
    return -most if least is None else least, most


def widest_scales(rows: Real, bits: int) -> Real:
    """The scale of each row at which no weight is cut; a row of zeros has that of the largest."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    whole = float(largest.max(initial=0.0)) or 1.0
    return np.where(largest > 0, largest, whole) / ends(bits)[1]


def _scales(rows: Real, bits: int) -> Real:
    """The scale of each row with the least squared error."""
    widest, (low, high) = widest_scales(rows, bits), ends(bits)
    best, least = widest, np.full(len(rows), np.inf)
    for cut in CUTS:
        scales = widest * cut
        whole = np.clip(np.rint(rows / scales[:, None]), low, high)
        errors = np.square(whole * scales[:, None] - rows).sum(axis=1)
        better = errors < least
        best, least = np.where(better, scales, best), np.where(better, errors, least)
    return best
