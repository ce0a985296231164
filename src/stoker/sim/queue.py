"""One job on a virtual clock: a training process, its data workers and their queue under a scaling policy.

A discrete-event simulation around the live feed's state machine, windows and policy (:mod:`stoker.feed.state`), which
decide what is leased to which worker, and what is delivered. CPU cores, and the streams of a remote store, are shared:
load beyond them slows everything down equally.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.feed.program import WorkItem
from stoker.feed.scaling import Decision, Observation, ScalingPolicy
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.ledger import Ledger
from stoker.feed.state.machine import Machine
from stoker.feed.state.window import Counters, Window
from stoker.sim.resource import Clock, SharedCapacity

_LOOK_S = 0.1
"""How long the feed waits for its workers before it looks at the clock."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Mean costs of steps and items from ``from_s`` on, in seconds."""

    from_s: float = 0.0
    step_s: float
    """Time of a step off the CPU (on the accelerator)."""
    step_cpu_s: float = 0.0
    """CPU time of a step, in the training process."""
    item_cpu_s: float
    item_wait_s: float = 0.0
    """Time that an item waits (for remote reads) before its CPU time."""
    handover_s: float = 0.0
    """Time in ``next`` to hand over a finished batch (CPU time of the feed, which has its own core)."""
    item_sigma: float = 0.0
    """Sigma of the lognormal factor on an item's cost; the mean is kept."""


@dataclass(frozen=True, kw_only=True)
class AwayNode:
    """Another machine."""

    cores: int
    """Each with room for a worker."""
    slowness: float = 1.0
    """Times that an item takes longer there than on the job's own machine."""
    link_batches_per_s: float = math.inf
    """Batches that its link carries, one after another."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job to simulate."""

    costs: tuple[Costs, ...]
    """Ordered by ``from_s``; the first starts at 0."""
    cores: float = 2.0
    nodes: tuple[AwayNode, ...] = ()
    """Other machines, there from ``away_from_s`` to ``away_until_s``."""
    away_from_s: float = 0.0
    away_until_s: float = math.inf
    store_streams: float = math.inf
    """Items that can wait for the store at full speed at once."""
    declared_workers: int = 1
    prefetch_factor: int = 2
    duration_s: float = 60.0
    items: int | None = None
    """Length of the epoch; None: endless."""
    worker_start_s: float = 0.03
    window_s: float = 0.25
    batch_bytes: int = 0
    worker_bytes: int = 0
    pauses: tuple[tuple[float, float], ...] = ()
    """``(at_s, length_s)``: the program is busy elsewhere (evaluation, checkpoint)."""
    hogs: tuple[tuple[float, float], ...] = ()
    """``(at_s, cpu_s)``: CPU work of other processes on the machine, each on at most one core."""
    reports_stalls: bool = False
    """Whether observations include how long items waited for a core."""
    seed: int = 0
    start_s: float = 0.0
    """Start of the clock in observations; later iterations of a loader start later."""

    def __post_init__(self) -> None:
        starts = [cost.from_s for cost in self.costs]
        if not starts or starts[0] != 0.0 or starts != sorted(starts):
            raise ValueError(f"`costs` must be ordered and start at 0.0 s, got starts {starts}")

    def at(self, now_s: float) -> Costs:
        """The costs in force at ``now_s``."""
        return [cost for cost in self.costs if cost.from_s <= now_s][-1]

    def room_at(self, now_s: float) -> int:
        """Workers that other machines take at ``now_s``."""
        return sum(node.cores for node in self.nodes) if self.away_from_s <= now_s < self.away_until_s else 0


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
    """The record of a simulation."""

    ticks: list[Tick] = field(default_factory=list[Tick])
    deliveries: list[Delivery] = field(default_factory=list[Delivery])
    produced: list[int] = field(default_factory=list[int])
    peak_held: int = 0
    """Most leases that one data worker held at once."""
    peak_workers: int = 0

    def rate(self, from_s: float, to_s: float) -> float:
        """Batches delivered per second between two times."""
        return sum(from_s < d.now_s <= to_s for d in self.deliveries) / (to_s - from_s)

    def workers(self, from_s: float, to_s: float) -> list[int]:
        """The numbers of workers chosen between two times."""
        return [t.decision.workers for t in self.ticks if from_s < t.now_s <= to_s]

    def changes(self, from_s: float, to_s: float) -> int:
        """How often the chosen number of workers changed between two times."""
        numbers = self.workers(from_s, to_s)
        return sum(a != b for a, b in itertools.pairwise(numbers))


