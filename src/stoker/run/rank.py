"""Which rank of a distributed program this process is, and how many ranks share its host.

Launchers announce it in the environment (``LOCAL_WORLD_SIZE``). Programs that start their ranks themselves
(``mp.spawn``) announce nothing: then the process group tells, once the program has created it.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from stoker.scale.budget import local_world_size, ranks_of_group


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """This process among the ranks of its program."""

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    """Ranks on this host, which share its cores and memory."""


def find_place(environ: Mapping[str, str] = os.environ) -> RankPlace:
    """The rank of this process, as far as it is known now."""
    if "LOCAL_WORLD_SIZE" not in environ and dist.is_available() and dist.is_initialized():
        world_size = dist.get_world_size()
        return RankPlace(rank=dist.get_rank(), world_size=world_size, local_world_size=_here(world_size, environ))
    return RankPlace(
        rank=_number(environ, "RANK", 0),
        world_size=_number(environ, "WORLD_SIZE", 1),
        local_world_size=local_world_size(environ),
    )


def _here(world_size: int, environ: Mapping[str, str]) -> int:
    """Ranks on this host, of a group that does not say so."""
    if world_size == 1:
        return 1
    devices = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    return ranks_of_group(world_size, devices=devices, meets_here=_is_this_host(environ.get("MASTER_ADDR", "")))


def _is_this_host(address: str) -> bool:
    """Whether the ranks meet at an address of this host; a group that meets in a file names none."""
    if address in ("", "localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, where) for family, _, _, _, where in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    # Only an address of this host can be bound; a datagram socket on a free port disturbs no other program.
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def name_of_group(environ: Mapping[str, str]) -> str:
    """A name that the ranks of one program on this host have in common, and no others; empty if they meet in a file."""
    port = environ.get("MASTER_PORT", "")
    facts = "|".join((environ.get("MASTER_ADDR", ""), port, environ.get("TORCHELASTIC_RUN_ID", "")))
    return hashlib.sha256(facts.encode()).hexdigest()[:16] if port else ""


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    return int(environ.get(name, "") or default)
