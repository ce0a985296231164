"""The package's calibration as a table: no digit is lost, and one of other terms is not taken for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stoker.perf.prediction.calibrated import calibration, packed, unpacked


def test_a_calibration_survives_its_table() -> None:
    found = calibration()
    again = unpacked(packed(found))
    assert again.terms == found.terms
    np.testing.assert_array_equal(again.coefficients, found.coefficients)
    assert again.covariance is not None
    np.testing.assert_array_equal(again.covariance, found.covariance)


def test_a_table_of_other_terms_is_refused() -> None:
    """A term has come or gone, or changed its place: coefficients would belong to others."""
    found = calibration()
    turned = replace(found, terms=found.terms[::-1])
    with pytest.raises(ValueError, match=r"`calibration.json` must hold the 52 terms .* make it again: python -m"):
        unpacked(packed(turned))


def test_a_calibration_without_covariance_is_not_kept() -> None:
    with pytest.raises(ValueError, match="needs a covariance"):
        packed(replace(calibration(), covariance=None))
