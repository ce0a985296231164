"""One measured step of a program moves the calibration towards what this program does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stoker.perf.calibration.fitting import Array, Calibration, fit

_SPREAD = 0.3
"""How far a coefficient of one program is believed to lie from that of all, as a standard deviation of its logarithm:
that of published rows of one model, GPU and precision from different stacks (1.4 to 2.6 times between the extremes)."""


def anchored(calibration: Calibration, at_spec: Array, measured_s: float) -> Calibration:
    """The calibration that a measured step makes most likely, which predicts that step exactly.

    Terms that the step spends much in move most, so that what a program does badly it does badly elsewhere too; what is
    left is taken for a share of everything.

    Args:
        calibration: of many programs.
        at_spec: shape (terms,), of the measured step, in seconds at the makers' rates.
        measured_s: what it took.
    """
    terms = tuple(
        replace(term, prior=value, spread=_SPREAD)
        for term, value in zip(calibration.terms, calibration.coefficients.tolist(), strict=True)
    )
    moved = fit(terms, at_spec[None], np.array([measured_s]))
    left = measured_s / float(moved.seconds(at_spec[None])[0])
    return Calibration(moved.terms, moved.coefficients * left)
