"""Any table that keeps the rules has a report of finite figures, whose sums hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.perf.equations import Architecture
from stoker.perf.fleet import Fleet, examine
from stoker.perf.fleet.jobs import first_wrong, fleet_of
from stoker.ui.fleet_html import render_fleet_page
from stoker.ui.fleet_text import render_fleet

AMOUNT = st.one_of(st.just(0.0), st.floats(0, 1e30), st.floats(0, 1e15))
JOB = st.tuples(
    st.sampled_from(list(Architecture)), st.integers(1, 10**6), AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.floats(1e-6, 1e12)
)
NAMES = ("num_gpus", "flops", "memory_bytes", "input_bytes", "traffic_bytes", "duration_s")


@st.composite
def fleets(draw: Any) -> Fleet:
    jobs = draw(st.lists(JOB, min_size=1, max_size=12))
    codes = np.array([job[0] for job in jobs], dtype=np.int8)
    numbers = {name: np.array([job[1 + place] for job in jobs], dtype=float) for place, name in enumerate(NAMES)}
    numbers["num_gpus"][codes == Architecture.ONE_GPU] = 1
    numbers["flops"] += 1
    assert first_wrong(codes, numbers) is None
    return fleet_of("any", codes, numbers, None)


def figures(content: Any) -> Iterator[float]:
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        for each in content:
            yield from figures(each)
    elif isinstance(content, float):
        yield content


@given(fleets(), st.sampled_from(["none", "full"]))
@settings(max_examples=25)
def test_figures_are_finite_and_sums_hold(fleet: Fleet, overlap: str) -> None:
    report = examine(fleet, overlap=overlap)
    assert all(math.isfinite(figure) for figure in figures(msgspec.to_builtins(report)))
    for each in (*report.shares, *report.bottlenecks):
        assert sum(each.at_job.values()) == pytest.approx(1)
        assert sum(each.at_gpu.values()) == pytest.approx(1)
    for port in report.ports:
        assert sum(port.outcomes.values()) == port.jobs
    for upgrade in report.upgrades:
        assert (upgrade.factor > 1) == (upgrade.gpu_time_saved_frac >= 0) or upgrade.gpu_time_saved_frac == 0
    assert render_fleet(report)
    assert render_fleet_page(report)
