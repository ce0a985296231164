# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Averages over a process group of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stoker.core.errors import ExchangeError, StokerError
from stoker.train.averaging.policy import Scope
from stoker.train.averaging.replica import GatherFigures, RoundSteps
from stoker.train.program.lookouts import OwnLookout, words_of


class GroupMeans:
    """Carries out the averages of one rank.

    Args:
        group: the program's process group; None for the default one.
        islands: ranks of the group by island, all of them once; each makes a group.

    Raises:
        ValueError: the islands do not hold each rank of the group once.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, islands: Sequence[Sequence[int]] = ()) -> None:
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.num_islands = max(1, len(islands))
        self._island: dist.ProcessGroup | None = None
        self._in_island = 1
        if islands:
            check_islands(islands, self.ranks)
            whole = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
            own = next(island for island in islands if dist.get_rank(group) in island)
            made: Any = dist.new_group([whole[rank] for rank in own], use_local_synchronization=True)
            self._island, self._in_island = made, len(own)
        self._lookout: OwnLookout | None = None

    def look_out(self) -> str:
        """Has a lost rank named from now on, until :meth:`close`. Collective; returns why it will not be."""
        whole = self.group if self.group is not None else dist.group.WORLD
        if self.ranks == 1 or whole is None:
            return ""
        self._lookout = OwnLookout(whole)
        return self._lookout.connect()

    def close(self) -> None:
        """Looks out no more."""
        if self._lookout is not None:
            self._lookout.close()

    def carry_out(self, steps: RoundSteps, step: int) -> None:
        """Runs an average to its end. Collective.

        Args:
            steps: of the average.
            step: of the optimizer, for errors.

        Raises:
            ExchangeError: a rank is lost.
        """
        try:
            self._carry_out(steps)
        except StokerError:
            raise
        except RuntimeError as error:
            fault = None if self._lookout is None else self._lookout.ask()
            rank = {} if fault is None else {"rank": fault.rank}
            raise ExchangeError(
                f"`weights` must be averaged with all ranks in step {step}, and {words_of(fault)}: {error}; start the "
                "program again from its last checkpoint", layer="weights", step=step, **rank,
            ) from error  # fmt: skip

    def _carry_out(self, steps: RoundSteps) -> None:
        answer: Any = None
        while True:
            try:
                asked = steps.send(answer)
            except StopIteration:
                return
            if isinstance(asked, GatherFigures):
                answer = self._gather(asked.figures)
            else:
                answer = None
                self._take_mean(asked.tensors, asked.scope)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's values for all ranks."""
        source = dist.get_process_group_ranks(self.group)[0] if self.group is not None else 0
        for tensor in tensors:
            dist.broadcast(tensor, src=source, group=self.group)

    def _take_mean(self, tensors: Sequence[Tensor], scope: Scope) -> None:
        group, ranks = (self._island, self._in_island) if scope == "island" else (self.group, self.ranks)
        if ranks == 1:
            return
        running = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        for tensor, work in zip(tensors, running, strict=True):
            if work is not None:
                work.wait()
            tensor.mul_(1.0 / ranks)  # as DDP does: dividing gives other bits

    def _gather(self, figures: Sequence[float]) -> list[list[float]]:
        """All ranks' figures, to the last bit: they are compared, and ranks must decide alike."""
        own = torch.tensor(figures, dtype=torch.float64, device=_device(self.group))
        found = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(found, own, group=self.group)
        return [[float(value) for value in each.cpu()] for each in found]


def check_islands(islands: Sequence[Sequence[int]], ranks: int) -> None:
    """Raises ValueError unless each rank stands in one island."""
    held = sorted(rank for island in islands for rank in island)
    if held != list(range(ranks)):
        raise ValueError(f"`islands` must hold each of the ranks 0 to {ranks - 1} once, got {[*map(list, islands)]}")


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """What the group's backend moves: NCCL knows GPUs only."""
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
