"""The allocator of a live cluster: who holds which CPUs, who may, and until when a silent job is believed.

Pure state, time is an argument: an actor or a test drives it. A report says all that the ledger must know about a job,
so that a job that reports to a new ledger keeps what it holds. The decision is :func:`stoker.scale.cluster.plan`; what
is added here is that a CPU is granted again only after who had it gave it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stoker.scale.cluster.allocator import GrantPlan, plan
from stoker.scale.cluster.curves import CurveEstimate, RateCurve, linear
from stoker.scale.cluster.division import DivisionConfig
from stoker.scale.cluster.state import ClusterJob, ClusterNode, ClusterState, CpuGrant


@dataclass(frozen=True, kw_only=True)
class QueueWindow:
    """What a job's queue showed while its CPUs did not change."""

    cpus: int
    """CPUs that worked for it in the whole window, its own included."""
    samples_per_s: float
    starved_frac: float
    """Steps that found the queue empty."""
    blocked_frac: float
    """Time in which data workers found it full."""
    computing_frac: float | None = None
    """Time in which the training workers did not wait for input: the rate as a share of full speed, if known."""


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """All that the ledger must know about a job; durations, since no two machines have one clock."""

    job: str
    held: Mapping[str, int] = field(default_factory=dict[str, int])
    """CPUs by node that it holds of the pool."""
    window: QueueWindow | None = None
    """The last complete window; None until there is a new one."""
    wanted: int | None = None
    """CPUs of the pool that its own autoscaler would use at most; None where the curve alone says it."""
    refused: tuple[str, ...] = ()
    """Nodes that cannot serve it."""
    own_cpus: int = 0
    """CPUs of its machine that it uses without a grant."""
    gpus: int = 1
    homes: tuple[str, ...] = ()
    """Nodes of its training workers."""
    user: str = ""
    weight: float = 1.0
    priority: int = 0
    movable: bool = True
    age_s: float = 0.0
    """Time since it began."""
    progress_s: float = 0.0
    """Work done, in seconds at full speed."""
    left_s: float | None = None
    """Work left, in seconds at full speed, if known."""


@dataclass(frozen=True, kw_only=True)
class GrantOrder:
    """What a job may hold of a node. What it holds beyond that is drained, and killed after ``kill_in_s``."""

    node: str
    cpus: int
    reason: str = ""
    gain_frac: float = 0.0
    """Rate that the job would lose without the grant, as a share of its full speed."""
    kill_in_s: float | None = None
    """Time left for draining; None where there is nothing to drain."""


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """How CPUs are divided and how long things may take."""

    division: DivisionConfig = field(default_factory=DivisionConfig)
    quotas: Mapping[str, int] = field(default_factory=dict[str, int])
    """CPUs by user."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """By user; times that of the job."""
    priorities: Mapping[str, int] = field(default_factory=dict[str, int])
    """By user; added to that of the job."""
    lease_s: float = 10.0
    """A job that is silent for so long has gone. Hosts end themselves as long after their job's last word."""
    grace_s: float = 30.0
    """Time to finish the items at work on CPUs that are taken back."""
    plan_s: float = 1.0
    """The least time between two plans."""
    realise_s: float = 15.0
    """A grant that is not held after so long: others, unknown to the ledger, have these CPUs."""
    believe_s: float = 60.0
    """Time for which CPUs that others have are not granted again."""

    def __post_init__(self) -> None:
        for name in ("lease_s", "grace_s", "plan_s", "realise_s", "believe_s"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name)}")


@dataclass
class _Job:
    """A job that reports."""

    report: JobReport
    began_s: float
    heard_s: float
    estimate: CurveEstimate = field(default_factory=CurveEstimate)
    granted: dict[str, int] = field(default_factory=dict[str, int])
    """What it may hold."""
    answered: dict[str, int] = field(default_factory=dict[str, int])
    """The last answer. Whether the job received it is known when it reports again."""
    received: dict[str, int] = field(default_factory=dict[str, int])
    """The answer before, on which it may still act."""
    over_s: dict[str, float] = field(default_factory=dict[str, float])
    """Since when it holds more of a node than it may."""
    lacking_s: dict[str, float] = field(default_factory=dict[str, float])
    """Since when it holds less of a node than it may."""
    unmet: int = 0
    """CPUs that it would gain by, beyond those of the last plan."""

    def booked(self, node: str) -> int:
        """CPUs that no other may have."""
        return max(each.get(node, 0) for each in (self.granted, self.answered, self.received, self.report.held))


