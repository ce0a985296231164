# pyright: reportUnknownMemberType=false
# (torch.distributed is typed in part)
"""Whether all ranks of a group have one version of stoker: asked before anything else goes from rank to rank.

Ranks of different versions count rounds, write headers and read records differently: they would wait for each other.
"""

from __future__ import annotations

import weakref

import torch
import torch.distributed as dist
from torch import nn

from stoker._version import __version__

VERSION = __version__
"""This rank's."""
_ROOM = 64
"""Bytes that a version takes at most, alike in all versions to come: longer ones are cut."""
_known: weakref.WeakKeyDictionary[dist.ProcessGroup, str] = weakref.WeakKeyDictionary()
"""What was found of each group, which is asked once."""


def unlike_versions(group: dist.ProcessGroup | None, module: nn.Module) -> str:
    """Which rank has another version than the first one, as a sentence; empty if all have one.

    A collective at the first call for a group. All ranks get the same answer.

    Args:
        group: of the ranks; None for all.
        module: that they have; NCCL moves what is on its device.
    """
    group = dist.group.WORLD if group is None else group
    if group is None or dist.get_world_size(group) == 1:
        return ""
    if group not in _known:
        _known[group] = _compared(group, module)
    return _known[group]


def _compared(group: dist.ProcessGroup, module: nn.Module) -> str:
    own = torch.zeros(_ROOM, dtype=torch.uint8)
    words = VERSION.encode()[:_ROOM]
    own[: len(words)] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
    if "gloo" not in str(dist.get_backend(group)):
        own = own.to(next((each.device for each in module.parameters()), "cpu"))
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    versions = [bytes(each.cpu().numpy()).rstrip(b"\0").decode(errors="replace") for each in every]
    ranks = dist.get_process_group_ranks(group)
    other = next((place for place, version in enumerate(versions) if version != versions[0]), 0)
    if not other:
        return ""
    return (
        f"`stoker` must be one version on all ranks, got {versions[0]} on rank {ranks[0]} and {versions[other]} on "
        f"rank {ranks[other]}; install the same on all machines"
    )
