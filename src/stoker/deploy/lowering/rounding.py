"""Weights as whole numbers, by output channel, and the bias that makes up for what rounding shifts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.observation import Real

_CUTS = np.linspace(1.0, 0.4, 25)
"""Shares of a channel's largest weight at which the range may end."""
_BIAS_BITS = 24
"""A bias of more bits than this would need accumulators far wider than the products do."""


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
    given: Real | None = None, least: int | None = None,
) -> RoundedWeights:  # fmt: skip
    """Weights rounded by channel to the scale of least squared error, biases corrected for the mean error.

    Bias correction (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019,
    section 3.2, with observed means): what rounding the weights adds to a channel's mean is taken from its bias.

    Args:
        weight: first axis output channels, second what is summed over with ``means``.
        bias: by output channel.
        source: the input's grid.
        bits: of weights.
        means: of the input, by the weight's second axis; None: no correction.
        given: scales to use instead, by output channel.
        least: whole number; the negative of the largest by default.
    """
    rows = weight.reshape(len(weight), -1)
    scales = _scales(rows, bits) if given is None else given
    scales = np.maximum(scales, np.abs(bias) / (source.scale * (1 << _BIAS_BITS)))
    whole = _rounded(rows, scales, bits, least)
    if means is not None:
        error = (whole * scales[:, None] - rows).reshape(*weight.shape[:2], -1).sum(axis=2)
        bias = bias - error @ means
    steps = np.rint(bias / (scales * source.scale)) - source.zero_point * whole.sum(axis=1)
    return RoundedWeights(
        weight=whole.astype(np.int8).reshape(weight.shape), scales=scales, bias=steps.astype(np.int64)
    )


def _scales(rows: Real, bits: int) -> Real:
    """The scale of each row with the least squared error; a row of zeros has that of the largest."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    whole = float(largest.max(initial=0.0)) or 1.0
    largest = np.where(largest > 0, largest, whole)
    best, least = largest / ((1 << (bits - 1)) - 1), np.full(len(rows), np.inf)
    for cut in _CUTS:
        scales = largest * cut / ((1 << (bits - 1)) - 1)
        errors = np.square(_rounded(rows, scales, bits) * scales[:, None] - rows).sum(axis=1)
        better = errors < least
        best, least = np.where(better, scales, best), np.where(better, errors, least)
    return best


def _rounded(rows: Real, scales: Real, bits: int, least: int | None = None) -> Real:
    most = (1 << (bits - 1)) - 1
    return np.clip(np.rint(rows / scales[:, None]), -most if least is None else least, most)
