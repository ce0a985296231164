"""Sums over two processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.machine.exchange import all_reduce_seconds, interpolated

POINTS = [(1e3, 1e-4), (1e5, 2e-4), (1e6, 1e-3)]


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_bytes_never_take_less(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert interpolated(POINTS, less) <= interpolated(POINTS, more) * (1 + 1e-12)


def test_a_start_and_a_rate_are_met_between_measurements() -> None:
    points = [(size, 1e-4 + size / 1e9) for size in (1e3, 1e5, 1e7)]
    assert interpolated(points, 3e6) == pytest.approx(1e-4 + 3e-3)
    assert interpolated(points, 1e7) == pytest.approx(1e-4 + 1e-2)
    assert interpolated(points, 4e7) == pytest.approx(4 * (1e-4 + 1e-2))


def test_without_measurements_there_is_no_answer() -> None:
    with pytest.raises(ValueError, match="stoker perf calibrate"):
        interpolated([], 1.0)


@pytest.mark.slow("two ranks each start python and torch")
@pytest.mark.integration
def test_two_processes_sum() -> None:
    found = all_reduce_seconds((4_096, 4_194_304), 0.5)
    assert list(found) == [4_096, 4_194_304]
    assert 0 < found[4_096] < found[4_194_304] < 5
