"""A cluster on a virtual clock: jobs arrive, wait for GPUs, run at the rate that their CPUs allow, and end.

The decisions are those of :mod:`stoker.scale.cluster`: its queue of gangs, its division of CPUs. Between events rates
are constant, so that an event is one pass over columns with a row for each job that can run at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from stoker.scale.cluster.allocator import whole_cpus
from stoker.scale.cluster.division import DivisionConfig, divide
from stoker.scale.cluster.gangs import CAUSES, Gang, GangQueue
from stoker.scale.cluster.rooms import Need, Rooms
from stoker.scale.cluster.state import Claims, FloatArray
from stoker.sim.cluster.learning import CurveLearner
from stoker.sim.cluster.outcome import ClusterOutcome
from stoker.sim.cluster.policies import SimPolicy
from stoker.sim.cluster.workload import ClusterMachines, JobTable
from stoker.sim.resource import Clock

_total = np.add.reduce
"""The sum of a short column: without what `sum` adds around it, which is as long again."""
_POINTS = 600
"""Points of a run's series, about."""


@dataclass(frozen=True, kw_only=True)
class MoveCosts:
    """What changes cost, in seconds during which the CPUs that a job gains make nothing."""

    start_s: float = 5.0
    """Until a data worker on a node delivers its first batch."""
    drain_s: float = 2.0
    """Until a CPU taken from a job is free: its item is finished first. Paid by who gains it."""
    restart_s: float = 60.0
    """Price of a preemption: the new start, and the steps since its checkpoint."""
    review_s: float = 300.0
    """A division that depends on time is made again so often, where nothing happens in between."""
    window_s: float = 2.0
    """For so long a job's queue is watched before it says what its CPUs came to, where curves are learned."""
    link_cpus: float = math.inf
    """Remote CPUs whose batches the link of a node carries."""

    def __post_init__(self) -> None:
        values = (self.start_s, self.drain_s, self.restart_s, self.window_s, self.link_cpus)
        if any(not value >= 0.0 for value in values) or not self.review_s > 0.0:
            raise ValueError(f"costs must not be negative and `review_s` positive, got {self}")


def simulate_cluster(
    table: JobTable,
    machines: ClusterMachines,
    policy: SimPolicy,
    costs: MoveCosts | None = None,
    *,
    spread: bool = False,
) -> ClusterOutcome:
    """Runs all jobs under a policy.

    Args:
        table: the jobs; none may need more GPUs than there are.
        machines: the cluster.
        policy: how GPUs and CPUs are given.
        costs: of changes.
        spread: whether a gang may be spread over any nodes; else it has one node, or whole nodes.

    Raises:
        ValueError: there are no jobs, or one can never run.
    """
    if not len(table):
        raise ValueError("`table` must have at least one job, got none")
    return _Engine(table, machines, policy, costs or MoveCosts(), spread).run()


