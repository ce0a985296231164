"""A simulated cluster: work is conserved, bounds are below, one job is as the simulation of its queue says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.scale.cluster.division import DivisionConfig
from stoker.scale.cluster.gangs import DISCIPLINES, GangConfig
from stoker.sim import Costs, FixedWorkers, Job, simulate
from stoker.sim.cluster.bounds import lp_bound_s, squashed_bound_s
from stoker.sim.cluster.engine import MoveCosts, simulate_cluster
from stoker.sim.cluster.policies import SimPolicy, standard_policies
from stoker.sim.cluster.workload import ClusterMachines, JobTable, table_of

FREE = MoveCosts(start_s=0.0, drain_s=0.0, restart_s=0.0)
MACHINES = ClusterMachines(nodes=2, gpus=2, cpus=8, cpu_nodes=1, cpu_node_cpus=4)
POLICIES = standard_policies()
LEARNED = {f"{name}, learned": replace(POLICIES[name], learned=True) for name in ("jct", "fair", "greedy")}


@st.composite
def tables(draw: st.DrawFn) -> JobTable:
    rows = draw(
        st.lists(
            st.tuples(st.floats(0, 500), st.integers(1, 4), st.floats(1, 300), st.floats(0.5, 12)),
            min_size=1, max_size=14,
        )
    )  # fmt: skip
    arrival, gpus, duration, need = zip(*rows, strict=True)
    table = table_of(arrival, gpus, duration, np.array(need) * np.array(gpus))
    resumable = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    return replace(table, resumable=np.array(resumable))


@given(tables(), st.sampled_from(sorted(POLICIES | LEARNED)), st.sampled_from(DISCIPLINES), st.booleans())
@settings(max_examples=60)
def test_work_is_conserved_and_nothing_is_used_twice(table: JobTable, name: str, discipline: str, spread: bool) -> None:
    policy = replace((POLICIES | LEARNED)[name], gangs=GangConfig(discipline=discipline))  # type: ignore[arg-type]
    table = replace(table, arrival_s=np.minimum(table.arrival_s, 1e9))
    costs = MoveCosts(start_s=1.0, drain_s=0.5, restart_s=2.0)
    found = simulate_cluster(table, MACHINES, policy, costs, spread=spread)
    assert not np.isnan(found.finish_s).any()
    assert (found.start_s >= table.arrival_s - 1e-9).all()
    assert (found.finish_s - found.start_s >= table.duration_s * (1 - 1e-9)).all()
    assert found.granted_cpus.max() <= MACHINES.total_cpus + 1e-6 or name == "unlimited"
    assert found.held_gpus.max() <= MACHINES.total_gpus
    # All the work that was computed is that of the jobs and of their debts: with a last job of nothing at the very
    # end, the horizon is behind all others.
    late = table_of([0.0], [1], [1e-6], [1.0])
    end_s = float(found.finish_s.max()) + 1.0
    late = replace(late, arrival_s=late.arrival_s + end_s)
    longer = JobTable(
        **{
            field: np.concatenate([getattr(table, field), getattr(late, field)])
            for field in (
                "arrival_s", "gpus", "duration_s", "widths", "slopes", "movable", "resumable", "weight", "priority",
                "user",
            )
        }
    )  # fmt: skip
    free = simulate_cluster(longer, MACHINES, policy, FREE, spread=spread)
    if free.finish_s[:-1].max() < end_s:
        assert free.computing_gpu_s == pytest.approx(float((table.gpus * table.duration_s).sum()), rel=1e-6)
        assert free.computing_gpu_s <= free.held_gpu_s * (1 + 1e-9)


@given(tables(), st.sampled_from(sorted((POLICIES | LEARNED).keys() - {"unlimited"})))
@settings(max_examples=40)
def test_no_policy_is_below_a_bound(table: JobTable, name: str) -> None:
    found = simulate_cluster(table, MACHINES, (POLICIES | LEARNED)[name], FREE, spread=True)
    assert found.mean_jct_s >= squashed_bound_s(table, MACHINES) * (1 - 1e-9)


def test_no_policy_is_below_the_linear_program() -> None:
    pytest.importorskip("scipy")
    random = np.random.default_rng(3)
    gpus = random.choice([1, 2, 4], 30)
    table = table_of(
        random.uniform(0, 2000, 30), gpus, random.exponential(300, 30) + 10, gpus * random.choice([2, 20], 30)
    )
    bound = lp_bound_s(table, MACHINES)
    assert bound >= squashed_bound_s(table, MACHINES) * 0.6
    for name in POLICIES.keys() - {"unlimited"}:
        assert simulate_cluster(table, MACHINES, POLICIES[name], FREE, spread=True).mean_jct_s >= bound


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6])
def test_one_job_is_as_its_queue_says(workers: int) -> None:
    """Steps of 50 ms, items of 150 ms: 3 workers are enough; the queue's rate is the cluster's."""
    costs = Costs(step_s=0.05, item_cpu_s=0.15)
    job = Job(costs=(costs,), cores=16.0, declared_workers=workers, duration_s=120.0)
    rate = simulate(job, FixedWorkers(workers)).rate(20.0, 120.0) * 0.05
    machines = ClusterMachines(nodes=1, gpus=1, cpus=workers)
    found = simulate_cluster(table_of([0.0], [1], [100.0], [3.0]), machines, POLICIES["jct"], FREE)
    assert 100.0 / found.mean_jct_s == pytest.approx(rate, rel=0.02)


def test_more_cpus_never_end_a_job_later_where_all_have_their_gpus() -> None:
    random = np.random.default_rng(5)
    table = table_of(np.zeros(4), [1] * 4, random.uniform(50, 500, 4), random.uniform(2, 30, 4))
    means = [
        simulate_cluster(table, replace(MACHINES, cpu_nodes=number), POLICIES["jct-known"], FREE).mean_jct_s
        for number in range(8)
    ]
    assert means == sorted(means, reverse=True)


def test_the_same_jobs_end_at_the_same_times_each_time() -> None:
    random = np.random.default_rng(7)
    table = table_of(np.sort(random.uniform(0, 900, 40)), random.choice([1, 2, 4], 40), random.exponential(90, 40) + 1,
                     random.uniform(1, 40, 40))  # fmt: skip
    one, other = (simulate_cluster(table, MACHINES, POLICIES["jct"]) for _ in range(2))
    assert one.finish_s.tolist() == other.finish_s.tolist()
    assert one.events == other.events


def hand(policy: SimPolicy, costs: MoveCosts = FREE, **machines: int) -> list[float]:
    """Two jobs of a GPU and 100 s that want 4 CPUs each, at 0 and at 10 s, on a node with 2 GPUs and 4 CPUs."""
    table = table_of([0.0, 10.0], [1, 1], [100.0, 100.0], [4.0, 4.0])
    shape = {"nodes": 1, "gpus": 2, "cpus": 4, **machines}
    return simulate_cluster(table, ClusterMachines(**shape), policy, costs).finish_s.tolist()


def test_policies_on_two_jobs_by_hand() -> None:
    assert hand(POLICIES["none"]) == pytest.approx([200.0, 210.0])
    assert hand(POLICIES["unlimited"]) == pytest.approx([100.0, 110.0])
    # All 4 CPUs are requested by the first, and a GPU stays free.
    assert hand(POLICIES["static"]) == pytest.approx([100.0, 200.0])
    assert hand(POLICIES["greedy"]) == pytest.approx([100.0, 200.0])
    assert hand(POLICIES["jct-known"]) == pytest.approx([100.0, 200.0])
    assert hand(POLICIES["max-min"]) == pytest.approx([190.0, 200.0])
    assert hand(POLICIES["jct"], cpu_nodes=1, cpu_node_cpus=4) == pytest.approx([100.0, 110.0])


def test_starts_and_drains_are_paid_for() -> None:
    started = hand(POLICIES["greedy"], MoveCosts(start_s=5.0, drain_s=0.0))
    assert started == pytest.approx([105.0, 210.0])
    drained = hand(POLICIES["greedy"], MoveCosts(start_s=5.0, drain_s=3.0))
    assert drained == pytest.approx([105.0, 213.0])


@given(
    st.lists(st.floats(0.5, 20.0), min_size=2, max_size=4),
    st.sampled_from(["jct", "fair"]),
    st.booleans(),
    st.sampled_from([1.0, 4.0]),
)
@settings(max_examples=40)
def test_jobs_end_though_starts_take_longer_than_reviews_are_apart(
    durations: list[float], objective: str, known: bool, review_s: float
) -> None:
    """What is owed for a start is no work: else who gained CPUs seems to have the most left, and loses them again."""
    count = len(durations)
    table = table_of([0.0] * count, [1] * count, durations, [8.0] * count)
    division = DivisionConfig(objective=objective, hysteresis=1.0)  # type: ignore[arg-type]
    policy = replace(POLICIES["jct"], known=known, division=division)
    costs = MoveCosts(start_s=5.0, drain_s=1.0, review_s=review_s)
    found = simulate_cluster(table, ClusterMachines(nodes=1, gpus=8, cpus=8), policy, costs)
    # One job at a time has the CPUs; it keeps them until it has worked, for a review at most.
    turns = sum(math.ceil(each / review_s) + 1 for each in durations)
    assert found.finish_s.max() <= sum(durations) + turns * (6.0 + review_s)


def test_a_link_limits_what_comes_from_afar() -> None:
    table = table_of([0.0], [1], [100.0], [8.0])
    machines = ClusterMachines(nodes=1, gpus=1, cpus=2, cpu_nodes=1, cpu_node_cpus=64)
    for link_cpus, expected in ((0.0, 400.0), (2.0, 200.0), (64.0, 100.0)):
        costs = replace(FREE, link_cpus=link_cpus)
        assert simulate_cluster(table, machines, POLICIES["jct"], costs).mean_jct_s == pytest.approx(expected)


def test_who_cannot_move_has_its_node_alone() -> None:
    table = replace(table_of([0.0], [1], [100.0], [8.0]), movable=np.array([False]))
    machines = ClusterMachines(nodes=1, gpus=1, cpus=2, cpu_nodes=1, cpu_node_cpus=64)
    assert simulate_cluster(table, machines, POLICIES["jct"], FREE).mean_jct_s == pytest.approx(400.0)


def test_a_preempted_job_repeats_nothing_but_its_restart() -> None:
    table = table_of([0.0, 10.0], [2, 2], [100.0, 5.0], [1.0, 1.0])
    table = replace(table, resumable=np.array([True, False]))
    policy = replace(POLICIES["unlimited"], gangs=GangConfig(discipline="srtf"))
    machines = ClusterMachines(nodes=1, gpus=2, cpus=4)
    found = simulate_cluster(table, machines, policy, replace(FREE, restart_s=7.0))
    assert found.finish_s.tolist() == pytest.approx([112.0, 15.0])


def test_waiting_is_booked_by_its_cause() -> None:
    table = table_of([0.0, 0.0, 0.0], [1, 1, 2], [100.0, 100.0, 10.0], [4.0, 4.0, 4.0])
    machines = ClusterMachines(nodes=1, gpus=2, cpus=4)
    waited = simulate_cluster(table, machines, POLICIES["static"], FREE).waited_s
    assert waited["CPUs short"] == pytest.approx(100.0)
    assert waited["no GPU"] == pytest.approx(200.0)
    assert simulate_cluster(table, machines, POLICIES["none"], FREE).waited_s["no GPU"] == pytest.approx(200.0)


def test_no_jobs_are_refused() -> None:
    with pytest.raises(ValueError, match="must have at least one job, got none"):
        simulate_cluster(table_of([], [], [], []), MACHINES, POLICIES["none"])
    with pytest.raises(ValueError, match="must fit the empty cluster: 9 GPUs"):
        simulate_cluster(table_of([0.0], [9], [1.0], [1.0]), MACHINES, POLICIES["none"])


def test_a_quota_comes_first_and_is_lent() -> None:
    table = table_of([0.0, 0.0], [1, 1], [100.0, 200.0], [4.0, 4.0])
    table = replace(table, user=np.array([0, 1]), users=("ann", "bob"))
    machines = ClusterMachines(nodes=1, gpus=2, cpus=4)
    for quotas, expected in (({}, [100.0, 300.0]), ({"bob": 4.0}, [300.0, 200.0]), ({"bob": 2.0}, [200.0, 300.0])):
        policy = standard_policies(quotas=quotas)["jct-known"]
        assert simulate_cluster(table, machines, policy, FREE).finish_s.tolist() == pytest.approx(expected)
