"""Whole numbers against real ones on the same samples: flips, accuracy with its interval, errors. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.records.deploy.quantisation import PairedAccuracy

Array = NDArray[Any]
_Z = 1.959963984540054
"""Standard deviations of 95 %."""


def interval(hits: int, samples: int) -> tuple[float, float]:
    """Ends of the 95 % interval of a share (Wilson, "Probable Inference", 1927)."""
    if samples == 0:
        return 0.0, 1.0
    share, square = hits / samples, _Z * _Z / samples
    centre = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / samples + square / (4 * samples)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired(found: Array, real: Array, labels: Array | None = None) -> PairedAccuracy:
    """Two sets of outputs of the same samples.

    Args:
        found: on whole numbers, (samples, …).
        real: on real numbers, of the same shape.
        labels: the right class of each sample.
    """
    samples = len(found)
    scores = real.ndim == 2 and real.shape[1] > 1
    classes = [array.argmax(axis=1) for array in (found, real)] if scores else None
    flips = None if classes is None else int((classes[0] != classes[1]).sum())
    right = own = None
    if classes is not None and labels is not None:
        right, own = (int((each == labels).sum()) for each in classes)
    low, high = (None, None) if flips is None else interval(flips, samples)
    right_low, right_high = (None, None) if right is None else interval(right, samples)
    return PairedAccuracy(
        samples=samples, flips=flips, flips_low=low, flips_high=high, float_right=own, right=right,
        right_low=right_low, right_high=right_high, error=spread_error(found, real),
    )  # fmt: skip


def spread_error(found: Array, real: Array) -> float:
    """Root mean square of the difference over the real numbers' standard deviation by output; 0 if all are equal."""
    difference = math.sqrt(float(np.square(found.astype(np.float64) - real).mean())) if real.size else 0.0
    spread = math.sqrt(float(real.astype(np.float64).var(axis=0).mean())) if real.size else 0.0
    return difference / spread if spread > 0 else difference


def size_error(found: Array, real: Array) -> float:
    """Root mean square of the difference over that of the real numbers; 0 if both are 0."""
    difference = math.sqrt(float(np.square(found.astype(np.float64) - real).mean()))
    size = math.sqrt(float(np.square(real.astype(np.float64)).mean()))
    return difference / size if size > 0 else difference
