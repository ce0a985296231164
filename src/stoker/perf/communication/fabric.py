"""How GPUs of one server reach each other, and how servers do."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from stoker.perf.catalogue import Gpu
from stoker.perf.communication.cost import Basis

NETWORK_SHARE, NETWORK_STEP_S, NETWORK_SPREAD = 0.7, 19.2e-6, 2.0
"""Constants of exchanges between servers: their share of the links' rate (70 %, recalled from arXiv 1910.05930 and
unverified), the latency of a ring step (twice NCCL's 9.6 us for a network, for which its tuning model has 1.9 times in
large rings: NVIDIA/nccl src/graph/tuning.cc at 01afd20), and their uncertainty (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links between the GPUs of a server.

    Attributes:
        sweep: family of GPUs whose measured all-reduces apply here; empty for none.
        bandwidth: bytes/s that each GPU of a ring sends (NCCL's bus bandwidth), for counts that no sweep has.
        step_s: latency of each step of a ring.
        start_s: latency of a call.
        spread: factor by which an exchange may be faster or slower.
        slowdown: computation takes 1 + this times as long during an exchange.
    """

    name: str
    bandwidth: float
    step_s: float
    start_s: float
    spread: float
    slowdown: float
    source: str
    sweep: str = ""
    basis: Basis = "specification"


_BRIDGED = "-PCIe"
"""Suffix of the name of cards whose NVLink is a bridge between two."""


@functools.cache
def fabrics() -> Mapping[str, dict[str, Any]]:
    """Kinds of fabric by name, as ``fabrics.toml`` has them."""
    return tomllib.loads((files("stoker.perf.communication") / "fabrics.toml").read_text())


def fabric_of(gpu: Gpu, kind: str = "", *, gpus: int = 2) -> Fabric:
    """What connects GPUs of a model.

    Args:
        gpu: the model of all GPUs in the server.
        kind: ``nvlink``, ``pcie`` (peers) or ``host`` (through its memory: cards without peer access, and most virtual
            machines); by default the GPU's NVLink, peers if NVLink is a bridge between two and there are more, and
            the host if there is no NVLink.
        gpus: number that exchange with each other.

    Raises:
        ValueError: the kind is not known, or the GPU has no such link.
    """
    is_bridge = gpu.name.endswith(_BRIDGED)
    kind = kind or ("host" if not gpu.nvlink else "pcie" if is_bridge and gpus > 2 else "nvlink")
    if kind not in fabrics():
        raise ValueError(f"`fabric` must be one of {', '.join(fabrics())}, got {kind!r}")
    entry = fabrics()[kind]
    rate = gpu.nvlink / 2 if entry["link"] == "nvlink" else gpu.pcie
    if not rate:
        raise ValueError(f"`fabric` of {gpu.name} must be pcie or host, since it has no NVLink, got {kind!r}")
    return Fabric(
        name=kind,
        bandwidth=rate * entry["share"],
        step_s=entry["step"],
        start_s=entry["start"],
        spread=entry["spread"],
        slowdown=entry["slowdown"],
        source=entry["source"],
        sweep=_swept(gpu) if kind == "nvlink" else "",
        basis=entry["basis"],
    )


def _swept(gpu: Gpu) -> str:
    family = gpu.name.split("-")[0]
    return family if family in ("A100", "V100") and gpu.name.endswith("-SXM") else ""
