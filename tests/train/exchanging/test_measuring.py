"""What sums that overlap say of a link: facts as a backend with two threads shows them, and their fit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.communication.links import probed
from stoker.train.exchanging.measuring import BusyPeriods

MB = 1 << 20
RATE = 25e6
"""Bytes/s of the emulated link, of two ranks: a sum of S bytes sends S."""


def overlapping(sizes: list[int], ready_s: list[float], rate: float = RATE) -> list[tuple[float, str, int]]:
    """Begins and ends of sums that share a link as two threads of a backend let them: each has half of it."""
    now, left, waiting = 0.0, dict[int, float](), list(range(len(sizes)))
    events: list[tuple[float, str, int]] = []
    running: list[int] = []
    queued: list[int] = []
    while waiting or running or queued:
        while queued and len(running) < 2:
            running.append(queued.pop(0))
        done = min((now + left[each] * len(running) / rate for each in running), default=float("inf"))
        arrives = ready_s[waiting[0]] if waiting else float("inf")
        then = min(done, arrives)
        for each in running:
            left[each] -= (then - now) * rate / len(running)
        now = then
        if arrives <= done:
            each = waiting.pop(0)
            events.append((now, "begin", sizes[each]))
            left[each] = float(sizes[each])
            queued.append(each)
        for each in [each for each in running if left[each] <= 1e-6]:
            running.remove(each)
            events.append((now, "end", sizes[each]))
    return events


def found(steps: list[list[tuple[float, str, int]]]) -> list[tuple[float, float]]:
    periods = BusyPeriods()
    for events in steps:
        for at, what, size in events:
            if what == "begin":
                periods.begin(size, at)
            else:
                periods.end(at)
    return periods.sums()


@given(st.lists(st.integers(MB // 4, 25 * MB), min_size=1, max_size=5), st.floats(0.0, 2.0), st.integers(0, 1000))
def test_no_sum_looks_cheaper_than_the_link_allows(sizes: list[int], apart_s: float, seed: int) -> None:
    drawn = random.Random(seed)
    steps = []
    for _ in range(6):
        ready, at = list[float](), 0.0
        for _ in sizes:
            at += drawn.uniform(0.0, apart_s)
            ready.append(at)
        steps.append(overlapping(sizes, ready))
    for size, seconds in found(steps):
        assert seconds >= 0.999 * size / RATE


def test_two_buckets_under_way_at_once_do_not_hide_the_rate_of_a_busy_link() -> None:
    """As a loaded machine showed it: both buckets are queued at once in some steps, one behind the other in others."""
    sizes = [16 * MB, 16 * MB]
    together, apart = overlapping(sizes, [0.0, 0.01]), overlapping(sizes, [0.0, 2.0])
    small = [(4096.0, 0.002), (65536.0, 0.005)]
    link = probed([*small, *found([apart, apart, together, apart, together, together])], 2)
    assert link.bandwidth == pytest.approx(RATE, rel=0.02)


def test_sums_one_by_one_are_what_they_were() -> None:
    assert found([[(1.0, "begin", 10), (3.0, "end", 10)], [(9.0, "begin", 10), (10.5, "end", 10)]]) == [(10.0, 1.5)]
