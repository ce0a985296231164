"""The result of simulating a cluster: plain records, made by ``sim.cluster`` and shown by ``ui``.

Figures of a policy are medians over samples; gains are ratios of the same sample, then their median.
"""

from __future__ import annotations

import msgspec


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy came to."""

    name: str
    about: str
    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    makespan_s: float
    utilisation_frac: float
    """GPU time that computes, until the last arrival."""
    allocation_frac: float
    """GPU time that jobs hold, until the last arrival."""
    jct_gain: float
    """Mean completion time of the baseline over that of this policy."""
    jct_gain_low: float
    """Lowest of the samples."""
    jct_gain_high: float
    utilisation_gain: float
    queueing_s: float
    """Mean time in the queue."""
    waiting: dict[str, float]
    """Shares of the queueing time by cause."""
    moves: float
    """Changes of a running job's CPUs, for each job."""


class JctCurve(msgspec.Struct, frozen=True, kw_only=True):
    """A cumulative distribution of completion times, over the jobs of all samples."""

    policy: str
    jct_s: list[float]
    """Completion times of 0, 1, … 100 % of the jobs."""


class UseSeries(msgspec.Struct, frozen=True, kw_only=True):
    """What was used over time by one policy, in the first sample."""

    policy: str
    times_s: list[float]
    granted_cpus: list[float]
    busy_gpus: list[float]
    held_gpus: list[float]
    queued: list[float]


class MeanBound(msgspec.Struct, frozen=True, kw_only=True):
    """A mean completion time that no policy can beat."""

    name: str
    mean_jct_s: float
    note: str


class GainCell(msgspec.Struct, frozen=True, kw_only=True):
    """The gain at one demand and load."""

    demand: float
    """CPUs that full speed of all GPUs would take, for each CPU that the nodes have."""
    load: float
    jct_gain: float


class SimReport(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated cluster: policies side by side on the same jobs."""

    name: str
    jobs: int
    """Jobs of one sample."""
    samples: int
    gpus: int
    cpus: int
    added_cpus: int
    baseline: str
    """The policy that gains are over."""
    focus: str
    """The policy whose gain the map shows."""
    assumptions: list[str]
    policies: list[PolicyRow]
    bounds: list[MeanBound]
    curves: list[JctCurve]
    series: list[UseSeries]
    cells: list[GainCell]
    notes: list[str]
    seconds: float
    """That the simulation took."""
