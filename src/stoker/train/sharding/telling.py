# pyright: reportUnknownMemberType=false
# (torch.distributed is typed in part)
"""What the first rank tells all others, and how long sums between them take: by the process group's own collectives."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from stoker.train.state.agreeing import device_of

_SUMS = (16 << 10, 256 << 10, 1 << 20)
"""Bytes of the sums that are timed, each as often as below."""
_ROUNDS = 3


def told_by_first(group: dist.ProcessGroup, data: bytes) -> bytes:
    """The bytes that the first rank of a group passes. Collective."""
    device = device_of(group)
    source = dist.get_process_group_ranks(group)[0]
    length = torch.tensor([len(data)], dtype=torch.int64, device=device)
    dist.broadcast(length, source, group=group)
    content = torch.zeros(int(length), dtype=torch.uint8, device=device)
    if dist.get_rank(group) == 0 and data:
        content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    if int(length):
        dist.broadcast(content, source, group=group)
    return bytes(content.cpu().numpy())


def sums_timed(group: dist.ProcessGroup) -> list[tuple[float, float]]:
    """Bytes and seconds of a few sums over the ranks of a group, on this rank. Collective."""
    device = device_of(group)
    found: list[tuple[float, float]] = []
    for size in _SUMS:
        values = torch.zeros(size // 4, device=device)
        for number in range(_ROUNDS + 1):
            begun_s = time.perf_counter()
            dist.all_reduce(values, group=group)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number:  # the first one connects
                found.append((float(size), time.perf_counter() - begun_s))
    return found
