from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.graph.trial import Arm, Trial


def run(trial, seconds, *, lag=3, limit=2000):
    """A loop whose batches change to the trial's arm some steps later; how many steps the verdict took."""
    now, label = 0.0, trial.arm
    waiting = [label] * lag
    for count in range(limit):
        waiting.append(trial.arm)
        label = waiting.pop(0)
        now += seconds(label, count)
        trial.add(label, now)
        if trial.verdict is not None:
            return count + 1
    return limit


@given(st.floats(0.1, 3.0), st.integers(0, 8))
def test_the_gain_is_what_steps_take_less(ratio, lag):
    trial = Trial()
    run(trial, lambda label, _: ratio if label is Arm.ON else 1.0, lag=lag)
    assert trial.verdict == pytest.approx(1.0 - ratio, abs=1e-6)


def test_single_slow_steps_do_not_decide():
    trial = Trial()
    run(trial, lambda label, count: 50.0 if count % 7 == 0 else (0.5 if label is Arm.ON else 1.0))
    assert trial.verdict == pytest.approx(0.5)


def test_first_steps_after_a_change_are_left_out():
    trial, labels = Trial(), []

    def seconds(label, _):
        slow = not labels or labels[-1] is not label
        labels.append(label)
        return 100.0 if slow else 1.0

    run(trial, seconds, lag=0)
    assert trial.verdict == pytest.approx(0.0)


def test_a_pause_counts_for_nothing():
    trial, now = Trial(), 0.0
    for count in range(200):
        if count % 5 == 4:
            trial.pause()
            now += 1000.0
        now += 0.5 if trial.arm is Arm.ON else 1.0
        trial.add(trial.arm, now)
        if trial.verdict is not None:
            break
    assert trial.verdict == pytest.approx(0.5)


def test_batches_of_the_wanted_kind_that_never_come_end_it():
    trial = Trial()
    for count in range(Trial.PATIENCE + 2):
        trial.add(Arm.OFF, float(count))
    assert trial.verdict == 0.0


def test_both_arms_get_their_blocks_in_turn():
    trial, order = Trial(), []
    run(trial, lambda label, _: order.append(label) or 1.0, lag=0)
    changes = sum(one is not other for one, other in pairwise(order))
    assert changes == 2 * Trial.PAIRS - 1
    assert order[0] is Arm.ON
