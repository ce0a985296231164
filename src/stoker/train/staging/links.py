# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""Tensors from one stage to another, over a separate gloo group; a rank that is lost is named with its stage."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from stoker.core.errors import ExchangeError
from stoker.train.program.lookouts import OwnLookout, words_of
from stoker.train.ring.torch_private import timeout_s
from stoker.train.state.agreeing import agreed

_siblings: weakref.WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = weakref.WeakKeyDictionary()
"""Groups of stages by the program's. One is made once and not destroyed: the next of the same ranks would have its
name, and find its addresses."""


def _sibling_of(group: dist.ProcessGroup, timeout_s: float) -> dist.ProcessGroup:
    found = _siblings.get(group)
    if found is None:
        found = _siblings[group] = cast("dist.ProcessGroup", dist.new_group(
            dist.get_process_group_ranks(group), timeout=datetime.timedelta(seconds=timeout_s), backend="gloo",
            use_local_synchronization=True,
        ))  # fmt: skip
    return found


class StageLinks:
    """Connections between the ranks of a pipeline, whose stages have the ranks' order. Made as a collective.

    Args:
        group: of the program, which gets a sibling for what stages send.
        device: of the module.

    Attributes:
        group: the sibling.
        own, count: this rank's stage, and their number.
        timeout_s: of the program's group.
        device: of the module.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.timeout_s = timeout_s(group)
        self.group = _sibling_of(group, self.timeout_s)
        self.ranks = dist.get_process_group_ranks(self.group)
        self.own, self.count = self.group.rank(), len(self.ranks)
        self.device = device
        self._lookout = OwnLookout(self.group)
        self.silent = self._lookout.connect()
        """Why a lost rank would have no name; empty where it has one."""
        self._sent: list[tuple[Any, Tensor, int]] = []

    def agree(self, subject: str, version: int, value: int = 0) -> list[int]:
        """A number of each rank, after a check that all do the same. Collective."""
        with self.watched(subject):
            found = agreed(
                self.group, subject, version, (value,), where="where layers are in stages",
                then="call, step and clip alike on all ranks",
            )  # fmt: skip
        return [each[0] for each in found]

    def send(self, tensor: Tensor, stage: int, tag: int) -> None:
        """Begins to send a tensor to a stage, which knows its size."""
        if not tensor.numel():
            return
        data = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        with self.watched(f"what goes to stage {stage}", stage):
            self._sent.append((dist.isend(data, self.ranks[stage], group=self.group, tag=tag), data, stage))

    def receive(self, shape: Sequence[int], dtype: torch.dtype, stage: int, tag: int) -> Tensor:
        """Waits for a tensor of a stage."""
        found = torch.empty(shape, dtype=dtype)
        if found.numel():
            with self.watched(f"what comes from stage {stage}", stage):
                dist.recv(found.reshape(-1).view(torch.uint8), self.ranks[stage], group=self.group, tag=tag)
        return found.to(self.device)

    def flush(self) -> None:
        """Waits until all that was sent has come; its memory is free then."""
        while self._sent:
            work, _, stage = self._sent[-1]
            with self.watched(f"what goes to stage {stage}", stage):
                work.wait()
            self._sent.pop()

    def broadcast(self, data: Tensor, stage: int) -> None:
        """A tensor becomes that of a stage. Collective."""
        with self.watched(f"the buffers of stage {stage}", stage):
            dist.broadcast(data, self.ranks[stage], group=self.group)

    def close(self) -> None:
        """Lets the lookout go."""
        self._lookout.close()

    @contextmanager
    def watched(self, subject: str, stage: int | None = None) -> Generator[None]:
        """Names the rank that is lost where an exchange fails.

        Args:
            subject: of the exchange.
            stage: with which it is; None for all.
        """
        try:
            yield
        except ExchangeError:
            raise
        except RuntimeError as error:
            fault = self._lookout.ask()
            rank = fault.rank if fault is not None else None if stage is None else self.ranks[stage]
            words = words_of(fault)
            if fault is not None and fault.rank in self.ranks:
                words += f" and has stage {self.ranks.index(fault.rank)}"
            elif rank is not None:
                words = f"`rank {rank}` of stage {stage} does not answer"
            raise ExchangeError(
                f"`stages` must have all their ranks, and {words}: {subject}, {str(error).splitlines()[0][:200]}",
                rank=rank,
                layer=subject,
            ) from error
