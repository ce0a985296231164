"""Decides how many data workers a job has; pure: observations in, decisions out, time is a field."""

from stoker.scale.budget import (
    CpuLedger,
    CpuShare,
    fair_shares,
    local_world_size,
    rank_bytes,
    rank_cores,
    ranks_of_group,
)
from stoker.scale.job import JobAutoscaler
from stoker.scale.limits import JobScalingConfig

__all__ = [
    "CpuLedger",
    "CpuShare",
    "JobAutoscaler",
    "JobScalingConfig",
    "fair_shares",
    "local_world_size",
    "rank_bytes",
    "rank_cores",
    "ranks_of_group",
]
