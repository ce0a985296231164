"""The time of collectives, within a server and over several.

Within a server the measured sweep holds where there is one for the very count; else a ring: a start, its steps, and
the bytes that each GPU sends over the link. Other collectives than the all-reduce follow from it by the ring's formula:
half of it for a reduce-scatter or an all-gather (arXiv 1802.05799, section 3: a ring all-reduce is the two in a row).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from stoker.perf.communication.cost import NOTHING, Basis, ExchangeCost, after
from stoker.perf.communication.links import Interconnect
from stoker.perf.communication.sweeps import counts, sweep

_FROM: dict[Basis, str] = {
    "measured": "as it was measured",
    "probe": "as a probe found it",
    "fitted": "as published steps show it",
    "specification": "by its data sheet",
}
_LINKS = {"nvlink": "NVLink", "pcie": "PCIe", "host": "the memory of the host"}
"""Names of fabrics in sentences."""
_SWEEP_SPREAD = 1.15
"""Spread of measured all-reduces on another server of the same kind: A100 sweeps of neighbouring counts differ by as
much."""


Backend = Literal["nccl", "gloo"]
"""What makes the collectives. NCCL exchanges within servers before it does between them; gloo knows no servers: one
ring through all ranks, which enters and leaves each server once where ranks are placed in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that exchange with each other.

    Attributes:
        fabric: links between the ranks of a server.
        size: all of them.
        local: of them in each server.
        network: a server's links to the others, of which this group has the whole rate for itself.
        backend: of its collectives.
        flat: a ring through all ranks as the backend's own sums showed it, where these were measured: it may leave each
            server several times, where ranks are placed in turns.
    """

    fabric: Interconnect
    size: int
    local: int
    network: Interconnect
    backend: Backend = "nccl"
    flat: Interconnect | None = None

    def __post_init__(self) -> None:
        if self.size < 1 or self.local < 1:
            raise ValueError(f"`size` and `local` must be at least 1, got {self.size} and {self.local}")

    @property
    def nodes(self) -> int:
        """Servers that the group spans."""
        return -(-self.size // self.local)


def all_reduce(group: Group, size_bytes: float) -> ExchangeCost:
    """All-reduce: each rank gets the sum, as the backend makes it."""
    if group.flat is not None:
        group = replace(group, fabric=group.flat, network=group.flat, local=1, flat=None)
    if group.size > 1 and group.nodes > 1 and group.local > 1 and group.backend == "gloo" and size_bytes > 0:
        return _through_all(group, size_bytes)
    return hierarchical(group, size_bytes)


def hierarchical(group: Group, size_bytes: float) -> ExchangeCost:
    """All-reduce over servers: reduce-scatter within each, rings between ranks of the same place, all-gather within.

    NCCL streams one through the other, so that the lower end of the interval is the longer of the two.
    """
    if group.size == 1 or size_bytes <= 0:
        return NOTHING
    if group.nodes == 1:
        return _within(group.fabric, group.size, size_bytes)
    inside, between = within_servers(group, size_bytes), between_servers(group, size_bytes)
    both = after((inside, between))
    return ExchangeCost(both.seconds, min(both.seconds, max(inside.low, between.low)), both.high, both.basis, both.note)


def within_servers(group: Group, size_bytes: float) -> ExchangeCost:
    """The stages of :func:`hierarchical` within each server."""
    return _within(group.fabric, group.local, size_bytes)


def between_servers(group: Group, size_bytes: float) -> ExchangeCost:
    """Its stage between servers."""
    return _between(group, 2, size_bytes)


def reduce_scatter(group: Group, size_bytes: float) -> ExchangeCost:
    """Each GPU gets its share of the sum; ``size_bytes`` is what each has before."""
    return _half(group, size_bytes)


def all_gather(group: Group, size_bytes: float) -> ExchangeCost:
    """Each GPU gets all shares; ``size_bytes`` is what each has afterwards."""
    return _half(group, size_bytes)


def all_to_all(group: Group, size_bytes: float) -> ExchangeCost:
    """Each GPU sends a different part of its ``size_bytes`` to each other GPU."""
    if group.size == 1 or size_bytes <= 0:
        return NOTHING
    fabric, others = group.fabric, group.size - 1
    inside = min(group.local, group.size) - 1
    sent = size_bytes * inside / group.size
    note = f"all GPUs sending to all at the rate of rings over {_LINKS.get(fabric.name, fabric.name)}"
    within = _spread(fabric.start_s + inside * fabric.step_s + sent / fabric.bandwidth, fabric.spread, fabric, note)
    if group.nodes == 1:
        return within
    away = size_bytes * (others - inside) / group.size * group.local
    network = group.network
    between = (others - inside) * network.step_s / group.local + away / network.bandwidth
    return after((within, _network(network, between)))


def send(group: Group, size_bytes: float, *, over_network: bool) -> ExchangeCost:
    """One GPU sends to its neighbour."""
    if size_bytes <= 0:
        return NOTHING
    if over_network:
        return _network(group.network, group.network.step_s + size_bytes / group.network.bandwidth)
    fabric = group.fabric
    seconds = fabric.start_s + fabric.step_s + size_bytes / fabric.bandwidth
    return _spread(
        seconds,
        fabric.spread,
        fabric,
        f"one GPU sending to the next over {_said(fabric)}",
    )


def _said(fabric: Interconnect) -> str:
    return f"{_LINKS.get(fabric.name, fabric.name)}, {fabric.words or _FROM[fabric.basis]}"


def _half(group: Group, size_bytes: float) -> ExchangeCost:
    whole = all_reduce(group, size_bytes)
    return ExchangeCost(
        whole.seconds / 2, whole.low / 2, whole.high / 2, whole.basis, whole.note and f"half the time of {whole.note}"
    )


def _within(fabric: Interconnect, gpus: int, size_bytes: float) -> ExchangeCost:
    if gpus == 1:
        return NOTHING
    if gpus in counts(fabric.sweep):
        seconds = sweep(fabric.sweep, gpus)(size_bytes)
        note = f"an all-reduce among {gpus} GPUs, as it was measured on {fabric.sweep}"
        return ExchangeCost(seconds, seconds / _SWEEP_SPREAD, seconds * _SWEEP_SPREAD, "measured", note)
    steps = 2 * (gpus - 1)
    seconds = fabric.start_s + steps * fabric.step_s + steps / gpus * size_bytes / fabric.bandwidth
    return _spread(
        seconds,
        fabric.spread,
        fabric,
        f"a ring all-reduce among {gpus} GPUs over {_said(fabric)}",
    )


def _between(group: Group, passes: int, size_bytes: float) -> ExchangeCost:
    """Rings between servers, one for each place in a server; all of them share its links."""
    steps = passes * (group.nodes - 1)
    traffic = steps / group.nodes * size_bytes
    return _network(
        group.network, group.network.start_s + steps * group.network.step_s + traffic / group.network.bandwidth
    )


def _through_all(group: Group, size_bytes: float) -> ExchangeCost:
    """One ring through all ranks of all servers, at the pace of the slower of its links."""
    network, fabric = group.network, group.fabric
    steps = 2 * (group.size - 1)
    slower = network if network.bandwidth <= fabric.bandwidth else fabric
    seconds = (
        network.start_s
        + steps * max(network.step_s, fabric.step_s)
        + steps / group.size * size_bytes / slower.bandwidth
    )
    note = f"one ring through all ranks {network.words}"
    return _spread(seconds, slower.spread, replace(slower, basis=network.basis), note)


def _network(network: Interconnect, seconds: float) -> ExchangeCost:
    return _spread(seconds, network.spread, network, f"rings between servers {network.words}")


def _spread(seconds: float, spread: float, link: Interconnect, note: str) -> ExchangeCost:
    return ExchangeCost(seconds, seconds / spread, seconds * spread, link.basis, note)
