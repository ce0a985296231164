"""What people's commands say to the allocator: submit, list, cancel, and read logs wherever they lie.

For a process that has joined the cluster.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stoker.backends.ray.allocator.client import find_or_start
from stoker.backends.ray.allocator.launch import JobRecord, LogPlace, SubmittedProgram
from stoker.backends.ray.allocator.runner import read_log
from stoker.backends.ray.observing import SeenNode
from stoker.core.errors import ClusterStartError, ConfigError
from stoker.scale.cluster.controls import ClusterControls, ControlChange
from stoker.scale.cluster.gangs import Discipline
from stoker.scale.cluster.submissions import Submission

_START_S = 60.0
_LOG_S = 30.0
_RETRY_S = 0.2


class Jobs:
    """The queue of the cluster that this process has joined; all raise :class:`ClusterStartError` without an answer."""

    def __init__(self) -> None:
        self._allocator: Any = find_or_start()

    def discipline(self) -> Discipline:
        """The order of the queue."""
        return self._ask("discipline")

    def control(self, change: ControlChange) -> ClusterControls:
        """Changes by what CPUs are divided; one that names nothing asks. Returns what holds then."""
        return self._ask("control", change)

    def submit(self, asked: Submission, program: SubmittedProgram, discipline: Discipline | None = None) -> int:
        """Adds a job; returns its number.

        Args:
            asked: what it takes.
            program: what it runs.
            discipline: of the queue; None for that which it has.

        Raises:
            ConfigError: it can never start, or there are jobs by another discipline.
        """
        try:
            if discipline is not None:
                self._ask("choose", discipline)
        except ValueError as error:
            raise ConfigError(
                f"`--policy` must be that of the queue as long as there are jobs, got {discipline}: {error}; leave it "
                "out, or wait for these: stoker queue"
            ) from None
        try:
            return self._ask("submit", asked, program)
        except ValueError as error:
            raise ConfigError(
                f"`--gpus` and `--cpus` must fit the cluster: {error}; `stoker cluster status` shows its nodes"
            ) from None

    def cancel(self, number: int) -> str:
        """Ends a job; returns its state.

        Raises:
            ConfigError: there is none.
        """
        try:
            return self._ask("cancel", number)
        except KeyError:
            raise _unknown(number) from None

    def records(self) -> list[JobRecord]:
        """All jobs."""
        return self._ask("records")

    def record(self, number: int) -> JobRecord:
        """One of them.

        Raises:
            ConfigError: there is none.
        """
        found = self._ask("record", number)
        if found is None:
            raise _unknown(number)
        return found

    def nodes(self) -> Mapping[str, SeenNode]:
        """Nodes by their ids."""
        return self._ask("nodes")

    def read_log(self, place: LogPlace, offset: int) -> bytes:
        """What a log has from an offset on; empty where it has no more, or its node has gone."""
        if Path(place.path).exists():  # on this machine, or on shared storage
            return read_log(place.path, offset)
        task: Any = ray.remote(read_log)
        there = NodeAffinitySchedulingStrategy(node_id=place.node, soft=False)
        try:
            return ray.get(
                task.options(num_cpus=0, scheduling_strategy=there).remote(place.path, offset), timeout=_LOG_S
            )
        except RayError:
            return b""

    def _ask(self, method: str, *words: object) -> Any:
        """Calls a method, again while the allocator starts again: all of them may be called twice."""
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                return ray.get(getattr(self._allocator, method).remote(*words), timeout=_START_S)
            except RayTaskError as error:
                raise error.cause from None
            except RayError as error:
                if isinstance(error, ActorUnavailableError) and time.monotonic() < deadline_s:
                    time.sleep(_RETRY_S)
                    continue
                text = " ".join(str(error).split())[:300]
                raise ClusterStartError(
                    f"the allocator must answer, got {type(error).__name__}: {text}; see `stoker cluster doctor`"
                ) from None


def _unknown(number: int) -> ConfigError:
    return ConfigError(f"`JOB` must be the number of a job, got {number}; `stoker queue --all` lists them")
