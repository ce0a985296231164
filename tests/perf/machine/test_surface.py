"""Interpolation between measurements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.perf.machine.surface import fitted

SIZES = st.lists(st.floats(0.0, 12.0), min_size=4, max_size=12, unique_by=lambda x: round(x, 1))


def surface_of(points: list[float], values: list[float]):
    return fitted(np.array(points)[:, None], np.array(values)[:, None], np.zeros(len(points)))


@settings(deadline=None)
@given(SIZES, st.floats(-3, 3))
def test_what_is_alike_everywhere_is_so_between(points: list[float], value: float) -> None:
    surface = surface_of(points, [value] * len(points))
    for at in (*points, 3.3, 50.0):
        assert surface.ratios(np.array([at]))[0] == pytest.approx(np.exp(value), rel=1e-6)


@settings(deadline=None)
@given(SIZES, st.data())
def test_between_measurements_nothing_is_far_outside_them(points: list[float], data: st.DataObject) -> None:
    values = [data.draw(st.floats(-1, 1)) for _ in points]
    surface = surface_of(points, values)
    at = data.draw(st.floats(min(points), max(points)))
    # Kriging may overshoot, by less than what the measurements themselves differ by.
    assert -3.1 <= np.log(surface.ratios(np.array([at]))[0]) <= 3.1


def test_a_smooth_curve_is_met_where_it_was_not_measured() -> None:
    points = [0.0, 1.5, 3.0, 4.5, 6.0, 7.5, 9.0]
    surface = surface_of(points, [np.sin(x / 4) for x in points])
    for at in (0.7, 3.8, 8.0):
        assert np.log(surface.ratios(np.array([at]))[0]) == pytest.approx(np.sin(at / 4), abs=0.03)


def test_residuals_are_those_of_leaving_each_out() -> None:
    generator = np.random.default_rng(0)
    points = generator.uniform(0, 8, (12, 2))
    values = (points[:, :1] * 0.3 - np.abs(points[:, 1:] - 4) * 0.2) + generator.normal(0, 0.05, (12, 1))
    whole = fitted(points, values, np.zeros(12))
    errors: list[float] = []
    for left_out in range(12):
        rest = np.arange(12) != left_out
        surface = fitted(points[rest], values[rest], np.zeros(11))
        errors.append(float(values[left_out, 0] - np.log(surface.ratios(points[left_out])[0])))
    # The reach is chosen again without the point, so that single ones may differ.
    assert float(np.median(np.abs(np.abs(errors) - np.abs(whole.residuals[:, 0])))) < 0.03


def test_one_measurement_says_the_same_everywhere() -> None:
    surface = fitted(np.array([[2.0]]), np.array([[0.5, 0.7]]), np.zeros(1))
    assert surface.ratios(np.array([9.0])) == pytest.approx(np.exp([0.5, 0.7]))
    assert surface.distance(np.array([9.0])) == pytest.approx(7.0)


def test_doubtful_measurements_count_less() -> None:
    points, values = np.linspace(0, 6, 7)[:, None], np.array([0, 0, 0, 2.0, 0, 0, 0])[:, None]
    doubts = np.array([0, 0, 0, 5.0, 0, 0, 0])
    sure = fitted(points, values, np.zeros(7)).ratios(np.array([3.0]))[0]
    assert fitted(points, values, doubts).ratios(np.array([3.0]))[0] < sure
