"""Drawn models, links and ranks, by which plans of exchanges are judged."""

from __future__ import annotations

import random

from stoker.perf.catalogue import gpu
from stoker.perf.communication.collectives import Group
from stoker.perf.communication.links import fabric_of, stated
from stoker.perf.communication.methods import GradientLayer, Leave, RankSpeed, Terms
from stoker.perf.communication.replicas import Shard

FLOPS, BYTE_S = 1e11, 1e-10
"""A rank of two cores."""
SPEED = RankSpeed(product=lambda m, n, k: 2.0 * m * n * k / FLOPS, byte_s=BYTE_S)


def linear(width_in: int, width_out: int, rows: int, *, bias: bool = False, fed_by: int = -1) -> GradientLayer:
    """A layer of ``width_in`` x ``width_out`` fp32 weights, as trained on ``rows`` rows."""
    product = 4.0 * width_in * width_out
    return GradientLayer(
        module="linear", bytes=product + 4 * width_out * bias, product_bytes=product, rows=rows, width_in=width_in,
        width_out=width_out, fed_by=fed_by,
    )  # fmt: skip


def table(rows: int, width: int, lookups: int) -> GradientLayer:
    """A table of which every lookup is another row."""
    return GradientLayer(
        module="table", bytes=4.0 * rows * width, lookups=lookups, table_rows=rows, width_out=width
    )  # fmt: skip


def plain(size: float) -> GradientLayer:
    """Weights whose gradient is neither a product nor a table's."""
    return GradientLayer(module="conv", bytes=size, why_not="its gradient is no single product")


def group(ranks: int, rate: float, hosts: int | None = None, latency: float = 50e-6, *, nccl: bool = False) -> Group:
    """Ranks on hosts joined by a link of ``rate`` bytes/s; each on a host of its own by default."""
    hosts = ranks if hosts is None else hosts
    inside = fabric_of(gpu("A100-80GB-SXM")) if nccl else stated(2e9, 20e-6)
    return Group(
        fabric=inside, size=ranks, local=ranks // hosts, network=stated(rate, latency),
        backend="nccl" if nccl else "gloo",
    )  # fmt: skip


def shard(layers: list[GradientLayer], backward_s: list[float] | None = None) -> Shard:
    """The layers with their backward passes, of which nothing takes time by default."""
    times = tuple(backward_s or [0.0] * len(layers))
    return Shard(
        forward_s=times, backward_s=times, weight_bytes=times, gradient_bytes=tuple(layer.bytes for layer in layers)
    )


def drawn(chance: random.Random, count: int) -> tuple[Shard, list[GradientLayer], Terms]:
    """A model of so many layers, convolutions, chains of linear layers and tables, on drawn ranks and links."""
    layers: list[GradientLayer] = []
    rows = chance.choice([8, 32, 128, 512])
    width = chance.choice([64, 256, 1024, 4096])
    while len(layers) < count:
        kind = chance.random()
        if kind < 0.3:
            layers.append(plain(4.0 * 10 ** chance.uniform(3, 7)))
        elif kind < 0.45:
            layers.append(table(10 ** chance.randint(3, 6), chance.choice([16, 64]), chance.choice([64, 1024, 8192])))
        else:
            out = chance.choice([10, 64, 256, 1024, 4096])
            fed = len(layers) - 1 if layers and layers[-1].product_bytes else -1
            layers.append(linear(width, out, rows, bias=chance.random() < 0.5, fed_by=fed))
            width = out
            continue
        width = chance.choice([64, 256, 1024, 4096])
    ranks = chance.choice([2, 4, 8])
    hosts = chance.choice([hosts for hosts in (ranks, ranks // 2, 1) if hosts])
    nccl = chance.random() < 0.25
    joined = group(
        ranks, 10 ** chance.uniform(6.5, 10), hosts, 10 ** chance.uniform(-5, -3), nccl=nccl
    )  # fmt: skip
    allowed: list[frozenset[Leave]] = [frozenset(), frozenset({"split"}), frozenset({"split", "compress"})]
    wire = sum(layer.bytes for layer in layers) / joined.network.bandwidth
    backward = [wire * chance.uniform(0.02, 2.0) / count for _ in layers]
    memory = chance.choice([float("inf"), 1e7])
    terms = Terms(group=joined, speed=SPEED, allowed=chance.choice(allowed), memory_bytes=memory)
    return shard(layers, backward), layers, terms
