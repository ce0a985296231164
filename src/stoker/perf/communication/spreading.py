"""Spreads a step over GPUs: from the times of one GPU to those of all of them.

A step is computation, the exchange that it does not hide, idle time of a pipeline's stages, waiting for the slowest
GPU, and the optimizer. The times of one GPU are given; what is added here comes with an interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.perf.communication import cutting, replicas
from stoker.perf.communication.blocks import block_of, transformer_blocks, units_of
from stoker.perf.communication.collectives import Group, all_reduce, send
from stoker.perf.communication.cost import NOTHING, Basis, Cost
from stoker.perf.communication.fabric import Fabric, fabric_of
from stoker.perf.communication.replicas import Exchange, Shard
from stoker.perf.communication.servers import served
from stoker.perf.communication.stragglers import Cluster, slowest
from stoker.perf.communication.times import StepTimes, layers_of
from stoker.perf.features.records import Layer, StepFeatures
from stoker.perf.prediction.setting import Machines, Strategy

HALVES = ("fp16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One optimizer step on all GPUs.

    Attributes:
        step_s: the step.
        low, high: its interval, as far as what is added to the times of one GPU is unsure.
        compute_s: forward and backward passes of all micro-batches on one GPU, recomputation included.
        optimizer_s: on one GPU, of the weights that it keeps.
        exposed_s, hidden_s: exchange that computation does not hide, and that it hides.
        bubble_s: stages of a pipeline that wait for others.
        waiting_s: for the slowest GPU.
        basis: of the exchange.
        notes: what was assumed, as sentences.
        unvalidated: parts that no measurement has validated.
    """

    step_s: float
    low: float
    high: float
    compute_s: float
    optimizer_s: float
    exposed_s: float
    hidden_s: float
    bubble_s: float
    waiting_s: float
    basis: Basis
    notes: tuple[str, ...] = ()
    unvalidated: tuple[str, ...] = ()


def refusal(features: StepFeatures, machines: Machines, strategy: Strategy) -> str:
    """Why a step cannot be spread so; empty where it can."""
    cut = strategy.tensor * strategy.pipeline
    if machines.gpus % cut:
        return f"{machines.gpus} GPUs cannot be divided into replicas of {strategy.tensor} x {strategy.pipeline}"
    replicas_count = machines.gpus // cut
    if strategy.tensor > 1 and not transformer_blocks(features):
        return (
            f"tensor parallelism is known for blocks of attention and MLP; {features.name} has none that is told apart"
        )
    if strategy.pipeline > 1:
        parts = len(units_of(layers_of(features)))
        if parts < strategy.pipeline:
            return f"{strategy.pipeline} stages need as many parts; {features.name} has {parts} that are told apart"
    if replicas_count > 1 and cut > 1 and strategy.data in ("fsdp", "ps", "pearl"):
        return f"{strategy.data} together with tensor or pipeline parallelism is not modelled"
    if strategy.data == "pearl" and replicas_count > 1 and not features.weights.embedding_bytes:
        return f"partitioned embeddings need tables that are only looked up; {features.name} has none"
    return ""


