"""What a unit of a job's rate is worth at a moment, by objective: the order in which CPUs go to jobs.

Pure functions of columns. The worth of a CPU is the worth of the rate times the rate that the CPU adds, so that of
concave curves the segments are taken in the order that is best for the sum.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from stoker.scale.cluster.state import Claims, FloatArray

Objective = Literal["jct", "throughput", "fair", "max-min", "first-come"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

PRIOR_S = 3600.0
"""Work that a job is believed to have left when nothing is known about it, in seconds at full speed: an hour. Tried:
600 to 40,000 s; shorter gains where CPUs are very short, longer where some are added."""


def worth_of_rates(claims: Claims, now_s: float, objective: Objective, prior_s: float = PRIOR_S) -> FloatArray:
    """The worth of a unit of rate of each job; larger goes first.

    Args:
        claims: of the jobs.
        now_s: the time.
        objective: "jct" is the mean completion time: 1 over the work left, so that a CPU's worth is 1 over the CPU
            work left (where the end is unknown, work left is believed to be as much as was done, and ``prior_s``:
            durations have heavy tails, so this is least attained service). "throughput" is GPU time that computes.
            "fair" is finish-time fairness: the job that was slowed down most. "first-come" is the order of starts.
        prior_s: see above.

    Source: SRPT on CPU work for "jct", least attained service after Tiresias (NSDI 2019) with attained CPU work in the
    place of GPU time; finish-time fairness after Themis (NSDI 2020), greedily and without its auctions.
    """
    if objective == "jct":
        left = claims.progress_s + prior_s
        np.copyto(left, claims.left_s, where=~np.isnan(claims.left_s))
        return claims.weight / np.maximum(left, 1e-3, out=left)
    if objective == "throughput":
        return claims.weight * claims.gpus
    if objective == "fair":
        left = np.where(np.isfinite(claims.left_s), claims.left_s, 0.0)
        elapsed = np.maximum(now_s - claims.arrived_s, 0.0)
        return claims.weight * (elapsed + left + prior_s) / (claims.progress_s + left + prior_s)
    if objective == "first-come":
        return -claims.started_s
    return claims.weight.copy()
