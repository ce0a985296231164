# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Whether ranks have the same weights to the last bit, and what is done where they have not.

DDP never compares weights again after its start. A difference in one bit of a sum would stay, and grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

_INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTOR = 1_000_003
_BITS = (1 << 62) - 1


def hash_of(weights: Sequence[torch.Tensor]) -> int:
    """A number that any single different bit changes; never 0.

    Each weight's elements are summed as whole numbers, one pass without a copy: the sums wrap, and do not round.
    """
    totals: list[torch.Tensor] = []
    for weight in weights:
        data = weight.detach()
        if data.is_complex():
            data = torch.view_as_real(data)
        data = data if data.is_contiguous() else data.contiguous()
        totals.append(data.view(_INTS[data.element_size()]).sum(dtype=torch.int64))
    found = 0
    for total in _numbers(totals):
        found = (found * _FACTOR + total) & _BITS
    return found or 1


def _numbers(totals: Sequence[torch.Tensor]) -> list[int]:
    """Whole numbers of some tensors, with one wait for a device, however many there are."""
    if len({total.device for total in totals}) == 1:
        return torch.stack(list(totals)).tolist()
    return [int(total) for total in totals]


def take_first(weights: Sequence[torch.Tensor], group: Any) -> None:
    """Gives all ranks the weights of the group's first one."""
    source = dist.get_global_rank(group, 0)
    for weight in weights:
        # Past autograd, which would count this as the program's own writing.
        data = weight.detach()
        whole = data.contiguous()
        dist.broadcast(whole, source, group=group)
        if whole.data_ptr() != data.data_ptr():
            data.copy_(whole)
