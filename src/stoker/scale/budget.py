"""How many CPU cores each rank of a host, and each active loader of a process, may use.

Pure functions, and a small ledger that the loaders of a process share. A loader that is not being read (a validation
loader during training) demands nothing and so costs the others nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

FORGET_S = 5.0
"""A loader without a request for this long is idle: its iteration ended, or the program does something else."""
FORGET_GAPS, FORGET_LEAST_S = 3.0, 0.5
"""A loader is also idle after this many of its usual gaps, but no sooner than the latter: a validation loader with four
requests a second must not halve the budget of the next five seconds of training."""


def rank_cores(host_cores: float, local_world_size: int = 1) -> float:
    """Cores that each rank of a host may use, with ``local_world_size`` ranks on it."""
    if host_cores <= 0.0:
        raise ValueError(f"`host_cores` must be positive, got {host_cores}")
    if local_world_size < 1:
        raise ValueError(f"`local_world_size` must be at least 1, got {local_world_size}")
    return host_cores / local_world_size


def rank_bytes(host_bytes: int, local_world_size: int = 1) -> int:
    """Bytes that each rank of a host may use."""
    if local_world_size < 1:
        raise ValueError(f"`local_world_size` must be at least 1, got {local_world_size}")
    return host_bytes // local_world_size


def local_world_size(environ: Mapping[str, str]) -> int:
    """Ranks on this host as launchers announce them (``LOCAL_WORLD_SIZE``); 1 without a launcher."""
    text = environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.strip().isdigit() else 1


def ranks_of_group(world_size: int, *, devices: int, meets_here: bool) -> int:
    """Ranks on this host, of a process group whose launcher does not announce them (``mp.spawn``).

    Args:
        world_size: ranks of the group on all hosts.
        devices: accelerators that this process sees; with several, each belongs to one rank.
        meets_here: whether the ranks meet at an address of this host. Most such programs run on one host, so all ranks
            then count as local: too small a share costs less than cores that two ranks both count on.
    """
    if devices > 1:
        return min(world_size, devices)
    return world_size if meets_here else 1


def fair_shares(total: float, demands: Sequence[float]) -> list[float]:
    """Max-min fair division of ``total`` among ``demands``, in their order.

    No share exceeds its demand; what small demands leave is divided equally among the larger ones. A demand may be
    infinite.
    """
    if total < 0.0 or any(demand < 0.0 or math.isnan(demand) for demand in demands):
        raise ValueError(f"`total` and `demands` must not be negative, got {total} and {list(demands)}")
    shares = [0.0] * len(demands)
    left = total
    order = sorted(range(len(demands)), key=lambda i: demands[i])
    for position, index in enumerate(order):
        shares[index] = min(demands[index], left / (len(order) - position))
        left -= shares[index]
    return shares


@dataclass(frozen=True)
class _Demand:
    """A loader's last request."""

    cores: float
    at_s: float
    gap_s: float
    """Time since its previous request."""

    def is_live(self, now_s: float) -> bool:
        """Whether it is still being read."""
        return now_s - self.at_s <= min(FORGET_S, max(FORGET_LEAST_S, FORGET_GAPS * self.gap_s))


class CpuLedger:
    """The CPU budget of one process, shared by its live loaders; safe to use from several threads."""

    def __init__(self, total_cores: float) -> None:
        if total_cores <= 0.0:
            raise ValueError(f"`total_cores` must be positive, got {total_cores}")
        self._total = total_cores
        self._demands: dict[int, _Demand] = {}
        self._next = 0
        self._lock = Lock()

    def join(self) -> CpuShare:
        """Adds a loader and returns its share."""
        with self._lock:
            self._next += 1
            return CpuShare(self, self._next)

    def ask(self, member: int, demand_cores: float, now_s: float) -> float:
        """Cores that ``member`` may use now, given its demand and the others' last demands.

        It may grow into what the others leave: a single member gets the whole budget for any demand.
        """
        with self._lock:
            known = self._demands.get(member)
            gap_s = min(FORGET_S, now_s - known.at_s) if known else FORGET_S
            self._demands[member] = _Demand(demand_cores, now_s, gap_s)
            others = [d.cores for m, d in self._demands.items() if m != member and d.cores > 0.0 and d.is_live(now_s)]
            return fair_shares(self._total, [*others, math.inf])[-1]

    def leave(self, member: int) -> None:
        """Forgets a loader that was closed."""
        with self._lock:
            self._demands.pop(member, None)


class CpuShare:
    """One loader's part of a :class:`CpuLedger`."""

    def __init__(self, ledger: CpuLedger, member: int) -> None:
        self._ledger = ledger
        self._member = member

    def cores(self, demand_cores: float, now_s: float) -> float:
        """Cores this loader may use now, given those it could use (0.0 when idle, infinite if it takes all)."""
        return self._ledger.ask(self._member, demand_cores, now_s)

    def close(self) -> None:
        """Gives the share back."""
        self._ledger.leave(self._member)
