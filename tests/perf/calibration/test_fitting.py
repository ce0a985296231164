import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stoker.perf.calibration.fitting import Calibration, Term, fit, with_covariance

TERMS = (Term("a", 1.0, 1.0, "no idea"), Term("b", 1.0, 1.0, "no idea"), Term("c", 2.0, 0.1, "quite sure"))


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.1, 10.0, (count, len(TERMS)))


def test_coefficients_are_found_again() -> None:
    at_spec = rows(60)
    found = fit(TERMS, at_spec, at_spec @ [1.5, 0.4, 2.2])
    assert found.coefficients == pytest.approx([1.5, 0.4, 2.2], rel=0.01)
    assert found.seconds(at_spec) == pytest.approx(at_spec @ [1.5, 0.4, 2.2], rel=0.01)


def test_a_few_rows_that_ran_otherwise_do_not_turn_the_rest() -> None:
    at_spec = rows(60)
    times = at_spec @ [1.5, 0.4, 2.2]
    times[::12] *= 1.5
    assert fit(TERMS, at_spec, times).coefficients == pytest.approx([1.5, 0.4, 2.2], rel=0.08)


def test_what_no_row_shows_stays_as_it_was_believed() -> None:
    at_spec = rows(30)
    at_spec[:, 1] = 0.0
    found = fit(TERMS, at_spec, at_spec @ [1.5, 0.4, 2.2])
    assert found.coefficients[1] == pytest.approx(1.0)


def test_a_term_that_no_row_shows_is_doubted_as_it_was_believed() -> None:
    at_spec = rows(30)
    at_spec[:, 1] = 0.0
    found = with_covariance(fit(TERMS, at_spec, at_spec @ [1.5, 0.4, 2.2]), at_spec)
    shown, hidden, half = np.diag([1.0, 1.0, 1.0])[0], np.array([0.0, 1.0, 0.0]), np.array([1.0, 1.5, 0.0])
    doubts = found.doubts(np.array([shown, hidden, half]))
    assert doubts[0] < 0.1
    assert doubts[1] == pytest.approx(TERMS[1].spread)
    assert doubts[0] < doubts[2] < doubts[1]
    assert found.doubts(half[None], beside=3 * half[None]) == pytest.approx(0.0), "as the measured step is, so it is"
    assert found.doubts(half[None], beside=shown[None])[0] > doubts[0]


def test_a_calibration_without_covariance_doubts_nothing() -> None:
    with pytest.raises(ValueError, match=r"`with_covariance` gives it one"):
        Calibration(TERMS, np.ones(3)).doubts(rows(2))


@given(arrays.arrays(np.float64, (8, 3), elements=st.floats(1e-6, 1e6)), st.floats(0.2, 5.0))
@settings(max_examples=60, deadline=None)
def test_any_times_give_finite_positive_coefficients(at_spec: np.ndarray, factor: float) -> None:
    found = fit(TERMS, at_spec, at_spec.sum(axis=1) * factor)
    assert np.isfinite(found.coefficients).all()
    assert (found.coefficients > 0).all()


@given(st.floats(0.5, 2.0))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_time_does_not_matter(unit: float) -> None:
    at_spec = rows(30, 3)
    times = at_spec @ [1.5, 0.4, 2.2]
    both = fit(TERMS, at_spec, times), fit(TERMS, at_spec * unit, times * unit)
    assert both[0].coefficients == pytest.approx(both[1].coefficients, rel=1e-4)


@pytest.mark.parametrize(
    ("at_spec", "times", "words"),
    [
        (np.ones((2, 2)), np.ones(2), r"shape \(2, 3\), got \(2, 2\)"),
        (np.zeros((2, 3)), np.ones(2), "one above 0 in each row"),
        (-np.ones((2, 3)), np.ones(2), "not negative"),
        (np.ones((2, 3)), np.array([1.0, 0.0]), "`measured` must hold positive"),
        (np.ones((2, 3)), np.array([1.0, np.nan]), "`measured` must hold positive"),
    ],
)
def test_times_that_cannot_be_are_refused(at_spec: np.ndarray, times: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit(TERMS, at_spec, times)


def test_a_term_has_a_belief() -> None:
    with pytest.raises(ValueError, match="of x must be positive, got 0 and 1"):
        Term("x", 0, 1, "")


def test_host_and_device_go_on_beside_each_other() -> None:
    terms = (
        Term("device", 1.0, 1.0, ""),
        Term("host", 1.0, 1.0, "", "host"),
        Term("alone", 1.0, 1.0, "", "alone"),
    )
    found = Calibration(terms, np.ones(3))
    assert found.seconds(np.array([[3.0, 4.0, 1.0], [3.0, 0.0, 0.0]])) == pytest.approx([6.0, 3.0])
    at_spec = rows(80)
    times = np.hypot(2 * at_spec[:, 0], 0.5 * at_spec[:, 1]) + 1.2 * at_spec[:, 2]
    assert fit(terms, at_spec, times).coefficients == pytest.approx([2.0, 0.5, 1.2], rel=0.02)
