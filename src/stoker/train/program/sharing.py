# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch.distributed is typed in part)
"""Bytes and numbers that all ranks of a group shall know, by the group's own collectives.

Each call is collective: made from the exchange's hook alone, which DDP calls in the same order on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def gather_bytes(own: bytes, group: Any, device: torch.device) -> list[bytes]:
    """The bytes of all ranks, in their order."""
    ranks = dist.get_world_size(group)
    size = torch.tensor([len(own)], dtype=torch.int64, device=device)
    sizes = [torch.zeros_like(size) for _ in range(ranks)]
    dist.all_gather(sizes, size, group=group)
    lengths = [int(each) for each in sizes]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(device)
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(parts, padded, group=group)
    return [bytes(part[:length].cpu().numpy()) for part, length in zip(parts, lengths, strict=True)]


def tell_bytes(own: bytes, group: Any, device: torch.device) -> bytes:
    """The bytes of the group's first rank; what others pass counts for nothing."""
    source = dist.get_global_rank(group, 0)
    size = torch.tensor([len(own)], dtype=torch.int64, device=device)
    dist.broadcast(size, source, group=group)
    data = torch.zeros(int(size), dtype=torch.uint8, device=device)
    if dist.get_rank(group) == 0:
        data.copy_(torch.frombuffer(bytearray(own), dtype=torch.uint8))
    dist.broadcast(data, source, group=group)
    return bytes(data.cpu().numpy())


def tell_numbers(own: Sequence[float], group: Any, device: torch.device) -> list[float]:
    """The numbers of the group's first rank, as many as all pass."""
    data = torch.tensor(own, dtype=torch.float32, device=device)
    dist.broadcast(data, dist.get_global_rank(group, 0), group=group)
    return data.tolist()
