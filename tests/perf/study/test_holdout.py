import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.calibration.fitting import Term
from stoker.perf.study.holdout import Study, quantiles

TERMS = (Term("a", 1.0, 1.0, "no idea"), Term("b", 1.0, 1.0, "no idea"))


def study(noise: float, count: int = 120) -> tuple[Study, list[int]]:
    draw = np.random.default_rng(1)
    at_spec = draw.uniform(0.1, 1.0, (count, 2))
    times = at_spec @ [2.0, 0.5] * np.exp(draw.normal(0.0, noise, count))
    return Study(TERMS, at_spec, times), [number % 6 for number in range(count)]


def test_intervals_hold_what_they_promise_on_groups_that_were_not_seen() -> None:
    made, groups = study(0.1)
    found = made.held_out(groups)
    assert 0.82 <= found.covered <= 0.97
    assert found.width == pytest.approx(math.exp(2 * 1.645 * 0.1), rel=0.25)
    assert np.median(found.errors) == pytest.approx(0.067, abs=0.03)
    assert set(found.median_errors()) == set(range(6))


def test_a_group_does_not_see_itself() -> None:
    made, groups = study(0.01)
    own = np.array(groups) == 2
    made.measured[own] *= 3.0
    errors = made.held_out(groups).median_errors()
    assert errors[2] == pytest.approx(2 / 3, abs=0.1)


def test_one_set_of_rows_from_another() -> None:
    made, groups = study(0.05)
    train = np.array(groups) < 4
    found = made.predicted(train, ~train, groups)
    assert found.groups == tuple(group for group in groups if group >= 4)
    assert len(found.errors) == int((~train).sum())


def test_an_interval_needs_other_groups() -> None:
    made, _ = study(0.05)
    with pytest.raises(ValueError, match="`groups` must be three or more, got 2"):
        made.held_out([number % 2 for number in range(120)])


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_quantiles_bound_their_share(ratios: list[float], share: float) -> None:
    low, high = quantiles(np.array(ratios), share)
    assert low <= high
    inside = sum(low <= math.exp(ratio) <= high for ratio in ratios)
    assert inside >= min(len(ratios), math.floor(share * len(ratios)))


def test_a_share_is_one() -> None:
    with pytest.raises(ValueError, match=r"`share` must be between 0 and 1, got 1\.0"):
        quantiles(np.zeros(3), 1.0)
