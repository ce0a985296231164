"""Workers on other machines under the job autoscaler, on a virtual clock: after those here, as long as they pay."""

import dataclasses

import pytest

from stoker.feed.scaling import Decision, Observation
from stoker.scale.job import JobAutoscaler
from stoker.scale.limits import JobScalingConfig
from stoker.sim.queue import AwayNode, Costs, Job, Timeline, simulate

IMAGES = Costs(step_s=0.01, item_cpu_s=0.06)


def run(job: Job, **settings: float | None) -> Timeline:
    config = JobScalingConfig(cpu_budget_cores=job.cores, **settings)  # pyright: ignore[reportArgumentType]
    return simulate(job, JobAutoscaler(config))


def last(timeline: Timeline) -> Decision:
    return timeline.ticks[-1].decision


def test_a_program_that_its_own_cores_starve_gets_those_of_others():
    job = Job(costs=(IMAGES,), nodes=(AwayNode(cores=8),), duration_s=60.0)
    timeline = run(job)
    assert timeline.rate(30.0, 60.0) >= 0.95 / IMAGES.step_s
    assert 2 <= last(timeline).workers - last(timeline).away <= 3, "as many here as without the others"
    assert timeline.rate(30.0, 60.0) >= 2.5 * run(dataclasses.replace(job, nodes=())).rate(30.0, 60.0)


def test_near_ones_come_first():
    timeline = run(Job(costs=(IMAGES,), nodes=(AwayNode(cores=8),)))
    first = next(tick.decision for tick in timeline.ticks if tick.decision.away)
    assert first.workers - first.away >= 2


def test_a_program_that_is_fed_gets_none():
    timeline = run(Job(costs=(Costs(step_s=0.1, item_cpu_s=0.06),), nodes=(AwayNode(cores=8),)))
    assert not any(tick.decision.away for tick in timeline.ticks)


def test_machines_that_come_later_are_used_and_those_that_go_are_missed_for_a_moment():
    timeline = run(
        Job(costs=(IMAGES,), nodes=(AwayNode(cores=8),), away_from_s=20.0, away_until_s=60.0, duration_s=90.0)
    )
    assert not any(tick.decision.away for tick in timeline.ticks if tick.now_s < 20.0)
    assert timeline.rate(45.0, 60.0) >= 0.95 / IMAGES.step_s
    assert last(timeline).away == 0
    assert last(timeline).workers >= 2


HEAVY = Costs(step_s=0.02, item_cpu_s=0.24, item_sigma=0.2)
"""Two cores make a sixth of what the program takes."""
HERE = 2.0 / HEAVY.item_cpu_s


def late_rate(*nodes: AwayNode, **settings: int) -> float:
    job = Job(costs=(HEAVY,), nodes=nodes, declared_workers=2, duration_s=60.0)
    return run(job, **settings).rate(30.0, 60.0)


def test_one_slow_machine_costs_hardly_anything():
    """An item there would hold up all behind it: it gets those far ahead, or none."""
    good, slow = AwayNode(cores=8), AwayNode(cores=8, slowness=10.0)
    assert late_rate(good, slow) >= 0.95 * late_rate(good)


def test_links_that_carry_less_than_the_cores_make_give_what_they_carry():
    link = AwayNode(cores=8, link_batches_per_s=6.0)
    assert late_rate(link, link) >= 0.95 * (HERE + 12.0)


@pytest.mark.parametrize("batches_per_s", [1.25, 0.3])
def test_links_that_bring_next_to_nothing_take_nothing_away(batches_per_s: float):
    link = AwayNode(cores=8, link_batches_per_s=batches_per_s)
    assert late_rate(link, link) >= 0.98 * late_rate()


def test_nor_where_their_number_is_the_users():
    link = AwayNode(cores=8, link_batches_per_s=1.25)
    assert late_rate(link, link, fixed_workers=2, fixed_away=16) >= 0.98 * late_rate()


@pytest.mark.parametrize("settings", [{}, {"fixed_workers": 2}])
def test_a_full_link_is_the_reason_why_it_stopped(settings: dict[str, int]) -> None:
    policy = JobAutoscaler(JobScalingConfig(cpu_budget_cores=2.0, hold_steps=0, hold_s=0.0, **settings))
    decision = policy.start(2, 2)
    for number in range(1, 80):  # workers beyond six bring nothing
        rate = 4.0 * min(decision.workers, 6)
        steps = round(0.25 * rate) or 1
        seen = Observation(
            now_s=0.25 * number, workers=decision.workers, depth=2, steps=steps, items=steps, starved_frac=1.0,
            input_wait_frac=0.8, blocked_frac=0.0, step_s=0.02, item_wall_s=0.25, item_cpu_s=0.25, batch_bytes=1 << 20,
            worker_bytes=1 << 20, window_s=0.25, away=decision.away, away_room=4, item_stall_s=0.0,
            away_limit="the link to `b:7071` carries 23 MB/s, 6 batches/s",
        )  # fmt: skip
        decision = policy.decide(seen)
    said = "the link to `b:7071` carries 23 MB/s, 6 batches/s: more workers there bring nothing"
    assert decision.reason == f"{decision.workers} workers: {said}"


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
    timeline = run(Job(costs=(IMAGES,), nodes=(AwayNode(cores=8),)), fixed_workers=1, fixed_away=wanted)
    assert last(timeline).away == wanted
    assert last(timeline).workers == 1 + wanted


def test_the_number_here_may_be_the_users_and_that_there_found():
    job = Job(costs=(HEAVY,), nodes=(AwayNode(cores=8), AwayNode(cores=8)), declared_workers=2, duration_s=60.0)
    timeline = run(job, fixed_workers=2)
    assert timeline.rate(30.0, 60.0) >= 0.95 / HEAVY.step_s
    assert all(tick.decision.workers - tick.decision.away == 2 for tick in timeline.ticks)
    assert 10 <= last(timeline).away <= 13


def test_those_there_are_given_up_where_they_bring_nothing_although_the_number_here_is_the_users():
    link = AwayNode(cores=8, link_batches_per_s=1.25)
    job = Job(costs=(HEAVY,), nodes=(link, link), declared_workers=2, duration_s=60.0)
    assert run(job, fixed_workers=2).rate(30.0, 60.0) >= 0.98 * late_rate()


def test_a_number_that_is_not_one_is_refused():
    with pytest.raises(ValueError, match="`fixed_away` must not be negative, got -1"):
        JobScalingConfig(cpu_budget_cores=1.0, fixed_away=-1)
