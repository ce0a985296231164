"""What calibration samples showed of each value: ends, a sample of numbers, moments of what layers read of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.floating.patches import PatchMoments

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A value over all calibration samples.

    Attributes:
        low: the least number.
        high: the largest.
        sample: some of the numbers, drawn with a fixed seed.
        patches: moments of what each layer with weights reads of it at a time, by the layer's name.
    """

    low: float
    high: float
    sample: Real
    patches: Mapping[str, PatchMoments] = field(default_factory=lambda: {})
