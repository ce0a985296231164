"""Rates over CPUs: concave whatever is measured, and learned from starved and blocked."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.scale.cluster.curves import CurveEstimate, RateCurve, concave, linear

points = st.lists(st.tuples(st.floats(0.5, 64), st.floats(0.01, 1.0)), min_size=1, max_size=8)


@given(points)
def test_a_hull_is_concave_and_never_below_a_point(given_points: list[tuple[float, float]]) -> None:
    curve = concave(given_points)
    assert all(curve.rate(cpus) >= rate - 1e-9 for cpus, rate in given_points)
    rates = [curve.rate(cpus / 2) for cpus in range(140)]
    steps = [b - a for a, b in itertools.pairwise(rates)]
    assert all(step >= -1e-9 for step in steps)


@given(st.integers(1, 40), st.integers(1, 80))
def test_a_queue_leads_to_the_cpus_that_full_speed_needs(need: int, share: int) -> None:
    """A job that needs so many CPUs, looked at with as many as its curve asks for, ends there and stays."""
    estimate, cpus = CurveEstimate(), min(share, need)
    for window in range(12):
        blocked = max(0.0, 1.0 - need / cpus)
        estimate.observe(
            cpus, 100.0 * min(1.0, cpus / need), starved_frac=float(cpus < need), blocked_frac=blocked, now_s=window
        )
        cpus = int(estimate.curve(share).need_cpus)
    assert need <= cpus <= need + 1


def test_unmeasured_parts_are_tried_and_measured_ones_believed() -> None:
    estimate = CurveEstimate()
    assert estimate.curve(8).need_cpus == 16
    estimate.observe(8, 50.0, starved_frac=0.5, blocked_frac=0.0, now_s=0.0)
    assert estimate.curve(8).need_cpus == 16
    estimate.observe(16, 60.0, starved_frac=0.0, blocked_frac=0.3, now_s=10.0)
    assert estimate.curve(8).need_cpus == 12
    assert estimate.curve(8).rate(8) == pytest.approx(50 / 60)


def test_a_curve_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="must be concave"):
        RateCurve(((4.0, 0.2), (5.0, 1.0)))
    with pytest.raises(ValueError, match="must rise"):
        RateCurve(((4.0, 0.2), (4.0, 1.0)))
    with pytest.raises(ValueError, match="at least one breakpoint"):
        RateCurve(())
    assert linear(4).rate(1) == 0.25


def test_a_known_full_speed_says_what_was_never_tried() -> None:
    estimate = CurveEstimate()
    estimate.observe(2, 20.0, starved_frac=1.0, blocked_frac=0.0, computing_frac=0.2, now_s=1.0)
    assert estimate.curve(4).need_cpus == 10
    estimate.observe(10, 60.0, starved_frac=1.0, blocked_frac=0.0, computing_frac=0.6, now_s=2.0)
    # From 2 to 10 CPUs it gained half as much for each: the rest is believed to cost as much as that.
    assert estimate.curve(4).need_cpus == 18
    assert estimate.curve(4).rate(10) == pytest.approx(0.6)


@pytest.mark.parametrize("need", range(1, 60))
def test_a_known_full_speed_needs_no_trials(need: int) -> None:
    estimate = CurveEstimate()
    estimate.observe(
        1, 100.0 / need, starved_frac=float(need > 1), blocked_frac=0.0, computing_frac=1.0 / need, now_s=1.0
    )
    assert estimate.curve(1).need_cpus == need


def test_cpus_that_bring_nothing_are_not_asked_for_again() -> None:
    estimate = CurveEstimate()
    estimate.observe(2, 20.0, starved_frac=1.0, blocked_frac=0.0, computing_frac=0.2, now_s=1.0)
    estimate.observe(10, 20.2, starved_frac=1.0, blocked_frac=0.0, computing_frac=0.2, now_s=2.0)
    assert estimate.curve(4).need_cpus == 2


def test_what_cpus_gain_beyond_those_that_are_there() -> None:
    beyond = concave([(4.0, 0.5), (12.0, 1.0)]).beyond(2.0)
    assert beyond is not None
    assert beyond.points == ((2.0, 0.25), (10.0, 0.75))
    assert linear(4.0).beyond(4.0) is None


@pytest.mark.parametrize("need", [7, 24, 32, 49])
def test_points_on_one_line_are_one_segment(need: int) -> None:
    points = [(float(cpus), cpus / need) for cpus in range(1, need + 1)]
    assert concave(points).points == ((float(need), 1.0),)