class FixedWorkers:
    """A policy that never changes anything: the baseline for a given number of workers."""

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


class _Host:
    """A machine: its cores, and the link to it."""

    def __init__(self, clock: Clock, node: AwayNode, cores: float) -> None:
        self.node = node
        self.cpu = SharedCapacity(clock, cores)
        self.num_workers = 0
        self.link_free_s = 0.0
        """When what was sent before has left."""

    @property
    def free_frac(self) -> float:
        """Share of its cores that have no worker."""
        return 1.0 - self.num_workers / max(self.node.cores, 1)

    def sent_s(self, now_s: float, batches: int) -> float:
        """Time until so many batches that are sent now have arrived; 0: what says only that a worker leaves."""
        self.link_free_s = max(now_s, self.link_free_s) + batches / self.node.link_batches_per_s
        return self.link_free_s - now_s


class _Worker:
    """A data worker and its leases, which it serves in order."""

    def __init__(self, number: int, host: _Host) -> None:
        self.number = number
        self.host = host
        self.leases: deque[do.Lease] = deque()
        self.is_started = self.is_running = self.is_leaving = False


@dataclass(frozen=True)
class _Made:
    """The time that a worker spent on a batch."""

    wall_s: float
    cpu_s: float
    stall_s: float


def simulate(job: Job, policy: ScalingPolicy) -> Timeline:
    """Simulates ``job`` under ``policy``."""
    return _Shell(job, policy).run()


