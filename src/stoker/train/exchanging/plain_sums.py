# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""Sums of whole buckets as DDP makes them without a hook, bit for bit; timed while a plan is still to be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from stoker.train.exchanging import measuring
from stoker.train.exchanging.mixed_round import future_of, wait_for
from stoker.train.ring.watching.blame import RankFault


class PlainSums:
    """Those of one module.

    Args:
        group: of the replicas.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.clock = measuring.SumClock()
        self.waits: list[Callable[[], object]] = []
        """For the sums of this round, while they are timed."""
        self._later: list[tuple[Any, torch.futures.Future[torch.Tensor], str]] = []

    def start(
        self, buffer: torch.Tensor, scale: float, layer: str, *, timed: bool
    ) -> torch.futures.Future[torch.Tensor]:
        """Multiplies by the inverse of the number of ranks, then sums.

        Args:
            buffer: of the bucket; sparse ones are divided.
            scale: 1/P.
            layer: its first weight.
            timed: whether the backend is to tell when it is done.
        """
        if buffer.is_sparse:
            buffer.div_(1.0 / scale)
        else:
            buffer.mul_(scale)
        work: Any = dist.all_reduce(buffer, group=self._group, async_op=True)
        # What NCCL starts is over for the program at once: its sums are timed otherwise.
        if timed and not buffer.is_sparse and measuring.tells_ends(self._group):
            self.waits.append(work.wait)
            ended = self.clock.started(buffer.nbytes)

            def first(future: Any) -> torch.Tensor:
                ended()
                return future.value()[0]

            done = work.get_future().then(first)
            if not buffer.is_cuda:
                return done
            # A stream has to wait for what gloo copies back: `wait` has it do so, a future does not.
        # Otherwise no thread of the backend calls python: one that still waits for the interpreter when that ends is
        # aborted, and the program with it.
        done = future_of(buffer)
        self._later.append((work, done, layer))
        return done

    def settle(self, step: int, ask: Callable[[], RankFault | None]) -> None:
        """Completes what the backend sums alone: DDP would wait for it next.

        Args:
            step: its number.
            ask: who is lost, if it fails.

        Raises:
            ExchangeError: a rank is lost.
        """
        later, self._later = self._later, []
        for work, done, layer in later:
            wait_for(work.wait, layer, step, ask)
            done.set_result(work.get_future().value()[0])
