"""Who works for an engine: starts and drains workers, counts the leases that each one holds.

Keeps the window's account of idle workers, since a worker is idle exactly while it holds no lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stoker.core.errors import WorkerStartError
from stoker.feed.crew import Crew, Member
from stoker.feed.program import Program
from stoker.feed.window import Window


class Roster:
    """The workers of one engine.

    Args:
        crew: the processes.
        program: says how many workers are declared.
        window: told when a worker begins or ceases to be idle.
        pinned: one worker for each declared id, never more or fewer.
        started: called with each new worker, before it gets its first lease.
    """

    def __init__(
        self, crew: Crew, program: Program, window: Window, *, pinned: bool, started: Callable[[Member], None]
    ) -> None:
        self.crew = crew
        self._program = program
        self._window = window
        self._pinned = pinned
        self._started = started
        self._held: dict[int, int] = {}
        for member in crew.active():
            self._welcome(member)

    def staff(self, workers: int) -> None:
        """Starts or drains workers until there are ``workers`` (elastic) or one for each declared id (pinned).

        Raises:
            WorkerStartError: a pinned worker, or any at all, can't be started.
        """
        for worker_id in self._missing(workers):
            member = self.crew.spawn(worker_id)
            if member is None:
                if self.crew.refusal and (self._pinned or not self.crew.active()):
                    raise WorkerStartError(f"no data worker could be started: {self.crew.refusal}")
                return
            self._welcome(member)
            self._started(member)
        surplus = len(self.crew.active()) - workers
        if surplus > 0 and not self._pinned:
            for member in sorted(self.crew.active(), key=self.held)[:surplus]:
                self.dismiss(member)

    def _missing(self, workers: int) -> list[int]:
        """Ids that ``get_worker_info`` will say in the workers to be started."""
        declared = max(self._program.declared_workers, 1)
        present = [member.identity.worker_id for member in self.crew.active()]
        if self._pinned:
            return [worker_id for worker_id in range(declared) if worker_id not in present]
        missing: list[int] = []
        for _ in range(workers - len(present)):
            taken = present + missing
            missing.append(min(range(declared), key=taken.count))
        return missing

    def pin(self) -> None:
        """From here on there is one worker for each declared id."""
        self._pinned = True

    def replace_crew(self, crew: Crew) -> None:
        """Goes on with other processes; all leases are gone."""
        self.crew = crew
        self._held.clear()

    def _welcome(self, member: Member) -> None:
        self._held[member.identity.number] = 0
        self._window.idle(member.identity.number, time.monotonic())

    def dismiss(self, member: Member) -> None:
        """Has a worker finish its leases and leave."""
        self._window.busy(member.identity.number, time.monotonic())
        self.crew.stop(member)

    def remove(self, number: int) -> None:
        """A worker is gone."""
        self._window.busy(number, time.monotonic())
        self._held.pop(number, None)

    def held(self, member: Member) -> int:
        """Leases that a worker has not fulfilled."""
        return self._held.get(member.identity.number, 0)

    def holding(self) -> set[int]:
        """Numbers of the workers that have leases."""
        return {number for number, leases in self._held.items() if leases}

    def lacking(self, depth: int) -> list[Member]:
        """Workers that hold fewer than ``depth`` leases."""
        return [member for member in self.crew.active() if self.held(member) < depth]

    def add_lease(self, member: Member) -> None:
        """A lease was given."""
        number = member.identity.number
        if self.held(member) == 0:
            self._window.busy(number, time.monotonic())
        self._held[number] = self.held(member) + 1

    def return_lease(self, number: int, stamp_s: float) -> None:
        """A lease was fulfilled (or given back) at ``stamp_s``."""
        if number not in self._held:
            return
        self._held[number] = max(0, self._held[number] - 1)
        member = self.crew.members.get(number)
        if self._held[number] == 0 and member is not None and not (member.draining or member.gone):
            self._window.idle(number, stamp_s)
