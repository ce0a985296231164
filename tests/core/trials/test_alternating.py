"""Whether a cut pays is told from steps in turn: a hopeless one at once, any other after all its blocks."""

from __future__ import annotations

from stoker.core.trials.alternating import Arm, CutTrial


def tried(on_s: float, off_s: float) -> tuple[CutTrial, int]:
    """A trial with steps of these lengths, and how many steps it took; what is asked for comes at once."""
    trial, now, steps = CutTrial(), 0.0, 0
    while trial.verdict is None:
        arm = trial.arm
        now += on_s if arm is Arm.ON else off_s
        trial.add(arm, now)
        steps += 1
    return trial, steps


def test_a_gain_is_the_share_of_time_saved():
    trial, steps = tried(0.8, 1.0)
    assert trial.verdict is not None
    assert abs(trial.verdict - 0.2) < 1e-9
    assert steps >= 2 * CutTrial.PAIRS * CutTrial.BLOCK


def test_a_small_loss_is_measured_to_the_end():
    trial, steps = tried(1.1, 1.0)
    assert trial.verdict is not None
    assert abs(trial.verdict + 0.1) < 1e-9
    assert steps >= 2 * CutTrial.PAIRS * CutTrial.BLOCK


def test_a_hopeless_cut_is_given_up_after_one_pair_of_blocks():
    trial, steps = tried(1.5, 1.0)
    assert trial.verdict is not None
    assert trial.verdict < CutTrial.LEAST_GAIN
    assert steps <= 2 * (CutTrial.BLOCK + CutTrial.SETTLING) + 1


def test_a_trial_that_is_lost_in_a_disturbed_moment_is_made_again():
    """Steps take three times as long for a while, in which the cut is being tried."""
    trial, now, steps = CutTrial(), 0.0, 0
    while trial.verdict is None:
        arm = trial.arm
        now += (0.8 if arm is Arm.ON else 1.0) * (3.0 if 12 <= steps < 45 and arm is Arm.ON else 1.0)
        trial.add(arm, now)
        steps += 1
    assert abs(trial.verdict - 0.2) < 1e-9
    assert steps > CutTrial.REST


def test_a_trial_that_is_disturbed_again_and_again_ends():
    trial, now, steps = CutTrial(), 0.0, 0
    while trial.verdict is None:
        arm = trial.arm
        now += (1.0 if steps % 46 < 23 else 3.0) * (2.0 if arm is Arm.ON else 1.0)
        trial.add(arm, now)
        steps += 1
    assert trial.verdict < CutTrial.LEAST_GAIN
    assert steps < CutTrial.TRIALS * (CutTrial.REST + 100)
