# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""What DDP does with a bucket where no hook is registered, bit for bit: the backend's sum of a scaled buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from stoker.train.exchanging.measuring import SumClock, tells_ends
from stoker.train.exchanging.mixed_round import future_of, wait_for
from stoker.train.exchanging.plain.active_ranks import ActiveRanks
from stoker.train.ring.watching.blame import RankFault


class PlainSums:
    """The backend's sums of one module.

    Args:
        group: of the ranks.
        active: has what sums are multiplied by.
    """

    def __init__(self, group: Any, active: ActiveRanks) -> None:
        self._group, self._active = group, active
        self.clock = SumClock()
        """Has what timed sums took."""
        self._waits: list[Callable[[], object]] = []
        self._open: list[tuple[Any, torch.futures.Future[torch.Tensor], str]] = []

    def start(self, buffer: torch.Tensor, layer: str, *, is_timed: bool) -> torch.futures.Future[torch.Tensor]:
        """Multiplies by the inverse of the ranks, then sums.

        Args:
            buffer: of a bucket.
            layer: first one in it.
            is_timed: whether it counts for :attr:`clock`.
        """
        if buffer.is_sparse:
            buffer.div_(1.0 / self._active.scale)
        else:
            buffer.mul_(self._active.scale)
        work: Any = dist.all_reduce(buffer, group=self._group, async_op=True)
        # What NCCL starts is over for the program at once: its sums are timed otherwise.
        if is_timed and not buffer.is_sparse and tells_ends(self._group):
            self._waits.append(work.wait)
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
        self._open.append((work, done, layer))
        return done

    def settle(self, step: int, ask: Callable[[], RankFault | None]) -> None:
        """Completes what the backend sums alone: DDP would wait for it next.

        Args:
            step: number of the exchange.
            ask: who is lost, if it fails.
        """
        sums, self._open = self._open, []
        for work, done, layer in sums:
            wait_for(work.wait, layer, step, ask)
            done.set_result(work.get_future().value()[0])

    def take_waits(self) -> list[Callable[[], object]]:
        """What waits for timed sums, since the last call."""
        waits, self._waits = self._waits, []
        return waits
