"""What calibration samples showed of each value: ends, a sample of numbers, means by channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A value over all calibration samples.

    Attributes:
        low: the least number.
        high: the largest.
        sample: some of the numbers, drawn with a fixed seed.
        second_mean: the mean by axis 1 (channels of images); empty without such an axis.
        last_mean: the mean by the last axis.
    """

    low: float
    high: float
    sample: Real
    second_mean: Real
    last_mean: Real
