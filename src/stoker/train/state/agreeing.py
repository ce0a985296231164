# pyright: reportUnknownMemberType=false
# (torch.distributed is typed in part)
"""The word of all ranks before they act together: that they are about to do the same, at the same version."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from stoker.core.errors import ExchangeError


def device_of(group: dist.ProcessGroup) -> torch.device:
    """What a group's backend moves: NCCL knows GPUs only."""
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")


def agreed(
    group: dist.ProcessGroup, subject: str, version: int, values: Sequence[int] = (), *, where: str, then: str
) -> list[list[int]]:
    """The values of all ranks, after a check that all are about to do the same. Collective.

    Args:
        group: of the ranks.
        subject: what this rank is about to do, the same words on all ranks.
        version: how often its weights have changed, which is to be alike on all ranks.
        values: of this rank, as many on each.
        where: half a sentence that says when ranks must do alike.
        then: what a program should do instead.

    Raises:
        ExchangeError: ranks are about to do different things, or have changed their weights more or less often; on all
            of them.
    """
    own = torch.tensor([zlib.crc32(subject.encode()), version, *values], dtype=torch.int64, device=device_of(group))
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, own, group=group)
    found: list[list[int]] = [each.tolist() for each in gathered]
    for rank, each in enumerate(found):
        if each[0] != found[0][0]:
            raise ExchangeError(
                f"`rank {rank}` must do what rank 0 does {where}, and does something else, while rank "
                f"{dist.get_rank(group)} does this: {subject}; {then}",
                rank=rank,
                layer=subject,
            )
        if each[1] != found[0][1]:
            raise ExchangeError(
                f"`rank {rank}` must have changed its weights as often as rank 0, which is {found[0][1]} times, "
                f"and has {each[1]} times; step and load alike on all ranks, and use bfloat16 where a "
                "GradScaler skips steps",
                rank=rank,
                layer=subject,
            )
    return [each[2:] for each in found]
