"""Coefficients of a step's terms.

A step takes the sum over its terms (matrix products, attention, pointwise work, ...) of the time that each would take
at the vendors' rates, times a coefficient: the inverse of the efficiency that programs reach. Kernel launches on the
host overlap with the device's computation. Together they take the root of the sum of their squares: the larger one
if one is much larger, and more if they are similar, as they then wait for each other.

Coefficients are positive, start from a stated prior, and follow measured steps as far as these are surer than the
prior: maximum a posteriori with log-normal priors; residuals of the logarithm of the step time under a pseudo-Huber
loss, so that a few rows with other settings do not distort the rest; Levenberg-Marquardt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_NOISE = 0.03
"""Relative error of a step below which a better fit has no value: repetitions of one configuration on several
hosts differ by 0.1 to 4 % (reference rows of lambda-v1 on H100)."""
_UNEXPLAINED = 0.15
"""Standard deviation of a step's logarithm that no coefficients explain: about the median error of families that were
left out. It limits what a measured step says about its terms."""
_ROUNDS, _CONVERGED, _GAINED = 200, 1e-7, 1e-6
"""At most; of a step of logarithms, and of the cost, what is not worth another round."""
_LEAST_DAMPING, _MOST_DAMPING = 1e-9, 1e9

Lane = Literal["device", "host", "alone"]
"""Where a term's time is spent: on the device, on the host in overlap, or exclusively."""


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the step.

    Attributes:
        prior: coefficient assumed before any measurement.
        spread: standard deviation of the prior's logarithm: 0.3 says that a factor of 1.35 either way is likely.
        why: what the prior rests on.
        lane: where its time is spent.
    """

    name: str
    prior: float
    spread: float
    why: str
    lane: Lane = "device"

    def __post_init__(self) -> None:
        if not (self.prior > 0 and self.spread > 0):
            raise ValueError(
                f"`prior` and `spread` of {self.name} must be positive, got {self.prior} and {self.spread}"
            )


@dataclass(frozen=True, slots=True)
class Calibration:
    """Coefficients, one for each term.

    Attributes:
        covariance: of the coefficients' logarithms, of shape (terms, terms), by :func:`with_covariance`.
    """

    terms: tuple[Term, ...]
    coefficients: Array
    covariance: Array | None = None

    def seconds(self, at_spec: Array) -> Array:
        """Predicted step times.

        Args:
            at_spec: shape (rows, terms), in seconds at the vendors' rates.

        Returns:
            Shape (rows,), in seconds.
        """
        return _steps(_lanes(self.terms), at_spec, self.coefficients)[0]

    def doubts(self, at_spec: Array, beside: Array | None = None) -> Array:
        """Uncertainty of a step from its terms: large if it depends on a term that no measurement covers.

        Args:
            at_spec: shape (rows, terms), in seconds at the vendors' rates.
            beside: the same for measured steps of the same programs, whose errors are known.

        Returns:
            Shape (rows,): standard deviation of the logarithm of the step, or of its ratio to the measured one.

        Raises:
            ValueError: the calibration has no covariance.
        """
        if self.covariance is None:
            raise ValueError("a calibration needs a covariance to doubt its steps: `with_covariance` gives it one")
        shares = _shares(self, at_spec)
        if beside is not None:
            shares = shares - _shares(self, beside)
        variances = np.einsum("ij,jk,ik->i", shares, self.covariance, shares)
        return np.sqrt(np.maximum(variances, 0.0))


def fit(terms: Sequence[Term], at_spec: Array, measured: Array, start: Calibration | None = None) -> Calibration:
    """The coefficients that measured steps and priors make most likely.

    Args:
        terms: what the columns mean.
        at_spec: shape (rows, terms), in seconds at the vendors' rates; each row has a positive one.
        measured: shape (rows,), in seconds.
        start: of the same terms and nearly the same rows, which shortens the search; the priors by default.

    Raises:
        ValueError: shapes do not agree, or a time is not positive.
    """
    _check(terms, at_spec, measured)
    belief = np.log([term.prior for term in terms])
    problem = _Problem(_lanes(terms), at_spec, measured, belief, np.array([term.spread for term in terms]) ** -2.0)
    return Calibration(tuple(terms), np.exp(problem.solve(belief if start is None else np.log(start.coefficients))))


def with_covariance(calibration: Calibration, at_spec: Array) -> Calibration:
    """The same with the covariance of its coefficients: Laplace's approximation.

    Args:
        calibration: fitted to steps.
        at_spec: of these, shape (rows, terms), in seconds at the vendors' rates.
    """
    shares = _shares(calibration, at_spec)
    certainty = np.array([term.spread for term in calibration.terms]) ** -2.0
    information = shares.T @ shares / _UNEXPLAINED**2 + np.diag(certainty)
    return replace(calibration, covariance=np.linalg.inv(information))


def _shares(calibration: Calibration, at_spec: Array) -> Array:
    """Relative growth of a step with each coefficient, of shape (rows, terms); 0 for a step without work."""
    seconds, grown = _steps(_lanes(calibration.terms), at_spec, calibration.coefficients)
    return np.divide(
        at_spec * calibration.coefficients * grown,
        seconds[:, None],
        out=np.zeros_like(at_spec),
        where=seconds[:, None] > 0,
    )


_Lanes = dict[Lane, NDArray[np.bool_]]


def _lanes(terms: Sequence[Term]) -> _Lanes:
    """Which columns belong to each lane."""
    return {lane: np.array([term.lane == lane for term in terms]) for lane in get_args(Lane)}


def _steps(lanes: _Lanes, at_spec: Array, coefficients: Array) -> tuple[Array, Array]:
    """Step times, and how much of a further second of each term they would grow by, of shape (rows, terms)."""
    times = at_spec * coefficients
    device, host, alone = (times[:, columns].sum(axis=1) for columns in lanes.values())
    together = np.hypot(device, host)
    share = np.ones_like(times)
    for own, total in ((lanes["device"], device), (lanes["host"], host)):
        share[:, own] = np.divide(total, together, out=np.ones_like(total), where=together > 0)[:, None]
    return together + alone, share


@dataclass(frozen=True, slots=True)
class _Problem:
    """The most likely logarithms of the coefficients."""

    lanes: _Lanes
    at_spec: Array
    measured: Array
    belief: Array
    certainty: Array

    def solve(self, start: Array) -> Array:
        logs, damping = start.copy(), 1e-3
        cost = self._cost(logs)
        for _ in range(_ROUNDS):
            gradient, curvature = self._slopes(logs)
            while True:
                step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
                reached = self._cost(logs - step)
                if reached <= cost or damping > _MOST_DAMPING:
                    break
                damping *= 5
            if reached > cost:
                break
            gained = cost - reached
            logs, cost, damping = logs - step, reached, max(damping / 5, _LEAST_DAMPING)
            if np.abs(step).max() < _CONVERGED or gained < _GAINED * cost:
                break
        return logs

    def _cost(self, logs: Array) -> float:
        residual = np.log(_steps(self.lanes, self.at_spec, np.exp(logs))[0] / self.measured) / _NOISE
        return float(2 * (np.sqrt(1 + residual**2) - 1).sum() + (self.certainty * (logs - self.belief) ** 2).sum())

    def _slopes(self, logs: Array) -> tuple[Array, Array]:
        coefficients = np.exp(logs)
        predicted, share = _steps(self.lanes, self.at_spec, coefficients)
        residual = np.log(predicted / self.measured)
        slope = self.at_spec * coefficients * share / predicted[:, None]
        weight = 1.0 / (_NOISE**2 * np.sqrt(1.0 + (residual / _NOISE) ** 2))
        gradient = slope.T @ (weight * residual) + self.certainty * (logs - self.belief)
        return gradient, slope.T @ (weight[:, None] * slope) + np.diag(self.certainty)


def _check(terms: Sequence[Term], at_spec: Array, measured: Array) -> None:
    if at_spec.shape != (len(measured), len(terms)):
        raise ValueError(f"`at_spec` must have shape {(len(measured), len(terms))}, got {at_spec.shape}")
    if not (np.isfinite(at_spec).all() and (at_spec >= 0).all() and (at_spec.sum(axis=1) > 0).all()):
        raise ValueError("`at_spec` must hold times that are not negative, and one above 0 in each row")
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise ValueError("`measured` must hold positive times")
