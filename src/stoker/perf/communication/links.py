"""Links: how ranks of one server reach each other, and how servers do, with what each figure is based on.

A link is a rate, a latency, and how far both may be off. They come from a measured sweep, from published steps, from a
data sheet, from what a user says, or from a probe of the link itself.
"""

from __future__ import annotations

import functools
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from stoker.perf.catalogue import Gpu
from stoker.perf.communication.cost import Basis

NETWORK_SHARE, NETWORK_STEP_S, NETWORK_SPREAD = 0.7, 19.2e-6, 2.0
"""Constants of exchanges between servers: their share of the links' rate (70 %, recalled from arXiv 1910.05930 and
unverified), the latency of a ring step (twice NCCL's 9.6 us for a network, for which its tuning model has 1.9 times in
large rings: NVIDIA/nccl src/graph/tuning.cc at 01afd20), and their uncertainty (assumed)."""
_STATED_SHARE, _STATED_SPREAD = 0.95, 1.15
"""Share of a stated rate, and its spread: gloo's all-reduce of 4 MB among 2, 4 and 8 ranks over links shaped to
200 Mbit/s took 1.02 to 1.10 times what the rate allows."""
_PROBED_SPREAD = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """What ranks exchange over: the links of a server's GPUs, or of servers.

    Attributes:
        bandwidth: bytes/s that each rank of a ring sends (NCCL's bus bandwidth), for counts that no sweep has; of a
            server for links between servers.
        step_s: latency of each step of a ring.
        spread: factor by which an exchange may be faster or slower.
        source: where the figures come from.
        start_s: latency of a call.
        slowdown: computation takes 1 + this times as long during an exchange.
        sweep: family of GPUs whose measured all-reduces apply here; empty for none.
        words: how its rate is spoken of, at the end of a sentence; by default as its basis says.
    """

    name: str
    bandwidth: float
    step_s: float
    spread: float
    source: str
    start_s: float = 0.0
    slowdown: float = 0.0
    sweep: str = ""
    basis: Basis = "specification"
    words: str = ""

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ValueError(f"`bandwidth` of {self.name} must be positive, got {self.bandwidth}")
        if min(self.step_s, self.start_s, self.slowdown) < 0 or self.spread < 1:
            raise ValueError(
                f"`step_s`, `start_s` and `slowdown` of {self.name} must be 0 or more and `spread` 1 or more, got "
                f"{self.step_s}, {self.start_s}, {self.slowdown} and {self.spread}"
            )

    def at_most(self, bandwidth: float) -> Interconnect:
        """The same link, of which no more than this rate can be used."""
        return replace(self, bandwidth=min(self.bandwidth, bandwidth))


def network_of(rate: float) -> Interconnect:
    """The links of a server to the others, by their data sheet.

    Args:
        rate: bytes/s, one direction.
    """
    return Interconnect(
        name="network", bandwidth=rate * NETWORK_SHARE, step_s=NETWORK_STEP_S, spread=NETWORK_SPREAD,
        source="arXiv 1910.05930 (recalled), NVIDIA/nccl src/graph/tuning.cc at 01afd20",
        words=f"at {100 * NETWORK_SHARE:.0f} % of what their links are said to carry",
    )  # fmt: skip


def stated(rate: float, latency_s: float) -> Interconnect:
    """A network as a user describes it.

    Args:
        rate: bytes/s that it really carries, one direction.
        latency_s: of a message.
    """
    return Interconnect(
        name="network", bandwidth=rate * _STATED_SHARE, step_s=latency_s, spread=_STATED_SPREAD, source="as stated",
        words=f"at {100 * _STATED_SHARE:.0f} % of the stated rate",
    )  # fmt: skip


def probed(points: Sequence[tuple[float, float]], ranks: int, name: str = "network") -> Interconnect:
    """A link from timed all-reduces: the straight line through sizes and seconds with the least sum of deviations.

    Source: Theil-Sen, the median of all slopes, which a few disturbed measurements do not move.

    Args:
        points: bytes and seconds of all-reduces of at least two sizes.
        ranks: that took part.
        name: of the link.

    Raises:
        ValueError: the sizes are all alike, or larger ones took no longer.
    """
    slopes = [
        (b_s - a_s) / (b - a) for place, (a, a_s) in enumerate(points) for b, b_s in points[place + 1 :] if b != a
    ]
    slope = statistics.median(slopes) if slopes else 0.0
    if ranks < 2 or slope <= 0:
        raise ValueError(f"`points` must show larger all-reduces taking longer among 2 ranks or more, got {points}")
    steps = 2 * (ranks - 1)
    start = max(0.0, statistics.median(seconds - slope * size for size, seconds in points))
    return Interconnect(
        name=name, bandwidth=steps / ranks / slope, step_s=start / steps, spread=_PROBED_SPREAD, source="a probe",
        basis="probe", words="as a probe found them",
    )  # fmt: skip


_BRIDGED = "-PCIe"
"""Suffix of the name of cards whose NVLink is a bridge between two."""


@functools.cache
def fabrics() -> Mapping[str, dict[str, Any]]:
    """Kinds of fabric by name, as ``fabrics.toml`` has them."""
    return tomllib.loads((files("stoker.perf.communication") / "fabrics.toml").read_text())


def fabric_of(gpu: Gpu, kind: str = "", *, gpus: int = 2) -> Interconnect:
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
    return Interconnect(
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
