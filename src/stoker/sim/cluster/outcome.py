"""What a simulated run of a cluster came to: completion times, how the GPUs were used, why jobs waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stoker.scale.cluster.state import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class ClusterOutcome:
    """One policy on one table of jobs."""

    arrival_s: FloatArray
    start_s: FloatArray
    """First time with GPUs."""
    finish_s: FloatArray
    gpus: IntArray
    total_gpus: int
    horizon_s: float
    """Time of the last arrival: until then utilisation and allocation count."""
    computing_gpu_s: float
    held_gpu_s: float
    waited_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Job seconds in the queue, by cause."""
    times_s: FloatArray
    """Points of the series."""
    granted_cpus: FloatArray
    busy_gpus: FloatArray
    held_gpus: FloatArray
    queued: FloatArray
    events: int = 0
    moves: int = 0
    """How often a running job's CPUs changed."""
    debt_s: float = 0.0
    """Work lost to starts and drains, in seconds at full speed, over all jobs."""

    @property
    def jct_s(self) -> FloatArray:
        """Completion times: from arrival to end."""
        return self.finish_s - self.arrival_s

    @property
    def mean_jct_s(self) -> float:
        """Mean completion time."""
        return float(self.jct_s.mean())

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        return float(self.finish_s.max() - self.arrival_s.min())

    @property
    def utilisation_frac(self) -> float:
        """Share of GPU time that computes, until the last arrival."""
        return self.computing_gpu_s / (self.total_gpus * self.horizon_s) if self.horizon_s else 0.0

    @property
    def allocation_frac(self) -> float:
        """Share of GPU time that is held by jobs, until the last arrival."""
        return self.held_gpu_s / (self.total_gpus * self.horizon_s) if self.horizon_s else 0.0

    def quantile_s(self, quantile: float) -> float:
        """A quantile of the completion times."""
        return float(np.quantile(self.jct_s, quantile))
