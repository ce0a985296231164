"""The analytical framework of the PAI study: a step's time from what a job computes, touches and sends.

One implementation for one job (floats) and for many (NumPy arrays, a job each). Six architectures; each sends its
weights and gradients over a path of links, whose times add up. Without overlap a step takes the sum of its parts; with
full overlap the longest of input, computation and communication. Knows neither programs nor tables of jobs.

Source: arXiv 1910.05930; which parts are recalled: see :mod:`stoker.perf.hardware` and, for the paths, ``PATHS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from stoker.perf.hardware import PAPER, Basis, Hardware, Provenance, Resource

FloatArray = NDArray[np.float64]
CodeArray = NDArray[np.integer[Any]]
Amount = TypeVar("Amount", float, FloatArray)
"""A number of one job, or an array with one of each job."""
Overlap = Literal["none", "full"]


class Architecture(IntEnum):
    """How a job's GPUs share the work; arrays hold the number."""

    ONE_GPU = 0
    ONE_SERVER = 1
    PS_WORKER = 2
    ALLREDUCE_LOCAL = 3
    ALLREDUCE_CLUSTER = 4
    PEARL = 5

    @property
    def label(self) -> str:
        """Its name in tables."""
        return LABELS[self]


LABELS = ("1w1g", "1wng", "PS/Worker", "AllReduce-Local", "AllReduce-Cluster", "PEARL")
"""Names by number: one worker with one GPU; one worker with n GPUs, weights on the host; parameter servers; replicas in
one server; replicas in many; embeddings partitioned over the GPUs, the dense part replicated."""

PATHS: Mapping[Architecture, tuple[Resource, ...]] = MappingProxyType(
    {
        Architecture.ONE_GPU: (),
        Architecture.ONE_SERVER: (Resource.PCIE,),
        Architecture.PS_WORKER: (Resource.ETHERNET, Resource.PCIE),
        Architecture.ALLREDUCE_LOCAL: (Resource.NVLINK,),
        Architecture.ALLREDUCE_CLUSTER: (Resource.ETHERNET, Resource.NVLINK),
        Architecture.PEARL: (Resource.NVLINK, Resource.ETHERNET),
    }
)
"""Links that weights and gradients pass, one after another."""
PATHS_SOURCE = Provenance(Basis.RECALLED, f"{PAPER}, recalled; the bounds of 21x and 1.2x for porting follow from them")
LINKS = (Resource.PCIE, Resource.NVLINK, Resource.ETHERNET)

_PASSES = {link: np.array([float(link in PATHS[each]) for each in Architecture]) for link in LINKS}
IN_ONE_SERVER = (Architecture.ONE_SERVER, Architecture.ALLREDUCE_LOCAL)
"""Architectures whose GPUs, though many, are in one server."""
_SHARES_ROOT = np.array([each is not Architecture.PS_WORKER for each in Architecture])
"""Workers of PS/Worker have a GPU and a server each."""
_HAS_SERVERS = np.array([each is Architecture.PS_WORKER for each in Architecture])


@dataclass(frozen=True, kw_only=True)
class Features(Generic[Amount]):
    """What one step needs from one GPU, and how many GPUs there are."""

    architecture: Architecture | CodeArray
    num_gpus: Amount
    flops: Amount
    """Floating-point operations of the compute-bound operations."""
    memory_bytes: Amount
    """Bytes of GPU memory that the memory-bound operations touch."""
    input_bytes: Amount
    """Bytes of input copied to the GPU."""
    traffic_bytes: Amount
    """Bytes of weights and gradients that pass each link of the path."""


