# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""Collectives of FSDP2 over a process group on CPUs, whose memory ends at a stated point.

Gloo sums a copy of what it is asked to reduce, and one of its threads releases that copy, and what it gathered into,
some time after the collective is over: on a busy machine, when the next unit has its buffers already. So what a rank
holds depended on how its threads ran. Here ranks sum in place, which is what gloo does with its copy; a sum's
memory goes with it, and a gathering is over once no thread holds its buffer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stoker.train import torch_private

_PAUSE_S, _PAUSES = 2e-5, 5000
"""Between two looks at who holds a buffer, and the most of them: 0.1 s and more, behind which the pass goes on."""

# The first name is the newer one: such a torch warns of the other.
_NAMES = ("all_gather_single", "all_gather_into_tensor")
_gather: Callable[..., Any] = next(getattr(dist, name) for name in _NAMES if hasattr(dist, name))


def set_collectives(unit: nn.Module) -> None:
    """Gives a sharded unit on CPUs these collectives; it keeps torch's where torch has no such choice."""
    untyped: Any = unit
    if hasattr(unit, "set_custom_reduce_scatter"):
        untyped.set_custom_reduce_scatter(_SumInPlace())
        untyped.set_custom_all_gather(_Gathering())


class _Allocating:
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _SumInPlace(_Allocating):
    """A reduction that takes its input's memory away once it is over; FSDP2 keeps the tensor, and reads it no more."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        dist.all_reduce(input_tensor, op, group)
        output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()].view_as(output_tensor))
        input_tensor.untyped_storage().resize_(0)


class _Gathering(_Allocating):
    """A gathering that is waited for until no thread of the group holds its buffer."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        held = torch_private.holders_of(output_tensor)
        work = _gather(output_tensor, input_tensor, group=group, async_op=async_op)
        if work is None:
            _wait(output_tensor, held)
        return work


def _wait(tensor: Tensor, held: int) -> None:
    for _ in range(_PAUSES):
        if torch_private.holders_of(tensor) <= held:
            return
        time.sleep(_PAUSE_S)
