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
