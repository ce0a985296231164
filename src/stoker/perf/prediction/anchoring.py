"""One measured step of a program moves the calibration towards what this program does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stoker.perf.calibration.fitting import Array, Calibration, fit

_SPREAD = 0.3
"""How far a program's coefficient is expected to lie from that of all, as a standard deviation of its logarithm:
that of published rows of one model, GPU and precision from different stacks (1.4 to 2.6 times between the extremes)."""


CARRIED, CARRIED_UNTIMED = 0.7, 0.3
"""Share of a residual's logarithm that is the program's, so that it applies on another card too; the rest
is the card's with this program. Of 2,228 pairs of published steps on two cards, each family left out, the median error
is 9.9 % without the first, 9.4 % with all of its residual and 8.4 to 8.6 % with 0.4 to 0.8 of it. The second: of a step
on several GPUs whose exchange was not timed, where more makes it worse (n = 8: 13 % with all, 9.8 % with 0.3)."""

OWN = 0.3
"""Share of a measured step that its GPU's own work must have, to say something about it."""


def anchored(calibration: Calibration, at_spec: Array, measured_s: float, carried: float = 1.0) -> Calibration:
    """The calibration that a measured step makes most likely, which predicts that step exactly.

    Terms with much of the step's time change most, so a program that is inefficient in a term here is so elsewhere. The
    remaining error scales everything.

    Args:
        calibration: of many programs.
        at_spec: shape (terms,), of the measured step, in seconds at the vendors' rates.
        measured_s: its measured time.
        carried: share of the residual's logarithm to apply; all of it on the card of the measurement.
    """
    expected_s = float(calibration.seconds(at_spec[None])[0])
    measured_s = expected_s * (measured_s / expected_s) ** carried
    terms = tuple(
        replace(term, prior=value, spread=_SPREAD)
        for term, value in zip(calibration.terms, calibration.coefficients.tolist(), strict=True)
    )
    moved = fit(terms, at_spec[None], np.array([measured_s]))
    left = measured_s / float(moved.seconds(at_spec[None])[0])
    return Calibration(moved.terms, moved.coefficients * left)
