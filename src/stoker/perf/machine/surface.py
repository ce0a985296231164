"""Interpolates measured times of one curve: a roofline gives the scale, neighbours the correction.

The logarithm of (measured / roofline) is interpolated by ordinary kriging in the logarithms of the sizes: at a measured
size it equals the measurement, far from all of them it is their mean. Leave-one-out errors select a measurement's reach
and give the error of an interpolation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_REACHES = (0.7, 1.5, 3.0, 6.0, 12.0)
"""In units of the logarithm: 0.7 is a factor of two."""
_NOISES = (0.02, 0.1, 0.3)
"""Standard deviations of a measurement, as shares of the spread of all."""


@dataclass(frozen=True)
class Surface:
    """Ratios at any size.

    Attributes:
        points: shape (samples, dims), logarithms of sizes.
        weights: shape (samples, ratios).
        means: shape (ratios,).
        reach: of a measurement.
        residuals: shape (samples, ratios): leave-one-out prediction minus measurement (logarithms).
    """

    points: Array
    weights: Array
    means: Array
    reach: float
    residuals: Array

    def ratios(self, at: Array) -> Array:
        """Measured / roofline, shape (ratios,), at the logarithms of sizes, shape (dims,)."""
        near = _kernel(at[None, :], self.points, self.reach)
        return np.exp(self.means + (near @ self.weights)[0])

    def distance(self, at: Array) -> float:
        """Distance to the next measurement, in units of the logarithm."""
        return float(np.sqrt(((self.points - at) ** 2).sum(1)).min())


def fitted(points: Array, logarithms: Array, doubts: Array) -> Surface:
    """The surface through measurements.

    Args:
        points: shape (samples, dims), logarithms of sizes.
        logarithms: shape (samples, ratios), of measured / roofline.
        doubts: shape (samples,), standard deviations of the measurements beyond their common one.
    """
    if len(points) == 1:
        return Surface(points, np.zeros_like(logarithms), logarithms[0], _REACHES[-1], np.zeros_like(logarithms))
    best: tuple[float, Surface] | None = None
    for reach in _REACHES:
        near = _kernel(points, points, reach)
        for noise in _NOISES:
            inverse = np.linalg.inv(near + np.diag(noise**2 + doubts**2))
            total = inverse.sum()
            means = (inverse @ logarithms).sum(0) / total
            # Left out in turn: the inverse without the mean's share (Dubrule 1983).
            projected = inverse - np.outer(inverse.sum(1), inverse.sum(0)) / total
            residuals: Array = -(projected @ logarithms) / np.diag(projected)[:, None]
            score = float(np.mean(np.abs(residuals)))
            if best is None or score < best[0]:
                weights = inverse @ (logarithms - means)
                best = score, Surface(points, weights, means, reach, residuals)
    assert best is not None
    return best[1]


def _kernel(a: Array, b: Array, reach: float) -> Array:
    """Matern 3/2: as smooth as measured times are."""
    apart = np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(2)) * (np.sqrt(3.0) / reach)
    return (1.0 + apart) * np.exp(-apart)
