"""The simulator against the live allocator's own state: jobs that report to a ledger, on a virtual clock.

As in the benchmark `cluster_live`, without Ray: a report is answered by the next, CPUs work some time after they came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from stoker.scale.cluster import ClusterNode, DivisionConfig, GrantLedger, GrantOrder, JobReport, LedgerConfig
from stoker.scale.cluster.ledger import QueueWindow
from stoker.sim.cluster.engine import MoveCosts, simulate_cluster
from stoker.sim.cluster.policies import SimPolicy, standard_policies
from stoker.sim.cluster.workload import ClusterMachines, JobTable, table_of

TICK_S, START_S = 0.2, 0.3
MACHINES = ClusterMachines(nodes=4, gpus=3, cpus=8)
COSTS = MoveCosts(
    start_s=START_S + 2 * TICK_S, drain_s=3 * TICK_S, review_s=10 * TICK_S, window_s=2 * TICK_S
)  # fmt: skip
LARGE_FIRST = table_of(
    [0.0, 4.0, 5.0, 6.0, 7.0, 8.0], [1] * 6, [20.0, 15.0, 8.0, 6.0, 8.0, 6.0], [32, 24, 8, 4, 8, 4]
)  # fmt: skip


@dataclass
class LiveJob:
    """A job of the benchmark, a tick at a time."""

    name: str
    home: str
    need: float
    work_s: float
    begun_s: float
    progress_s: float = 0.0
    held: dict[str, int] = field(default_factory=dict[str, int])
    starting: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    working: int = 0
    steady: int = 0
    answer: tuple[GrantOrder, ...] | None = None
    finish_s: float = math.nan

    def tick(self, ledger: GrantLedger, now_s: float) -> bool:
        """Whether it goes on."""
        rate = min(1.0, self.working / self.need)
        self.progress_s += rate * TICK_S * (now_s > self.begun_s)
        if self.progress_s >= self.work_s:
            self.finish_s = now_s - (self.progress_s - self.work_s) / rate
            ledger.leave(self.name)
            return False
        held = sum(self.held.values())
        self.starting = [(at_s, total) for at_s, total in self.starting if total <= held]
        before, due = self.working, [total for at_s, total in self.starting if at_s <= now_s + 1e-9]
        self.working = min(held, max([self.working, *due]))
        self.steady = self.steady + 1 if before == self.working else 0
        rate = min(1.0, self.working / self.need)
        window = QueueWindow(
            cpus=self.working, samples_per_s=100.0 * rate, starved_frac=float(rate < 1.0), computing_frac=rate,
            blocked_frac=max(0.0, 1.0 - self.need / self.working) if self.working else 0.0,
        )  # fmt: skip
        earlier, self.answer = self.answer, ledger.report(
            JobReport(
                job=self.name, held=dict(self.held), window=window if self.steady > 1 and self.working else None,
                homes=(self.home,), age_s=now_s - self.begun_s, progress_s=self.progress_s,
                left_s=max(0.01, self.work_s - self.progress_s),
            ),
            now_s,
        )  # fmt: skip
        if earlier is not None:
            self.held = {order.node: order.cpus for order in earlier if order.cpus}
            total = sum(self.held.values())
            if total > held:
                self.starting.append((now_s + START_S, total))
        return True


def live(table: JobTable, division: DivisionConfig) -> np.ndarray:
    """Completion times of the jobs under a ledger."""
    ledger = GrantLedger(LedgerConfig(division=division, plan_s=TICK_S, lease_s=30.0))
    ledger.set_nodes(ClusterNode(name=f"n{n}", cpus=MACHINES.cpus, gpus=MACHINES.gpus) for n in range(MACHINES.nodes))
    rows = zip(table.need_cpus.tolist(), table.duration_s.tolist(), table.arrival_s.tolist(), strict=True)
    jobs = [LiveJob(f"job-{n}", f"n{n % MACHINES.nodes}", *row) for n, row in enumerate(rows)]
    ahead, running, now_s = list(jobs), list[LiveJob](), 0.0
    while ahead or running:
        running += [job for job in ahead if job.begun_s <= now_s + 1e-9]
        ahead = [job for job in ahead if job.begun_s > now_s + 1e-9]
        running = [job for job in running if job.tick(ledger, now_s)]
        now_s += TICK_S
        assert now_s < 1e4, "all jobs end"
    return np.array([job.finish_s - job.begun_s for job in jobs])


def policy(name: str) -> SimPolicy:
    return replace(standard_policies()[name], reviews=True, learned=True)


def drawn(jobs: int, seed: int) -> JobTable:
    random = np.random.default_rng(seed)
    arrival = np.sort(random.uniform(0.0, 60.0, jobs)).round(1)
    return table_of(arrival, [1] * jobs, random.uniform(8.0, 40.0, jobs), random.choice([4.0, 8.0, 16.0, 24.0], jobs))


@pytest.mark.parametrize("name", ["jct-known", "greedy"])
def test_the_simulator_learns_curves_as_the_live_allocator_does(name: str) -> None:
    """Each job within 20 %: two large jobs, then four small ones, as in the benchmark's quick size."""
    chosen = policy(name)
    seen = live(LARGE_FIRST, chosen.division or DivisionConfig())
    said = simulate_cluster(LARGE_FIRST, MACHINES, chosen, COSTS).jct_s
    assert said == pytest.approx(seen, rel=0.2)


@pytest.mark.parametrize("name", ["jct-known", "greedy"])
def test_means_agree_where_a_tenth_of_a_second_may_change_an_order(name: str) -> None:
    off: list[float] = []
    for seed in range(8):
        table, chosen = drawn(8, seed), policy(name)
        seen = live(table, chosen.division or DivisionConfig())
        said = simulate_cluster(table, MACHINES, chosen, COSTS).jct_s
        assert said.mean() == pytest.approx(seen.mean(), rel=0.1)
        off += np.abs(said / seen - 1.0).tolist()
    assert np.mean(np.array(off) <= 0.2) >= 0.9  # of the jobs
