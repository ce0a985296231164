"""Whether a split pays, by the steps before and after it."""

from __future__ import annotations

from stoker.train.splitting.running.split_trial import SplitTrial


def fed(trial: SplitTrial, seconds: float, first: float = 9.0) -> int:
    """Steps until the trial changes or ends; those that settle take longer."""
    for count in range(1, 100):
        trial.add(first if count <= SplitTrial.SETTLING else seconds)
        if trial.is_due or trial.verdict is not None:
            return count
    raise AssertionError("a trial must end")


def test_medians_before_and_after_are_compared_without_the_steps_that_settle() -> None:
    trial = SplitTrial()
    assert fed(trial, 1.0) == SplitTrial.SETTLING + SplitTrial.STEPS
    assert trial.verdict is None
    trial.change()
    assert not trial.is_due
    assert fed(trial, 0.75) == SplitTrial.SETTLING + SplitTrial.STEPS
    assert trial.verdict == 0.25


def test_steps_while_ranks_wait_to_change_do_not_count() -> None:
    trial = SplitTrial()
    fed(trial, 1.0)
    trial.add(50.0)
    assert trial.before == [1.0] * SplitTrial.STEPS
