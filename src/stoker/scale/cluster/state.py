"""What the allocator knows and answers: nodes, jobs and grants, as records and as columns of numbers.

A claim is what a job may use and what it has; the columns of all claims are what the policy computes on, live and
simulated. Pure values; nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter

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


@dataclass(frozen=True)
class HeldCpus:
    """Grants as columns: numbers of jobs and nodes, CPUs."""

    job: IntArray
    node: IntArray
    cpus: IntArray


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """All that a plan depends on besides the time; its columns are made with it.

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
    held: HeldCpus = field(init=False, repr=False, compare=False)
    """The grants."""
    homes: HeldCpus = field(init=False, repr=False, compare=False)
    """Jobs and the nodes of their training workers; no CPUs."""
    claims: Claims = field(init=False, repr=False, compare=False)
    """What each job wants and has; not to be changed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_numbers", _numbers("nodes", [node.name for node in self.nodes]))
        object.__setattr__(self, "job_numbers", _numbers("jobs", [job.name for job in self.jobs]))
        for grant in self.grants:
            if grant.job not in self.job_numbers or grant.node not in self.node_numbers:
                raise ValueError(f"`grants` must name a job and a node of the state, got {grant}")
        homes = {home for job in self.jobs for home in job.homes}
        if lost := sorted(homes - self.node_numbers.keys()):
            raise ValueError(f"`homes` must be nodes of the state, got `{lost[0]}`")
        held = _columns(
            (self.job_numbers[grant.job] for grant in self.grants),
            (self.node_numbers[grant.node] for grant in self.grants),
            (grant.cpus for grant in self.grants),
        )
        object.__setattr__(self, "held", held)
        pairs = [(number, home) for number, job in enumerate(self.jobs) for home in job.homes]
        own = _columns((job for job, _ in pairs), (self.node_numbers[home] for _, home in pairs), (0 for _ in pairs))
        object.__setattr__(self, "homes", own)
        object.__setattr__(self, "claims", _claims_of(self))

    def users(self) -> list[str]:
        """Users of jobs, in the order of their numbers."""
        return list(dict.fromkeys(map(_USER, self.jobs)))


def _numbers(what: str, names: Sequence[str]) -> dict[str, int]:
    found = {name: number for number, name in enumerate(names)}
    if len(found) < len(names):
        twice = next(name for number, name in enumerate(names) if found[name] != number)
        raise ValueError(f"`{what}` must have names of their own, got `{twice}` twice")
    return found


def _columns(jobs: Iterable[int], nodes: Iterable[int], cpus: Iterable[int]) -> HeldCpus:
    return HeldCpus(*(np.fromiter(column, np.int64) for column in (jobs, nodes, cpus)))


def _claims_of(state: ClusterState) -> Claims:
    """The columns of a state's jobs."""
    jobs = state.jobs
    held_cpus = np.bincount(state.held.job, state.held.cpus, len(jobs)).astype(np.float64)
    curves = list(map(_POINTS, jobs))
    segments = max(map(len, curves), default=1)
    # Shorter curves repeat their last breakpoint: segments of no width.
    padded = (own if len(own) == segments else own + own[-1:] * (segments - len(own)) for own in curves)
    points = np.zeros((len(jobs), segments + 1, 2))
    flat = chain.from_iterable(chain.from_iterable(padded))
    points[:, 1:] = np.fromiter(flat, np.float64, len(jobs) * segments * 2).reshape(-1, segments, 2)
    widths = np.diff(points[:, :, 0], axis=1)
    gains = np.diff(points[:, :, 1], axis=1)
    slopes = np.divide(gains, widths, out=np.zeros_like(gains), where=widths > 0.0)
    for number, job in enumerate(jobs):
        if not job.movable:
            # Its data workers can use its share of its own nodes and no more.
            before = np.cumsum(widths[number]) - widths[number]
            widths[number] = np.minimum(np.maximum(job.share_cpus - before, 0.0), widths[number])
    users = {name: number for number, name in enumerate(state.users())}

    def column(name: str) -> FloatArray:
        # Without objects that the garbage collector would look at: ten thousand of them cost more than the plan.
        return np.fromiter(map(attrgetter(name), jobs), np.float64, len(jobs))

    return Claims(
        widths=widths,
        slopes=slopes,
        gpus=column("gpus"),
        share_cpus=column("share_cpus"),
        held_cpus=held_cpus,
        arrived_s=column("arrived_s"),
        started_s=column("started_s"),
        progress_s=column("progress_s"),
        left_s=np.fromiter((math.nan if left is None else left for left in map(_LEFT, jobs)), np.float64, len(jobs)),
        weight=column("weight"),
        priority=np.fromiter(map(_PRIORITY, jobs), np.int64, len(jobs)),
        user=np.fromiter((users[name] for name in map(_USER, jobs)), np.int64, len(jobs)),
    )


_POINTS, _LEFT = attrgetter("curve.points"), attrgetter("left_s")
_PRIORITY, _USER = attrgetter("priority"), attrgetter("user")
