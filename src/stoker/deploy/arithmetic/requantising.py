"""The requantiser's law, and the multipliers and shifts that stand for real ratios.

``clamp(((acc * M + 2^(S-1)) >> S) + zero_point, low, high)`` with an arithmetic shift: Jacob et al., "Quantization and
Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference" (2018), section 2.2, with a 16-bit
multiplier instead of 32 (no flips on the networks tried) and one rounding instead of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.ir.graph import Integers
from stoker.deploy.ir.operations import Requantiser

MULTIPLIER_BITS = 16
MOST_SHIFT = 46
"""Beyond it, products of 16 bits would not be larger anyway: a ratio below 2^-30 is nothing on 16 bits."""


def requantise(acc: Integers, by: Requantiser, constants: Mapping[str, Integers]) -> NDArray[np.int32]:
    """The law on an accumulator of shape (batch, …), in 64 bits."""
    total = acc.astype(np.int64, copy=True)
    if by.multiplier is not None:
        total *= constants[by.multiplier].astype(np.int64)
    total += (1 << by.shift) >> 1
    total >>= by.shift
    total += by.zero_point
    return np.clip(total, by.low, by.high).astype(np.int32)


def requantise_double(
    acc: NDArray[np.float64], by: Requantiser, constants: Mapping[str, Integers]
) -> NDArray[np.int32]:
    """The law in double precision: exact while ``acc * M + 2^(S-1)`` has at most 53 bits."""
    total = acc if by.multiplier is None else acc * constants[by.multiplier]
    total = np.floor((total + ((1 << by.shift) >> 1)) * 2.0**-by.shift) + by.zero_point
    return np.clip(total, by.low, by.high).astype(np.int32)


def thresholds_of(
    by: Requantiser, constants: Mapping[str, Integers], ends: tuple[int, int]
) -> list[list[int]]:  # fmt: skip
    """The least sums that give at least each result above the lowest: the law by comparisons, which never falls.

    ``clamp(...) >= r`` where ``acc * M >= ((r - zero_point) << S) - half``: in whole numbers of any size, so that no
    multiplier or shift is too large.

    Args:
        by: of the law.
        constants: of its graph.
        ends: least and largest sum; what all sums reach is the least one, what none does is one beyond the largest.

    Returns:
        For each multiplier, ``high - low`` thresholds that never fall: the first for ``low + 1``.
    """
    half = (1 << by.shift) >> 1
    needed = [((result - by.zero_point) << by.shift) - half for result in range(by.low + 1, by.high + 1)]
    factors = [1] if by.multiplier is None else [int(each) for each in constants[by.multiplier].flat]
    low, beyond = ends[0], ends[1] + 1

    def least(product: int, factor: int) -> int:
        if factor == 0:
            return low if product <= 0 else beyond
        return min(max(-(-product // factor), low), beyond)

    return [[least(product, factor) for product in needed] for factor in factors]


def multipliers_of(ratios: NDArray[np.float64]) -> tuple[NDArray[np.uint16], int]:
    """Unsigned 16-bit multipliers M and their common shift S with ``M / 2^S`` nearest to ratios.

    The largest ratio gets all 16 bits; one shift for all channels costs the others bits of M where their results are
    small too.

    Args:
        ratios: at least 0, of any shape.

    Raises:
        ValueError: a ratio is negative, not finite, or 65536 and more.
    """
    shift = shift_of(float(ratios.max(initial=0.0)), MULTIPLIER_BITS)
    if not (np.isfinite(ratios).all() and (ratios >= 0).all()):
        raise ValueError(f"`ratios` must be finite and at least 0, got {ratios.min()} to {ratios.max()}")
    return np.floor(ratios * 2.0**shift + 0.5).astype(np.uint16), shift


def shift_of(ratio: float, bits: int) -> int:
    """The largest shift with which a ratio, rounded to a whole number of steps, still fits unsigned bits.

    Raises:
        ValueError: none does.
    """
    if not 0 <= ratio < math.inf:
        raise ValueError(f"`ratio` must be finite and at least 0, got {ratio}")
    shift = MOST_SHIFT if ratio == 0 else min(MOST_SHIFT, bits - math.frexp(ratio)[1])
    if shift >= 0 and math.floor(ratio * 2.0**shift + 0.5) >= 1 << bits:
        shift -= 1
    if shift < 0:
        raise ValueError(f"`ratio` must be below {1 << bits}, got {ratio}")
    return shift
