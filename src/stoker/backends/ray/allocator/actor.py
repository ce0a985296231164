"""The actor: pure state of :mod:`stoker.scale.cluster` behind a lock, and a thread that carries out what it decides.

Detached and named, so that any process of the cluster finds it; Ray starts it again when its process or node dies. Then
jobs report what they hold, gangs are found again by their names, and the queue is read from the store.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace

from stoker.backends.ray.allocator.gangs import RayGang
from stoker.backends.ray.allocator.launch import JobRecord, LogPlace, SubmittedProgram, log_path
from stoker.backends.ray.allocator.settings import AllocatorConfig
from stoker.backends.ray.allocator.store import JobStore
from stoker.backends.ray.observing import SeenNode, load_controls, observe_nodes, save_controls
from stoker.scale.cluster import ClusterNode, GrantLedger, GrantOrder, JobReport
from stoker.scale.cluster.controls import ClusterControls, ControlChange
from stoker.scale.cluster.gangs import Discipline
from stoker.scale.cluster.submissions import Start, Stop, Submission, Submissions

_STEP_S = 0.1
_NODES_S = 1.0


class Allocator:
    """Grants CPUs to jobs that report, and runs submitted jobs.

    Args:
        config: see there.
        namespace: of the names of runners.
    """

    def __init__(self, config: AllocatorConfig, namespace: str) -> None:
        self._config, self._namespace = config, namespace
        self._lock = threading.Lock()
        self._store = JobStore(namespace)
        records = {record.job.number: record for record in self._store.load()}
        self._programs = {number: record.program for number, record in records.items()}
        self._logs = {number: record.logs for number, record in records.items()}
        gangs = replace(config.gangs, discipline=self._store.discipline() or config.gangs.discipline)
        self._submissions = Submissions(gangs, [record.job for record in records.values()])
        settle_s = 0.0 if self._store.is_first() else config.ledger.lease_s
        self._controls = load_controls(namespace)
        self._ledger = GrantLedger(self._controls.applied(config.ledger), settle_until_s=time.monotonic() + settle_s)
        self._gangs: dict[tuple[int, int], RayGang] = {}
        self._nodes: dict[str, SeenNode] = {}
        self._looked_s = -math.inf
        self._look()
        for number, attempt in self._submissions.alive():
            self._launch(Start(number, attempt.number, attempt.seats))
            if attempt.stop_s is not None:
                self._gangs[number, attempt.number].stop(config.exit_s)
        threading.Thread(target=self._run, name="allocator", daemon=True).start()

    # Jobs' brokers

    def report(self, report: JobReport) -> tuple[tuple[GrantOrder, ...], int, float | None]:
        """Orders, CPUs that would help and that no node has, and the grace that people chose, if they did.

        See :meth:`GrantLedger.report`.
        """
        with self._lock:
            orders = self._ledger.report(report, time.monotonic())
            return orders, self._ledger.unmet(report.job), self._controls.grace_s

    def leave(self, job: str) -> None:
        """See :meth:`GrantLedger.leave`."""
        with self._lock:
            self._ledger.leave(job)

    # People

    def discipline(self) -> Discipline:
        """The order of the queue."""
        return self._submissions.config.discipline

    def choose(self, discipline: Discipline) -> None:
        """Changes the order of an empty queue. Raises ``ValueError`` where there are jobs."""
        with self._lock:
            self._submissions.choose(discipline, time.time())
            self._store.choose(discipline)

    def control(self, change: ControlChange) -> ClusterControls:
        """Changes by what CPUs are divided; returns what holds then. Raises ``ValueError`` for an invalid value."""
        with self._lock:
            self._controls = change.of(self._controls)
            save_controls(self._namespace, self._controls)
            self._ledger.configure(self._controls.applied(self._config.ledger))
            return self._controls

    def submit(self, asked: Submission, program: SubmittedProgram) -> int:
        """Adds a job to the queue; returns its number, also where its answer was lost and it is called again.

        Raises:
            ValueError: it can never start; the message says what lacks.
        """
        with self._lock:
            for number, known in self._programs.items():
                if known.log_folder == program.log_folder:
                    return number
            self._look()
            number = self._submissions.submit(asked, time.time())
            self._programs[number], self._logs[number] = program, []
            self._save()
            return number

    def cancel(self, number: int) -> str:
        """Ends a job; returns its state. Raises ``KeyError`` for an unknown one."""
        with self._lock:
            self._submissions.cancel(number, time.time())
            self._save()
            return self._record(number).job.state

    def records(self) -> list[JobRecord]:
        """All jobs, without their environments."""
        with self._lock:
            found = [self._record(number) for number in self._programs]
        return [_without_environment(record) for record in found]

    def record(self, number: int) -> JobRecord | None:
        """One of them."""
        return next((record for record in self.records() if record.job.number == number), None)

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def nodes(self) -> Mapping[str, SeenNode]:
        """The nodes by their ids, which grants name them by."""
        return self._nodes

    def grants(self) -> dict[str, tuple[JobReport, tuple[GrantOrder, ...]]]:
        """Reports and grants by job."""
        with self._lock:
            return self._ledger.jobs(time.monotonic())

    # What is carried out

    def _run(self) -> None:
        while True:
            try:
                with self._lock:
                    self._step()
            except Exception:
                # The next step may succeed; what is decided is not lost.
                traceback.print_exc(file=sys.stderr)
            time.sleep(_STEP_S)

    def _step(self) -> None:
        self._look()
        self._ledger.advance(time.monotonic())
        for (number, attempt), gang in list(self._gangs.items()):
            ended = gang.poll()
            job = self._submissions.job(number)
            if gang.begun and job is not None and job.alive is not None and job.alive.begun_s is None:
                self._submissions.begun(number, attempt, time.time())
            if ended is not None:
                gang.clear()
                del self._gangs[number, attempt]
                self._submissions.ended(number, attempt, *ended, time.time())
        actions = self._submissions.step(time.time())
        for action in actions:
            if isinstance(action, Start):
                program = self._programs[action.job]
                places = [
                    LogPlace(node=seat.node, path=log_path(program, action.attempt, rank))
                    for rank, seat in enumerate(action.seats)
                ]
                self._logs[action.job] = [*self._logs[action.job], *places]
        # Records first: who comes after us makes what they name, or finds it.
        self._save()
        for action in actions:
            if isinstance(action, Start):
                self._launch(action)
            else:
                self._stop(action)

    def _launch(self, start: Start) -> None:
        program = self._programs[start.job]
        self._gangs[start.job, start.attempt] = RayGang(start.job, start.attempt, start.seats, program, self._namespace)

    def _stop(self, stop: Stop) -> None:
        gang = self._gangs.get((stop.job, stop.attempt))
        if gang is not None:
            gang.stop(self._config.exit_s)

    def _look(self) -> None:
        """Takes in the nodes that the cluster has."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _NODES_S:
            return
        self._looked_s = now_s
        self._nodes = {node.node_id: node for node in observe_nodes()}
        nodes = [
            ClusterNode(name=name, cpus=node.cpus, gpus=node.gpus, draining=node.is_draining)
            for name, node in self._nodes.items()
        ]
        self._submissions.set_nodes(nodes, time.time())
        held = self._submissions.held_cpus()
        self._ledger.set_nodes(
            replace(node, cpus=max(0, node.cpus - math.ceil(held.get(node.name, 0.0)))) for node in nodes
        )

    def _record(self, number: int) -> JobRecord:
        job = next(job for job in self._submissions.jobs(time.time()) if job.number == number)
        return JobRecord(job=job, program=self._programs[number], logs=self._logs[number])

    def _save(self) -> None:
        """Writes what changed, as it is kept, without what depends on the time."""
        for number in list(self._programs):
            job = self._submissions.job(number)
            if job is None:
                self._store.forget(number)
                del self._programs[number], self._logs[number]
            else:
                self._store.save(JobRecord(job=job, program=self._programs[number], logs=self._logs[number]))


def _without_environment(record: JobRecord) -> JobRecord:
    program = record.program
    return JobRecord(
        job=record.job,
        logs=record.logs,
        program=SubmittedProgram(
            python=program.python,
            words=program.words,
            folder=program.folder,
            environ={},
            log_folder=program.log_folder,
            user=program.user,
            priority=program.priority,
        ),
    )
