"""A plan for a large cluster, and memory over many changes of grants."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from random import Random

import numpy as np

from benchmarks.support.harness import Bar, Options, Report, run
from stoker.scale.cluster import ClusterJob, ClusterNode, ClusterState, plan
from stoker.scale.cluster.curves import linear

BAR = Bar(
    "allocator_scale",
    "a plan for 10,000 jobs on 2,000 nodes within 25 ms; memory and descriptors flat over 10,000 grants",
    headline=("plan_ms", "grown_mb"),
)


def measure(options: Options) -> Report:
    """Plans one after another, each from the grants of the one before."""
    report = Report()
    jobs, nodes = options.pick((10_000, 2_000), (10_000, 2_000), (500, 100))
    state = _state(jobs, nodes)
    plan(state, 0.0)
    plans: list[float] = []
    states: list[float] = []
    now_s = 1.0
    for _ in range(max(5, options.rounds)):
        begun = time.process_time()
        found = plan(state, now_s)
        plans.append(1e3 * (time.process_time() - begun))
        aged = _aged(replace(state, grants=found.grants), now_s)
        begun = time.process_time()
        state = replace(aged, grants=found.grants)
        states.append(1e3 * (time.process_time() - begun))
        now_s += 60.0
    report.figure("state_ms", sorted(states)[len(states) // 2])
    report.note(f"making a state of records takes another {sorted(states)[len(states) // 2]:.0f} ms")
    report.note(f"{jobs:,} jobs, {nodes:,} nodes, {len(state.grants):,} grants; processor time of a call of `plan`")
    report.at_most("plan_ms", "a plan, ms of processor time", plans, 25.0, 1)
    _many(report, options.pick(10_000, 10_000, 200))
    return report


def _state(jobs: int, nodes: int) -> ClusterState:
    random = np.random.default_rng(0)
    names = [f"n{number}" for number in range(nodes)]
    rows = zip(random.choice([4, 8, 16, 32, 64], jobs).tolist(), random.integers(0, nodes, jobs).tolist(),
               random.exponential(3600, jobs).tolist(), strict=True)  # fmt: skip
    return ClusterState(
        nodes=tuple(ClusterNode(name=name, cpus=64, gpus=8) for name in names),
        jobs=tuple(
            ClusterJob(name=f"j{number}", curve=linear(need), homes=(names[home],), share_cpus=8, progress_s=done)
            for number, (need, home, done) in enumerate(rows)
        ),
    )


def _aged(state: ClusterState, now_s: float) -> ClusterState:
    """The same cluster a minute later, a few jobs of it replaced by new ones."""
    changed = int(now_s) % len(state.jobs)
    jobs = list(state.jobs)
    for number in range(changed, min(changed + 20, len(jobs))):
        jobs[number] = replace(jobs[number], progress_s=0.0)
    return replace(state, jobs=tuple(jobs))


def _many(report: Report, wanted: int) -> None:
    """Grants made and taken back on a small cluster until there were so many."""
    state, made, now_s, random = _state(40, 8), 0, 0.0, Random(0)
    before: tuple[float, int] | None = None
    while made < wanted:
        found = plan(state, now_s)
        made += len(found.added())
        # Jobs that have had much and little change places, so that their CPUs do too.
        jobs = [replace(job, progress_s=random.expovariate(1e-5)) for job in state.jobs]
        state = replace(state, grants=found.grants, jobs=tuple(jobs))
        now_s += 60.0
        if before is None and made > wanted // 5:
            before = _used()
    assert before is not None
    after = _used()
    report.note(f"{made:,} grants made")
    report.at_most("grown_mb", "memory grown over the last 80 % of the grants, MB", [after[0] - before[0]], 2.0)
    report.at_most("descriptors", "descriptors opened over them", [float(after[1] - before[1])], 0.0, 0)


def _used() -> tuple[float, int]:
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
