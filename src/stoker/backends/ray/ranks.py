"""Ranks of one program on GPUs of a cluster: a group of one-GPU bundles, and a process in each. All of Ray's effects.

Runs in a child of the launcher, which imports no Ray and outlives the cluster's head. They write JSON objects to each
other, one a line; what ranks print goes to standard output, which both share. All ranks end with this process, since
their actors do.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.backends.ray import joining
from stoker.backends.ray.allocator.launch import Rendezvous
from stoker.backends.ray.allocator.supervisor import Launch
from stoker.backends.remote.brokering import Lines
from stoker.core.errors import StokerError, WireError
from stoker.core.processes.parents import die_with, set_name

PLACE_S = 60.0
"""GPUs that others have for longer do not come in time: the launcher decides what then."""
_TICK_S = 0.1
_START_S = 60.0


class RankOrder(msgspec.Struct, frozen=True, kw_only=True):
    """To this process: start ranks, or end those that run."""

    workers: int = 0
    """Ranks to start; 0 ends all."""
    environ: dict[str, str] = {}
    command: list[str] = []
    folder: str = ""
    """Working folder, under the same path on each node."""
    logs: str = ""
    """Folder of what ranks print, on each node."""
    grace_s: float = 0.0
    """Between SIGTERM and SIGKILL."""


class RankNews(msgspec.Struct, frozen=True, kw_only=True):
    """From this process."""

    gpus: int | None = None
    """Said first: GPUs of the cluster."""
    status: int | None = None
    """All ranks have ended: 0 if each did so."""
    text: str = ""
    """A line for the user."""


def rank_variables(nodes: Sequence[str], rank: int, meeting: Rendezvous) -> dict[str, str]:
    """What tells a rank its place, as torchrun does; each sees one GPU, which is the first to it.

    Args:
        nodes: of all ranks, in their order.
        rank: its number.
        meeting: where they meet.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(nodes)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(Counter(nodes)[nodes[rank]]),
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": meeting.host,
        "MASTER_PORT": str(meeting.port),
    }


class RankGang:
    """Ranks that run now.

    Args:
        order: what is started.

    Raises:
        TimeoutError: the GPUs were not free in time.
    """

    def __init__(self, order: RankOrder) -> None:
        import ray
        from ray.util.placement_group import placement_group, placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from stoker.backends.ray.allocator.runner import Runner

        self._paths = [f"{order.logs}/rank-{rank}.log" for rank in range(order.workers)]
        self._offsets = [0] * order.workers
        self._runners: list[Any] = []
        self._ends: dict[int, int] = {}
        self._is_stopped = False
        self._group = placement_group([{"GPU": 1}] * order.workers, strategy="PACK", name=f"stoker-ranks-{os.getpid()}")
        try:
            if not self._group.wait(PLACE_S):
                raise TimeoutError
            nodes = list(placement_group_table(self._group)["bundles_to_node_id"].values())
            actor: Any = ray.remote(Runner)
            for rank in range(order.workers):
                place = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=rank)
                options = actor.options(num_cpus=0, num_gpus=1, max_concurrency=4, scheduling_strategy=place)
                self._runners.append(options.remote())
            meeting: Any = ray.get(self._runners[0].meeting.remote(), timeout=_START_S)
            launches = [
                Launch(
                    command=order.command, folder=order.folder, log=self._paths[rank],
                    environ=order.environ | rank_variables(nodes, rank, meeting),
                )
                for rank in range(order.workers)
            ]  # fmt: skip
            starts = [runner.launch.remote(each) for runner, each in zip(self._runners, launches, strict=True)]
            self.refusals = [each for each in ray.get(starts, timeout=_START_S) if each]
            self._waits = [runner.wait.remote() for runner in self._runners]
        except BaseException:
            self.clear()
            raise

    def poll(self) -> int | None:
        """The status once all have ended; one that fails ends the others."""
        import ray
        from ray.exceptions import RayError

        for rank, wait in enumerate(self._waits):
            if rank not in self._ends and ray.wait([wait], timeout=0)[0]:
                try:
                    self._ends[rank] = ray.get(wait)[0]
                except RayError:
                    self._ends[rank] = 1  # its node is lost
                if self._ends[rank] and not self._is_stopped:
                    self.stop(0.0)
        self.print_new()
        return max(self._ends.values()) if len(self._ends) == len(self._waits) else None

    def stop(self, grace_s: float) -> None:
        """Ends all ranks."""
        self._is_stopped = True
        for rank, runner in enumerate(self._runners):
            if rank not in self._ends:
                runner.stop.remote(grace_s)

    def print_new(self) -> None:
        """Prints what ranks have printed since."""
        import ray

        reads = [
            runner.read_log.remote(path, at)
            for runner, path, at in zip(self._runners, self._paths, self._offsets, strict=True)
        ]
        for rank, read in enumerate(reads):
            with contextlib.suppress(Exception):  # its node is lost
                text: Any = ray.get(read, timeout=5.0)
                self._offsets[rank] += len(text)
                sys.stdout.buffer.write(text)
        sys.stdout.flush()

    def clear(self) -> None:
        """Ends what is left, and gives the GPUs back."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for runner, path in zip(self._runners, self._paths, strict=False):
            with contextlib.suppress(Exception):  # it is gone, with its node or by itself
                ray.get(runner.forget_log.remote(path), timeout=5.0)
            with contextlib.suppress(Exception):
                ray.kill(runner)
        with contextlib.suppress(Exception):
            remove_placement_group(self._group)


def serve(lines: Lines) -> None:
    """Follows the launcher's orders until it is gone."""
    import ray

    lines.send(RankNews(gpus=int(ray.cluster_resources().get("GPU", 0))))
    gang: RankGang | None = None
    while (heard := lines.receive(RankOrder)) is not None:
        for order in heard:
            if not order.workers:
                if gang is not None:
                    gang.stop(order.grace_s)
                continue
            try:
                gang = RankGang(order)
                for refusal in gang.refusals:
                    lines.send(RankNews(text=refusal))
            except TimeoutError:
                text = f"{order.workers} GPUs of the cluster must be free for the ranks, not after {PLACE_S:.0f} s"
                lines.send(RankNews(text=f"{text}; `stoker queue` and `stoker cluster status` show who has them"))
                lines.send(RankNews(status=1))
        if gang is not None and (status := gang.poll()) is not None:
            gang.clear()
            gang = None
            lines.send(RankNews(status=status))
        time.sleep(_TICK_S)
    if gang is not None:
        gang.clear()


def main(fd: int, parent_pid: int, insecure: int) -> None:
    """Entry point of the process."""
    die_with(parent_pid)
    set_name(b"stoker_ranks")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the launcher decides
    lines = Lines(socket.socket(fileno=fd))
    try:
        joining.connect(insecure=bool(insecure))
        serve(lines)
    except StokerError as error:
        with contextlib.suppress(OSError):
            lines.send(RankNews(text=str(error.args[0])))
        sys.exit(1)
    except (OSError, WireError):
        pass  # the launcher is gone
