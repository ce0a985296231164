"""Dividing CPUs: equal parts are max-min fair, and concave segments are taken in their best order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.scale.budget import fair_shares
from stoker.scale.cluster.curves import concave
from stoker.scale.cluster.division import DivisionConfig, divide
from stoker.scale.cluster.state import ClusterJob, ClusterState


def state(*jobs: ClusterJob) -> ClusterState:
    return ClusterState(nodes=(), jobs=jobs)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.floats(0, 200))
def test_equal_parts_are_max_min_fair(needs: list[int], capacity: float) -> None:
    jobs = [ClusterJob(name=str(number), curve=concave([(need, 1.0)])) for number, need in enumerate(needs)]
    found = divide(state(*jobs).claims, capacity, 0.0, DivisionConfig(objective="max-min"))
    assert found.tolist() == pytest.approx(fair_shares(capacity, needs))


curves = st.lists(
    st.tuples(st.integers(1, 6), st.floats(0.05, 1.0)), min_size=1, max_size=3, unique_by=lambda point: point[0]
)


@given(st.lists(curves, min_size=1, max_size=3), st.integers(0, 12))
def test_no_other_division_has_more_throughput(points: list[list[tuple[int, float]]], capacity: int) -> None:
    """Against all divisions into whole CPUs: breakpoints are whole, so that the best is among them."""
    jobs = [ClusterJob(name=str(number), curve=concave([*each])) for number, each in enumerate(points)]
    claims = state(*jobs).claims
    found = divide(claims, float(capacity), 0.0, DivisionConfig(objective="throughput", hysteresis=1.0))
    assert found.sum() <= capacity + 1e-9
    best = max(
        sum(job.curve.rate(cpus) for job, cpus in zip(jobs, each, strict=True))
        for each in itertools.product(range(7), repeat=len(jobs))
        if sum(each) <= capacity
    )
    assert float(claims.rates(found).sum()) == pytest.approx(best)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.floats(0, 150), st.floats(0, 50))
def test_each_claim_gets_at_least_as_much_of_more(needs: list[int], capacity: float, more: float) -> None:
    jobs = [
        ClusterJob(name=str(number), curve=concave([(need, 1.0)]), user=str(number % 2), progress_s=100.0 * number)
        for number, need in enumerate(needs)
    ]
    for quotas in (None, [20.0, 10.0]):
        config = DivisionConfig(quotas=quotas)
        claims = state(*jobs).claims
        assert (divide(claims, capacity + more, 0.0, config) >= divide(claims, capacity, 0.0, config) - 1e-9).all()
        assert np.isfinite(divide(claims, capacity, 0.0, config)).all()