class GrantLedger:
    """The live allocator.

    Args:
        config: see there.
        settle_until_s: until then nothing moves and nothing is granted beyond what jobs hold: after a restart they
            report first.
    """

    def __init__(self, config: LedgerConfig | None = None, *, settle_until_s: float = -math.inf) -> None:
        self.config = config or LedgerConfig()
        self._settle_until_s = settle_until_s
        self._nodes: dict[str, ClusterNode] = {}
        self._jobs: dict[str, _Job] = {}
        self._short: dict[str, tuple[int, float]] = {}
        """CPUs of nodes that others have, and until when that is believed."""
        self._reasons: dict[tuple[str, str], tuple[str, float]] = {}
        self._planned_s = -math.inf

    def configure(self, config: LedgerConfig) -> None:
        """Changes how CPUs are divided, from the next plan on; what jobs hold stays theirs until then."""
        if config != self.config:
            self.config = config
            self._planned_s = -math.inf

    def set_nodes(self, nodes: Iterable[ClusterNode]) -> None:
        """Takes in the nodes that the cluster has now; ``cpus`` are those that data workers may have."""
        found = {node.name: node for node in nodes}
        if found != self._nodes:
            self._nodes = found
            self._planned_s = -math.inf

    def report(self, report: JobReport, now_s: float) -> tuple[GrantOrder, ...]:
        """Takes in what a job says, the first time registers it; returns what it may hold.

        Raises:
            ValueError: a value breaks its rule.
        """
        if any(cpus < 0 for cpus in report.held.values()) or report.own_cpus < 0:
            raise ValueError(f"`held` and `own_cpus` must not be negative, got {report.held} and {report.own_cpus}")
        job = self._jobs.get(report.job)
        if job is None:
            job = self._jobs[report.job] = _Job(report, now_s - report.age_s, now_s, granted=_some(report.held))
            self._planned_s = -math.inf
        job.report, job.heard_s = report, now_s
        job.received = job.answered
        if report.window is not None and report.window.cpus > 0:
            window = report.window
            job.estimate.observe(
                window.cpus, window.samples_per_s, starved_frac=window.starved_frac,
                blocked_frac=window.blocked_frac, computing_frac=window.computing_frac, now_s=now_s,
            )  # fmt: skip
        self.advance(now_s)
        self._watch(job, now_s)
        job.answered = dict(job.granted)
        return self._orders(job, now_s)

    def unmet(self, job: str) -> int:
        """CPUs that would raise a job's rate and that the nodes together do not have for it."""
        return self._jobs[job].unmet if job in self._jobs else 0

    def leave(self, job: str) -> None:
        """A job ended: what it held is free."""
        if self._jobs.pop(job, None) is not None:
            self._planned_s = -math.inf

    def advance(self, now_s: float) -> tuple[str, ...]:
        """Lapses the leases of silent jobs, and plans again where that is due; returns the jobs that lapsed."""
        lapsed = tuple(name for name, job in self._jobs.items() if now_s - job.heard_s > self.config.lease_s)
        for name in lapsed:
            self.leave(name)
        if now_s - self._planned_s >= self.config.plan_s and now_s >= self._settle_until_s:
            self._planned_s = now_s
            self._plan(now_s)
        return lapsed

    def jobs(self, now_s: float) -> dict[str, tuple[JobReport, tuple[GrantOrder, ...]]]:
        """Each job's last report and what it may hold."""
        return {name: (job.report, self._orders(job, now_s)) for name, job in self._jobs.items()}

    def _plan(self, now_s: float) -> None:
        """Takes back at once; grants what is free, in the order of the plan."""
        found = plan(self._state(now_s), now_s, self.config.division)
        wanted: dict[tuple[str, str], int] = {}
        self._reasons = {}
        for each in found.explained():
            key = (each.grant.job, each.grant.node)
            wanted[key] = each.grant.cpus
            self._reasons[key] = (each.reason, each.gain_frac)
        self._note_unmet(found)
        self._avoid_refused(wanted)
        for name, job in self._jobs.items():
            job.granted = {node: min(cpus, wanted.get((name, node), 0)) for node, cpus in job.granted.items()}
        free = {name: node.cpus - self._booked(name) for name, node in self._nodes.items()}
        for name, node in self._by_gain(wanted):
            job = self._jobs[name]
            had = job.granted.get(node, 0)
            # What it still holds beyond its grant is booked already: to grant it again takes no room.
            draining = job.booked(node) - had
            more = min(wanted[name, node] - had, max(0, free[node]) + draining)
            if more > 0:
                job.granted[node] = had + more
                free[node] -= max(0, more - draining)
        for job in self._jobs.values():
            job.granted = _some(job.granted)

    def _note_unmet(self, found: GrantPlan) -> None:
        """What the plan could not give; who cannot move would not gain by a new node."""
        for job in self._jobs.values():
            job.unmet = 0
        for claim, cpus in zip(found.state.jobs, found.cpus.tolist(), strict=True):
            if claim.movable:
                self._jobs[claim.name].unmet = max(0, math.ceil(claim.curve.need_cpus - 1e-9) - int(cpus))

    def _avoid_refused(self, wanted: dict[tuple[str, str], int]) -> None:
        """Moves what jobs cannot use where it was placed to nodes that have room."""
        room = {
            name: node.cpus - self._taken_by_others(name) for name, node in self._nodes.items() if not node.draining
        }
        for (_, node), cpus in wanted.items():
            room[node] = room.get(node, 0) - cpus
        for (name, node), cpus in list(wanted.items()):
            if node not in self._jobs[name].report.refused:
                continue
            del wanted[name, node]
            room[node] += cpus
            reason = self._reasons.pop((name, node))
            usable = (other for other in room if other not in self._jobs[name].report.refused)
            for other in sorted(usable, key=lambda other: -room[other]):
                moved = min(cpus, max(0, room[other]))
                if moved:
                    wanted[name, other] = wanted.get((name, other), 0) + moved
                    self._reasons[name, other] = reason
                    room[other], cpus = room[other] - moved, cpus - moved

    def _by_gain(self, wanted: Mapping[tuple[str, str], int]) -> list[tuple[str, str]]:
        """Jobs and nodes, those that gain most by each CPU first."""
        return sorted(wanted, key=lambda key: -self._reasons[key][1] / wanted[key])

    def _taken_by_others(self, node: str) -> int:
        return self._short.get(node, (0, 0.0))[0]

    def _state(self, now_s: float) -> ClusterState:
        self._short = {name: each for name, each in self._short.items() if each[1] > now_s}
        nodes = tuple(
            ClusterNode(
                name=node.name, cpus=max(0, node.cpus - self._taken_by_others(node.name)), gpus=node.gpus,
                draining=node.draining,
            )
            for node in self._nodes.values()
        )  # fmt: skip
        jobs: list[ClusterJob] = []
        for name, job in self._jobs.items():
            curve = self._curve(job)
            if curve is not None:
                jobs.append(self._as_claim(name, job, curve))
        grants = tuple(
            CpuGrant(job.name, node, cpus)
            for job in jobs
            for node, cpus in self._jobs[job.name].granted.items()
            if node in self._nodes
        )
        return ClusterState(nodes=nodes, jobs=tuple(jobs), grants=grants, quotas=self.config.quotas)

    def _curve(self, job: _Job) -> RateCurve | None:
        """What CPUs of the pool add to a job's rate; None where they add nothing."""
        report, estimate = job.report, job.estimate
        if report.wanted is not None and not estimate.is_measured:
            return linear(report.wanted) if report.wanted > 0 else None
        found = estimate.curve(math.ceil(self._share(report))).beyond(report.own_cpus)
        return found if found is None or report.wanted is None else found.until(report.wanted)

    def _as_claim(self, name: str, job: _Job, curve: RateCurve) -> ClusterJob:
        report = job.report
        return ClusterJob(
            name=name, curve=curve, gpus=report.gpus, homes=tuple(home for home in report.homes if home in self._nodes),
            share_cpus=self._share(report), user=report.user,
            weight=report.weight * self.config.weights.get(report.user, 1.0),
            priority=report.priority + self.config.priorities.get(report.user, 0),
            movable=report.movable, arrived_s=job.began_s, started_s=job.began_s, progress_s=report.progress_s,
            left_s=report.left_s,
        )  # fmt: skip

    def _share(self, report: JobReport) -> float:
        """A job's part of the CPUs of its nodes, by its part of their GPUs; a node without any is shared by none."""
        homes = [self._nodes[home] for home in report.homes if home in self._nodes and self._nodes[home].gpus]
        return sum(node.cpus * min(1.0, report.gpus / len(homes) / node.gpus) for node in homes)

    def _booked(self, node: str) -> int:
        return sum(job.booked(node) for job in self._jobs.values())

    def _unheld(self, node: str) -> int:
        """CPUs of a node that no job holds."""
        held = sum(job.report.held.get(node, 0) for job in self._jobs.values())
        return max(0, self._nodes[node].cpus - held) if node in self._nodes else 0

    def _watch(self, job: _Job, now_s: float) -> None:
        """Books since when a job holds more, or less, than it may."""
        nodes = job.granted.keys() | job.report.held.keys()
        excess = {node: job.report.held.get(node, 0) - job.granted.get(node, 0) for node in nodes}
        job.over_s = {node: job.over_s.get(node, now_s) for node in nodes if excess[node] > 0}
        job.lacking_s = {node: job.lacking_s.get(node, now_s) for node in nodes if excess[node] < 0}
        for node, since_s in list(job.lacking_s.items()):
            if now_s - since_s > self.config.realise_s:
                self._short[node] = (self._unheld(node), now_s + self.config.believe_s)
                job.granted[node] = job.report.held.get(node, 0)
                del job.lacking_s[node]
                self._planned_s = -math.inf

    def _orders(self, job: _Job, now_s: float) -> tuple[GrantOrder, ...]:
        orders: list[GrantOrder] = []
        for node in sorted(job.granted.keys() | _some(job.report.held).keys()):
            reason, gain = self._reasons.get((job.report.job, node), ("", 0.0))
            since_s = job.over_s.get(node)
            kill_in_s = None if since_s is None else max(0.0, self.config.grace_s - (now_s - since_s))
            orders.append(
                GrantOrder(node=node, cpus=job.granted.get(node, 0), reason=reason, gain_frac=gain, kill_in_s=kill_in_s)
            )
        return tuple(orders)


def _some(cpus: Mapping[str, int]) -> dict[str, int]:
    return {node: count for node, count in cpus.items() if count > 0}
