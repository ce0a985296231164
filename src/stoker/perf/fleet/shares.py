"""Where a fleet's time goes: shares by class at job and GPU level, their distributions, the resource that binds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.perf.equations import RESOURCE_OF_PART, Breakdown, FloatArray, Overlap
from stoker.perf.fleet.jobs import Fleet
from stoker.perf.hardware import Resource
from stoker.records.fleet import Bottleneck, Curve, JobGroup, Shares

ALL = "all jobs"
COMMUNICATION = ("pcie", "nvlink", "ethernet")
LABELS = {
    "input": "input",
    "compute": "compute-bound",
    "memory": "memory-bound",
    "pcie": "weights on PCIe",
    "nvlink": "weights on NVLink",
    "ethernet": "weights on Ethernet",
    "computation": "computation",
    "communication": "communication",
}
RESOURCE_LABELS = {
    Resource.COMPUTE: "GPU FLOP/s",
    Resource.MEMORY: "GPU memory",
    Resource.PCIE: "PCIe",
    Resource.NVLINK: "NVLink",
    Resource.ETHERNET: "Ethernet",
}
_BINS = 100


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The classes that have jobs, and how to sum over them."""

    names: tuple[str, ...]
    """Names of the classes with jobs, in order; the whole fleet is added as ``ALL``."""
    code: NDArray[np.intp]
    """Place of each job's class in ``names``."""
    weight: FloatArray

    @classmethod
    def of(cls, fleet: Fleet) -> Classes:
        """The classes of a fleet."""
        counts = np.bincount(fleet.group, minlength=len(fleet.groups))
        used = np.flatnonzero(counts)
        # The type that bincount uses: it would copy any other each time.
        renumber = np.zeros(len(fleet.groups), dtype=np.intp)
        renumber[used] = np.arange(len(used))
        names = tuple(fleet.groups[number] for number in used.tolist())
        return cls(names=names, code=renumber[fleet.group], weight=fleet.weight)

    def sums(self, values: FloatArray | None) -> FloatArray:
        """Sums over each class and, last, over all; the number of jobs if no values are given."""
        by_class = np.bincount(self.code, values, len(self.names)).astype(np.float64)
        return np.append(by_class, by_class.sum())

    def means(self, values: FloatArray) -> dict[str, float]:
        """Means over the jobs of each class and of all."""
        found = self.sums(values) / self.sums(None)
        return dict(zip((*self.names, ALL), found.tolist(), strict=True))

    @property
    def with_all(self) -> tuple[str, ...]:
        """Names of what :meth:`sums` returns."""
        return (*self.names, ALL)


def groups_of(fleet: Fleet, classes: Classes) -> list[JobGroup]:
    """How many jobs and GPUs each class has."""
    jobs, gpus, weight = classes.sums(None), classes.sums(fleet.num_gpus), classes.sums(classes.weight)
    return [
        JobGroup(
            name=name,
            jobs=round(jobs[number]),
            gpus=round(gpus[number]),
            job_frac=float(jobs[number] / jobs[-1]),
            gpu_frac=float(weight[number] / weight[-1]),
        )
        for number, name in enumerate(classes.names)
    ]


def part_shares(parts: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Share of each job's step that each part takes; they sum to 1."""
    total_s = sum(parts.values(), np.zeros(1))
    return {name: values / total_s for name, values in parts.items()}


def stage_shares(stages: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Shares of stages that overlap: the longest is all of the step."""
    longest = np.argmax(np.stack(list(stages.values())), axis=0)
    return {name: (longest == number).astype(np.float64) for number, name in enumerate(stages)}


def shares_of(shares: Mapping[str, FloatArray], classes: Classes) -> list[Shares]:
    """Mean shares of each class and of all."""
    jobs, weight = classes.sums(None), classes.sums(classes.weight)
    at_job = {name: classes.sums(values) / jobs for name, values in shares.items()}
    at_gpu = {name: classes.sums(values * classes.weight) / weight for name, values in shares.items()}
    return [
        Shares(
            group=group,
            at_job={name: float(values[number]) for name, values in at_job.items()},
            at_gpu={name: float(values[number]) for name, values in at_gpu.items()},
        )
        for number, group in enumerate(classes.with_all)
    ]


def curves_of(shares: Mapping[str, FloatArray], classes: Classes) -> list[Curve]:
    """The distributions of the shares of input, compute-bound, memory-bound and all communication."""
    shown = {name: values for name, values in shares.items() if name not in COMMUNICATION}
    links = [shares[name] for name in COMMUNICATION if name in shares]
    if links:
        shown["communication"] = sum(links[1:], links[0])
    return [curve for part, values in shown.items() for curve in _curves(part, values, classes)]


def _curves(part: str, values: FloatArray, classes: Classes) -> list[Curve]:
    # A share belongs to the first percent that it does not exceed; rounding must not move 20.000…1 % to 21 %.
    place = np.ceil(values * _BINS - 1e-9).astype(np.intp)
    cells = len(classes.names) * (_BINS + 1)
    counts = np.bincount(classes.code * (_BINS + 1) + np.clip(place, 0, _BINS), minlength=cells)
    by_class = counts.reshape(len(classes.names), _BINS + 1)
    whole = np.vstack([by_class, by_class.sum(axis=0)])
    fracs = np.cumsum(whole, axis=1) / whole.sum(axis=1, keepdims=True)
    return [
        Curve(group=group, part=part, jobs_frac=[round(value, 5) for value in fracs[number].tolist()])
        for number, group in enumerate(classes.with_all)
    ]


def resource_seconds(busy: Breakdown[FloatArray]) -> dict[Resource, FloatArray]:
    """Seconds of a step in which each resource is busy: PCIe carries both input and weights."""
    found: dict[Resource, FloatArray] = {}
    for name, values in busy.parts().items():
        resource = RESOURCE_OF_PART[name]
        found[resource] = found[resource] + values if resource in found else values
    return {resource: found[resource] for resource in Resource}


def bottlenecks_of(busy: Mapping[str, FloatArray], classes: Classes) -> list[Bottleneck]:
    """Counts the jobs of each class by what takes longest."""
    longest = _longest(list(busy.values()))
    size = len(busy)
    cell = classes.code * size + longest

    def fracs(weight: FloatArray | None) -> FloatArray:
        by_class = np.bincount(cell, weight, len(classes.names) * size).reshape(-1, size)
        whole = np.vstack([by_class, by_class.sum(axis=0)])
        return whole / whole.sum(axis=1, keepdims=True)

    at_job, at_gpu = fracs(None), fracs(classes.weight)
    return [
        Bottleneck(
            group=group,
            at_job=dict(zip(map(str, busy), at_job[number].tolist(), strict=True)),
            at_gpu=dict(zip(map(str, busy), at_gpu[number].tolist(), strict=True)),
        )
        for number, group in enumerate(classes.with_all)
    ]


def _longest(values: Sequence[FloatArray]) -> NDArray[np.intp]:
    best, place = values[0].copy(), np.zeros(len(values[0]), dtype=np.intp)
    for number, each in enumerate(values[1:], 1):
        longer = each > best
        place[longer] = number
        np.maximum(best, each, out=best)
    return place


def step_s(busy: Breakdown[FloatArray], overlap: Overlap) -> FloatArray:
    """Seconds of a step."""
    return (busy.exposed() if overlap == "full" else busy).total_s
