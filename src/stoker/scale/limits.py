"""How many data workers a job may have: its configuration, and the ceilings that CPU and memory set.

Pure functions of a view of the job. More cores or more memory never lower a ceiling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.core.units import format_bytes
from stoker.records.events import BASELINE_BATCHES
from stoker.scale.evidence import View

CPU_MARGIN = 1.05
"""Measured cores come out a few percent low: leases and clock reads are not part of an item's time."""


@dataclass(frozen=True, kw_only=True)
class JobScalingConfig:
    """What bounds the autoscaler of one loader."""

    cpu_budget_cores: float
    """Cores that the data workers of this process may use; CPU seconds count, not processes."""
    memory_budget_bytes: int = 0
    """Bytes for private memory of workers and for slots; 0: no bound."""
    min_workers: int = 1
    max_workers: int = 64
    fixed_workers: int | None = None
    """The number that the user asked for; it is never changed."""
    fixed_away: int | None = None
    """The number on other machines that the user asked for, as far as these take it; None: found like the others."""
    max_depth: int = 8
    """Most work items that a data worker may hold."""
    max_in_flight: int = 0
    """Most work items in flight (a sampler that draws lazily must not be read ahead); 0: no bound."""
    hold_steps: int = BASELINE_BATCHES
    """The first iteration keeps the declared workers for this many batches after the warm-up: the baseline of the
    report."""
    hold_s: float = 5.0
    """... or for this long, whichever ends first; a warm-up that takes longer leaves no time for a baseline."""

    def __post_init__(self) -> None:
        if not self.cpu_budget_cores > 0.0:
            raise ValueError(f"`cpu_budget_cores` must be positive, got {self.cpu_budget_cores}")
        if self.min_workers < 1:
            raise ValueError(f"`min_workers` must be at least 1, got {self.min_workers}")
        if self.max_workers < self.min_workers:
            raise ValueError(
                f"`max_workers` must be at least `min_workers` ({self.min_workers}), got {self.max_workers}"
            )
        if self.fixed_workers is not None and self.fixed_workers < 1:
            raise ValueError(f"`fixed_workers` must be at least 1, got {self.fixed_workers}")
        if self.fixed_away is not None and self.fixed_away < 0:
            raise ValueError(f"`fixed_away` must not be negative, got {self.fixed_away}")
        if self.max_depth < 1:
            raise ValueError(f"`max_depth` must be at least 1, got {self.max_depth}")
        for name in ("memory_budget_bytes", "max_in_flight", "hold_steps", "hold_s"):
            value: float = getattr(self, name)
            if value < 0:
                raise ValueError(f"`{name}` must not be negative, got {value}")


@dataclass(frozen=True)
class Limit:
    """The lowest ceiling and what sets it, in words for people."""

    workers: int
    reason: str


@dataclass(frozen=True)
class Footprint:
    """Measured sizes; 0 when not known yet."""

    batch_bytes: int = 0
    worker_bytes: int = 0

    def larger(self, batch_bytes: int, worker_bytes: int) -> Footprint:
        """The larger of both, field by field: sizes are promises about memory, so they never shrink."""
        return Footprint(max(self.batch_bytes, batch_bytes), max(self.worker_bytes, worker_bytes))


def cpu_limit(cores: float, view: View) -> int:
    """Data workers whose items use at most ``cores``; at least 1.

    Items that mostly wait (CPU time far below wall time) are cheap and allow many.
    """
    cpu_frac = max(min(view.cpu_frac, 1e6), 1e-6)
    return max(1, math.floor(cores * CPU_MARGIN / cpu_frac))


def memory_limit(budget_bytes: int, footprint: Footprint, depth: int) -> int | None:
    """Data workers that fit in memory with up to two items each; None when unbounded or unknown."""
    each = footprint.worker_bytes + min(depth, 2) * footprint.batch_bytes
    if not budget_bytes or not each:
        return None
    return max(1, budget_bytes // each)


def free_limit(workers: int, free_bytes: int, footprint: Footprint) -> Limit | None:
    """Data workers that the free memory allows, with ``workers`` running; None if unknown.

    Each needs its own memory, the samples and the batch being made, and a finished batch. One share stays free.
    """
    each = footprint.worker_bytes + 3 * footprint.batch_bytes
    if free_bytes < 0 or not each:
        return None
    return Limit(
        max(1, workers + max(0, free_bytes // each - 1)), f"{format_bytes(free_bytes)} of free memory hold no more"
    )


def fitting_depth(config: JobScalingConfig, footprint: Footprint, workers: int, depth: int) -> int:
    """The largest depth up to ``depth`` that memory and the in-flight bound allow for ``workers``; at least 1."""
    depth = min(depth, config.max_depth)
    if config.max_in_flight:
        depth = min(depth, config.max_in_flight // workers)
    if config.memory_budget_bytes and footprint.batch_bytes:
        left = config.memory_budget_bytes - workers * footprint.worker_bytes
        depth = min(depth, left // (workers * footprint.batch_bytes))
    return max(1, depth)


def hard_limit(config: JobScalingConfig, footprint: Footprint, depth: int) -> Limit:
    """The ceiling that no evidence can lift: the user's, memory's and the sampler's."""
    limit = Limit(config.max_workers, f"the most that `max_workers` allows ({config.max_workers})")
    memory = memory_limit(config.memory_budget_bytes, footprint, depth)
    if memory is not None and memory < limit.workers:
        limit = Limit(memory, f"the memory budget of {config.memory_budget_bytes / 2**30:.1f} GiB holds no more")
    if config.max_in_flight and config.max_in_flight < limit.workers:
        limit = Limit(config.max_in_flight, f"the sampler allows {config.max_in_flight} batches in flight")
    return limit if limit.workers >= config.min_workers else Limit(config.min_workers, limit.reason)
