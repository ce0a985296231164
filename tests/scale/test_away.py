"""Workers on other machines under the job autoscaler, on a virtual clock: after those here, as long as they pay."""

import dataclasses

import pytest

from stoker.feed.scaling import Decision, Observation
from stoker.scale.job import JobAutoscaler
from stoker.scale.limits import JobScalingConfig
from stoker.sim.queue import Costs, Job, Timeline, simulate

IMAGES = Costs(step_s=0.01, item_cpu_s=0.06)


def run(job: Job, **settings: float | None) -> Timeline:
    config = JobScalingConfig(cpu_budget_cores=job.cores, **settings)  # pyright: ignore[reportArgumentType]
    return simulate(job, JobAutoscaler(config))


def last(timeline: Timeline) -> Decision:
    return timeline.ticks[-1].decision


def test_a_program_that_its_own_cores_starve_gets_those_of_others():
    job = Job(costs=(IMAGES,), away_cores=8, duration_s=60.0)
    timeline = run(job)
    assert timeline.rate(30.0, 60.0) >= 0.95 / IMAGES.step_s
    assert 2 <= last(timeline).workers - last(timeline).away <= 3, "as many here as without the others"
    assert timeline.rate(30.0, 60.0) >= 2.5 * run(dataclasses.replace(job, away_cores=0)).rate(30.0, 60.0)


def test_near_ones_come_first():
    timeline = run(Job(costs=(IMAGES,), away_cores=8))
    first = next(tick.decision for tick in timeline.ticks if tick.decision.away)
    assert first.workers - first.away >= 2


def test_a_program_that_is_fed_gets_none():
    timeline = run(Job(costs=(Costs(step_s=0.1, item_cpu_s=0.06),), away_cores=8))
    assert not any(tick.decision.away for tick in timeline.ticks)


def test_machines_that_come_later_are_used_and_those_that_go_are_missed_for_a_moment():
    timeline = run(Job(costs=(IMAGES,), away_cores=8, away_from_s=20.0, away_until_s=60.0, duration_s=90.0))
    assert not any(tick.decision.away for tick in timeline.ticks if tick.now_s < 20.0)
    assert timeline.rate(45.0, 60.0) >= 0.95 / IMAGES.step_s
    assert last(timeline).away == 0
    assert last(timeline).workers >= 2


def test_what_costs_more_to_receive_than_to_make_stays():
    policy = JobAutoscaler(JobScalingConfig(cpu_budget_cores=1.0, hold_steps=0, hold_s=0.0))
    policy.start(1, 2)
    large = 200 << 20
    for number in range(1, 60):
        seen = Observation(
            now_s=0.25 * number, workers=1, depth=2, steps=4, items=4, starved_frac=1.0, input_wait_frac=0.9,
            blocked_frac=0.0, step_s=0.005, item_wall_s=0.06, item_cpu_s=0.06, batch_bytes=large, worker_bytes=1 << 20,
            window_s=0.25, away_room=8, item_stall_s=0.0,
        )  # fmt: skip
        assert policy.decide(seen).away == 0


@pytest.mark.parametrize("wanted", [0, 3])
def test_the_number_may_be_the_users(wanted: int):
    timeline = run(Job(costs=(IMAGES,), away_cores=8), fixed_workers=1, fixed_away=wanted)
    assert last(timeline).away == wanted
    assert last(timeline).workers == 1 + wanted


def test_a_number_that_is_not_one_is_refused():
    with pytest.raises(ValueError, match="`fixed_away` must not be negative, got -1"):
        JobScalingConfig(cpu_budget_cores=1.0, fixed_away=-1)
