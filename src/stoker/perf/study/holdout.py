"""How far a calibration holds for what it has not seen: errors and intervals, group by group.

An interval for a group comes from the other groups alone: each of them is predicted from the rest, and the interval is
the spread of those errors (nested cross-validation with split-conformal quantiles; Vovk et al. 2005).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.perf.calibration.fitting import Array, Calibration, Term, fit

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HoldoutPrediction:
    """Step times predicted for rows that the calibration has not seen.

    Attributes:
        measured, predicted, low, high: shape (rows,), in seconds; ``low`` and ``high`` bound the interval.
        groups: of each row.
    """

    groups: tuple[Hashable, ...]
    measured: Array
    predicted: Array
    low: Array
    high: Array

    @property
    def errors(self) -> Array:
        """|predicted / measured - 1|, of shape (rows,)."""
        return np.abs(self.predicted / self.measured - 1.0)

    @property
    def covered(self) -> float:
        """Share of the rows inside their interval."""
        return float(np.mean((self.low <= self.measured) & (self.measured <= self.high)))

    @property
    def width(self) -> float:
        """Median of ``high / low``."""
        return float(np.median(self.high / self.low))

    def median_errors(self) -> dict[Hashable, float]:
        """Median error of each group, in the order in which groups first come."""
        own = {group: [g == group for g in self.groups] for group in dict.fromkeys(self.groups)}
        return {group: float(np.median(self.errors[rows])) for group, rows in own.items()}


@dataclass(frozen=True, slots=True)
class Study:
    """Measured steps, and their terms.

    Attributes:
        at_spec: shape (rows, terms), in seconds at the vendors' rates.
        measured: shape (rows,), in seconds.
    """

    terms: tuple[Term, ...]
    at_spec: Array
    measured: Array

    def calibrated(self, rows: Mask) -> Calibration:
        """The calibration from some rows."""
        return fit(self.terms, self.at_spec[rows], self.measured[rows])

    def ratios(self, calibration: Calibration, rows: Mask) -> Array:
        """log(measured / predicted) of some rows."""
        return np.log(self.measured[rows] / calibration.seconds(self.at_spec[rows]))

    def held_out(self, groups: Sequence[Hashable], share: float = 0.9) -> HoldoutPrediction:
        """Each group predicted from all others, with an interval that should hold a share of its rows."""
        names = tuple(dict.fromkeys(groups))
        if len(names) < 3:
            raise ValueError(f"`groups` must be three or more, got {len(names)}: an interval needs two besides its own")
        predicted = self.left_out(groups)
        low, high = np.empty_like(predicted), np.empty_like(predicted)
        for name in names:
            own = _rows_of(name, groups)
            below, above = self.interval(groups, ~own, share)
            low[own], high[own] = predicted[own] * below, predicted[own] * above
        return HoldoutPrediction(tuple(groups), self.measured, predicted, low, high)

    def left_out(self, groups: Sequence[Hashable]) -> Array:
        """Step times of each group as predicted from all others, without intervals: shape (rows,), in seconds."""
        predicted = np.empty_like(self.measured)
        for name in dict.fromkeys(groups):
            own = _rows_of(name, groups)
            predicted[own] = self.calibrated(~own).seconds(self.at_spec[own])
        return predicted

    def predicted(self, train: Mask, test: Mask, groups: Sequence[Hashable], share: float = 0.9) -> HoldoutPrediction:
        """Some rows predicted from others."""
        times = self.calibrated(train).seconds(self.at_spec[test])
        below, above = self.interval(groups, train, share)
        own = tuple(group for group, inside in zip(groups, test, strict=True) if inside)
        return HoldoutPrediction(own, self.measured[test], times, times * below, times * above)

    def interval(self, groups: Sequence[Hashable], rows: Mask, share: float) -> tuple[float, float]:
        """Factors on a prediction for a group that is not among those of the rows."""
        ratios: list[Array] = []
        for name in dict.fromkeys(group for group, inside in zip(groups, rows, strict=True) if inside):
            own = rows & _rows_of(name, groups)
            ratios.append(self.ratios(self.calibrated(rows & ~own), own))
        return quantiles(np.concatenate(ratios), share)


def _rows_of(name: Hashable, groups: Sequence[Hashable]) -> Mask:
    return np.array([group == name for group in groups])


def quantiles(ratios: Array, share: float) -> tuple[float, float]:
    """Factors between which a share of the ratios lies, with as many below as above.

    Args:
        ratios: logarithms of measured / predicted.
        share: in (0, 1); with n ratios at most (n - 1) / (n + 1) can be promised, and less is then given.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"`share` must be between 0 and 1, got {share}")
    ordered = np.sort(ratios)
    beyond = (1.0 - share) / 2.0
    low = max(0, math.floor((len(ordered) + 1) * beyond) - 1)
    high = min(len(ordered) - 1, math.ceil((len(ordered) + 1) * (1.0 - beyond)) - 1)
    return math.exp(ordered[low]), math.exp(ordered[high])