class _Shell:
    """Carries out the state machine's instructions on a virtual clock, as the feed does on processes.

    Like the feed it acts only inside the program's calls of ``next``: while the program computes, workers continue
    with their leases, and nothing reads their messages.
    """

    def __init__(self, job: Job, policy: ScalingPolicy) -> None:
        self._job = job
        self._policy = policy
        self._clock = Clock()
        self._here = _Host(self._clock, AwayNode(cores=math.floor(job.cores)), job.cores)
        self._hosts = [_Host(self._clock, node, node.cores) for node in job.nodes]
        self._cpu = self._here.cpu
        self._store = SharedCapacity(self._clock, job.store_streams)
        self._random = random.Random(job.seed)
        self._pauses = deque(job.pauses)
        self._timeline = Timeline()
        self._workers: dict[int, _Worker] = {}
        self._num_started = self._drawn = 0
        self._inbox: deque[tuple[ev.Event, _Made | None]] = deque()
        """Messages from workers that the training process has not read yet."""
        self._machine = Machine(
            decision=policy.start(job.declared_workers, job.prefetch_factor),
            ledger=Ledger(),
            declared=job.declared_workers,
        )
        self._counters = Counters(stalls_known=job.reports_stalls)
        self._window = Window(self._counters, job.start_s, self._machine.idleness)
        self._actions: dict[type[do.Instruction], Callable[[Any], None]] = {
            do.Draw: self._draw,
            do.Spawn: self._spawn,
            do.Lease: self._lease,
            do.Stop: self._stop,
            do.Wait: self._wait,
            do.Deliver: self._deliver,
        }
        """The other instructions concern bytes, slots and processes, which a simulation lacks."""
        self._starved_from_s: float | None = None
        self._step_begun_s: float | None = None

    def run(self) -> Timeline:
        self._tell(ev.Opened())
        self._tell(ev.Wanted())
        self._ask()
        for at_s, cpu_s in self._job.hogs:
            self._clock.after(at_s, lambda cpu_s=cpu_s: self._cpu.work(cpu_s, _nothing))
        self._look()
        self._clock.run(self._job.duration_s)
        return self._timeline

    @property
    def _now_s(self) -> float:
        return self._job.start_s + self._clock.now_s

    # Instructions of the state machine

    def _tell(self, event: ev.Event) -> None:
        self._perform(self._machine.on(event, self._now_s))

    def _perform(self, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            if act := self._actions.get(type(instruction)):
                act(instruction)

    def _draw(self, _: do.Draw) -> None:
        """Draws items until the machine wants no more."""
        more = True
        while more:
            is_left = self._job.items is None or self._drawn < self._job.items
            work = WorkItem(indices=None, start=self._drawn) if is_left else None
            self._drawn += is_left
            out = self._machine.on(ev.Drawn(work, self._drawn, exhausted=not is_left), self._now_s)
            more = bool(out) and type(out[-1]) is do.Draw
            self._perform(out[:-1] if more else out)

    # Data workers

    def _spawn(self, spawn: do.Spawn) -> None:
        host = max(self._hosts, key=lambda host: host.free_frac) if spawn.away else self._here
        host.num_workers += 1
        worker = _Worker(self._num_started, host)
        self._num_started += 1
        self._workers[worker.number] = worker
        self._clock.after(self._job.worker_start_s, lambda: self._started(worker))
        num_active = 1 + len(self._machine.ledger.active())
        self._timeline.peak_workers = max(self._timeline.peak_workers, num_active)
        self._tell(ev.Born(worker.number, spawn.worker_id, away=spawn.away))

    def _started(self, worker: _Worker) -> None:
        worker.is_started = True
        self._go_on(worker)

    def _lease(self, lease: do.Lease) -> None:
        worker = self._workers[lease.worker]
        worker.leases.append(lease)
        self._timeline.peak_held = max(self._timeline.peak_held, len(worker.leases))
        self._go_on(worker)

    def _stop(self, stop: do.Stop) -> None:
        worker = self._workers[stop.worker]
        worker.is_leaving = True
        self._go_on(worker)

    def _go_on(self, worker: _Worker) -> None:
        """Starts an idle worker's next item; if there is none, a worker that is stopping leaves."""
        if not worker.is_started or worker.is_running:
            return
        if worker.leases:
            worker.is_running = True
            self._make(worker)
        elif worker.is_leaving and self._workers.pop(worker.number, None) is not None:
            worker.host.num_workers -= 1
            self._say(worker, ev.Departed((ev.Loss(worker.number, expected=True, left=True),)))

    def _make(self, worker: _Worker) -> None:
        costs, factor, begin_s = self._job.at(self._clock.now_s), 1.0, self._clock.now_s
        if costs.item_sigma:
            factor = self._random.lognormvariate(-(costs.item_sigma**2) / 2.0, costs.item_sigma)
        factor *= worker.host.node.slowness
        cpu_s = factor * costs.item_cpu_s
        self._store.work(factor * costs.item_wait_s, lambda: self._compute(worker, begin_s, cpu_s))

    def _compute(self, worker: _Worker, begin_s: float, cpu_s: float) -> None:
        ready_s = self._clock.now_s
        worker.host.cpu.work(cpu_s, lambda: self._produced(worker, begin_s, cpu_s, ready_s))

    def _produced(self, worker: _Worker, begin_s: float, cpu_s: float, ready_s: float) -> None:
        worker.is_running = False
        lease = worker.leases.popleft()
        self._timeline.produced.append(lease.seq)
        made = _Made(self._clock.now_s - begin_s, cpu_s, max(0.0, self._clock.now_s - ready_s - cpu_s))
        self._say(worker, ev.Arrived(worker.number, lease.generation, self._now_s), made)
        self._go_on(worker)

    def _say(self, worker: _Worker, event: ev.Event, made: _Made | None = None) -> None:
        """Sends a worker's event, over the link if there is one."""
        if worker.host is self._here:
            self._send(event, made)
        else:
            sent_s = worker.host.sent_s(self._clock.now_s, int(made is not None))
            self._clock.after(sent_s, lambda: self._arrive(event, made))

    def _arrive(self, event: ev.Event, made: _Made | None) -> None:
        if isinstance(event, ev.Arrived):
            event.stamp_s = self._now_s
        self._send(event, made)

    def _send(self, event: ev.Event, made: _Made | None = None) -> None:
        """Sends a worker's event to the training process, which reads it while the program waits."""
        self._inbox.append((event, made))
        if len(self._inbox) == 1:
            self._clock.after(0.0, self._wake)

    # The training process

    def _wake(self) -> None:
        if self._starved_from_s is not None:
            self._pump()
            self._tick_if_due()
            self._tell(ev.Asked())

    def _pump(self) -> None:
        """Handles the messages of workers."""
        counters, inbox = self._counters, self._inbox
        while inbox:
            event, made = inbox.popleft()
            if made is not None:
                counters.items += 1
                counters.worker_busy_s += made.wall_s
                counters.worker_cpu_s += made.cpu_s
                counters.worker_stall_s += made.stall_s
            self._tell(event)
        self._tell(ev.Polled())

    def _ask(self) -> None:
        if self._pauses and self._pauses[0][0] <= self._clock.now_s:
            self._clock.after(self._pauses.popleft()[1], self._ask)
            return
        if self._step_begun_s is not None:
            self._counters.step_s += self._clock.now_s - self._step_begun_s
            self._step_begun_s = None
        self._counters.asked_s = self._now_s
        self._pump()
        self._tick_if_due()
        self._tell(ev.Asked())

    def _deliver(self, deliver: do.Deliver) -> None:
        item = deliver.item
        self._book_starved()
        self._starved_from_s = None
        self._timeline.deliveries.append(Delivery(self._clock.now_s, item.seq, item.maker))
        self._counters.batches += 1
        costs = self._job.at(self._clock.now_s)
        self._clock.after(costs.handover_s, lambda: self._step(costs))

    def _wait(self, _: do.Wait) -> None:
        if self._starved_from_s is None:
            self._starved_from_s = self._now_s
            self._counters.starved_steps += 1

    def _book_starved(self) -> None:
        if self._starved_from_s is not None:
            before, self._starved_from_s = self._starved_from_s, self._now_s
            self._counters.starved_s += self._now_s - before

    def _step(self, costs: Costs) -> None:
        begin_s, counters = self._clock.now_s, self._counters
        counters.input_wait_s, counters.asked_s = counters.waited_s(self._now_s), None
        self._clock.after(costs.step_s, lambda: self._cpu.work(costs.step_cpu_s, lambda: self._stepped(begin_s)))

    def _stepped(self, begin_s: float) -> None:
        self._step_begun_s = begin_s
        self._ask()

    # The policy

    def _look(self) -> None:
        """Closes due windows periodically while the training process waits, even if nothing arrives."""
        if self._starved_from_s is not None:
            self._tell(ev.Polled())
            self._tick_if_due()
        self._clock.after(_LOOK_S, self._look)

    def _tick_if_due(self) -> None:
        if self._window.span_s(self._now_s) >= self._job.window_s - 1e-9:
            self._tick()

    def _tick(self) -> None:
        self._book_starved()
        job = self._job
        observation = self._window.close(
            self._now_s,
            workers=len(self._machine.ledger.active()),
            away=sum(worker.away for worker in self._machine.ledger.active()),
            away_room=job.room_at(self._clock.now_s),
            depth=self._machine.decision.depth,
            batch_bytes=job.batch_bytes if self._timeline.produced else 0,
            waiting=self._starved_from_s is not None,
        )
        observation = replace(observation, worker_bytes=job.worker_bytes)
        decision = self._policy.decide(observation)
        self._timeline.ticks.append(Tick(self._clock.now_s, observation, decision))
        self._tell(ev.Decided(decision))
        self._tell(ev.Wanted())


def _nothing() -> None:
    """Follows the work of other processes, for which nothing waits."""
