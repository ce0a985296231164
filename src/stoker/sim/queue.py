"""One job on a virtual clock: a training worker, its data workers and their queue under a scaling policy.

Discrete events over the feed's rules: items are leased in order, each data worker holds at most ``depth`` items
(leased or ready), delivery is in order, draining workers finish what they hold. CPU cores, and the streams of a remote
store, are shared: what exceeds them slows everything down equally. The policy is the one that drives the live feed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from dataclasses import dataclass, field

from stoker.feed.scaling import Decision, Observation, ScalingPolicy
from stoker.sim.resource import Clock, SharedCapacity


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What steps and items cost from ``from_s`` on; means, in seconds."""

    from_s: float = 0.0
    step_s: float
    """Time of a step outside the CPU (an accelerator computes)."""
    step_cpu_s: float = 0.0
    """CPU time of a step, in the training process."""
    item_cpu_s: float
    item_wait_s: float = 0.0
    """Time that an item waits (remote reads), before its CPU time."""
    handover_s: float = 0.0
    """Time inside ``next`` that handing over a batch takes once it is made (CPU time of the feed, which has a core)."""
    item_sigma: float = 0.0
    """Sigma of the lognormal factor on an item's cost; the mean is kept."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job to simulate."""

    costs: tuple[Costs, ...]
    """Ordered by ``from_s``; the first starts at 0."""
    cores: float = 2.0
    store_streams: float = math.inf
    """Items that may wait at full speed at a time."""
    declared_workers: int = 1
    prefetch_factor: int = 2
    duration_s: float = 60.0
    items: int | None = None
    """Length of the epoch; None: endless."""
    worker_start_s: float = 0.03
    window_s: float = 0.25
    observed_in_next: bool = False
    """The policy is only called while the program asks for a batch, as by a feed without a thread of its own."""
    batch_bytes: int = 0
    worker_bytes: int = 0
    pauses: tuple[tuple[float, float], ...] = ()
    """``(at_s, length_s)``: the program is busy elsewhere (evaluation, checkpoint)."""
    hogs: tuple[tuple[float, float], ...] = ()
    """``(at_s, cpu_s)``: CPU work of others on the machine, one core at most each."""
    reports_stalls: bool = False
    """Observations say how long items waited for a core."""
    seed: int = 0
    start_s: float = 0.0
    """What the clock in the observations shows at the start; later iterations of a loader start later."""

    def __post_init__(self) -> None:
        starts = [cost.from_s for cost in self.costs]
        if not starts or starts[0] != 0.0 or starts != sorted(starts):
            raise ValueError(f"`costs` must be ordered and start at 0.0 s, got starts {starts}")

    def at(self, now_s: float) -> Costs:
        """The costs that hold at a time."""
        return [cost for cost in self.costs if cost.from_s <= now_s][-1]


@dataclass(frozen=True)
class Tick:
    """One call of the policy."""

    now_s: float
    observation: Observation
    decision: Decision


@dataclass(frozen=True)
class Delivery:
    """A batch handed to the program."""

    now_s: float
    seq: int
    worker: int


@dataclass
class Timeline:
    """What happened in a simulation."""

    ticks: list[Tick] = field(default_factory=list[Tick])
    deliveries: list[Delivery] = field(default_factory=list[Delivery])
    produced: list[int] = field(default_factory=list[int])
    peak_held: int = 0
    """Most items that a data worker held at a time."""
    peak_workers: int = 0

    def rate(self, from_s: float, to_s: float) -> float:
        """Batches delivered per second in a stretch of time."""
        return sum(from_s < d.now_s <= to_s for d in self.deliveries) / (to_s - from_s)

    def workers(self, from_s: float, to_s: float) -> list[int]:
        """The numbers of workers decided in a stretch of time."""
        return [t.decision.workers for t in self.ticks if from_s < t.now_s <= to_s]

    def changes(self, from_s: float, to_s: float) -> int:
        """How often the decided number of workers changed."""
        numbers = self.workers(from_s, to_s)
        return sum(a != b for a, b in itertools.pairwise(numbers))


