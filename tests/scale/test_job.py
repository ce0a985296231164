"""The job autoscaler on a virtual clock: what it reaches, how fast, and that it stays there."""

import dataclasses
import math
import random
import statistics
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.feed.scaling import Decision, Observation, ScalingPolicy
from stoker.scale.budget import CpuLedger
from stoker.scale.job import SHORT_BASELINE, JobAutoscaler
from stoker.scale.limits import JobScalingConfig
from stoker.sim.queue import Costs, FixedWorkers, Job, Timeline, simulate

IMAGES = Costs(step_s=0.01, item_cpu_s=0.06)
READS = Costs(step_s=0.01, item_cpu_s=0.0005, item_wait_s=0.0595)


def autoscaler(cores: float = 2.0, **settings: float) -> JobAutoscaler:
    return JobAutoscaler(JobScalingConfig(cpu_budget_cores=cores, **settings))  # pyright: ignore[reportArgumentType]


def run(job: Job, **settings: float) -> Timeline:
    return simulate(job, autoscaler(job.cores, **settings))


def best_rate(costs: Costs, cores: float, workers: int) -> float:
    job = Job(costs=(dataclasses.replace(costs, from_s=0.0),), cores=cores, duration_s=20.0)
    return simulate(job, FixedWorkers(workers, depth=4)).rate(5.0, 20.0)


@pytest.mark.parametrize(("costs", "cores"), [(READS, 2.0), (IMAGES, 8.0)])
def test_input_bound_by_six_reaches_the_best_rate(costs: Costs, cores: float):
    timeline = run(Job(costs=(costs,), cores=cores), max_workers=32)
    assert timeline.changes(10.0, 60.0) == 0
    assert timeline.rate(10.0, 60.0) >= 0.95 * best_rate(costs, cores, 12)
    assert timeline.ticks[-1].decision.workers in (6, 7)
    assert "keep input wait under" in timeline.ticks[-1].decision.reason


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
@pytest.mark.parametrize("what", ["step_s", "item_wait_s"])
def test_a_change_in_mid_run_is_followed(what: str, factor: float):
    first = Costs(step_s=0.03, item_cpu_s=0.001, item_wait_s=0.18)
    second = dataclasses.replace(first, from_s=40.0, **{what: factor * getattr(first, what)})
    timeline = run(Job(costs=(first, second), duration_s=90.0))
    needed = (second.item_cpu_s + second.item_wait_s) / second.step_s
    assert timeline.rate(70.0, 90.0) >= 0.95 / second.step_s
    assert timeline.ticks[-1].decision.workers <= math.ceil(needed) + 1
    assert timeline.changes(70.0, 90.0) == 0


def test_waiting_items_get_many_workers_on_two_cores():
    costs = Costs(step_s=0.00005, item_cpu_s=0.001, item_wait_s=0.05)
    timeline = run(Job(costs=(costs,)))
    assert timeline.rate(15.0, 30.0) >= 12.1 * best_rate(costs, 2.0, 1)
    assert min(timeline.workers(15.0, 60.0)) >= 14
    assert timeline.changes(15.0, 60.0) == 0
    assert timeline.peak_workers <= 34


