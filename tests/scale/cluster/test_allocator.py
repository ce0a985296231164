"""The allocator: what must hold of every plan, and the order in which objectives give."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.scale.cluster import ClusterJob, ClusterNode, ClusterState, CpuGrant, DivisionConfig, GrantPlan, plan
from stoker.scale.cluster.curves import concave, linear
from stoker.scale.cluster.objectives import OBJECTIVES

NOW_S = 1000.0


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    nodes = [
        ClusterNode(name=f"n{number}", cpus=draw(st.integers(0, 20)), gpus=4, draining=draw(st.integers(0, 9)) == 0)
        for number in range(draw(st.integers(1, 5)))
    ]
    names = [node.name for node in nodes]
    shares = {node.name: 0 if node.draining else node.cpus for node in nodes}
    jobs: list[ClusterJob] = []
    for number in range(draw(st.integers(0, 8))):
        home = draw(st.sampled_from(names))
        # A share is cut from what the node has left, as it is by its GPUs.
        share = draw(st.integers(0, shares[home]))
        shares[home] -= share
        need = draw(st.integers(1, 30))
        points = [(float(need), 1.0)] + ([(need / 4, 0.5)] if draw(st.booleans()) and need % 4 == 0 else [])
        jobs.append(
            ClusterJob(
                name=f"j{number}", curve=concave(points), gpus=draw(st.integers(1, 4)), homes=(home,),
                share_cpus=share, user=draw(st.sampled_from(["ann", "bob"])), weight=draw(st.sampled_from([0.5, 1, 3])),
                priority=draw(st.sampled_from([0, 0, 1])), movable=draw(st.integers(0, 4)) > 0,
                progress_s=draw(st.floats(0, 1e5)), left_s=draw(st.none() | st.floats(1, 1e5)),
            )
        )  # fmt: skip
    quotas = draw(st.just({}) | st.fixed_dictionaries({"ann": st.integers(0, 40), "bob": st.integers(0, 40)}))
    return ClusterState(nodes=tuple(nodes), jobs=tuple(jobs), quotas=quotas)


configs = st.builds(
    DivisionConfig,
    objective=st.sampled_from(OBJECTIVES),
    floor_frac=st.sampled_from([0.0, 0.5, 1.0]),
    hysteresis=st.sampled_from([1.0, 1.3]),
)


def by_node(found: GrantPlan) -> Counter[str]:
    return sum((Counter({grant.node: grant.cpus}) for grant in found.grants), Counter[str]())


def by_job(found: GrantPlan) -> Counter[str]:
    return sum((Counter({grant.job: grant.cpus}) for grant in found.grants), Counter[str]())


@given(states(), configs)
def test_no_node_is_over_granted_and_no_job_gets_what_it_cannot_use(
    state: ClusterState, config: DivisionConfig
) -> None:
    found = plan(state, NOW_S, config)
    assert all(grant.cpus >= 1 for grant in found.grants)
    for node in state.nodes:
        assert by_node(found)[node.name] <= (0 if node.draining else node.cpus)
    for job in state.jobs:
        assert by_job(found)[job.name] <= job.curve.need_cpus
        if not job.movable:
            assert by_job(found)[job.name] <= job.share_cpus
            assert {grant.node for grant in found.grants if grant.job == job.name} <= set(job.homes)


@given(states(), configs)
def test_no_cpu_is_idle_while_a_job_would_gain(state: ClusterState, config: DivisionConfig) -> None:
    found = plan(state, NOW_S, config)
    idle = sum(0 if node.draining else node.cpus for node in state.nodes) - by_node(found).total()
    hungry = [job.name for job in state.jobs if job.movable and by_job(found)[job.name] < int(job.curve.need_cpus)]
    assert not (idle and hungry)


@given(states(), configs)
def test_floors_are_kept(state: ClusterState, config: DivisionConfig) -> None:
    found = plan(state, NOW_S, config)
    for job in state.jobs:
        floor = min(config.floor_frac * job.share_cpus, job.curve.need_cpus)
        assert by_job(found)[job.name] > floor - 1


@given(states(), configs)
def test_where_nothing_changed_nothing_moves(state: ClusterState, config: DivisionConfig) -> None:
    first = plan(state, NOW_S, config)
    second = plan(replace(state, grants=first.grants), NOW_S, config)
    assert second.grants == first.grants
    assert second.added() == second.drained() == ()


@given(states(), configs)
def test_a_plan_is_reached_by_what_is_drained_and_added(state: ClusterState, config: DivisionConfig) -> None:
    first = plan(state, NOW_S, config)
    other = replace(state, grants=first.grants, jobs=state.jobs[1:] + state.jobs[:1])
    found = plan(other, NOW_S + 600, DivisionConfig(objective="max-min"))
    held = Counter({(grant.job, grant.node): grant.cpus for grant in first.grants})
    held.subtract({(grant.job, grant.node): grant.cpus for grant in found.drained()})
    held.update({(grant.job, grant.node): grant.cpus for grant in found.added()})
    assert +held == Counter({(grant.job, grant.node): grant.cpus for grant in found.grants})


@given(states(), configs, st.integers(1, 30))
def test_more_cpus_are_never_a_worse_plan(state: ClusterState, config: DivisionConfig, more: int) -> None:
    jobs = tuple(replace(job, movable=True) for job in state.jobs)
    small = replace(state, jobs=jobs, quotas={})
    large = replace(small, nodes=(*state.nodes, ClusterNode(name="added", cpus=more)))
    # Rounding to whole CPUs, where parts are none, may cost a job one, which it uses at its steepest.
    parts = config.objective == "max-min" or config.floor_frac == 0.5
    loss = sum(job.curve.rate(1) for job in jobs) if parts else 1e-9
    assert plan(large, NOW_S, config).rate >= plan(small, NOW_S, config).rate - loss


@given(states(), st.sampled_from(["jct", "throughput", "fair"]))
def test_who_borrows_gives_back_what_the_owner_of_a_quota_wants(state: ClusterState, objective: str) -> None:
    jobs = tuple(replace(job, movable=True, priority=0) for job in state.jobs)
    state = replace(state, jobs=jobs, quotas={"ann": 15, "bob": 10})
    total = sum(0 if node.draining else node.cpus for node in state.nodes)
    found = by_job(plan(state, NOW_S, DivisionConfig(objective=objective)))
    for user, quota in state.quotas.items():
        own = [job for job in jobs if job.user == user]
        wanted = sum(int(job.curve.need_cpus) for job in own)
        if total >= 25:
            assert sum(found[job.name] for job in own) >= min(wanted, quota)


def two(**changed: object) -> ClusterState:
    """A node of 8 CPUs, and two jobs that want 8 each."""
    one = ClusterJob(name="one", curve=linear(8), homes=("a",), share_cpus=4, progress_s=5000, left_s=None)
    other = ClusterJob(name="other", curve=linear(8), homes=("a",), share_cpus=4, progress_s=100, left_s=None)
    return ClusterState(nodes=(ClusterNode(name="a", cpus=8, gpus=2),), jobs=(one, replace(other, **changed)))


def shares(state: ClusterState, **config: object) -> tuple[int, int]:
    found = by_job(plan(state, NOW_S, DivisionConfig(**config)))
    return found["one"], found["other"]


def test_least_attained_goes_first_and_known_ends_by_work_left() -> None:
    assert shares(two()) == (0, 8)
    assert shares(two(left_s=1e6)) == (8, 0)
    assert shares(two(left_s=10.0)) == (0, 8)
    assert shares(two(), objective="max-min") == (4, 4)
    assert shares(two(), floor_frac=1.0) == (4, 4)


def test_priorities_and_weights_count() -> None:
    assert shares(two(priority=-1)) == (8, 0)
    assert shares(two(weight=0.01)) == (8, 0)
    assert shares(two(weight=3.0), objective="max-min") == (2, 6)


def test_a_little_more_worth_moves_nothing() -> None:
    state = two(progress_s=4800)
    held = replace(state, grants=(CpuGrant("one", "a", 8),))
    assert shares(state) == (0, 8)
    assert shares(held) == (8, 0)
    assert shares(held, hysteresis=1.0) == (0, 8)


def test_what_a_stationary_job_holds_pushes_nobody_out() -> None:
    """Found by a search: its CPU was counted twice, as its own and as held."""
    nodes = (ClusterNode(name="a", cpus=6, gpus=4), ClusterNode(name="b", cpus=2, gpus=4))
    wide = ClusterJob(name="wide", curve=linear(5), homes=("b",), weight=0.5)
    still = ClusterJob(name="still", curve=linear(1), homes=("a",), share_cpus=1, movable=False)
    grants = (CpuGrant("wide", "a", 5), CpuGrant("still", "a", 1))
    found = plan(ClusterState(nodes=nodes, jobs=(wide, still), grants=grants), NOW_S)
    assert found.grants == grants


def test_near_cpus_first_and_each_grant_says_why() -> None:
    state = replace(two(), nodes=(ClusterNode(name="b", cpus=30), ClusterNode(name="a", cpus=8, gpus=2)))
    found = {(each.grant.job, each.grant.node): each for each in plan(state, NOW_S).explained()}
    assert set(found) == {("one", "b"), ("other", "a")}
    assert found["other", "a"].gain_frac == 1.0
    assert found["other", "a"].reason == "full speed takes 8 CPUs"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DivisionConfig(objective="speed"), "`objective` must be one of jct, throughput, fair"),  # type: ignore[arg-type]
        (lambda: DivisionConfig(floor_frac=2), "`floor_frac` must be from 0 to 1, got 2"),
        (lambda: replace(two(), grants=(CpuGrant("gone", "a", 1),)), "`grants` must name a job and a node"),
        (lambda: two(homes=("z",)), "`homes` must be nodes of the state, got `z`"),
        (lambda: two(name="one"), "`jobs` must have names of their own, got `one` twice"),
        (lambda: two(weight=0.0), "`weight` of `other` must be positive, got 0.0"),
    ],
)
def test_mistakes_are_named(make: object, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        make()  # type: ignore[operator]
