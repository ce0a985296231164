import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.scale.evidence import Estimate, View
from stoker.scale.limits import Footprint, JobScalingConfig, cpu_limit, fitting_depth, hard_limit, memory_limit


def view(wall_s: float, cpu_s: float) -> View:
    return View(
        workers=2.0,
        span_s=10.0,
        total_s=10.0,
        windows=40,
        steps=100,
        items=100,
        wait_frac=0.5,
        blocked_frac=0.0,
        step=Estimate(0.01, 0.0, 100),
        wall=Estimate(wall_s, 0.0, 100),
        cpu_s=cpu_s,
    )


@pytest.mark.parametrize(
    ("cores", "wall_s", "cpu_s", "workers"),
    [(2.0, 0.04, 0.04, 2), (2.0, 0.05, 0.001, 105), (4.0, 0.02, 0.01, 8), (0.25, 0.04, 0.04, 1), (16.0, 1.0, 1.0, 16)],
)
def test_the_budget_counts_cpu_seconds(cores: float, wall_s: float, cpu_s: float, workers: int):
    assert cpu_limit(cores, view(wall_s, cpu_s)) == workers


@given(st.floats(0.1, 128.0), st.floats(0.0, 128.0), st.floats(1e-4, 10.0), st.floats(0.0, 1.0))
def test_more_cores_never_allow_fewer_workers(cores: float, extra: float, wall_s: float, frac: float):
    seen = view(wall_s, wall_s * frac)
    assert cpu_limit(cores, seen) <= cpu_limit(cores + extra, seen)


@given(
    st.integers(1, 2**34),
    st.integers(0, 2**34),
    st.integers(0, 2**30),
    st.integers(0, 2**30),
    st.integers(1, 8),
)
def test_more_memory_never_allows_fewer_workers(budget: int, extra: int, batch: int, worker: int, depth: int):
    before = memory_limit(budget, Footprint(batch, worker), depth)
    after = memory_limit(budget + extra, Footprint(batch, worker), depth)
    assert (before is None) == (after is None)
    assert before is None or after is None or 1 <= before <= after


@given(st.integers(1, 2**34), st.integers(1, 2**28), st.integers(0, 2**30), st.integers(1, 16), st.integers(0, 64))
def test_workers_and_slots_fit_in_memory(budget: int, batch: int, worker: int, depth: int, in_flight: int):
    config = JobScalingConfig(cpu_budget_cores=2.0, memory_budget_bytes=budget, max_in_flight=in_flight)
    footprint = Footprint(batch, worker)
    workers = hard_limit(config, footprint, depth).workers
    fitting = fitting_depth(config, footprint, workers, depth)
    assert 1 <= fitting <= min(depth, config.max_depth)
    if workers > 1:
        assert workers * (worker + fitting * batch) <= budget
        assert not in_flight or workers * fitting <= in_flight


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu_budget_cores": 0.0},
        {"min_workers": 0},
        {"max_workers": 0},
        {"fixed_workers": 0},
        {"max_depth": 0},
        {"memory_budget_bytes": -1},
        {"hold_s": -1.0},
    ],
)
def test_wrong_settings_are_refused_by_name(wrong: dict[str, float]):
    good = JobScalingConfig(cpu_budget_cores=2.0)
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must"):
        dataclasses.replace(good, **wrong)  # pyright: ignore[reportArgumentType]
