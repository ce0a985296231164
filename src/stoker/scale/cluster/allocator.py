"""The cluster's allocator: from a state of nodes, jobs and grants to the grants that should be, with reasons.

One pure policy, live and simulated: :mod:`stoker.scale.cluster.division` says how many CPUs each job gets,
:mod:`stoker.scale.cluster.placement` on which nodes. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stoker.scale.cluster.division import DivisionConfig, divide
from stoker.scale.cluster.objectives import worth_of_rates
from stoker.scale.cluster.placement import place
from stoker.scale.cluster.state import Claims, ClusterState, CpuGrant, FloatArray, HeldCpus, IntArray


@dataclass(frozen=True)
class PlannedGrant:
    """A grant that should be, and why."""

    grant: CpuGrant
    reason: str
    gain_frac: float
    """Rate that the job would lose without it, as a share of its full speed."""


@dataclass(frozen=True)
class GrantPlan:
    """The grants that should be; those of the state that are not among them are to be drained."""

    state: ClusterState
    cpus: FloatArray
    """Amount of each job, in the state's order."""
    _claims: Claims
    _rows: HeldCpus
    _config: DivisionConfig
    now_s: float

    @property
    def grants(self) -> tuple[CpuGrant, ...]:
        """All grants, by job."""
        return tuple(self._grant(row) for row in range(len(self._rows.job)))

    @property
    def rate(self) -> float:
        """Sum of the jobs' rates under the plan, by their curves."""
        return float(self._claims.rates(self.cpus).sum())

    def explained(self) -> Iterator[PlannedGrant]:
        """Each grant with its reason and what it brings."""
        for row in range(len(self._rows.job)):
            job = int(self._rows.job[row])
            yield PlannedGrant(self._grant(row), self._reason(job), self._gain(job, int(self._rows.cpus[row])))

    def drained(self) -> tuple[CpuGrant, ...]:
        """What is to be taken back: grants of the state, or parts of them, that the plan has not."""
        kept = {(grant.job, grant.node): grant.cpus for grant in self.grants}
        less = ((grant, grant.cpus - kept.get((grant.job, grant.node), 0)) for grant in _merged(self.state.grants))
        return tuple(replace(grant, cpus=cpus) for grant, cpus in less if cpus > 0)

    def added(self) -> tuple[CpuGrant, ...]:
        """What is to be granted beyond what is held."""
        held = {(grant.job, grant.node): grant.cpus for grant in _merged(self.state.grants)}
        more = ((grant, grant.cpus - held.get((grant.job, grant.node), 0)) for grant in self.grants)
        return tuple(replace(grant, cpus=cpus) for grant, cpus in more if cpus > 0)

    def _grant(self, row: int) -> CpuGrant:
        rows = self._rows
        jobs, nodes = self.state.jobs, self.state.nodes
        return CpuGrant(jobs[int(rows.job[row])].name, nodes[int(rows.node[row])].name, int(rows.cpus[row]))

    def _gain(self, job: int, cpus: int) -> float:
        curve = self.state.jobs[job].curve
        total = float(self.cpus[job])
        return curve.rate(total) - curve.rate(total - cpus)

    def _reason(self, job: int) -> str:
        one, total = self.state.jobs[job], float(self.cpus[job])
        if total >= one.curve.need_cpus:
            return f"full speed takes {one.curve.need_cpus:g} CPUs"
        if total <= self._config.floor_frac * one.share_cpus:
            return f"its node's own share of {one.share_cpus:g} CPUs"
        objective = self._config.objective
        if objective == "jct" and one.left_s is not None:
            return f"{one.left_s:.0f} s left: among the least CPU work per gain"
        if objective == "jct":
            return f"{one.progress_s:.0f} s done: among the least attained service"
        if objective == "fair":
            return "slowed down most so far"
        if objective == "throughput":
            return "most computing GPUs for each CPU"
        return "an equal part" if objective == "max-min" else "here first"


def plan(state: ClusterState, now_s: float, config: DivisionConfig | None = None) -> GrantPlan:
    """The grants that the cluster should have.

    No node is over-granted, a job has at most what its curve can use, quotas and floors are kept as far as there is
    room, and where nothing changed nothing moves. The state's quotas take the place of the configuration's.

    Args:
        state: of the cluster.
        now_s: the time, on the clock of the jobs' own times.
        config: the objective and its limits.
    """
    config = config or DivisionConfig()
    if state.quotas:
        config = replace(config, quotas=[float(state.quotas.get(user, 0)) for user in state.users()])
    held, claims = state.held, state.claims
    room = np.array([0 if node.draining else node.cpus for node in state.nodes], dtype=np.int64)
    amounts = whole_cpus(divide(claims, float(room.sum()), now_s, config), claims, int(room.sum()))
    stationary = np.array([n for n, job in enumerate(state.jobs) if not job.movable], dtype=np.int64)
    worth = worth_of_rates(claims, now_s, config.objective, config.prior_s)
    order = np.argsort(-worth, kind="stable")
    rows = place(amounts, held, state.homes, room, order, stationary)
    cpus = np.bincount(rows.job, rows.cpus, len(state.jobs)).astype(np.float64)
    return GrantPlan(state, cpus, claims, rows, config, now_s)


def whole_cpus(amounts: FloatArray, claims: Claims, capacity: int) -> IntArray:
    """Whole CPUs: all rounded down, the rest one by one to those that lost most by it."""
    need = np.ceil(claims.widths.sum(axis=1) - 1e-9)
    whole = np.floor(amounts + 1e-9)
    spare = capacity - int(whole.sum())
    lost = np.where(whole < need, amounts - whole, 0.0)
    chosen = np.argsort(-lost, kind="stable")[: max(0, spare)]
    whole[chosen[lost[chosen] > 1e-9]] += 1.0
    return whole.astype(np.int64)


def _merged(grants: tuple[CpuGrant, ...]) -> list[CpuGrant]:
    """One grant for each pair of job and node."""
    sums: dict[tuple[str, str], int] = {}
    for grant in grants:
        sums[grant.job, grant.node] = sums.get((grant.job, grant.node), 0) + grant.cpus
    return [CpuGrant(job, node, cpus) for (job, node), cpus in sums.items()]
