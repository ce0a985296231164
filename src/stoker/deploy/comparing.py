"""Whole numbers against real ones on the same samples: flips, accuracy with its interval, errors. Pure.

A model may have several outputs. A sample is changed if any output of scores decides otherwise. The error of each is
over the spread of that output; what is reported and compared is the largest, so that none hides behind the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.records.deploy.quantisation import OutputAccuracy, PairedAccuracy

Array = NDArray[Any]
Outputs: TypeAlias = Array | Sequence[Array]
"""An output of a model, or all of them in order; samples first."""
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


def paired(found: Outputs, real: Outputs, labels: Array | None = None, names: Sequence[str] = ()) -> PairedAccuracy:
    """Two sets of outputs of the same samples.

    Args:
        found: on whole numbers, each (samples, …).
        real: on real numbers, of the same shapes.
        labels: the right class of each sample, of the first output.
        names: of the outputs, where there are several.
    """
    pairs = _pairs(found, real)
    samples, changed = len(pairs[0][1]), _changed(found, real)
    flips = None if changed is None else int(changed.sum())
    right = own = None
    if labels is not None and are_scores(pairs[0][1]):
        right, own = (int((each.argmax(axis=1) == labels).sum()) for each in pairs[0])
    low, high = (None, None) if flips is None else interval(flips, samples)
    right_low, right_high = (None, None) if right is None else interval(right, samples)
    outputs: list[OutputAccuracy] = []
    if len(pairs) > 1:
        for name, (one, other) in zip(names, pairs, strict=True):
            turned = _changed(one, other)
            count = None if turned is None else int(turned.sum())
            outputs.append(OutputAccuracy(name=name, flips=count, error=spread_error(one, other)))
    return PairedAccuracy(
        samples=samples, flips=flips, flips_low=low, flips_high=high, float_right=own, right=right,
        right_low=right_low, right_high=right_high, error=spread_error(found, real), outputs=outputs,
    )  # fmt: skip


def _pairs(found: Outputs, real: Outputs) -> list[tuple[Array, Array]]:
    """The outputs of both, one after another."""
    if isinstance(found, np.ndarray) or isinstance(real, np.ndarray):
        assert isinstance(found, np.ndarray), "both are one output"
        assert isinstance(real, np.ndarray), "both are one output"
        return [(found, real)]
    return list(zip(found, real, strict=True))


def _changed(found: Outputs, real: Outputs) -> Array | None:
    """Samples of which any output of scores decides otherwise; None without such outputs."""
    each = [one.argmax(axis=1) != other.argmax(axis=1) for one, other in _pairs(found, real) if are_scores(other)]
    return np.any(each, axis=0) if each else None


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


def expected_flips(found: Outputs, real: Outputs) -> float:
    """The share of samples of which errors of this size change a decision, as expected of all samples.

    Errors are taken as normal, with the size that they have over all samples and classes of an output. Few decisions
    change, so their count says little; margins of all samples and one size of errors say more, and hold on other
    samples. Outputs that are no scores decide nothing.

    Args:
        found: on whole numbers; scores are (samples, classes).
        real: on real numbers, of the same shapes.
    """
    chances = [_chances(*pair) for pair in _pairs(found, real) if are_scores(pair[1])]
    return float(np.minimum(np.sum(chances, axis=0), 1.0).mean()) if chances else 0.0


def _chances(found: Array, real: Array) -> Array:
    """By how many losers each sample's winner is expected to be beaten, (samples)."""
    margins, errors = _margins(found, real)
    size = math.sqrt(float(np.square(errors).mean())) if errors.size else 0.0
    lost = np.zeros(margins.shape)
    if size > 0:
        near = margins < _FAR * size
        lost[near] = 0.5 * _erfc(margins[near] / (size * math.sqrt(2)))
    return lost.sum(axis=1)


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


def error_of(found: Outputs, real: Outputs) -> float:
    """By what designs are ranked: root mean square over outputs, whose squared errors add as widths become narrower.

    Of scores, the error is :func:`score_error`; of others, :func:`spread_error`.
    """
    errors = [score_error(*pair) if are_scores(pair[1]) else spread_error(*pair) for pair in _pairs(found, real)]
    return math.sqrt(sum(each * each for each in errors) / len(errors))


def loss_of(found: Outputs, real: Outputs) -> float:
    """What narrower widths cost: the share of changed decisions that is expected, or proven by their count if more.

    A count of few decisions is mostly luck, so what counts of it is the lower end of its interval. Of outputs that are
    no scores, the loss is the error by :func:`spread_error`; of several outputs, the largest of these.
    """
    changed = _changed(found, real)
    counted = 0 if changed is None else int(changed.sum())
    proven = interval(counted, len(_pairs(found, real)[0][1]))[0] if counted else 0.0
    others = [spread_error(*pair) for pair in _pairs(found, real) if not are_scores(pair[1])]
    return max([expected_flips(found, real), proven, *others])


def spread_error(found: Outputs, real: Outputs) -> float:
    """Root mean square of the difference over the real numbers' standard deviation by output; 0 if all are equal.

    Of several outputs, the largest.
    """
    return max(_spread_error(*pair) for pair in _pairs(found, real))


def _spread_error(found: Array, real: Array) -> float:
    difference = math.sqrt(float(np.square(found.astype(np.float64) - real).mean())) if real.size else 0.0
    spread = math.sqrt(float(real.astype(np.float64).var(axis=0).mean())) if real.size else 0.0
    return difference / spread if spread > 0 else difference


def size_error(found: Array, real: Array) -> float:
    """Root mean square of the difference over that of the real numbers; 0 if both are 0."""
    difference = math.sqrt(float(np.square(found.astype(np.float64) - real).mean()))
    size = math.sqrt(float(np.square(real.astype(np.float64)).mean()))
    return difference / size if size > 0 else difference
