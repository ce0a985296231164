"""Detects data workers that no longer work: stopped ones, and ones that have been silent for too long.

The heartbeat is read from the kernel (process state and CPU time) and from the board, not sent by the worker: a
heartbeat thread would fall silent whenever user code holds the interpreter lock in a long call, and would keep beating
while the main thread hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

from stoker.feed.shell.crew import Crew, WorkerHandle
from stoker.feed.shell.processes import cpu_seconds, process_state

INTERVAL_S = 0.5
STOPPED_GRACE_S = 1.0
"""A stopped worker that is not continued within this time is killed."""
_UNSEEN_S = 2.0
"""After so long without a look, a worker's silence means nothing."""


@dataclass(slots=True)
class _Pulse:
    at_s: float
    cpu_s: float
    seq: int
    position: int
    stopped_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A worker to be killed and replaced."""

    member: WorkerHandle
    cause: str
    is_stopped: bool


class Watch:
    """Looks at the workers that hold leases, twice a second.

    Args:
        stall_timeout_s: how long a worker may stay on one sample without using the CPU.
        first_s: time of the first look; at the start of an iteration the program is waiting, and a look takes 0.2 ms.
    """

    def __init__(self, stall_timeout_s: float, first_s: float = 0.0) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._pulses: dict[int, _Pulse] = {}
        self.next_s = first_s
        """Time of the next look."""
        self._stopped_s: dict[int, float] = {}
        """Since when helpers have been stopped, by process id."""

    def look(self, crew: Crew, now_s: float, holding: set[int]) -> list[Suspect]:
        """Workers among ``holding`` (numbers) that must be replaced; kills stopped helpers that are in the way."""
        if now_s < self.next_s:
            return []
        if now_s > self.next_s + _UNSEEN_S:
            self._pulses.clear()  # nobody looked: all processes may have been stopped together (Ctrl-Z) and continued
        self.next_s = now_s + INTERVAL_S
        self._check_helpers(crew, now_s)
        suspects: list[Suspect] = []
        for number, member in crew.members.items():
            if member.gone or member.killed_for or not member.pid or number not in holding:
                self._pulses.pop(number, None)
                continue
            suspect = self._check(crew, member, now_s)
            if suspect is not None:
                suspects.append(suspect)
        for number in set(self._pulses) - set(crew.members):
            del self._pulses[number]
        return suspects

    def _check_helpers(self, crew: Crew, now_s: float) -> None:
        """Kills a stopped process that others wait for; its end is then handled as any other."""
        stopped = [pid for pid in crew.awaited_helpers() if process_state(pid) in ("T", "t")]
        self._stopped_s = {pid: self._stopped_s.get(pid, now_s) for pid in stopped}
        for pid, since_s in self._stopped_s.items():
            if now_s - since_s >= STOPPED_GRACE_S:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _check(self, crew: Crew, member: WorkerHandle, now_s: float) -> Suspect | None:
        number = member.identity.number
        where = crew.whereabouts(member)
        cpu_s = cpu_seconds(member.pid)
        pulse = self._pulses.get(number)
        if pulse is None or (where.seq, where.position) != (pulse.seq, pulse.position) or cpu_s > pulse.cpu_s:
            stopped = pulse.stopped_since_s if pulse is not None else None
            pulse = self._pulses[number] = _Pulse(now_s, cpu_s, where.seq, where.position, stopped)
        if process_state(member.pid) in ("T", "t"):
            pulse.stopped_since_s = pulse.stopped_since_s or now_s
            if now_s - pulse.stopped_since_s >= STOPPED_GRACE_S:
                return Suspect(member, "stopped (SIGSTOP) and not continued", is_stopped=True)
            return None
        pulse.stopped_since_s = None
        silent_s = now_s - pulse.at_s
        if silent_s >= self._stall_timeout_s:
            return Suspect(member, f"silent for {silent_s:.0f} s on one sample, using no CPU", is_stopped=False)
        return None
