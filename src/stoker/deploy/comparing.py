"""Whole numbers against real ones on the same samples: flips, accuracy with its interval, errors. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.records.deploy.quantisation import PairedAccuracy

Array = NDArray[Any]
_Z = 1.959963984540054
"""Standard deviations of 95 %."""
_FAR = 8.0
"""Standard deviations at which a normal tail counts as nothing."""
_erfc: Callable[[Any], Any] = np.vectorize(math.erfc, otypes=[np.float64])


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
    classes = [array.argmax(axis=1) for array in (found, real)] if are_scores(real) else None
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


def are_scores(outputs: Array) -> bool:
    """Whether outputs decide among classes: two axes, several columns."""
    return outputs.ndim == 2 and outputs.shape[1] > 1


def score_error(found: Array, real: Array) -> float:
    """Root mean square of the error of differences of scores, over that of these differences.

    Differences are those from the winner's score. Narrow weights shrink all scores alike, which changes no decision:
    the error is what is left of that.

    Args:
        found: scores on whole numbers, (samples, classes).
        real: on real numbers, of the same shape.
    """
    margins, errors = _margins(found, real)
    size = math.sqrt(float(np.square(margins).sum())) if margins.size else 0.0
    return math.sqrt(float(np.square(errors).sum())) / size if size > 0 else 0.0


def expected_flips(found: Array, real: Array) -> float:
    """The share of decisions that errors of this size change, as expected of all samples.

    Errors are taken as normal, with the size that they have over all samples and classes. Few decisions change, so
    their count says little; margins of all samples and one size of errors say more, and hold on other samples.

    Args:
        found: scores on whole numbers, (samples, classes).
        real: on real numbers, of the same shape.
    """
    margins, errors = _margins(found, real)
    size = math.sqrt(float(np.square(errors).mean())) if errors.size else 0.0
    if size == 0:
        return 0.0
    near = margins < _FAR * size
    lost = np.zeros(margins.shape)
    lost[near] = 0.5 * _erfc(margins[near] / (size * math.sqrt(2)))
    return float(np.minimum(lost.sum(axis=1), 1.0).mean())


def _margins(found: Array, real: Array) -> tuple[Array, Array]:
    """What each loser is below the winner on real numbers, (samples, classes - 1), and how far whole ones are off."""
    rows, winners = np.arange(len(real)), real.argmax(axis=1)
    losers = np.ones(real.shape, dtype=np.bool_)
    losers[rows, winners] = False
    margins, own = (
        (array[rows, winners][:, None] - array)[losers].reshape(len(real), -1).astype(np.float64)
        for array in (real, found)
    )
    size = float(np.square(margins).sum())
    shrunk = float((own * margins).sum()) / size if size > 0 else 1.0
    return margins, own / shrunk - margins if shrunk > 0 else -margins


def error_of(found: Array, real: Array) -> float:
    """By what designs are ranked: :func:`score_error`, or :func:`spread_error` of outputs that are no scores."""
    return score_error(found, real) if are_scores(real) else spread_error(found, real)


def loss_of(found: Array, real: Array) -> float:
    """What narrower widths cost: the share of changed decisions that is expected, or proven by their count if more.

    A count of few decisions is mostly luck, so what counts of it is the lower end of its interval. Of outputs that are
    no scores, the loss is the error by :func:`spread_error`.
    """
    if not are_scores(real):
        return spread_error(found, real)
    counted = int((found.argmax(axis=1) != real.argmax(axis=1)).sum())
    return max(expected_flips(found, real), interval(counted, len(real))[0] if counted else 0.0)


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