class FixedWorkers:
    """A policy that never changes anything: the measure for what a number of workers can do."""

    def __init__(self, workers: int, depth: int = 2) -> None:
        self._decision = Decision(workers=workers, depth=depth, reason=f"{workers} workers: fixed")

    def start(self, declared_workers: int, prefetch_factor: int) -> Decision:
        """The fixed decision."""
        del declared_workers, prefetch_factor
        return self._decision

    def decide(self, observation: Observation) -> Decision:
        """The fixed decision."""
        del observation
        return self._decision


@dataclass(eq=False)
class _Worker:
    number: int
    started: bool = False
    draining: bool = False
    running: bool = False
    held: int = 0
    idle_since_s: float | None = None


@dataclass
class _Window:
    """Counters since the policy was last called."""

    start_s: float = 0.0
    steps: int = 0
    starved: int = 0
    step_s: float = 0.0
    wait_s: float = 0.0
    handover_s: float = 0.0
    items: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    stall_s: float = 0.0
    idle_s: float = 0.0


def simulate(job: Job, policy: ScalingPolicy) -> Timeline:
    """What happens when ``policy`` drives ``job``."""
    return _Queue(job, policy).run()


class _Queue:
    def __init__(self, job: Job, policy: ScalingPolicy) -> None:
        self._job = job
        self._policy = policy
        self._clock = Clock()
        self._cpu = SharedCapacity(self._clock, job.cores)
        self._store = SharedCapacity(self._clock, job.store_streams)
        self._random = random.Random(job.seed)
        self._pauses = deque(job.pauses)
        self._timeline = Timeline()
        self._workers: list[_Worker] = []
        self._num_started = 0
        self._next_seq = 0
        self._cursor = 0
        self._ready: dict[int, _Worker] = {}
        self._waiting_since_s: float | None = None
        self._step_begun_s: float | None = None
        self._window = _Window()
        self._decision = policy.start(job.declared_workers, job.prefetch_factor)

    def run(self) -> Timeline:
        self._apply(self._decision)
        self._ask()
        for at_s, cpu_s in self._job.hogs:
            self._clock.after(at_s, lambda cpu_s=cpu_s: self._cpu.work(cpu_s, _nothing))
        self._timer()
        self._clock.run(self._job.duration_s)
        return self._timeline

    # Data workers

    def _live(self) -> list[_Worker]:
        return [worker for worker in self._workers if not worker.draining]

    def _apply(self, decision: Decision) -> None:
        self._decision = decision
        live = self._live()
        for _ in range(decision.workers - len(live)):
            worker = _Worker(self._num_started)
            self._num_started += 1
            self._workers.append(worker)
            self._clock.after(self._job.worker_start_s, lambda worker=worker: self._started(worker))
        for worker in live[decision.workers :]:
            self._set_idle(worker, False)
            worker.draining = True
            self._retire(worker)
        self._timeline.peak_workers = max(self._timeline.peak_workers, len(self._live()))
        for worker in self._live():
            self._lease(worker)

    def _started(self, worker: _Worker) -> None:
        worker.started = True
        self._lease(worker)

    def _set_idle(self, worker: _Worker, idle: bool) -> None:
        if worker.idle_since_s is not None:
            self._window.idle_s += self._clock.now_s - max(worker.idle_since_s, self._window.start_s)
        worker.idle_since_s = self._clock.now_s if idle else None

    def _lease(self, worker: _Worker) -> None:
        """Gives a worker its next item, if it may have one; else it is blocked."""
        if not worker.started or worker.draining or worker.running:
            return
        left = self._job.items is None or self._next_seq < self._job.items
        if worker.held >= self._decision.depth or not left:
            self._set_idle(worker, True)
            return
        self._set_idle(worker, False)
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        worker.running = True
        worker.held += 1
        self._timeline.peak_held = max(self._timeline.peak_held, worker.held)
        costs, factor, begin_s = self._job.at(self._clock.now_s), 1.0, self._clock.now_s
        if costs.item_sigma:
            factor = self._random.lognormvariate(-(costs.item_sigma**2) / 2.0, costs.item_sigma)
        cpu_s = factor * costs.item_cpu_s
        self._store.work(factor * costs.item_wait_s, lambda: self._compute(worker, seq, begin_s, cpu_s))

    def _compute(self, worker: _Worker, seq: int, begin_s: float, cpu_s: float) -> None:
        ready_s = self._clock.now_s
        self._cpu.work(cpu_s, lambda: self._produced(worker, seq, begin_s, cpu_s, ready_s))

    def _produced(self, worker: _Worker, seq: int, begin_s: float, cpu_s: float, ready_s: float) -> None:
        worker.running = False
        self._timeline.produced.append(seq)
        self._window.items += 1
        self._window.wall_s += self._clock.now_s - begin_s
        self._window.cpu_s += cpu_s
        self._window.stall_s += max(0.0, self._clock.now_s - ready_s - cpu_s)
        self._ready[seq] = worker
        if self._waiting_since_s is not None and seq == self._cursor:
            self._window.wait_s += self._clock.now_s - max(self._waiting_since_s, self._window.start_s)
            self._window.starved += 1
            self._waiting_since_s = None
            self._deliver()
        self._lease(worker)

    def _retire(self, worker: _Worker) -> None:
        if worker.draining and not worker.running and worker.held == 0:
            self._workers.remove(worker)

    # The training worker

    def _ask(self) -> None:
        if self._pauses and self._pauses[0][0] <= self._clock.now_s:
            self._clock.after(self._pauses.popleft()[1], self._ask)
            return
        if self._step_begun_s is not None:
            self._window.step_s += self._clock.now_s - self._step_begun_s
            self._step_begun_s = None
        if self._job.observed_in_next:
            self._tick_if_due()
        if self._cursor in self._ready:
            self._deliver()
        else:
            self._waiting_since_s = self._clock.now_s

    def _deliver(self) -> None:
        worker = self._ready.pop(self._cursor)
        self._timeline.deliveries.append(Delivery(self._clock.now_s, self._cursor, worker.number))
        self._cursor += 1
        self._window.steps += 1
        worker.held -= 1
        self._lease(worker)
        self._retire(worker)
        costs = self._job.at(self._clock.now_s)
        if costs.handover_s:
            self._window.handover_s += costs.handover_s
            self._clock.after(costs.handover_s, lambda: self._step(costs))
        else:
            self._step(costs)

    def _step(self, costs: Costs) -> None:
        begin_s = self._clock.now_s
        self._clock.after(costs.step_s, lambda: self._cpu.work(costs.step_cpu_s, lambda: self._stepped(begin_s)))

    def _stepped(self, begin_s: float) -> None:
        self._step_begun_s = begin_s
        self._ask()

    # The policy

    def _timer(self) -> None:
        """Looks for a window that is over; exactly at its end where the policy may be called at any time."""
        often = 5 if self._job.observed_in_next else 1
        if self._waiting_since_s is not None or not self._job.observed_in_next:
            self._tick_if_due()
        self._clock.after(self._job.window_s / often, self._timer)

    def _tick_if_due(self) -> None:
        if self._clock.now_s - self._window.start_s >= self._job.window_s - 1e-9:
            self._tick()

    def _tick(self) -> None:
        observation = self._observe()
        decision = self._policy.decide(observation)
        self._timeline.ticks.append(Tick(self._clock.now_s, observation, decision))
        self._window = _Window(start_s=self._clock.now_s)
        self._apply(decision)

    def _observe(self) -> Observation:
        now_s, window, live = self._clock.now_s, self._window, self._live()
        length_s = now_s - window.start_s
        for worker in live:
            self._set_idle(worker, worker.idle_since_s is not None)
        if self._waiting_since_s is not None:
            window.wait_s += now_s - max(self._waiting_since_s, window.start_s)
        steps, items = max(window.steps, 1), max(window.items, 1)
        return Observation(
            now_s=self._job.start_s + now_s,
            workers=sum(worker.started for worker in live),
            depth=self._decision.depth,
            steps=window.steps,
            items=window.items,
            starved_frac=window.starved / steps,
            input_wait_frac=min(1.0, (window.wait_s + window.handover_s) / length_s),
            handover_frac=min(1.0, window.handover_s / length_s),
            blocked_frac=min(1.0, window.idle_s / (length_s * max(len(live), 1))),
            step_s=window.step_s / steps if window.steps else 0.0,
            item_wall_s=window.wall_s / items,
            item_cpu_s=window.cpu_s / items,
            item_stall_s=window.stall_s / items if self._job.reports_stalls else -1.0,
            batch_bytes=self._job.batch_bytes if self._timeline.produced else 0,
            worker_bytes=self._job.worker_bytes,
            waiting=self._waiting_since_s is not None,
        )


def _nothing() -> None:
    """What follows the work of others."""