class Deaf:
    """A policy that is not told which part of the input wait is the handing over."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy

    def start(self, declared_workers: int, prefetch_factor: int) -> Decision:
        return self._policy.start(declared_workers, prefetch_factor)

    def decide(self, observation: Observation) -> Decision:
        return self._policy.decide(dataclasses.replace(observation, handover_frac=0.0))


def test_no_worker_is_added_for_the_sake_of_handing_over():
    job = Job(costs=(Costs(step_s=0.004, item_cpu_s=0.0005, item_wait_s=0.006, handover_s=0.003),), cores=4.0)
    timeline = run(job)
    assert max(timeline.workers(0.0, 60.0)) == 1
    reason = timeline.ticks[-1].decision.reason
    assert reason == "1 worker: input wait of 43 % is the handing over of batches that are made in time"
    assert max(simulate(job, Deaf(autoscaler(4.0))).workers(0.0, 60.0)) > 1


def test_handing_over_hides_no_starving():
    costs = Costs(step_s=0.01, item_cpu_s=0.0005, item_wait_s=0.0795, handover_s=0.003)
    timeline = run(Job(costs=(costs,)), max_workers=32)
    assert timeline.rate(20.0, 60.0) >= 0.95 / (costs.step_s + costs.handover_s)
    assert timeline.ticks[-1].decision.workers <= 8


@pytest.mark.parametrize("declared", [1, 4])
def test_the_baseline_lies_behind_the_warm_up(declared: int):
    costs = Costs(step_s=0.0, item_cpu_s=0.0, item_wait_s=0.1)
    timeline = run(Job(costs=(costs,), declared_workers=declared, duration_s=15.0))
    changed_s = next(t.now_s for t in timeline.ticks if t.decision.workers != declared)
    assert sum(d.now_s <= changed_s for d in timeline.deliveries) >= 1 + 2 * declared + SHORT_BASELINE


def test_growth_stops_where_the_store_gives_no_more():
    costs = Costs(step_s=0.00005, item_cpu_s=0.001, item_wait_s=0.05)
    timeline = run(Job(costs=(costs,), store_streams=12))
    assert timeline.rate(20.0, 60.0) >= 0.95 * best_rate(costs, 2.0, 12) * 12 / 12.5
    assert 11 <= timeline.ticks[-1].decision.workers <= 17
    assert timeline.changes(20.0, 60.0) == 0


def on_two_cores(share: float, **options: Any) -> Timeline:
    """Items that only compute, each by ``share`` of its time more.

    Half a second before a trial counts 22 or 23 batches of them: 4.5 %, where a worker need bring but 3 %. So a trial
    may be misjudged, for one worker more that costs no rate; which costs it happens to is chance.
    """
    costs = Costs(step_s=0.0, step_cpu_s=0.005 * (1.0 + share), item_cpu_s=0.04 * (1.0 + share))
    return run(Job(costs=(costs,), **options))


SHARES = (0.0, 0.01, 0.03)


@pytest.mark.parametrize("declared", [1, 2, 8])
def test_cpu_bound_items_get_as_many_workers_as_cores(declared: int):
    timelines = [on_two_cores(share, declared_workers=declared, duration_s=30.0) for share in SHARES]
    assert statistics.median(timeline.ticks[-1].decision.workers for timeline in timelines) == 2
    for timeline, share in zip(timelines, SHARES, strict=True):
        assert max(timeline.workers(8.0, 30.0)) <= 3
        assert timeline.changes(10.0, 30.0) == 0
        assert timeline.peak_workers <= max(declared, 3)
        assert timeline.rate(10.0, 30.0) >= 0.99 * 2.0 / (0.045 * (1.0 + share))


@pytest.mark.parametrize("reports_stalls", [False, True])
def test_others_on_the_machine_are_no_reason_for_more_workers(reports_stalls: bool):
    hogs = ((10.0, 8.0), (10.0, 8.0), (30.0, 15.0), (31.0, 15.0), (32.0, 15.0))
    job: dict[str, Any] = {"hogs": hogs, "reports_stalls": reports_stalls, "duration_s": 140.0}
    timelines = [on_two_cores(share, declared_workers=2, **job) for share in SHARES]
    most = [max(timeline.workers(0.0, 140.0)) for timeline in timelines]
    assert statistics.median(most) <= 3
    assert max(most) <= 4
    assert all(
        timeline.rate(120.0, 140.0) >= 0.98 * 44.4 / (1 + s) for timeline, s in zip(timelines, SHARES, strict=True)
    )


@pytest.mark.parametrize("num_hogs", [1, 2, 4, 6])
@pytest.mark.parametrize("step_s", [0.0, 0.02])
def test_a_machine_that_is_crowded_from_the_start_is_not_taken_for_slow_reads(num_hogs: int, step_s: float):
    costs = Costs(step_s=step_s, step_cpu_s=0.005, item_cpu_s=0.04)
    hogs = ((0.0, 1000.0),) * num_hogs
    timeline = run(Job(costs=(costs,), declared_workers=2, hogs=hogs, duration_s=60.0))
    assert max(timeline.workers(0.0, 60.0)) <= 3


@pytest.mark.parametrize("reports_stalls", [False, True])
def test_waits_that_grow_are_told_from_contention(reports_stalls: bool):
    first = Costs(step_s=0.005, item_cpu_s=0.02, item_wait_s=0.005)
    second = dataclasses.replace(first, from_s=30.0, item_wait_s=0.3, item_sigma=0.3)
    timeline = run(Job(costs=(first, second), reports_stalls=reports_stalls, duration_s=90.0))
    assert max(timeline.workers(0.0, 30.0)) <= 4
    assert timeline.rate(60.0, 90.0) >= 0.85 * 2.0 / 0.02


@pytest.mark.parametrize("seed", range(4))
def test_items_that_vary_do_not_make_it_flap(seed: int):
    costs = dataclasses.replace(READS, item_sigma=1.0)
    timeline = run(Job(costs=(costs,), duration_s=180.0, seed=seed))
    assert timeline.changes(60.0, 180.0) <= 4
    assert timeline.rate(60.0, 180.0) >= 0.88 / costs.step_s
    assert max(timeline.workers(60.0, 180.0)) <= 10


def test_a_deeper_queue_says_what_changed_and_why():
    timeline = run(Job(costs=(dataclasses.replace(READS, item_sigma=1.0),)))
    before, deeper = next(
        (one.decision, two.decision)
        for one, two in pairwise(timeline.ticks)
        if two.decision.depth > one.decision.depth and two.decision.workers == one.decision.workers
    )
    assert deeper.reason.startswith(f"{deeper.workers} workers as before")
    assert f"up to {deeper.depth} batches ahead for each instead of {before.depth}" in deeper.reason
    assert "batch times vary" in deeper.reason


def test_the_queue_is_deepened_too_where_there_can_be_no_more_workers():
    costs = Costs(step_s=0.01, item_cpu_s=0.0005, item_wait_s=0.32, item_sigma=0.3)
    timeline = run(Job(costs=(costs,), declared_workers=4), max_workers=20)
    last = timeline.ticks[-1].decision
    assert (last.workers, last.depth) == (20, 4)
    assert "the most that `max_workers` allows" in last.reason
    assert timeline.rate(20.0, 60.0) >= 1.08 * simulate(Job(costs=(costs,)), FixedWorkers(20)).rate(20.0, 60.0)


def test_the_declared_workers_are_kept_while_the_baseline_is_measured():
    timeline = run(Job(costs=(READS,), declared_workers=3))
    held = [t for t in timeline.ticks if t.now_s < 0.4]
    assert {t.decision.workers for t in held} == {3}
    assert sum(t.observation.steps for t in timeline.ticks if t.decision.workers == 3) >= 20


def test_a_pause_of_the_program_changes_nothing():
    timeline = run(Job(costs=(READS,), pauses=((15.0, 10.0), (40.0, 2.0)), duration_s=70.0))
    assert timeline.ticks[-1].decision.workers in (6, 7)
    assert timeline.changes(10.0, 70.0) == 0


def test_fixed_workers_are_never_changed():
    timeline = run(Job(costs=(dataclasses.replace(READS, item_sigma=1.0),)), fixed_workers=2)
    assert set(timeline.workers(0.0, 60.0)) == {2}
    assert timeline.ticks[-1].decision.reason == "2 workers: as asked for"


def test_a_budget_below_the_machine_is_kept():
    timeline = simulate(Job(costs=(IMAGES,), cores=8.0, declared_workers=6), autoscaler(2.0))
    assert timeline.ticks[-1].decision.workers == 2
    assert timeline.changes(20.0, 60.0) == 0


def test_memory_bounds_workers_and_depth():
    job = Job(costs=(READS,), batch_bytes=100 << 20, worker_bytes=200 << 20)
    timeline = run(job, memory_budget_bytes=2 << 30)
    assert timeline.ticks[-1].decision.workers == 5
    assert timeline.ticks[-1].decision.depth == 2
    assert "memory budget of 2.0 GiB" in timeline.ticks[-1].decision.reason


def test_a_sampler_that_draws_lazily_is_not_read_ahead():
    timeline = run(Job(costs=(READS,), declared_workers=2), max_in_flight=4)
    assert all(t.decision.workers * t.decision.depth <= 4 for t in timeline.ticks)


def test_the_next_iteration_starts_with_what_the_last_one_found():
    policy = autoscaler()
    first = simulate(Job(costs=(READS,), duration_s=20.0), policy)
    second = simulate(Job(costs=(READS,), duration_s=20.0, start_s=30.0), policy)
    assert second.ticks[0].decision.workers == first.ticks[-1].decision.workers
    assert second.changes(0.0, 20.0) == 0


def test_two_loaders_share_the_cpu_budget():
    ledger = CpuLedger(4.0)
    config = JobScalingConfig(cpu_budget_cores=4.0)
    train, other = JobAutoscaler(config, ledger.join()), ledger.join()
    alone = simulate(Job(costs=(IMAGES,), cores=4.0, duration_s=20.0), train)
    assert alone.ticks[-1].decision.workers == 4

    class Shared:
        """The other loader takes all it can get at the same time."""

        def start(self, declared_workers: int, prefetch_factor: int):
            return train.start(declared_workers, prefetch_factor)

        def decide(self, observation: Observation):
            other.cores(math.inf, observation.now_s)
            return train.decide(observation)

    policy: ScalingPolicy = Shared()
    both = simulate(Job(costs=(IMAGES,), cores=4.0, duration_s=20.0, start_s=30.0), policy)
    assert both.ticks[-1].decision.workers == 2
    other.close()
    again = simulate(Job(costs=(IMAGES,), cores=4.0, duration_s=30.0, start_s=60.0), train)
    assert again.ticks[-1].decision.workers == 4


@pytest.mark.parametrize("costs", [IMAGES, Costs(step_s=0.02, item_cpu_s=0.02, item_wait_s=0.1)])
def test_a_larger_budget_never_means_fewer_workers(costs: Costs):
    settled = [
        simulate(Job(costs=(costs,), cores=16.0, duration_s=40.0), autoscaler(cores)).ticks[-1].decision.workers
        for cores in (1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
    ]
    assert settled == sorted(settled)


fractions = st.floats(0.0, 1.0)


@st.composite
def observations(draw: st.DrawFn) -> list[Observation]:
    """Any sequence of windows, however absurd."""
    seen: list[Observation] = []
    now_s = 0.0
    for _ in range(draw(st.integers(1, 60))):
        now_s += draw(st.sampled_from([0.25, 0.25, 0.25, 1.0, 20.0]))
        steps, items = draw(st.integers(0, 300)), draw(st.integers(0, 300))
        wall_s = draw(st.floats(1e-5, 5.0)) if items else 0.0
        seen.append(
            Observation(
                now_s=now_s,
                workers=draw(st.integers(0, 40)),
                depth=draw(st.integers(1, 8)),
                steps=steps,
                items=items,
                starved_frac=draw(fractions),
                input_wait_frac=draw(fractions),
                blocked_frac=draw(fractions),
                step_s=draw(st.floats(0.0, 5.0)) if steps else 0.0,
                item_wall_s=wall_s,
                item_cpu_s=wall_s * draw(fractions),
                batch_bytes=draw(st.integers(0, 1 << 28)),
                worker_bytes=draw(st.integers(0, 1 << 28)),
                waiting=draw(st.booleans()),
            )
        )
    return seen


@pytest.mark.slow("many examples of long histories")
@settings(max_examples=150, deadline=None)
@given(observations(), st.integers(1, 8), st.integers(1, 20), st.sampled_from([0, 1 << 28, 1 << 31]))
def test_bounds_hold_and_decisions_are_pure(seen: list[Observation], least: int, extra: int, memory: int):
    config = JobScalingConfig(
        cpu_budget_cores=2.0, min_workers=least, max_workers=least + extra, memory_budget_bytes=memory
    )
    policies = JobAutoscaler(config), JobAutoscaler(config)
    assert policies[0].start(3, 2) == policies[1].start(3, 2)
    batch, worker = 0, 0
    for observation in seen:
        one, two = (policy.decide(observation) for policy in policies)
        assert one == two
        batch, worker = max(batch, observation.batch_bytes), max(worker, observation.worker_bytes)
        assert least <= one.workers <= least + extra
        assert 1 <= one.depth <= config.max_depth
        assert one.reason
        if memory and one.workers > least:
            assert one.workers * (worker + one.depth * batch) <= memory


def test_a_program_that_only_waits_for_workers_that_are_mostly_idle_is_no_overflow():
    policy = JobAutoscaler(JobScalingConfig(cpu_budget_cores=2.0, max_depth=2))
    policy.start(2, 2)
    costs: dict[str, Any] = {"step_s": 0.0, "item_wall_s": 0.1, "item_cpu_s": 0.05, "batch_bytes": 0, "worker_bytes": 0}
    shares: dict[str, Any] = {"starved_frac": 1.0, "input_wait_frac": 1.0, "blocked_frac": 0.9}
    windows = [Observation(now_s=float(k), workers=2, depth=2, steps=9, items=9, **costs, **shares) for k in range(40)]
    assert {policy.decide(window).workers for window in windows} == {2, 3}


def constant_jobs(number: int) -> list[Job]:
    """Jobs drawn evenly over the orders of magnitude that occur."""
    rng = random.Random(5)
    jobs: list[Job] = []
    for _ in range(number):
        costs = Costs(
            step_s=0.01 * 10 ** rng.uniform(0.0, 1.0),
            item_cpu_s=0.001 * 10 ** rng.uniform(0.0, 1.8),
            item_wait_s=rng.choice([0.0, 0.01, 0.05, 0.2]),
        )
        jobs.append(
            Job(costs=(costs,), cores=rng.choice([1.0, 2.0, 4.0, 16.0]), declared_workers=rng.choice([1, 2, 4, 12]))
        )
    return jobs


@pytest.mark.parametrize("job", constant_jobs(24))
def test_constant_costs_settle_near_the_best_rate(job: Job):
    timeline = run(job)
    costs = job.costs[0]
    best = min(1 / costs.step_s, job.cores / costs.item_cpu_s)
    assert timeline.rate(40.0, 60.0) >= 0.85 * best
    assert timeline.changes(40.0, 60.0) <= 1
    sufficient = max(best * (costs.item_cpu_s + costs.item_wait_s), 1.0)
    assert timeline.ticks[-1].decision.workers <= 1.25 * sufficient + 2


def test_slow_steps_are_scaled_too():
    costs = Costs(step_s=2.0, item_cpu_s=0.5, item_wait_s=7.0)
    timeline = run(Job(costs=(costs,), duration_s=240.0))
    assert timeline.rate(120.0, 240.0) >= 0.9 / costs.step_s
    assert timeline.ticks[-1].decision.workers in (4, 5)


def test_a_change_of_slow_steps_is_followed():
    first = Costs(step_s=0.3, item_cpu_s=0.01, item_wait_s=1.8)
    second = dataclasses.replace(first, from_s=80.0, step_s=0.9)
    timeline = run(Job(costs=(first, second), duration_s=160.0))
    assert timeline.rate(60.0, 80.0) >= 0.9 / first.step_s
    assert timeline.ticks[-1].decision.workers in (2, 3, 4)


@pytest.mark.parametrize("item_s", [0.02, 0.05, 0.16, 0.5])
@pytest.mark.parametrize("declared", [0, 1, 2, 8])
def test_a_starved_program_has_its_rate_within_twelve_items_and_a_second(item_s: float, declared: int):
    costs = Costs(step_s=item_s / 6, item_cpu_s=0.0005, item_wait_s=item_s - 0.0005)
    timeline = run(Job(costs=(costs,), declared_workers=declared, duration_s=20.0))
    first_s, span_s = timeline.deliveries[0].now_s, max(1.0, 6 * item_s)
    by_s = first_s + 12 * item_s + 1.0
    assert timeline.rate(by_s, by_s + span_s) >= 0.9 * 6 / item_s


def test_a_loader_that_declares_no_workers_begins_with_the_cores_and_no_baseline():
    policy = autoscaler(cores=4.0)
    assert policy.start(0, 2).workers == 4
    assert "baseline" not in policy.start(0, 2).reason