def spread(
    compute: StepTimes,
    features: StepFeatures,
    machines: Machines,
    strategy: Strategy | None = None,
    *,
    precision: str = "fp32",
    fabric: Fabric | None = None,
    cluster: Cluster = "dedicated",
    sent: float = 1.0,
) -> Spread:
    """One optimizer step on all GPUs, each with micro-batches of the features' size.

    Args:
        compute: one micro-batch on one GPU.
        features: of that micro-batch.
        machines: it shall run on.
        strategy: how it is spread; plain data parallelism by default.
        precision: of products; sharded weights are gathered in it.
        fabric: what joins the GPUs of a server; by default as :func:`fabric_of` says.
        cluster: whose servers they are.
        sent: bytes exchanged for each byte of gradients, such as 0.5 where fp32 ones are sent in 16 bits.

    Raises:
        ValueError: the step cannot be spread so; :func:`refusal` says it beforehand.
    """
    strategy = strategy or Strategy()
    if reason := refusal(features, machines, strategy):
        raise ValueError(f"`strategy` cannot be used: {reason}")
    fabric = fabric or fabric_of(machines.gpu, gpus=min(machines.gpus, machines.gpus_per_node))
    layout = _Layout(machines, strategy, fabric)
    replica = _Replica(features, compute, layout, precision, sent)
    steps = strategy.accumulation
    passes = steps + strategy.pipeline - 1
    exchange = replicas.together(
        _data(replica, layout),
        replicas.exposed(replica.tensor.times(passes)),
        replicas.exposed(replica.sends.times(passes)),
    )
    optimizer = compute.optimizer_s * replica.kept / _shards(strategy, layout.replicas)
    mean = sum(replica.stage_s) / len(replica.stage_s)
    computing = mean * steps
    bubble = max(replica.stage_s) * passes - computing
    waiting = slowest(machines.gpus, cluster)
    likely, low, high = (part * (computing + bubble) for part in waiting)
    fixed = computing + bubble + optimizer
    return Spread(
        step_s=fixed + likely + exchange.overlap.exposed_s,
        low=fixed + low + exchange.low_s,
        high=fixed + high + exchange.high_s,
        compute_s=computing,
        optimizer_s=optimizer,
        exposed_s=exchange.overlap.exposed_s,
        hidden_s=exchange.overlap.hidden_s,
        bubble_s=bubble,
        waiting_s=likely,
        basis=exchange.cost.basis,
        notes=tuple(dict.fromkeys((*exchange.cost.note.split("; "), *replica.notes)))
        if exchange.cost.note
        else replica.notes,
        unvalidated=_unvalidated(strategy, layout),
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which GPUs exchange with which: those that share a product are neighbours, then replicas, then stages."""

    machines: Machines
    strategy: Strategy
    fabric: Fabric

    @property
    def local(self) -> int:
        return min(self.machines.gpus, self.machines.gpus_per_node)

    @property
    def replicas(self) -> int:
        return self.strategy.replicas(self.machines.gpus)

    def tensor(self) -> Group:
        return self._group(self.strategy.tensor, min(self.strategy.tensor, self.local))

    def data(self) -> Group:
        return self._group(self.replicas, min(self.replicas, max(1, self.local // self.strategy.tensor)))

    def stage(self) -> Group:
        return self._group(2, 2 if not self.stages_apart else 1)

    @property
    def stages_apart(self) -> bool:
        """Whether neighbouring stages are in different servers."""
        return self.machines.nodes > 1 and self.strategy.tensor * self.replicas >= self.local

    def _group(self, size: int, local: int) -> Group:
        sharing = max(1, self.local // local)
        return Group(fabric=self.fabric, size=size, local=local, network=self.machines.network / sharing)


class _Replica:
    """What one replica's GPUs compute and hold, cut by tensor and pipeline parallelism."""

    def __init__(
        self, features: StepFeatures, compute: StepTimes, layout: _Layout, precision: str, sent: float
    ) -> None:
        strategy = layout.strategy
        self.features, self.layout = features, layout
        self.layers = layers_of(features)
        if len(self.layers) != len(compute.forward_s):
            raise ValueError(
                f"`compute` must have times of the features' {len(self.layers)} layers, got {len(compute.forward_s)}"
            )
        divided = cutting.split_layers(features) if strategy.tensor > 1 else frozenset[int]()
        self._share = [1.0 / strategy.tensor if place in divided else 1.0 for place in range(len(self.layers))]
        loss = cutting.narrowed(features, strategy.tensor) if divided else 1.0
        parts = [share * loss if share < 1 else 1.0 for share in self._share]
        forward = [seconds * part for seconds, part in zip(compute.forward_s, parts, strict=True)]
        again = [seconds * self._is_recomputed(layer) for seconds, layer in zip(forward, self.layers, strict=True)]
        backward = [
            seconds * part + repeated for seconds, part, repeated in zip(compute.backward_s, parts, again, strict=True)
        ]
        device = [sum(both) for both in zip(forward, backward, strict=True)]
        self.stages = cutting.stages_of(self.layers, device, strategy.pipeline)
        repeats = 1 + sum(again) / (sum(device) - sum(again)) if sum(again) else 1.0
        waits = self._stretched(device, compute, repeats)
        self.forward_s = tuple(seconds * wait for seconds, wait in zip(forward, waits, strict=True))
        self.backward_s = tuple(seconds * wait for seconds, wait in zip(backward, waits, strict=True))
        self.stage_s = [
            sum(self.forward_s[stage.start : stage.stop]) + sum(self.backward_s[stage.start : stage.stop])
            for stage in self.stages
        ]
        self._gathered = _gathered_share(features, precision)
        self._sent = sent
        self.notes = self._assumed()

    def _is_recomputed(self, layer: Layer) -> bool:
        return self.layout.strategy.checkpointing and bool(block_of(layer.module))

    def _stretched(self, device: list[float], compute: StepTimes, repeats: float) -> list[float]:
        """How much longer each layer takes as the device waits for the host, which launches as much as on one GPU."""
        waits = [1.0] * len(device)
        whole = compute.compute_s
        if not (compute.host_s and whole):
            return waits
        for stage in self.stages:
            own = sum(device[stage.start : stage.stop])
            alone = sum(compute.forward_s[stage.start : stage.stop]) + sum(compute.backward_s[stage.start : stage.stop])
            host = compute.host_s * repeats * alone / whole
            wait = math.hypot(own, host) / own if own else 1.0
            waits[stage.start : stage.stop] = [wait] * (stage.stop - stage.start)
        return waits

    @property
    def kept(self) -> float:
        """Share of all weights that the fullest GPU of a replica keeps."""
        sizes = [layer.dense_bytes + layer.embedding_bytes for layer in self.layers]
        held = [size * share for size, share in zip(sizes, self._share, strict=True)]
        whole = sum(sizes)
        return max(sum(held[stage.start : stage.stop]) for stage in self.stages) / whole if whole else 1.0

    @property
    def tensor(self) -> Cost:
        """All-reduces of activations of the longest stage for one micro-batch."""
        strategy = self.layout.strategy
        if strategy.tensor == 1:
            return NOTHING
        count, size = cutting.activations(self.features)
        passes = 3 if strategy.checkpointing else 2
        blocks = -(-count // strategy.pipeline)
        return all_reduce(self.layout.tensor(), size).times(cutting.ALL_REDUCES * passes * blocks)

    @property
    def sends(self) -> Cost:
        """Activations to the next stage and their gradients back, for one micro-batch."""
        size = max(stage.output_bytes for stage in self.stages)
        return send(self.layout.stage(), size, over_network=self.layout.stages_apart).times(2.0)

    def shards(self, *, by_unit: bool = False, has_tables: bool = True) -> list[Shard]:
        """What each stage exchanges with its other replicas."""
        return [self._shard(stage, by_unit=by_unit, has_tables=has_tables) for stage in self.stages]

    def _shard(self, stage: cutting.Stage, *, by_unit: bool, has_tables: bool) -> Shard:
        layers = self.layers[stage.start : stage.stop]
        share = self._share[stage.start : stage.stop]
        tables = [layer.embedding_gradient_bytes if has_tables else 0 for layer in layers]
        is_sparse = [0 < layer.embedding_gradient_bytes < layer.embedding_bytes for layer in layers]
        dense = [
            (layer.dense_gradient_bytes + (0 if sparse else table)) * part * self._sent
            for layer, table, sparse, part in zip(layers, tables, is_sparse, share, strict=True)
        ]
        weights = [
            (layer.dense_bytes + layer.embedding_bytes * has_tables) * part * self._gathered
            for layer, part in zip(layers, share, strict=True)
        ]
        rows = sum(table for table, sparse in zip(tables, is_sparse, strict=True) if sparse)
        forward, backward = self.forward_s[stage.start : stage.stop], self.backward_s[stage.start : stage.stop]
        if by_unit:  # gathered and scattered as one, in the precision of products
            runs = [slice(unit.start, unit.stop) for unit in units_of(layers)]
            dense = [sum(weights[run]) for run in runs]
            weights = dense
            forward = tuple(sum(forward[run]) for run in runs)
            backward = tuple(sum(backward[run]) for run in runs)
        return Shard(
            forward_s=tuple(forward), backward_s=tuple(backward), weight_bytes=tuple(weights),
            gradient_bytes=tuple(dense), row_bytes=rows,
        )  # fmt: skip

    def _assumed(self) -> tuple[str, ...]:
        strategy = self.layout.strategy
        notes: list[str] = []
        if strategy.tensor > 1:
            notes.append("products that tensor parallelism narrows lose what MPT's narrower models lose")
        if strategy.pipeline > 1:
            notes.append("activations between stages are not hidden")
        if strategy.checkpointing:
            notes.append("the forward pass of all blocks is computed again")
        return tuple(notes)


def _data(replica: _Replica, layout: _Layout) -> Exchange:
    """What keeps replicas alike, over the whole step; of the stage that it delays most."""
    strategy, group = layout.strategy, layout.data()
    if layout.replicas == 1:
        return replicas.exposed(NOTHING)
    if strategy.data in ("ps", "pearl"):
        return served(replica.shards(has_tables=False)[0], replica.features, layout.machines, strategy, group)
    found = [_kept_alike(shard, strategy, group) for shard in replica.shards(by_unit=strategy.data == "fsdp")]
    return max(found, key=lambda exchange: exchange.overlap.exposed_s)


def _kept_alike(shard: Shard, strategy: Strategy, group: Group) -> Exchange:
    if strategy.data == "fsdp":
        return replicas.times(replicas.fsdp(shard, group), strategy.accumulation)
    if strategy.data in ("zero1", "zero2"):
        scattered = replicas.scattered(shard, group)
        count = strategy.accumulation if strategy.data == "zero2" else 1  # whole gradients are nowhere kept
        return replicas.together(replicas.times(scattered, count), replicas.gathered(shard, group))
    return replicas.ddp(shard, group)


def _shards(strategy: Strategy, count: int) -> int:
    """GPUs over which the optimizer's work is divided."""
    return count if strategy.data in ("fsdp", "zero1", "zero2") else 1


def _gathered_share(features: StepFeatures, precision: str) -> float:
    """Bytes gathered for each byte of weights: 16 bits where products are computed in them."""
    weights = features.weights
    width = weights.bytes / weights.count if weights.count else 4.0
    return min(1.0, 2.0 / width) if precision in HALVES else 1.0


def _unvalidated(strategy: Strategy, layout: _Layout) -> tuple[str, ...]:
    labels = {"ps": "parameter servers", "pearl": "partitioned embeddings", "zero1": "ZeRO-1", "zero2": "ZeRO-2"}
    found = [labels[strategy.data]] if layout.replicas > 1 and strategy.data in labels else []
    if strategy.tensor > layout.local:
        found.append("tensor parallelism over servers")
    if strategy.pipeline > 1 and layout.stages_apart:
        found.append("pipeline stages over servers")
    return tuple(found)
