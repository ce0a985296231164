"""Gangs as Ray sees them: one placement group with a bundle for each node, and a runner in each bundle.

Both are detached and have names: they outlive the allocator, and the next one finds them.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from stoker.backends.ray.allocator.launch import PROGRAM_EXIT_S, SubmittedProgram
from stoker.backends.ray.allocator.runner import Runner
from stoker.scale.cluster.submissions import NodeSeat

Ended = tuple[int | None, str]
"""Exit status, None if it is lost, and how it ended."""


class RayGang:
    """An attempt of a job: made, or found again by its names.

    Args:
        job: number.
        attempt: number.
        seats: one for each node.
        program: what is run; starting it again where it runs changes nothing.
        namespace: of the names.
    """

    def __init__(
        self, job: int, attempt: int, seats: Sequence[NodeSeat], program: SubmittedProgram, namespace: str
    ) -> None:
        self._name = f"job-{job}-{attempt}"
        self._seats = tuple(seats)
        self._group = _group(self._name, seats)
        actor: Any = ray.remote(Runner)
        self._runners: list[Any] = [
            actor.options(
                name=f"{self._name}-{rank}", namespace=namespace, lifetime="detached", get_if_exists=True,
                num_cpus=0, num_gpus=seat.gpus, max_restarts=0, max_concurrency=4,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._group, placement_group_bundle_index=rank
                ),
            ).remote()
            for rank, seat in enumerate(seats)
        ]  # fmt: skip
        meeting = self._runners[0].meeting.remote() if len(seats) > 1 else None
        self._starts: list[Any] = [
            runner.start.remote(program, self._seats, rank, attempt, meeting)
            for rank, runner in enumerate(self._runners)
        ]
        self._waits: list[Any] = []
        self._ends: dict[int, Ended] = {}
        self._stopping = False

    @property
    def begun(self) -> bool:
        """Whether the program runs, or ran, on all nodes."""
        return bool(self._waits)

    def poll(self) -> Ended | None:
        """How it ended, once it has on all nodes; a part that fails ends the others."""
        if not self._waits:
            if len(ray.wait(self._starts, num_returns=len(self._starts), timeout=0)[0]) < len(self._starts):
                return None
            self._waits = [runner.wait.remote() for runner in self._runners]
        ready, _ = ray.wait(self._waits, num_returns=len(self._waits), timeout=0)
        for ref in ready:
            rank = self._waits.index(ref)
            if rank not in self._ends:
                self._ends[rank] = _end_of(ref)
        if any(status != 0 for status, _ in self._ends.values()) and not self._stopping:
            self.stop(PROGRAM_EXIT_S)
        if len(self._ends) < len(self._waits):
            return None
        # What was lost explains what failed after it.
        worst = sorted(self._ends.values(), key=lambda end: (end[0] is not None, end[0] == 0))[0]
        return worst

    def stop(self, grace_s: float) -> None:
        """Asks the program to end; where it has not begun, nothing is left to wait for."""
        self._stopping = True
        if not self._waits and len(ray.wait(self._starts, num_returns=1, timeout=0)[0]) == 0:
            self._waits = self._starts
            self._ends = dict.fromkeys(range(len(self._starts)), (None, "it had not begun"))
            self.clear()
            return
        for runner in self._runners:
            runner.stop.remote(grace_s)

    def clear(self) -> None:
        """Ends what is left of it, and gives back its nodes' resources."""
        for runner in self._runners:
            with contextlib.suppress(ValueError, RayError):
                ray.kill(runner, no_restart=True)
        remove_placement_group(self._group)


def _end_of(ref: Any) -> Ended:
    try:
        return ray.get(ref)
    except RayError as error:
        words = " ".join(str(error).split())
        return None, f"its node or its supervisor was lost: {words[:200]}"


def _group(name: str, seats: Sequence[NodeSeat]) -> PlacementGroup:
    """The group with all that the gang holds: made, or found."""
    with contextlib.suppress(ValueError):
        return get_placement_group(name)
    return placement_group(
        [{"GPU": seat.gpus, "CPU": seat.cpus} if seat.cpus else {"GPU": seat.gpus} for seat in seats],
        strategy="STRICT_PACK" if len(seats) == 1 else "PACK",
        name=name,
        lifetime="detached",
        # The queue chose the nodes; Ray books them.
        bundle_label_selector=[{"ray.io/node-id": seat.node} for seat in seats],
    )
