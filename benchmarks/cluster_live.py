"""The allocator on a real Ray cluster against jobs that each take what is free, and the simulator against both.

Nodes are raylets of this machine with declared CPUs; jobs are emulated: they hold real placement groups, sleep, and
report as brokers do. Decisions, grants and their delays are real, work is not.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.harness import Bar, Options, Report, run
from stoker.backends.ray import clusters, joining
from stoker.backends.ray.allocator.settings import AllocatorConfig
from stoker.backends.ray.installed import check_installed
from stoker.core.errors import StokerError
from stoker.scale.cluster import DivisionConfig, JobReport, LedgerConfig
from stoker.scale.cluster.ledger import QueueWindow
from stoker.sim.cluster.demand import GOLDMINER_CPUS
from stoker.sim.cluster.engine import MoveCosts, simulate_cluster
from stoker.sim.cluster.policies import SimPolicy, standard_policies
from stoker.sim.cluster.workload import ClusterMachines, JobTable, table_of

BAR = Bar(
    "cluster_live",
    "emulated jobs on four nodes of a real Ray cluster: mean completion time over that of jobs that each take what is "
    "free; and what the simulator says of it",
    headline=("gain", "mean_off"),
)
MACHINES = ClusterMachines(nodes=4, gpus=3, cpus=8)
_POLICIES = {"greedy": "greedy", "allocator": "jct-known"}
_TICK_S = 0.2
_START_S = 0.3
"""Time until CPUs that were granted work, emulated."""
_REACTION_S = 2.0 * _TICK_S
"""A change is seen in the next report, and answered by the one after."""
_GIVEN_BACK_S = 3.0 * _TICK_S
"""Until CPUs that are taken from a job are another's: that job's next answer, and two reports that confirm it."""
_WATCHED_S = 2.0 * _TICK_S
"""Ticks with the same CPUs before a job says what its queue showed."""


@dataclass
class EmulatedJob:
    """A job whose rate is in proportion to its CPUs, and its broker."""

    name: str
    home: str
    need: int
    left_s: float
    client: Any
    cpus: Any
    """Of a broker: takes and gives back placement groups."""
    finish_s: float = 0.0

    def run(self) -> None:
        """Works until it is done."""
        begun_s = last_s = time.monotonic()
        starting: list[tuple[float, int]] = []
        working = steady = 0
        progress_s = 0.0
        while self.left_s > progress_s:
            now_s = time.monotonic()
            rate = min(1.0, working / self.need)
            progress_s += rate * (now_s - last_s)
            last_s = now_s
            held = sum(self.cpus.held.values())
            starting = [(at_s, total) for at_s, total in starting if total <= held]
            due = [total for at_s, total in starting if at_s <= now_s]
            before, working = working, min(held, max([working, *due]))
            steady = steady + 1 if before == working else 0
            window = QueueWindow(
                cpus=working, samples_per_s=100.0 * rate, starved_frac=float(rate < 1.0), computing_frac=rate,
                blocked_frac=max(0.0, 1.0 - self.need / working) if working else 0.0,
            )  # fmt: skip
            orders = self.client.exchange(
                JobReport(
                    job=self.name, held=self.cpus.held, window=window if steady > 1 and working else None,
                    homes=(self.home,), age_s=now_s - begun_s, progress_s=progress_s,
                    left_s=max(0.01, self.left_s - progress_s),
                )
            )  # fmt: skip
            if orders is not None:
                self.cpus.become({order.node: order.cpus for order in orders})
                total = sum(self.cpus.held.values())
                if total > held:
                    starting.append((time.monotonic() + _START_S, total))
            wait_s = _TICK_S
            if rate > 0.0:
                wait_s = min(wait_s, (self.left_s - progress_s) / rate)
            time.sleep(max(0.001, wait_s))
        self.finish_s = time.monotonic()
        self.cpus.become({})
        self.client.leave()


def measure(options: Options) -> Report:
    """Both policies in alternation, on the same jobs."""
    report = Report()
    try:
        check_installed()
    except StokerError as error:
        report.note(f"skipped: {error.args[0]}")
        return report
    table = options.pick(_drawn(12, 0), _large_first(1.0), _large_first(0.1))
    live: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in _POLICIES}
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        shape = clusters.NodeShape(
            cpus=MACHINES.cpus, gpus=MACHINES.gpus, object_store_bytes=clusters.LEAST_OBJECT_STORE_BYTES
        )
        record = clusters.up(Path(folder), MACHINES.nodes, shape)
        try:
            joining.connect(
                joining.RayTarget(address=record.address, source="the benchmark", token_file=record.token_file)
            )
            for turn in range(options.pick(options.rounds, options.rounds, 1)):
                for name in _POLICIES if turn % 2 else reversed(_POLICIES):
                    live[name].append(_live(table, name))
        finally:
            importlib.import_module("ray").shutdown()
            clusters.down(Path(folder))
    _judge(report, table, live)
    return report


def _judge(report: Report, table: JobTable, live: dict[str, list[np.ndarray[Any, Any]]]) -> None:
    costs = MoveCosts(start_s=_START_S + _REACTION_S, drain_s=_GIVEN_BACK_S, review_s=_TICK_S * 10, window_s=_WATCHED_S)
    rows: list[list[str]] = []
    for name in _POLICIES:
        simulated = simulate_cluster(table, MACHINES, _policy(name), costs).jct_s
        middle = np.median(np.array(live[name]), axis=0)
        for job, (seen, said) in enumerate(zip(middle.tolist(), simulated.tolist(), strict=True)):
            rows.append([name, str(job), f"{seen:.1f}", f"{said:.1f}", f"{said / seen - 1.0:+.0%}"])
        prefix = "" if name == "allocator" else "greedy_"
        off = [abs(float(simulated.mean() / each.mean()) - 1.0) for each in live[name]]
        report.at_most(f"{prefix}mean_off", f"simulated mean off the live one, {name}", off, 0.10)
        worst = float(np.abs(simulated / middle - 1.0).max())
        report.at_most(f"{prefix}job_off", f"simulated time of a job off the live one, worst, {name}", [worst], 0.20)
    gains = [float(a.mean() / b.mean()) for a, b in zip(live["greedy"], live["allocator"], strict=True)]
    report.table(["policy", "job", "live, s", "simulated, s", "off"], rows)
    report.note(f"{len(table)} emulated jobs; 4 nodes with 8 declared CPUs each; remaining times are known")
    report.at_least("gain", "mean completion time, greedy over the allocator", gains, 1.5)


def _large_first(scale: float) -> JobTable:
    """Two large jobs, then four small ones: what first come, first kept is worst at.

    The second comes when the first has its CPUs: before that both orders of the two are as good, and a tenth of a
    second decides between them.
    """
    arrivals = [scale * at for at in (0.0, 4.0, 5.0, 6.0, 7.0, 8.0)]
    return table_of(arrivals, [1] * 6, [scale * s for s in (20.0, 15.0, 8.0, 6.0, 8.0, 6.0)], [32, 24, 8, 4, 8, 4])


def _drawn(jobs: int, seed: int) -> JobTable:
    """Durations and arrivals that are drawn, demand as in GoldMiner."""
    random = np.random.default_rng(seed)
    duration = np.clip(random.exponential(10.0, jobs), 3.0, 30.0)
    arrival = np.sort(random.uniform(0.0, 16.0, jobs))
    arrival[0] = 0.0
    return table_of(arrival, [1] * jobs, duration, random.choice(GOLDMINER_CPUS, jobs))


def _policy(name: str) -> SimPolicy:
    policy = standard_policies()[_POLICIES[name]]
    return replace(policy, reviews=True, learned=True)


def _live(table: JobTable, name: str) -> np.ndarray[Any, Any]:
    """Completion times of the jobs of a table on the cluster, under a policy."""
    ray = importlib.import_module("ray")
    client = importlib.import_module("stoker.backends.ray.allocator.client")
    nodes = importlib.import_module("stoker.backends.ray.nodes")
    division = _policy(name).division or DivisionConfig()
    config = AllocatorConfig(ledger=LedgerConfig(division=division, plan_s=_TICK_S, lease_s=30.0))
    space = f"{name}-{time.monotonic_ns()}"
    handle = client.find_or_start(config, space)
    homes: list[str] = sorted(ray.get(handle.nodes.remote()))
    jobs = [
        EmulatedJob(
            f"job-{number}", homes[number % len(homes)], int(need), float(left_s),
            client.AllocatorClient(f"job-{number}", config, space), nodes.NodeCpus(f"job-{number}"),
        )
        for number, (need, left_s) in enumerate(
            zip(table.need_cpus.tolist(), table.duration_s.tolist(), strict=True)
        )
    ]  # fmt: skip
    threads = [threading.Thread(target=job.run, daemon=True) for job in jobs]
    begun_s = time.monotonic() + 0.5
    for thread, at_s in zip(threads, table.arrival_s.tolist(), strict=True):
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        thread.start()
    for thread in threads:
        thread.join()
    ray.kill(handle)
    return np.array([job.finish_s - begun_s for job in jobs]) - table.arrival_s


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
