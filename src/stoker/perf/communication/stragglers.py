"""Waiting for the slowest GPU of a step, as a share of computation."""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal

Cluster = Literal["dedicated", "shared"]
"""Whether the servers are the job's alone, or shared with other jobs, which slow some of its workers down."""

_DEDICATED = (0.025, 0.0, 0.15)
"""Likely, low and high share, of any count: what 174 published steps on servers with NVLink (NVIDIA's and the H100s of
lambda-v1) took beyond the time on one GPU and their exchange. 0.025 leaves a median error of 2.5 %, and a twentieth of
the steps took 15 % more: batches of several lengths, input that eight GPUs share (``benchmarks/perf_scaling.py``)."""
_SHARED = (0.068, 0.034, 0.56)
"""Likely, low and high coefficient of variation of workers within a step, in PAI's shared cluster (alibaba/clusterdata
7a6c496, minibatch times of four jobs with 10 workers): that with which the slowest of normally distributed workers
comes out as the traces have it in three of the four jobs (slowest / mean of 10: 1.09 to 1.12); the tenth percentile of
100 jobs; the fourth job (1.86)."""


def slowest(gpus: int, cluster: Cluster = "dedicated") -> tuple[float, float, float]:
    """Likely, low and high share of computation by which the slowest GPU is later than it would be alone.

    Source: for shared clusters the largest of n normally distributed times (Blom, Statistical Estimates and Transformed
        Beta-Variables, 1958); for dedicated ones published steps.
    """
    if gpus < 1:
        raise ValueError(f"`gpus` must be at least 1, got {gpus}")
    if gpus == 1:
        return 0.0, 0.0, 0.0
    if cluster == "dedicated":
        return _DEDICATED
    largest = NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))
    likely, low, high = (spread * largest for spread in _SHARED)
    return likely, low, high
