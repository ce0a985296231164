"""What the allocator knows and answers: nodes, jobs and grants, as records and as columns of numbers.

A claim is what a job may use and what it has; the columns of all claims are what the policy computes on, live and
simulated. Pure values; nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stoker.scale.cluster.curves import RateCurve

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """A machine of the cluster."""

    name: str
    cpus: int
    """CPUs that data workers may have, those of the training workers not counted."""
    gpus: int = 0
    draining: bool = False
    """It leaves soon: what it has granted is taken back, nothing new is granted."""

    def __post_init__(self) -> None:
        if self.cpus < 0 or self.gpus < 0:
            raise ValueError(f"`cpus` and `gpus` must not be negative, got {self.cpus} and {self.gpus}")


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """A job that runs: its training workers have their GPUs."""

    name: str
    curve: RateCurve
    gpus: int = 1
    homes: tuple[str, ...] = ()
    """Nodes of its training workers."""
    share_cpus: float = 0.0
    """Its part of the CPUs of its nodes, by its part of their GPUs: what it has without an allocator."""
    user: str = ""
    weight: float = 1.0
    priority: int = 0
    """A higher class goes before a lower one whatever the objective says."""
    movable: bool = True
    """Whether its data workers may run on other nodes."""
    arrived_s: float = 0.0
    started_s: float = 0.0
    progress_s: float = 0.0
    """Work done, in seconds at full speed."""
    left_s: float | None = None
    """Work left, in seconds at full speed; None if the job's end is unknown."""

    def __post_init__(self) -> None:
        if not self.weight > 0.0 or not math.isfinite(self.weight):
            raise ValueError(f"`weight` of `{self.name}` must be positive, got {self.weight}")
        if self.gpus < 0 or self.share_cpus < 0.0:
            raise ValueError(
                f"`gpus` and `share_cpus` of `{self.name}` must not be negative, got {self.gpus} and {self.share_cpus}"
            )


@dataclass(frozen=True)
class CpuGrant:
    """CPUs of a node for a job's data workers."""

    job: str
    node: str
    cpus: int


@dataclass(kw_only=True)
class Claims:
    """Columns over jobs; a row whose widths are 0 wants nothing."""

    widths: FloatArray
    """CPUs of each segment of the curves; jobs by segments."""
    slopes: FloatArray
    """Rate that each CPU of a segment adds; falling along a row."""
    gpus: FloatArray
    share_cpus: FloatArray
    held_cpus: FloatArray
    """CPUs that it has now."""
    arrived_s: FloatArray
    started_s: FloatArray
    progress_s: FloatArray
    left_s: FloatArray
    """NaN where the end is unknown."""
    weight: FloatArray
    priority: IntArray
    user: IntArray
    """Number of the user; quotas are by this number."""

    def __len__(self) -> int:
        return len(self.gpus)

    def rates(self, cpus: FloatArray) -> FloatArray:
        """Rates with so many CPUs each."""
        if self.widths.shape[1] == 1:
            return np.minimum(cpus, self.widths[:, 0]) * self.slopes[:, 0]
        before = np.cumsum(self.widths, axis=1) - self.widths
        used = np.minimum(np.maximum(cpus[:, None] - before, 0.0), self.widths)
        return (used * self.slopes).sum(axis=1)


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """All that a plan depends on besides the time.

    Raises:
        ValueError: a name is there twice, or a grant or a home names what is not there.
    """

    nodes: tuple[ClusterNode, ...]
    jobs: tuple[ClusterJob, ...]
    grants: tuple[CpuGrant, ...] = ()
    quotas: Mapping[str, int] = field(default_factory=dict[str, int])
    """CPUs by user; who has none may borrow only. Without any quota all is common."""
    node_numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)
    job_numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_numbers", _numbers("nodes", [node.name for node in self.nodes]))
        object.__setattr__(self, "job_numbers", _numbers("jobs", [job.name for job in self.jobs]))
        for grant in self.grants:
            if grant.job not in self.job_numbers or grant.node not in self.node_numbers:
                raise ValueError(f"`grants` must name a job and a node of the state, got {grant}")
        homes = {home for job in self.jobs for home in job.homes}
        if lost := sorted(homes - self.node_numbers.keys()):
            raise ValueError(f"`homes` must be nodes of the state, got `{lost[0]}`")

    def users(self) -> list[str]:
        """Users of jobs, in the order of their numbers."""
        return list(dict.fromkeys(job.user for job in self.jobs))


def _numbers(what: str, names: Sequence[str]) -> dict[str, int]:
    found = {name: number for number, name in enumerate(names)}
    if len(found) < len(names):
        twice = next(name for number, name in enumerate(names) if found[name] != number)
        raise ValueError(f"`{what}` must have names of their own, got `{twice}` twice")
    return found


def claims_of(state: ClusterState, held_cpus: FloatArray) -> Claims:
    """The columns of a state's jobs."""
    jobs = state.jobs
    segments = max((len(job.curve.points) for job in jobs), default=1)
    points = np.zeros((len(jobs), segments + 1, 2))
    for number, job in enumerate(jobs):
        own = job.curve.points
        points[number, 1 : len(own) + 1] = own
        points[number, len(own) + 1 :] = own[-1]
    widths = np.diff(points[:, :, 0], axis=1)
    gains = np.diff(points[:, :, 1], axis=1)
    slopes = np.divide(gains, widths, out=np.zeros_like(gains), where=widths > 0.0)
    users = {name: number for number, name in enumerate(state.users())}

    def column(values: list[float]) -> FloatArray:
        return np.array(values, dtype=np.float64)

    return Claims(
        widths=widths,
        slopes=slopes,
        gpus=column([job.gpus for job in jobs]),
        share_cpus=column([job.share_cpus for job in jobs]),
        held_cpus=held_cpus,
        arrived_s=column([job.arrived_s for job in jobs]),
        started_s=column([job.started_s for job in jobs]),
        progress_s=column([job.progress_s for job in jobs]),
        left_s=column([math.nan if job.left_s is None else job.left_s for job in jobs]),
        weight=column([job.weight for job in jobs]),
        priority=np.array([job.priority for job in jobs], dtype=np.int64),
        user=np.array([users[job.user] for job in jobs], dtype=np.int64),
    )
