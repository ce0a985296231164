"""Submitted jobs on a virtual clock: all GPUs or none, one after another on the same GPUs, restarts and lost nodes."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.scale.cluster import ClusterNode, GangConfig
from stoker.scale.cluster.gangs import DISCIPLINES
from stoker.scale.cluster.submissions import NodeSeat, Start, Stop, Submission, Submissions

NODES = (ClusterNode(name="a", cpus=8, gpus=4), ClusterNode(name="b", cpus=8, gpus=4))


@dataclass
class Cluster:
    """Runs what is started, each job for its work's seconds; a stopped one ends after two more."""

    jobs: Submissions
    work: dict[int, int] = field(default_factory=dict[int, int])
    running: dict[int, tuple[int, tuple[NodeSeat, ...]]] = field(
        default_factory=dict[int, tuple[int, tuple[NodeSeat, ...]]]
    )
    stopping: dict[int, int] = field(default_factory=dict[int, int])
    stopped: list[int] = field(default_factory=list[int])
    now_s: int = 0

    def submit(self, gpus: int, work: int, **more: object) -> int:
        number = self.jobs.submit(Submission(gpus=gpus, **more), float(self.now_s))  # type: ignore[arg-type]
        self.work[number] = work
        return number

    def go(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.now_s += 1
            for number, (attempt, _) in list(self.running.items()):
                self.work[number] -= 1
                if number in self.stopping:
                    self.stopping[number] -= 1
                over = self.stopping.get(number) == 0
                if over or self.work[number] <= 0:
                    del self.running[number]
                    self.stopping.pop(number, None)
                    self.jobs.ended(number, attempt, 143 if over else 0, "ended", float(self.now_s))
            for action in self.jobs.step(float(self.now_s)):
                if isinstance(action, Start):
                    assert action.job not in self.running
                    self.running[action.job] = (action.attempt, action.seats)
                    self.jobs.begun(action.job, action.attempt, float(self.now_s))
                else:
                    self.stopping[action.job] = 2
                    self.stopped.append(action.job)
            used: Counter[str] = Counter()
            for _, seats in self.running.values():
                used.update({seat.node: seat.gpus for seat in seats})
            assert all(used[node.name] <= node.gpus for node in NODES), used

    def state(self, number: int) -> str:
        return next(job.state for job in self.jobs.jobs(float(self.now_s)) if job.number == number)

    def reason(self, number: int) -> str:
        return next(job.reason for job in self.jobs.jobs(float(self.now_s)) if job.number == number)


def cluster(discipline: str = "fifo") -> Cluster:
    jobs = Submissions(GangConfig(discipline=discipline))  # type: ignore[arg-type]
    jobs.set_nodes(NODES, 0.0)
    return Cluster(jobs)


def test_all_gpus_or_none_with_backfill() -> None:
    found = cluster()
    first, whole, small = found.submit(6, 5), found.submit(8, 5), found.submit(2, 2)
    found.go()
    assert [found.state(job) for job in (first, whole, small)] == ["running", "waiting", "running"]
    assert found.reason(whole) == "no GPU"
    found.go(20)
    assert {found.state(job) for job in (first, whole, small)} == {"done"}


def test_what_can_never_fit_is_refused_with_what_lacks() -> None:
    found = cluster()
    with pytest.raises(ValueError, match="9 GPUs are more than the 8 of all nodes"):
        found.submit(9, 1)
    with pytest.raises(ValueError, match="20 CPUs with its GPUs are more than the 8 of a node with 1 GPUs"):
        found.submit(1, 1, cpus=20.0)
    assert found.jobs.jobs(0.0) == []


def test_only_a_resumable_job_is_preempted_and_its_gpus_are_given_when_it_has_ended() -> None:
    found = cluster()
    fixed, resumable = found.submit(4, 50), found.submit(4, 50, resumable=True)
    found.go(5)
    urgent = found.submit(4, 5, priority=1)
    found.go(1)
    assert [found.state(job) for job in (fixed, resumable, urgent)] == ["running", "stopping", "starting"]
    found.go(2)
    assert [found.state(job) for job in (fixed, resumable, urgent)] == ["running", "waiting", "running"]
    assert found.stopped == [resumable]
    found.go(100)
    assert {found.state(job) for job in (fixed, resumable, urgent)} == {"done"}
    assert found.jobs.job(resumable).attempts == 2  # type: ignore[union-attr]


def test_cancel_in_every_state() -> None:
    found = cluster()
    running, waiting = found.submit(8, 50), found.submit(8, 50)
    found.go(2)
    found.jobs.cancel(waiting, 2.0)
    assert found.state(waiting) == "cancelled"
    found.jobs.cancel(running, 2.0)
    assert found.state(running) == "stopping"
    found.go(1)
    assert (found.state(running), found.reason(running)) == ("stopping", "cancelled")
    following = found.submit(8, 1)
    found.go(5)
    assert (found.state(running), found.state(following)) == ("cancelled", "done")
    with pytest.raises(KeyError):
        found.jobs.cancel(99, 3.0)


def test_a_preempted_job_that_is_cancelled_does_not_come_back() -> None:
    found = cluster()
    resumable = found.submit(8, 50, resumable=True)
    found.go(2)
    found.submit(8, 5, priority=1)
    found.go(1)
    found.jobs.cancel(resumable, 3.0)
    found.go(20)
    assert (found.state(resumable), found.jobs.job(resumable).attempts) == ("cancelled", 1)  # type: ignore[union-attr]


def test_a_failure_is_said_and_a_lost_node_starts_a_resumable_job_again() -> None:
    found = cluster()
    broken, resumable, fixed = found.submit(2, 50), found.submit(2, 50, resumable=True), found.submit(2, 50)
    found.go(2)
    found.jobs.ended(broken, 1, 3, "exit status 3", 3.0)
    assert (found.state(broken), found.reason(broken)) == ("failed", "exit status 3")
    for job in (resumable, fixed):
        found.running.pop(job)
        found.jobs.ended(job, 1, None, "its node was lost", 3.0)
    assert (found.state(fixed), found.state(resumable)) == ("failed", "waiting")
    found.go(1)
    assert found.state(resumable) == "running"


def test_a_node_that_leaves_ends_resumable_jobs_on_it_and_refuses_what_no_longer_fits() -> None:
    found = cluster()
    jobs = [found.submit(4, 50, resumable=True) for _ in range(2)]
    found.go(2)
    found.jobs.set_nodes([replace(NODES[0], draining=True), NODES[1]], 2.0)
    found.go(4)
    assert sorted(found.state(job) for job in jobs) == ["running", "waiting"]
    whole = found.jobs
    with pytest.raises(ValueError, match="8 GPUs are more than the 4"):
        whole.submit(Submission(gpus=8), 5.0)
    whole.set_nodes(NODES, 6.0)
    found.go(1)
    assert [found.state(job) for job in jobs] == ["running", "running"]


def test_the_cpus_of_training_workers_are_taken_from_the_pool() -> None:
    found = cluster()
    found.submit(4, 50, cpus=2.0)
    found.go(1)
    assert found.jobs.held_cpus() == {"a": 2.0}


@settings(max_examples=60)
@given(
    st.sampled_from(DISCIPLINES),
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 12), st.booleans(), st.integers(0, 1), st.integers(0, 20)),
        min_size=1, max_size=8,
    ),
    st.integers(1, 25),
)  # fmt: skip
def test_every_job_ends_and_a_new_queue_goes_on(
    discipline: str, rows: list[tuple[int, int, bool, int, int]], restart: int
) -> None:
    found = cluster(discipline)
    resumable: dict[int, bool] = {}
    for second in range(25):
        for gpus, work, resumes, priority, begin in rows:
            if begin == second and gpus != 5:
                job = found.submit(gpus, work, resumable=resumes, priority=priority, duration_s=float(work))
                resumable[job] = resumes
        if second == restart:
            before = dict(found.running)
            found.jobs = Submissions(found.jobs.config, copy.deepcopy(found.jobs.jobs(float(second))))
            found.jobs.set_nodes(NODES, float(second))
            assert found.running == before
        found.go()
    found.go(150)
    assert {job.state for job in found.jobs.jobs(200.0)} <= {"done"}
    assert all(resumable[job] for job in found.stopped)
    assert not found.jobs.held_cpus()


def test_the_order_of_an_empty_queue_may_be_chosen() -> None:
    found = cluster()
    found.jobs.choose("srtf", 0.0)
    long, short = found.submit(8, 20, duration_s=20.0), found.submit(8, 2, duration_s=2.0)
    found.go()
    assert (found.state(long), found.state(short)) == ("waiting", "running")
    with pytest.raises(ValueError, match="jobs are queued by srtf"):
        found.jobs.choose("fifo", 1.0)
    found.go(40)
    found.jobs.choose("fifo", 50.0)


def test_a_stop_is_an_action() -> None:
    found = cluster()
    job = found.submit(1, 5)
    found.go()
    found.jobs.cancel(job, 2.0)
    assert found.jobs.step(2.0) == [Stop(job, 1)]
    assert found.jobs.step(3.0) == []
