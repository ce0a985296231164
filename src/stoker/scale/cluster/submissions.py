"""Submitted jobs of a live cluster: which wait, which have their GPUs, which are ended for others.

Pure state around :class:`stoker.scale.cluster.gangs.GangQueue`; what is to be done comes out as :class:`Start` and
:class:`Stop`. The queue knows the GPUs that a gang should have; a preempted gang keeps them until its processes have
ended, and only then is the next one started. Times are those of the wall, since records outlive the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from stoker.scale.cluster.gangs import Discipline, Gang, GangConfig, GangQueue
from stoker.scale.cluster.rooms import Need, Rooms, Seat
from stoker.scale.cluster.state import ClusterNode

SubmittedState = Literal["waiting", "starting", "running", "stopping", "done", "failed", "cancelled"]
PATIENCE_S = 3600.0
"""Backfill may not keep the first of the queue waiting for longer than that."""
KEPT = 1000
"""Ended jobs that are remembered."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What a user asks for."""

    gpus: int
    cpus: float = 0.0
    """CPUs of the training workers, all together."""
    user: str = ""
    priority: int = 0
    resumable: bool = False
    """It continues from its checkpoint after SIGTERM: it may be preempted."""
    duration_s: float | None = None
    """Time that it takes at full speed, if the user knows."""
    command: tuple[str, ...] = ()
    """For the display."""


@dataclass(frozen=True, kw_only=True)
class NodeSeat:
    """GPUs and CPUs of a named node."""

    node: str
    gpus: int
    cpus: float


@dataclass(kw_only=True)
class Attempt:
    """Processes of a job, from the word to start them to their end."""

    number: int
    seats: tuple[NodeSeat, ...]
    begun_s: float | None = None
    """When the program began; None as long as it is being started."""
    stop_s: float | None = None
    """When it was asked to end."""


@dataclass(kw_only=True)
class SubmittedJob:
    """A job and what became of it."""

    number: int
    asked: Submission
    arrived_s: float
    attained_s: float = 0.0
    """Time for which it had its GPUs in attempts that are over."""
    attempts: int = 0
    seats: tuple[NodeSeat, ...] = ()
    """Seats that the queue gave it."""
    alive: Attempt | None = None
    cancelled: bool = False
    ended_s: float | None = None
    first_s: float | None = None
    """When it began first."""
    state: SubmittedState = "waiting"
    reason: str = ""
    """Why it waits, or how it ended."""


@dataclass(frozen=True)
class Start:
    """An attempt is to be started."""

    job: int
    attempt: int
    seats: tuple[NodeSeat, ...]


@dataclass(frozen=True)
class Stop:
    """An attempt is to be ended: by SIGTERM, and killed where that does not help."""

    job: int
    attempt: int


