"""Machines as the equations see them: one rate and one efficiency per resource; where each number comes from.

The paper is Wang et al., "Characterizing Deep Learning Training Workloads on Alibaba-PAI", IISWC 2019
(arXiv 1910.05930).
Its full text was not available: each constant says whether it is in the abstract and second-hand accounts, recalled, or
computed. What is recalled is shown as "unverified" wherever it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType

PAPER = "arXiv 1910.05930"
"""The paper, in short."""


class Basis(StrEnum):
    """How sure a constant is."""

    ABSTRACT = "abstract"
    """In the paper's abstract, or in published summaries of it."""
    COMPUTED = "computed"
    """Follows by arithmetic from others."""
    RECALLED = "recalled"
    """Remembered from the paper and not checked against it."""
    ASSUMED = "assumed"
    """Chosen here; the paper may say otherwise."""
    GIVEN = "given"
    """The user's own."""

    @property
    def is_verified(self) -> bool:
        """Whether it may be shown as a fact."""
        return self in (Basis.ABSTRACT, Basis.COMPUTED, Basis.GIVEN)


@dataclass(frozen=True)
class Provenance:
    """Where a constant comes from."""

    basis: Basis
    where: str

    @property
    def mark(self) -> str:
        """Shown after the number everywhere."""
        return "" if self.basis.is_verified else " (unverified)"


class Resource(StrEnum):
    """What a step spends time on."""

    COMPUTE = "compute"
    """Arithmetic of the GPU."""
    MEMORY = "memory"
    """Bandwidth of the GPU's memory."""
    PCIE = "pcie"
    """Link between the host and its GPUs: input, and weights that live on the host."""
    NVLINK = "nvlink"
    """Links between the GPUs of a server."""
    ETHERNET = "ethernet"
    """Links between servers."""


FIELD_OF = MappingProxyType(
    {
        Resource.COMPUTE: "gpu_flops_per_s",
        Resource.MEMORY: "memory_bytes_per_s",
        Resource.PCIE: "pcie_bytes_per_s",
        Resource.NVLINK: "nvlink_bytes_per_s",
        Resource.ETHERNET: "ethernet_bytes_per_s",
    }
)
"""The field of :class:`Hardware` that holds the peak rate of a resource."""

_USER = Provenance(Basis.GIVEN, "given by the user")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A kind of server and the network between such servers.

    Raises:
        ValueError: a rate, count or efficiency is out of its range.
    """

    name: str
    gpu_flops_per_s: float
    """Peak of one GPU."""
    memory_bytes_per_s: float
    """Peak of one GPU's memory."""
    pcie_bytes_per_s: float
    """Peak between the host and a GPU."""
    nvlink_bytes_per_s: float
    """Peak between the GPUs of a server."""
    ethernet_bytes_per_s: float
    """Peak between servers."""
    memory_capacity_bytes: float = 32 * 2**30
    """Memory of one GPU, which a replica of a model must fit into."""
    gpus_per_server: int = 8
    gpus_per_pcie_root: int = 8
    """GPUs that share the link that input takes."""
    efficiency: Mapping[Resource, float] = field(default_factory=lambda: dict.fromkeys(Resource, 0.7))
    """Share of the peak that is reached, in (0, 1], by resource."""
    sources: Mapping[str, Provenance] = field(default_factory=dict[str, Provenance])
    """Where each field's value comes from; those not named were given by the user."""

    def __post_init__(self) -> None:
        """Checks the ranges."""
        for each in (*FIELD_OF.values(), "memory_capacity_bytes"):
            _check(each, getattr(self, each), math.inf)
        for name in ("gpus_per_server", "gpus_per_pcie_root"):
            if not getattr(self, name) >= 1:  # a NaN is not
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        for resource in Resource:
            if resource not in self.efficiency:
                raise ValueError(f"`efficiency` must name every resource, got none for {resource}")
            _check(f"efficiency.{resource}", self.efficiency[resource], 1.0)

    def peak(self, resource: Resource) -> float:
        """Peak rate of a resource (FLOP/s or bytes/s)."""
        return getattr(self, FIELD_OF[resource])

    def rate(self, resource: Resource) -> float:
        """Rate of a resource that steps reach (FLOP/s or bytes/s)."""
        return self.peak(resource) * self.efficiency[resource]

    def source(self, name: str) -> Provenance:
        """Where the value of a field comes from."""
        return self.sources.get(name, _USER)

    def with_values(self, source: Provenance, **values: float) -> Hardware:
        """The same with other values of some fields, all from one source.

        Raises:
            ValueError: a field is unknown or a value out of range.
        """
        unknown = sorted(set(values) - {each.name for each in fields(self)})
        if unknown:
            raise ValueError(f"`{unknown[0]}` must be one of {', '.join(VALUES)}")
        return replace(self, **values, sources={**self.sources, **dict.fromkeys(values, source)})


