"""The requantiser against exact rationals."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.arithmetic.requantising import (
    MOST_SHIFT,
    multipliers_of,
    requantise,
    requantise_double,
    thresholds_of,
)
from stoker.deploy.ir.bounds import requantised
from stoker.deploy.ir.operations import Requantiser


def exact(acc: int, multiplier: int, by: Requantiser) -> int:
    """The nearest whole number, halves up, by rationals."""
    value = Fraction(acc * multiplier, 1 << by.shift)
    nearest = (value + Fraction(1, 2)).__floor__() if by.shift else int(value)
    return min(max(nearest + by.zero_point, by.low), by.high)


@given(
    acc=st.lists(st.integers(-(2**31), 2**31), min_size=1, max_size=20),
    multiplier=st.integers(0, 2**16 - 1),
    shift=st.integers(0, MOST_SHIFT),
    zero=st.integers(-128, 127),
)
def test_it_is_the_nearest_whole_number(acc: list[int], multiplier: int, shift: int, zero: int) -> None:
    by = Requantiser(multiplier="m", shift=shift, zero_point=zero, low=-128, high=127)
    constants = {"m": np.array([multiplier], np.uint16)}
    sums = np.array(acc, np.int64)
    wanted = [exact(each, multiplier, by) for each in acc]
    assert requantise(sums[None], by, constants)[0].tolist() == wanted
    assert requantise_double(sums[None].astype(np.float64), by, constants)[0].tolist() == wanted
    assert requantised(sums, by, constants) == wanted


@given(
    multipliers=st.lists(st.sampled_from([0, 1, 2**16 - 1]) | st.integers(0, 2**16 - 1), min_size=1, max_size=4),
    shift=st.sampled_from([0, 1, MOST_SHIFT]) | st.integers(0, MOST_SHIFT),
    zero=st.integers(-128, 127),
    results=st.tuples(st.integers(-128, 127), st.integers(-128, 127)).map(sorted),
    ends=st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)).map(sorted),
    more=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8),
)
def test_thresholds_are_where_the_law_goes_up(
    multipliers: list[int], shift: int, zero: int, results: list[int], ends: list[int], more: list[int]
) -> None:
    """At the ends of the range, right at each threshold and before it, and anywhere."""
    by = Requantiser(multiplier="m", shift=shift, zero_point=zero, low=results[0], high=results[1])
    constants = {"m": np.array(multipliers, np.uint16)}
    low, high = ends
    found = thresholds_of(by, constants, (low, high))
    for row, multiplier in zip(found, multipliers, strict=True):
        assert len(row) == by.high - by.low
        assert row == sorted(row)
        near = [each - 1 for each in row] + row
        sums = [each for each in (low, high, *near, *more) if low <= each <= high]
        law = requantise(np.array(sums, np.int64), by, {"m": np.array(multiplier)})
        assert law.tolist() == [by.low + sum(each >= threshold for threshold in row) for each in sums]


def test_thresholds_without_multipliers_are_those_of_the_shift() -> None:
    by = Requantiser(multiplier=None, shift=3, zero_point=-1, low=-2, high=1)
    assert thresholds_of(by, {}, (-100, 100)) == [[-4, 4, 12]]
    assert thresholds_of(by, {}, (0, 10)) == [[0, 4, 11]]


@given(st.lists(st.floats(0, 60000, allow_subnormal=False), min_size=1, max_size=8))
def test_multipliers_are_nearest_to_ratios_at_one_shift(ratios: list[float]) -> None:
    multipliers, shift = multipliers_of(np.array(ratios))
    largest = int(multipliers.max())
    assert shift == MOST_SHIFT or largest >= 2**15 or largest * 2 > 2**16 - 1
    for ratio, found in zip(ratios, multipliers.tolist(), strict=True):
        assert abs(Fraction(ratio) - Fraction(found, 1 << shift)) <= Fraction(1, 2 << shift)


@pytest.mark.parametrize("ratio", [-1.0, float("inf"), float("nan"), 70000.0])
def test_ratios_without_a_multiplier_are_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        multipliers_of(np.array([ratio]))
