"""The policies that are compared: what users have today, and the allocator's objectives, live code each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from stoker.scale.cluster.division import DivisionConfig
from stoker.scale.cluster.gangs import GangConfig

CpuRule = Literal["share", "request", "pool", "unlimited"]


@dataclass(frozen=True, kw_only=True)
class SimPolicy:
    """One way to run the cluster."""

    name: str
    about: str
    cpus: CpuRule = "pool"
    """"share": a job's part of its node. "request": what it needs for full speed, at most a node's, on the nodes of its
    GPUs. "pool": divided among the jobs that run. "unlimited": full speed always."""
    division: DivisionConfig | None = None
    known: bool = False
    """Whether durations are known."""
    learned: bool = False
    """Whether curves are unknown: they are learned from the jobs' queues, as on a cluster, and CPUs are whole."""
    reviews: bool = False
    """Whether the division changes with time alone."""
    gangs: GangConfig = field(default_factory=GangConfig)
    quotas: Mapping[str, float] = field(default_factory=dict[str, float])
    """CPUs by user; without any, all is common. The first claim on them is the user's, what is left is lent."""


def standard_policies(
    gangs: GangConfig | None = None, *, floor_frac: float = 0.0, quotas: Mapping[str, float] | None = None
) -> dict[str, SimPolicy]:
    """The policies by name.

    Args:
        gangs: how GPUs are admitted, the same for all.
        floor_frac: of the allocator's own policies.
        quotas: CPUs by user, of the allocator's own policies.
    """
    gangs = gangs or GangConfig()
    found = (
        SimPolicy(name="none", about="each job has its part of its node's CPUs", cpus="share", gangs=gangs),
        SimPolicy(
            name="static", about="each job requests its CPUs with its GPUs, on one node", cpus="request", gangs=gangs
        ),
        SimPolicy(
            name="greedy", about="each job takes what it can use of a common pool: first come, first kept",
            division=DivisionConfig(objective="first-come", hysteresis=1.0), gangs=gangs,
        ),
        SimPolicy(
            name="max-min", about="a common pool in equal parts",
            division=DivisionConfig(objective="max-min", hysteresis=1.0), gangs=gangs,
        ),
        SimPolicy(
            name="throughput", about="most computing GPUs for each CPU",
            division=DivisionConfig(objective="throughput", floor_frac=floor_frac), gangs=gangs,
        ),
        SimPolicy(
            name="fair", about="the allocator, finish-time fairness", reviews=True,
            division=DivisionConfig(objective="fair", floor_frac=floor_frac), gangs=gangs,
        ),
        SimPolicy(
            name="jct", about="the allocator, durations unknown", reviews=True,
            division=DivisionConfig(objective="jct", floor_frac=floor_frac), gangs=gangs,
        ),
        SimPolicy(
            name="jct-known", about="the allocator, durations known", known=True,
            division=DivisionConfig(objective="jct", floor_frac=floor_frac), gangs=gangs,
        ),
        SimPolicy(name="unlimited", about="CPUs without limit: the most any policy can gain", cpus="unlimited",
                  gangs=gangs),
    )  # fmt: skip
    own = ("throughput", "fair", "jct", "jct-known")
    return {policy.name: replace(policy, quotas=quotas or {}) if policy.name in own else policy for policy in found}
