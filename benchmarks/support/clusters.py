"""What the bars on simulated clusters share: Philly's jobs where they are near, made-up ones elsewhere; scenarios."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.support.harness import Report
from stoker.sim.cluster.engine import simulate_cluster
from stoker.sim.cluster.outcome import ClusterOutcome
from stoker.sim.cluster.policies import SimPolicy
from stoker.sim.cluster.scenario import Scenario
from stoker.sim.cluster.traces import TracedJobs, read_trace
from stoker.sim.cluster.workload import ClusterMachines, JobTable

PHILLY = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces" / "philly_2017.csv"
FIRST_SEED = 100
"""The policy's constants were chosen on the seeds from 0 on."""


def philly(report: Report) -> TracedJobs:
    """The jobs of Philly; where its file is not there, jobs of like sizes and durations, with a note."""
    if PHILLY.is_file():
        return read_trace(PHILLY)
    report.note(f"{PHILLY.name} is not beside the repository: jobs are made up, and figures are not those of Philly")
    random = np.random.default_rng(0)
    count = 82_247
    return TracedJobs(
        name="made-up jobs",
        arrival_s=np.sort(random.uniform(0, 110 * 86400.0, count)),
        gpus=random.choice([1, 2, 4, 8, 16], count, p=[0.932, 0.022, 0.023, 0.02, 0.003]).astype(np.int64),
        duration_s=np.exp(random.normal(np.log(1144), 2.0, count)).clip(1, 60 * 86400.0),
    )


def machines(added_cpus: int, nodes: int = 8) -> ClusterMachines:
    """Nodes with 8 GPUs and 64 vCPUs each, and nodes with 64 vCPUs alone."""
    return ClusterMachines(nodes=nodes, gpus=8, cpus=64, cpu_nodes=added_cpus // 64, cpu_node_cpus=64)


def scenario(added_cpus: int, jobs: int = 500, cpu_scale: float = 1.0) -> Scenario:
    """The bar's own: at most 8 GPUs, cut at two days, demand after GoldMiner, load 0.9."""
    return Scenario(machines=machines(added_cpus), demand="goldminer", jobs=jobs, max_gpus=8, cpu_scale=cpu_scale)


def outcome(scene: Scenario, table: JobTable, policy: SimPolicy) -> ClusterOutcome:
    """One policy on one sample."""
    return simulate_cluster(table, scene.machines, policy, scene.costs, spread=scene.spread)