class Submissions:
    """The queue of submitted jobs, live.

    Args:
        config: the discipline.
        jobs: what an earlier one knew.
    """

    def __init__(self, config: GangConfig | None = None, jobs: Iterable[SubmittedJob] = ()) -> None:
        self.config = config or GangConfig(patience_s=PATIENCE_S)
        self._jobs = {job.number: job for job in jobs}
        self._nodes: dict[str, ClusterNode] = {}
        self._names: list[str] = []
        self._queue = GangQueue(Rooms([], []), self.config)
        self._queued: set[int] = set()
        """Jobs that the queue knows as waiting."""
        self._seated: set[int] = set()
        """Jobs that the queue knows as having their GPUs."""

    def set_nodes(self, nodes: Iterable[ClusterNode], now_s: float) -> None:
        """Takes in the nodes that the cluster has now; ``cpus`` are all of them."""
        found = {node.name: node for node in nodes}
        if found == self._nodes:
            return
        self._nodes = found
        open_nodes = [node for node in found.values() if not node.draining]
        self._names = [node.name for node in open_nodes]
        rooms = Rooms([node.gpus for node in open_nodes], [float(node.cpus) for node in open_nodes])
        self._queue = GangQueue(rooms, self.config)
        self._queued, self._seated = set(), set()
        numbers = {name: number for number, name in enumerate(self._names)}
        for job in self._open():
            if job.asked.resumable and any(found[seat.node].draining for seat in job.seats if seat.node in found):
                job.seats = ()
            if job.seats:
                own = [seat for seat in job.seats if seat.node in numbers]
                self._queue.adopt(self._gang(job), [Seat(numbers[s.node], s.gpus, s.cpus) for s in own])
                self._seated.add(job.number)
        for job in self._open():
            if not job.seats:
                self._push(job, now_s)

    def choose(self, discipline: Discipline, now_s: float) -> None:
        """Changes the order of an empty queue.

        Raises:
            ValueError: there are jobs, in another order.
        """
        if discipline == self.config.discipline:
            return
        if self._open():
            raise ValueError(f"jobs are queued by {self.config.discipline}")
        self.config = replace(self.config, discipline=discipline)
        nodes, self._nodes = self._nodes, {}
        self.set_nodes(nodes.values(), now_s)

    def submit(self, asked: Submission, now_s: float) -> int:
        """Adds a job; returns its number.

        Raises:
            ValueError: it can never start; the message says what lacks.
        """
        if lacks := self._queue.refused(Need(asked.gpus, asked.cpus)):
            raise ValueError(lacks)
        number = max(self._jobs, default=0) + 1
        job = self._jobs[number] = SubmittedJob(number=number, asked=asked, arrived_s=now_s)
        self._push(job, now_s)
        self._forget()
        return number

    def cancel(self, number: int, now_s: float) -> SubmittedJob:
        """Ends a job, or takes it from the queue; one that has ended stays as it is.

        Raises:
            KeyError: there is none.
        """
        job = self._jobs[number]
        if job.ended_s is None:
            job.cancelled = True
            self._unqueue(job)
            if job.alive is None:
                self._end(job, "cancelled", "cancelled before it began", now_s)
        return job

    def begun(self, number: int, attempt: int, now_s: float) -> None:
        """The program of an attempt began."""
        job = self._jobs.get(number)
        if job is not None and job.alive is not None and job.alive.number == attempt:
            job.alive.begun_s = now_s
            job.first_s = now_s if job.first_s is None else job.first_s

    def ended(self, number: int, attempt: int, status: int | None, reason: str, now_s: float) -> None:
        """All processes of an attempt have ended.

        Args:
            number: of the job.
            attempt: its number.
            status: exit status of the program; None where its node or its supervisor was lost.
            reason: in words.
            now_s: the time.
        """
        job = self._jobs.get(number)
        if job is None or job.alive is None or job.alive.number != attempt:
            return
        if job.alive.begun_s is not None:
            job.attained_s += now_s - job.alive.begun_s
        preempted = job.alive.stop_s is not None and not job.cancelled
        job.alive = None
        if job.cancelled:
            self._end(job, "cancelled", "cancelled", now_s)
        elif preempted:
            job.reason = "preempted"
        elif status is None and job.asked.resumable:
            self._unqueue(job)
            self._push(job, now_s)
        else:
            self._unqueue(job)
            self._end(job, "done" if status == 0 else "failed", reason, now_s)

    def step(self, now_s: float) -> list[Start | Stop]:
        """What is to be done now."""
        actions: list[Start | Stop] = []
        for started in self._queue.start(now_s, lambda gang: self._gang(self._jobs[gang.name], now_s)):
            for gang in started.preempted:
                self._seated.discard(gang.name)
                self._queued.add(gang.name)
                self._jobs[gang.name].seats = ()
            self._queued.discard(started.gang.name)
            self._seated.add(started.gang.name)
            self._jobs[started.gang.name].seats = tuple(
                NodeSeat(node=self._names[seat.node], gpus=seat.gpus, cpus=seat.cpus) for seat in started.seats
            )
        for job in self._open():
            if job.alive is not None and job.alive.stop_s is None and (job.cancelled or job.seats != job.alive.seats):
                job.alive.stop_s = now_s
                actions.append(Stop(job.number, job.alive.number))
        for job in self._open():
            if job.seats and job.alive is None and not self._occupied(job.seats):
                job.attempts += 1
                job.alive = Attempt(number=job.attempts, seats=job.seats)
                actions.append(Start(job.number, job.attempts, job.seats))
        return actions

    def jobs(self, now_s: float) -> list[SubmittedJob]:
        """All jobs with their states, copies."""
        return [
            replace(job, state=self._state(job), reason=self._reason(job), attained_s=self._attained(job, now_s))
            for job in self._jobs.values()
        ]

    def job(self, number: int) -> SubmittedJob | None:
        """A job as it is kept."""
        return self._jobs.get(number)

    def alive(self) -> list[tuple[int, Attempt]]:
        """Attempts that should have processes."""
        return [(job.number, job.alive) for job in self._jobs.values() if job.alive is not None]

    def held_cpus(self) -> Mapping[str, float]:
        """CPUs of each node that training workers have, or wait for."""
        held: dict[str, float] = {}
        for job in self._open():
            for seat in {*job.seats, *(job.alive.seats if job.alive else ())}:
                held[seat.node] = held.get(seat.node, 0.0) + seat.cpus
        return held

    def _open(self) -> list[SubmittedJob]:
        return [job for job in self._jobs.values() if job.ended_s is None and not (job.cancelled and not job.alive)]

    def _occupied(self, seats: Iterable[NodeSeat]) -> bool:
        """Whether an attempt that is to end is still on one of the nodes."""
        nodes = {seat.node for seat in seats}
        return any(
            attempt.stop_s is not None and any(seat.node in nodes for seat in attempt.seats)
            for _, attempt in self.alive()
        )

    def _push(self, job: SubmittedJob, now_s: float) -> None:
        """Puts a job into the queue; where its node has left, it waits outside until there is one again."""
        need = Need(job.asked.gpus, job.asked.cpus)
        if not self._queue.refused(need):
            self._queue.push(self._gang(job, now_s), now_s)
            self._queued.add(job.number)

    def _unqueue(self, job: SubmittedJob) -> None:
        """Takes a job, and what it holds, from the queue."""
        if job.number in self._seated:
            self._queue.ended(job.number)
            self._seated.discard(job.number)
        if job.number in self._queued:
            self._queue.withdraw(job.number)
            self._queued.discard(job.number)
        job.seats = ()

    def _end(self, job: SubmittedJob, state: SubmittedState, reason: str, now_s: float) -> None:
        job.ended_s, job.state, job.reason = now_s, state, reason

    def _gang(self, job: SubmittedJob, now_s: float = math.nan) -> Gang:
        attained_s = self._attained(job, now_s)
        duration_s = job.asked.duration_s
        return Gang(
            name=job.number, need=Need(job.asked.gpus, job.asked.cpus), arrived_s=job.arrived_s, attained_s=attained_s,
            left_s=math.inf if duration_s is None else max(0.0, duration_s - attained_s),
            priority=job.asked.priority, resumable=job.asked.resumable and not job.cancelled,
        )  # fmt: skip

    def _attained(self, job: SubmittedJob, now_s: float) -> float:
        began_s = job.alive.begun_s if job.alive is not None else None
        return job.attained_s + (0.0 if began_s is None or math.isnan(now_s) else now_s - began_s)

    def _state(self, job: SubmittedJob) -> SubmittedState:
        if job.ended_s is not None:
            return job.state
        if job.alive is not None:
            if job.alive.stop_s is not None or job.cancelled:
                return "stopping"
            return "starting" if job.alive.begun_s is None else "running"
        return "starting" if job.seats else "waiting"

    def _reason(self, job: SubmittedJob) -> str:
        if job.ended_s is not None:
            return job.reason
        if job.alive is not None and (job.alive.stop_s is not None or job.cancelled):
            return "cancelled" if job.cancelled else "preempted"
        if job.seats or job.alive:
            return ""
        need = Need(job.asked.gpus, job.asked.cpus)
        return self._queue.refused(need) or self._queue.cause(need)

    def _forget(self) -> None:
        over = [number for number, job in self._jobs.items() if job.ended_s is not None]
        for number in over[: max(0, len(over) - KEPT)]:
            del self._jobs[number]