@dataclass(frozen=True, kw_only=True)
class Breakdown(Generic[Amount]):
    """Seconds of a step by what they are spent on; the parts sum to ``total_s``."""

    input_s: Amount
    compute_s: Amount
    """Time of compute-bound operations."""
    memory_s: Amount
    """Time of memory-bound operations."""
    pcie_s: Amount
    """Weights and gradients on PCIe."""
    nvlink_s: Amount
    """Weights and gradients on NVLink."""
    ethernet_s: Amount
    """Weights and gradients on Ethernet."""

    @property
    def communication_s(self) -> Amount:
        """Weights and gradients on all links."""
        return self.pcie_s + self.nvlink_s + self.ethernet_s

    @property
    def total_s(self) -> Amount:
        """The step."""
        return self.input_s + self.compute_s + self.memory_s + self.communication_s

    def parts(self) -> dict[str, Amount]:
        """The parts by name without the unit, in the order in which they are shown."""
        return {each.name.removesuffix("_s"): getattr(self, each.name) for each in fields(self)}

    def with_rates(self, **times_faster: float) -> Breakdown[Amount]:
        """The same step with resources, by name, so many times as fast; only for parts that do not overlap yet."""
        slower = {name: 1.0 / factor for name, factor in times_faster.items()}
        found = {name: self._part(name, slower.get(resource)) for name, resource in RESOURCE_OF_PART.items()}
        return Breakdown(**{f"{name}_s": part for name, part in found.items()})

    def _part(self, name: str, factor: float | None) -> Amount:
        part: Amount = getattr(self, f"{name}_s")
        return part if factor is None else part * factor

    def exposed(self) -> Breakdown[Amount]:
        """The same step fully overlapped: only the longest of input, computation and communication is left."""
        computation_s, communication_s = self.compute_s + self.memory_s, self.communication_s
        by_input: Any = (self.input_s >= computation_s) & (self.input_s >= communication_s)
        by_link: Any = (communication_s > computation_s) & np.logical_not(by_input)
        by_gpu: Any = np.logical_not(by_input | by_link)
        return Breakdown(
            input_s=self.input_s * by_input,
            compute_s=self.compute_s * by_gpu,
            memory_s=self.memory_s * by_gpu,
            pcie_s=self.pcie_s * by_link,
            nvlink_s=self.nvlink_s * by_link,
            ethernet_s=self.ethernet_s * by_link,
        )


RESOURCE_OF_PART: Mapping[str, Resource] = MappingProxyType(
    {
        "input": Resource.PCIE,
        "compute": Resource.COMPUTE,
        "memory": Resource.MEMORY,
        "pcie": Resource.PCIE,
        "nvlink": Resource.NVLINK,
        "ethernet": Resource.ETHERNET,
    }
)
"""The resource whose time each part of a step takes."""


def breakdown(features: Features[Amount], hardware: Hardware, overlap: Overlap = "none") -> Breakdown[Amount]:
    """Seconds of a step by part.

    Args:
        features: of one step on one GPU.
        hardware: to run on.
        overlap: ``none`` adds everything up; with ``full`` only the longest of input, computation and communication
            is left, the bound of perfect overlap.

    Source: T = T_d + T_c + T_w; T_c adds FLOPs and memory bytes rather than taking the longer (arXiv 1910.05930, as
        published summaries have it; the form with full overlap and 70 % efficiency are recalled).
    """
    sends: Any = np.logical_or(np.greater(features.num_gpus, 1), _HAS_SERVERS[features.architecture])
    sent_bytes = features.traffic_bytes * sends

    def on(link: Resource) -> Amount:
        return cast("Amount", sent_bytes * _PASSES[link][features.architecture] / hardware.rate(link))

    busy: Breakdown[Amount] = Breakdown(
        input_s=features.input_bytes * _sharing(features, hardware) / hardware.rate(Resource.PCIE),
        compute_s=features.flops / hardware.rate(Resource.COMPUTE),
        memory_s=features.memory_bytes / hardware.rate(Resource.MEMORY),
        pcie_s=on(Resource.PCIE),
        nvlink_s=on(Resource.NVLINK),
        ethernet_s=on(Resource.ETHERNET),
    )
    return busy.exposed() if overlap == "full" else busy


def _sharing(features: Features[Amount], hardware: Hardware) -> Any:
    """GPUs of the job that get their input over one PCIe root."""
    shared: Any = np.minimum(features.num_gpus, hardware.gpus_per_pcie_root)
    return np.where(_SHARES_ROOT[features.architecture], shared, 1.0)[()]


def port(features: Features[Amount], target: Architecture, hardware: Hardware) -> Features[Amount]:
    """The same job on another architecture, its work and its traffic per GPU unchanged.

    One server has room for ``gpus_per_server``: a larger job shrinks to that, so that the gain per GPU and the gain of
    the job differ (:func:`throughput` tells).
    """
    most = 1 if target is Architecture.ONE_GPU else hardware.gpus_per_server if target in IN_ONE_SERVER else np.inf
    num_gpus = cast("Amount", np.minimum(features.num_gpus, most))
    if isinstance(features.architecture, Architecture):
        return replace(features, architecture=target, num_gpus=num_gpus)
    return replace(features, architecture=np.full_like(features.architecture, target), num_gpus=num_gpus)


def ring_traffic(weight_bytes: Amount, num_gpus: Amount) -> Amount:
    """Bytes that each GPU sends and receives in a ring all-reduce of weights (optimiser slots included).

    Source: 2 (n - 1) / n x W; the recalled traffic of ResNet50 and Speech, 357 and 728 MB, agrees at n = 8.
    """
    return 2 * (num_gpus - 1) / num_gpus * weight_bytes


def throughput(num_gpus: Amount, batch_size: Amount, total_s: Amount) -> Amount:
    """Samples a second of a job; ``batch_size`` is that of one GPU."""
    return num_gpus * batch_size / total_s