class _Engine:
    def __init__(
        self, table: JobTable, machines: ClusterMachines, policy: SimPolicy, costs: MoveCosts, spread: bool
    ) -> None:
        self._table, self._machines, self._policy, self._costs = table, machines, policy, costs
        self._division = policy.division
        if policy.division is not None and policy.quotas:
            quotas = [policy.quotas.get(user, 0.0) for user in table.users]
            self._division = replace(policy.division, quotas=quotas)
        self._learner = CurveLearner(costs.window_s) if policy.learned and policy.division is not None else None
        self._clock = Clock()
        rooms = Rooms([machines.gpus] * machines.nodes, [machines.cpus] * machines.nodes, spread=spread)
        self._queue = GangQueue(rooms, policy.gangs)
        self._needs = self._find_needs()
        slots = min(machines.total_gpus, len(table))
        segments = table.widths.shape[1]
        self._claims = _no_claims(slots, segments)
        """A row is a slot: a job that runs has one, an empty one wants nothing."""
        self._job: list[int] = [-1] * slots
        self._slot: dict[int, int] = {}
        self._free = list(range(slots))[::-1]
        self._left: FloatArray = np.full(slots, math.inf)
        """Work of each slot's job, in seconds at full speed, debts included."""
        self._whole: FloatArray = np.zeros(slots)
        """Work that it had in all, what it repeats included, so that the difference is its progress."""
        self._gained: FloatArray = np.zeros(slots)
        """Rate of each slot's CPUs that are starting."""
        self._until_s: FloatArray = np.zeros(slots)
        """When they begin to work."""
        self._starting_s = 0.0
        """When the last of them does."""
        self._rate: FloatArray = np.zeros(slots)
        self._eta: FloatArray = np.full(slots, math.inf)
        self._due = 0
        """The slot whose job ends next."""
        self._job_left = table.duration_s.copy()
        """Work left of jobs that have no slot."""
        self._held_s: FloatArray = np.zeros(len(table))
        self._next = 0
        self._version = 0
        self._updated_s = self._watched_s = 0.0
        self._horizon_s = float(table.arrival_s[-1])
        self._busy = self._held = self._granted = 0.0
        self._computing_gpu_s = self._held_gpu_s = self._debt_s = 0.0
        self._waited: dict[str, float] = dict.fromkeys(CAUSES, 0.0)
        self._start_s: FloatArray = np.full(len(table), math.nan)
        self._finish_s: FloatArray = np.full(len(table), math.nan)
        self._series: list[tuple[float, float, float, float, float]] = []
        self._events = self._moves = 0
        self._since_s: FloatArray = np.zeros(slots)

    def run(self) -> ClusterOutcome:
        self._clock.after(float(self._table.arrival_s[0]), self._arrive)
        self._clock.run(math.inf)
        series = np.array(self._series or [(0.0,) * 5]).T
        return ClusterOutcome(
            arrival_s=self._table.arrival_s, start_s=self._start_s, finish_s=self._finish_s, gpus=self._table.gpus,
            total_gpus=self._machines.total_gpus, horizon_s=self._horizon_s, computing_gpu_s=self._computing_gpu_s,
            held_gpu_s=self._held_gpu_s, waited_s=self._waited, times_s=series[0], granted_cpus=series[1],
            busy_gpus=series[2], held_gpus=series[3], queued=series[4], events=self._events, moves=self._moves,
            debt_s=self._debt_s,
        )  # fmt: skip

    def _find_needs(self) -> list[Need]:
        """What each job's gang holds: CPUs too where they are requested with the GPUs."""
        gpus: list[int] = self._table.gpus.tolist()
        known: dict[tuple[int, float], Need] = {}
        if self._policy.cpus != "request":
            return [known.setdefault((count, 0.0), Need(count)) for count in gpus]
        most = self._machines.share_cpus * self._machines.gpus
        needs: list[Need] = []
        for count, wanted in zip(gpus, self._table.need_cpus.tolist(), strict=True):
            # A job of several nodes has whole ones, and their CPUs.
            nodes = max(1.0, count / self._machines.gpus)
            asked = min(float(wanted), most * nodes)
            needs.append(known.setdefault((count, asked), Need(count, asked)))
        return needs

    # Events

    def _arrive(self) -> None:
        self._events += 1
        self._watch()
        table, now_s = self._table, self._clock.now_s
        arrivals = table.arrival_s
        while self._next < len(table) and arrivals[self._next] <= now_s:
            self._queue.push(self._gang(self._next), now_s)
            self._next += 1
        if self._next < len(table):
            self._clock.after(float(arrivals[self._next]) - now_s, self._arrive)
        self._settle(changed=False)

    def _wake(self, version: int) -> None:
        """A job ended, or a review is due."""
        if version != self._version:
            return
        self._events += 1
        self._watch()
        self._advance()
        slot = self._due
        if self._eta[slot] <= self._clock.now_s:
            self._finish_s[self._job[slot]] = self._clock.now_s
            self._queue.ended(self._vacate(slot))
        self._settle(changed=True)

    def _settle(self, *, changed: bool) -> None:
        """Starts what can start, and divides the CPUs again if anything changed."""
        for started in self._queue.start(self._clock.now_s, self._current):
            if not changed:
                self._advance()
            changed = True
            for gang in started.preempted:
                self._preempt(gang.name)
            self._begin(started.gang.name)
        if changed:
            self._divide()
            self._next_wake()

    def _next_wake(self) -> None:
        self._version += 1
        self._due = int(self._eta.argmin())
        at_s = float(self._eta[self._due])
        if self._policy.reviews and self._slot:
            at_s = min(at_s, self._clock.now_s + self._costs.review_s)
        if self._learner is not None:
            at_s = min(at_s, self._learner.next_s)
        if at_s < math.inf:
            version = self._version
            self._clock.after(max(0.0, at_s - self._clock.now_s), lambda: self._wake(version))

    # Slots

    def _gang(self, job: int) -> Gang:
        table = self._table
        return Gang(
            name=job, need=self._needs[job], arrived_s=float(table.arrival_s[job]),
            attained_s=float(self._held_s[job]), left_s=float(self._job_left[job]),
            priority=int(table.priority[job]), resumable=bool(table.resumable[job]),
        )  # fmt: skip

    def _current(self, gang: Gang) -> Gang:
        """A running gang as it is now."""
        slot = self._slot[gang.name]
        held_s = float(self._held_s[gang.name]) + self._clock.now_s - float(self._since_s[slot])
        left_s = float(self._left[slot]) - float(self._rate[slot]) * (self._clock.now_s - self._updated_s)
        return replace(gang, attained_s=held_s, left_s=left_s - self._unpaid(slot))

    def _begin(self, job: int) -> None:
        table, claims, slot, now_s = self._table, self._claims, self._free.pop(), self._clock.now_s
        self._job[slot], self._slot[job] = job, slot
        first = math.isnan(self._start_s[job])
        if first:
            self._start_s[job] = now_s
        gpus = float(table.gpus[job])
        share = gpus * self._machines.share_cpus
        cap = self._cap(job, share)
        if cap < float(table.need_cpus[job]):
            claims.widths[slot] = _capped(table.widths[job], cap)
        else:
            claims.widths[slot] = table.widths[job]
        if self._learner is not None:
            self._learner.begin(slot, share, cap)
        claims.slopes[slot] = table.slopes[job]
        claims.gpus[slot], claims.share_cpus[slot] = gpus, share
        claims.held_cpus[slot] = 0.0
        claims.arrived_s[slot], claims.started_s[slot] = table.arrival_s[job], now_s
        claims.weight[slot], claims.priority[slot] = table.weight[job], table.priority[job]
        claims.user[slot] = table.user[job]
        self._left[slot] = self._job_left[job]
        self._whole[slot] = table.duration_s[job]
        if not first:
            self._left[slot] += self._costs.restart_s
            self._whole[slot] += self._costs.restart_s
            self._debt_s += self._costs.restart_s
        self._since_s[slot] = now_s

    def _cap(self, job: int, share: float) -> float:
        """The most CPUs that a job can use, by its kind, its links and the policy."""
        table, policy, machines = self._table, self._policy, self._machines
        if policy.cpus == "unlimited":
            return math.inf
        if policy.cpus == "share":
            return share
        if policy.cpus == "request":
            return self._needs[job].cpus
        if not table.movable[job]:
            return share
        return share + self._costs.link_cpus * -(-int(table.gpus[job]) // machines.gpus)

    def _vacate(self, slot: int) -> int:
        """Empties a slot; returns its job."""
        job = self._job[slot]
        del self._slot[job]
        self._job[slot] = -1
        self._free.append(slot)
        claims = self._claims
        claims.widths[slot] = claims.slopes[slot] = 0.0
        claims.gpus[slot] = claims.held_cpus[slot] = claims.share_cpus[slot] = 0.0
        self._left[slot] = self._eta[slot] = math.inf
        self._rate[slot] = self._whole[slot] = 0.0
        self._gained[slot] = self._until_s[slot] = 0.0
        if self._learner is not None:
            self._learner.end(slot)
        return job

    def _preempt(self, job: int) -> None:
        slot = self._slot[job]
        self._held_s[job] += self._clock.now_s - self._since_s[slot]
        unpaid = self._unpaid(slot)
        self._debt_s -= unpaid
        self._job_left[job] = self._left[slot] - unpaid
        self._vacate(slot)

    def _unpaid(self, slot: int) -> float:
        """What a slot's job still owes for CPUs that are starting."""
        return float(self._gained[slot]) * max(0.0, float(self._until_s[slot]) - self._clock.now_s)

    # Rates

    def _advance(self) -> None:
        """Work done since the last event that changed rates."""
        now_s = self._clock.now_s
        dt = now_s - self._updated_s
        if dt > 0.0:
            self._left -= self._rate * dt
            counted = min(now_s, self._horizon_s) - self._updated_s
            if counted > 0.0:
                self._computing_gpu_s += self._busy * counted
                self._held_gpu_s += self._held * counted
            self._updated_s = now_s

    def _divide(self) -> None:
        claims, now_s, policy = self._claims, self._clock.now_s, self._policy
        division = self._division
        full = self._granted >= self._machines.total_cpus - 1e-6
        if division is None:
            cpus = claims.widths.sum(axis=1)
        else:
            # What is owed for a start is no work of the job: else who gains CPUs would seem to be further from its end,
            # and two jobs could take them from each other for ever.
            left = self._left - self._all_unpaid() if now_s < self._starting_s else self._left
            claims.progress_s = self._whole - left
            if policy.known:
                claims.left_s = left
            cpus = self._divided(claims, division)
        rate = claims.rates(cpus)
        if policy.cpus != "unlimited":
            self._owe(rate - self._rate, self._costs.drain_s if full and division is not None else 0.0)
        if self._learner is not None:
            self._learner.watch(claims.held_cpus, cpus, np.maximum(self._until_s, now_s))
        self._moves += int(np.count_nonzero(cpus != claims.held_cpus))
        claims.held_cpus = cpus
        self._rate = rate
        self._eta.fill(math.inf)
        np.divide(self._left, rate, out=self._eta, where=rate > 0.0)
        self._eta += now_s
        self._busy = float(rate @ claims.gpus)
        self._held = float(self._machines.total_gpus - self._queue.rooms.free_gpus)
        self._granted = float(_total(cpus))
        self._record()

    def _divided(self, claims: Claims, division: DivisionConfig) -> FloatArray:
        """The division by what is known of the jobs' curves."""
        capacity = self._machines.total_cpus
        if self._learner is None:
            return divide(claims, capacity, self._clock.now_s, division)
        self._learner.observe(self._clock.now_s, claims, self._rate)
        believed = self._learner.believed(claims)
        amounts = divide(believed, capacity, self._clock.now_s, division)
        return whole_cpus(amounts, believed, capacity).astype(np.float64)

    def _owe(self, change: FloatArray, drain_s: float) -> None:
        """Books that the CPUs that are gained make nothing while their workers start.

        It is a debt of work. What is lost before it works was no rate yet: its debt is remitted.
        """
        now_s, wait_s = self._clock.now_s, self._costs.start_s + drain_s
        gains = np.maximum(change, 0.0)
        if now_s < self._starting_s:
            left_s = np.maximum(self._until_s - now_s, 0.0)
            self._gained[left_s <= 0.0] = 0.0
            lost = np.minimum(np.maximum(-change, 0.0), self._gained)
            debts = gains * wait_s - lost * left_s
            owed = self._gained * left_s + debts
            self._gained += gains - lost
        else:
            debts = owed = gains * wait_s
            self._gained = gains
        self._left += debts
        self._debt_s += float(_total(debts))
        # CPUs that came at different times begin to work together, when as much is owed.
        self._until_s = np.full_like(owed, now_s)
        np.divide(owed, self._gained, out=self._until_s, where=self._gained > 0.0)
        self._until_s[self._gained > 0.0] += now_s
        self._starting_s = float(self._until_s.max())

    def _all_unpaid(self) -> FloatArray:
        return self._gained * np.maximum(self._until_s - self._clock.now_s, 0.0)

    # What is measured

    def _watch(self) -> None:
        """Books the time that gangs waited since the last event, by its cause then."""
        now_s = self._clock.now_s
        dt = now_s - self._watched_s
        self._watched_s = now_s
        if dt > 0.0:
            for need, count in self._queue.waiting():
                self._waited[self._queue.cause(need)] += count * dt

    def _record(self) -> None:
        last_s = self._series[-1][0] if self._series else -math.inf
        step_s = max(self._horizon_s, self._clock.now_s) / _POINTS
        if self._clock.now_s - last_s >= step_s:
            self._series.append((self._clock.now_s, self._granted, self._busy, self._held, float(len(self._queue))))


def _no_claims(slots: int, segments: int) -> Claims:
    def zeros() -> FloatArray:
        return np.zeros(slots)

    return Claims(
        widths=np.zeros((slots, segments)), slopes=np.zeros((slots, segments)), gpus=zeros(), share_cpus=zeros(),
        held_cpus=zeros(), arrived_s=zeros(), started_s=zeros(), progress_s=zeros(), left_s=np.full(slots, math.nan),
        weight=np.ones(slots), priority=np.zeros(slots, dtype=np.int64), user=np.zeros(slots, dtype=np.int64),
    )  # fmt: skip


def _capped(widths: FloatArray, cap: float) -> FloatArray:
    """Segments without their part beyond a number of CPUs."""
    before = np.cumsum(widths) - widths
    return np.minimum(np.maximum(cap - before, 0.0), widths)
