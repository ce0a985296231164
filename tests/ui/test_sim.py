"""A simulated cluster as text and as a page: what is shown of which records."""

from __future__ import annotations

import pytest

from stoker.records.cluster import GainCell, JctCurve, MeanBound, PolicyRow, SimReport, UseSeries
from stoker.ui.cluster.sim_html import render_sim_page
from stoker.ui.cluster.sim_text import render_sim
from stoker.ui.cluster.sim_words import write_gain_factor, write_short_times
from stoker.ui.report_text import Style


def row(name: str, gain: float) -> PolicyRow:
    return PolicyRow(
        name=name, about=f"<{name}>", mean_jct_s=36000 / gain, p50_jct_s=600.0, p99_jct_s=90000 / gain,
        makespan_s=172800.0, utilisation_frac=0.3 * gain, allocation_frac=0.9, jct_gain=gain, jct_gain_low=gain / 2,
        jct_gain_high=gain * 2, utilisation_gain=gain, queueing_s=60.0, moves=1.5,
        waiting={"no GPU": 0.6, "fragmentation": 0.0, "CPUs short": 0.4, "behind another": 0.0},
    )  # fmt: skip


def report(**changed: object) -> SimReport:
    names = ("none", "static", "jct", "unlimited")
    values = {
        "name": "jobs & <co>.csv", "jobs": 80, "samples": 3, "gpus": 64, "cpus": 1024, "added_cpus": 512,
        "baseline": "none", "focus": "jct", "assumptions": ["Rates are constant"],
        "policies": [row(name, gain) for name, gain in zip(names, (1.0, 1.1, 2.0, 3.0), strict=True)],
        "bounds": [MeanBound(name="squashed area", mean_jct_s=9000.0, note="as one machine")],
        "curves": [JctCurve(policy=name, jct_s=[60.0 * (step + 1) for step in range(101)]) for name in names],
        "series": [
            UseSeries(policy=name, times_s=[0.0, 3600.0], granted_cpus=[1.0, 2.0], busy_gpus=[1.0, 2.0],
                      held_gpus=[2.0, 2.0], queued=[0.0, 3.0]) for name in names
        ],
        "cells": [GainCell(demand=2.0, load=0.9, jct_gain=35.0), GainCell(demand=0.5, load=0.9, jct_gain=1.0)],
        "notes": [], "seconds": 1.0,
    }  # fmt: skip
    return SimReport(**(values | changed))


def test_the_answer_the_gain_and_the_reasons_to_wait_are_said() -> None:
    text = render_sim(report(), Style(width=100), "stoker sim jobs.csv --html sim.html")
    for said in (
        "Jobs end 2.00× as fast with the allocator: 5 h 00 min",
        "60% of the GPU time computes, instead of 30%.",
        "With CPUs without limit it would be 3.00×: 67% of that is reached.",
        "Single samples range from 1.00× to 4.00×",
        "40% of the waiting is for CPUs while GPUs are free",
        "from 1.00× to 35×: it is the scenario's",
        "CPUs short: GPUs are free, but their CPUs are taken",
        "- Rates are constant.",
        "Next stoker sim jobs.csv --html sim.html",
    ):
        assert said in " ".join(text.split())
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_page_escapes_and_has_all_parts() -> None:
    page = render_sim_page(report())
    assert "jobs &amp; &lt;co&gt;.csv" in page
    assert "<co>" not in page
    for said in (
        "Policies side by side",
        "Completion times",
        "Over time",
        "Waiting",
        "35×",
        "squashed area",
        "Assumed",
    ):
        assert said in page


def test_one_policy_alone_is_shown_too() -> None:
    alone = report(policies=[row("none", 1.0)], focus="none", cells=[], curves=[], series=[], samples=1)
    assert "none: 10 h 00 min from arrival to end" in render_sim(alone)
    assert "Over time" not in render_sim_page(alone)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([42], ["42 s"]),
        ([600, 9000], ["10 min", "150 min"]),
        ([36000, 864000], ["10.0 h", "240.0 h"]),
        ([864000], ["10.0 d"]),
        ([42, 864000], ["42 s", "10.0 d"]),  # too far apart for one unit
        ([], []),
    ],
)
def test_times_of_a_column_have_one_unit(column: list[float], said: list[str]) -> None:
    assert write_short_times(column) == said


def test_gains_are_short() -> None:
    assert write_gain_factor(0.366) == "0.37×"
    assert write_gain_factor(34.6) == "35×"