def _check(name: str, value: float, most: float) -> None:
    if not (0 < value <= most and math.isfinite(value)):
        rule = "a positive number" if most == math.inf else f"above 0 and at most {most:g}"
        raise ValueError(f"`{name}` must be {rule}, got {value}")


VALUES = (*FIELD_OF.values(), "memory_capacity_bytes", "gpus_per_server", "gpus_per_pcie_root")
"""Fields that are numbers, in the order in which they are shown."""

GBPS = 1e9 / 8
"""Bytes/s in a Gbps."""

_TESTBED = Provenance(Basis.ABSTRACT, f"{PAPER}: published summaries name it")
_RECALLED = Provenance(Basis.RECALLED, f"{PAPER}, recalled")

PAPER_TESTBED = Hardware(
    name="testbed of the PAI study",
    gpu_flops_per_s=11e12,
    memory_bytes_per_s=1e12,
    pcie_bytes_per_s=10e9,
    nvlink_bytes_per_s=50e9,
    ethernet_bytes_per_s=25 * GBPS,
    sources={
        "gpu_flops_per_s": _TESTBED,
        "memory_bytes_per_s": _RECALLED,
        "pcie_bytes_per_s": _TESTBED,
        "nvlink_bytes_per_s": _TESTBED,
        "ethernet_bytes_per_s": _TESTBED,
        "efficiency": _RECALLED,
        "gpus_per_server": Provenance(Basis.RECALLED, f"{PAPER}, recalled: 64 servers with 8 V100 each"),
        "gpus_per_pcie_root": Provenance(
            Basis.RECALLED, f"{PAPER}, recalled: input contends among the GPUs of a server"
        ),
        "memory_capacity_bytes": Provenance(Basis.ASSUMED, "the larger V100, 32 GiB; the paper's is not established"),
    },
)
"""What the study assumes of its servers."""


@dataclass(frozen=True)
class Variation:
    """A resource and the peaks to try instead of the present one (FLOP/s or bytes/s)."""

    resource: Resource
    peaks: tuple[float, ...]
    source: Provenance


PAPER_GRID = (
    Variation(Resource.ETHERNET, (10 * GBPS,), _RECALLED),
    Variation(
        Resource.ETHERNET, (25 * GBPS, 100 * GBPS), Provenance(Basis.ABSTRACT, f"{PAPER}: its abstract names this step")
    ),
    Variation(Resource.PCIE, (10e9, 50e9), _RECALLED),
    Variation(Resource.COMPUTE, (8e12, 16e12, 32e12, 64e12), _RECALLED),
    Variation(Resource.MEMORY, (1e12, 2e12, 4e12), _RECALLED),
)
"""The study's variations of its hardware, one resource at a time."""


def write_rate(resource: Resource, per_s: float) -> str:
    """A peak as people write it: ``25 Gbps``, ``10 GB/s``, ``11 TFLOPS``."""
    if resource is Resource.ETHERNET:
        return f"{per_s / GBPS:g} Gbps"
    if resource is Resource.COMPUTE:
        return f"{per_s / 1e12:g} TFLOPS"
    return f"{per_s / 1e12:g} TB/s" if per_s >= 1e12 else f"{per_s / 1e9:g} GB/s"
