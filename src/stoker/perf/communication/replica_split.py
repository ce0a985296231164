"""One replica split over GPUs: what each computes and holds, and which others it exchanges with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.core.units import format_count
from stoker.perf.communication import pipeline_stages
from stoker.perf.communication.blocks import paths_of, units_of
from stoker.perf.communication.collectives import Group, all_reduce, send
from stoker.perf.communication.cost import NOTHING, ExchangeCost
from stoker.perf.communication.links import Interconnect, network_of
from stoker.perf.communication.replicas import Shard
from stoker.perf.communication.times import PassTimes, besides_products, layers_of
from stoker.perf.features.records import StepFeatures
from stoker.perf.strategy import Machines, Strategy

HALVES = ("fp16", "bf16")


@dataclass(frozen=True, slots=True)
class ReplicaLayout:
    """Which GPUs exchange with which: those that share a product are neighbours, then replicas, then stages."""

    machines: Machines
    strategy: Strategy
    fabric: Interconnect

    @property
    def local(self) -> int:
        """GPUs of a server that the job uses."""
        return min(self.machines.gpus, self.machines.gpus_per_node)

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.strategy.replicas(self.machines.gpus)

    def tensor(self) -> Group:
        """GPUs that share each product."""
        return self._group(self.strategy.tensor, min(self.strategy.tensor, self.local))

    def data(self) -> Group:
        """GPUs that hold the same part of the model."""
        return self._group(self.replicas, min(self.replicas, max(1, self.local // self.strategy.tensor)))

    def stage(self) -> Group:
        """Two GPUs of neighbouring stages."""
        return self._group(2, 2 if not self.stages_apart else 1)

    @property
    def stages_apart(self) -> bool:
        """Whether neighbouring stages are in different servers."""
        return self.machines.nodes > 1 and self.strategy.tensor * self.replicas >= self.local

    def _group(self, size: int, local: int) -> Group:
        sharing = max(1, self.local // local)
        return Group(fabric=self.fabric, size=size, local=local, network=network_of(self.machines.network / sharing))


class Replica:
    """What one replica's GPUs compute and hold, split by tensor and pipeline parallelism."""

    def __init__(
        self, features: StepFeatures, compute: PassTimes, layout: ReplicaLayout, precision: str, sent: float
    ) -> None:
        strategy = layout.strategy
        self.features, self.layout = features, layout
        self.layers = layers_of(features)
        if len(self.layers) != len(compute.forward_s):
            raise ValueError(
                f"`compute` must have times of the features' {len(self.layers)} layers, got {len(compute.forward_s)}"
            )
        divided = pipeline_stages.split_layers(features) if strategy.tensor > 1 else frozenset[int]()
        self._share = [1.0 / strategy.tensor if place in divided else 1.0 for place in range(len(self.layers))]
        loss = pipeline_stages.narrowed(features, strategy.tensor) if divided else 1.0
        parts = [share * loss if share < 1 else 1.0 for share in self._share]
        forward = [seconds * part for seconds, part in zip(compute.forward_s, parts, strict=True)]
        again = [seconds * share for seconds, share in zip(forward, self._repeated(), strict=True)]
        backward = [
            seconds * part + repeated for seconds, part, repeated in zip(compute.backward_s, parts, again, strict=True)
        ]
        device = [sum(both) for both in zip(forward, backward, strict=True)]
        self.stages = pipeline_stages.stages_of(self.layers, device, strategy.pipeline)
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

    def _repeated(self) -> list[float]:
        """Share of each layer's forward pass that the backward pass repeats."""
        strategy = self.layout.strategy
        again = [float(strategy.repeats(layer.module)) for layer in self.layers]
        if strategy.products_kept:
            for place, share in enumerate(besides_products(self.features)):
                if strategy.keeps_products(self.layers[place].module):
                    again[place] = share
        return again

    def _stretched(self, device: list[float], compute: PassTimes, repeats: float) -> list[float]:
        """How much longer each layer takes as the device waits for the host, whose launches are those of one GPU."""
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
        """Share of all weights on the fullest GPU of a replica."""
        sizes = [layer.dense_bytes + layer.embedding_bytes for layer in self.layers]
        held = [size * share for size, share in zip(sizes, self._share, strict=True)]
        whole = sum(sizes)
        return max(sum(held[stage.start : stage.stop]) for stage in self.stages) / whole if whole else 1.0

    @property
    def tensor(self) -> ExchangeCost:
        """All-reduces of activations of the longest stage for one micro-batch."""
        strategy = self.layout.strategy
        if strategy.tensor == 1:
            return NOTHING
        count, size = pipeline_stages.activations(self.features)
        paths = paths_of(self.layers)
        passes = 2 + sum(map(strategy.repeats, paths)) / max(1, len(paths))
        blocks = -(-count // strategy.pipeline)
        return all_reduce(self.layout.tensor(), size).times(pipeline_stages.ALL_REDUCES * passes * blocks)

    @property
    def sends(self) -> ExchangeCost:
        """Activations to the next stage and their gradients back, for one micro-batch."""
        size = max(stage.output_bytes for stage in self.stages)
        return send(self.layout.stage(), size, over_network=self.layout.stages_apart).times(2.0)

    def shards(self, *, by_unit: bool = False, has_tables: bool = True) -> list[Shard]:
        """What each stage exchanges with its other replicas."""
        return [self._shard(stage, by_unit=by_unit, has_tables=has_tables) for stage in self.stages]

    def _shard(self, stage: pipeline_stages.PipelineStage, *, by_unit: bool, has_tables: bool) -> Shard:
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
        if by_unit:  # gathered and scattered as one unit, in the precision of products
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
        if strategy.recomputed:
            notes.append(f"the forward pass of {format_count(len(strategy.recomputed), 'module')} is computed again")
        if strategy.products_kept:
            count = format_count(len(strategy.products_kept), "module")
            notes.append(f"the forward pass of {count} is computed again but for its products")
        if strategy.uses_host:
            notes.append("copies to host memory are simulated to overlap with compute")
        return tuple(notes)


def _gathered_share(features: StepFeatures, precision: str) -> float:
    """Bytes gathered for each byte of weights: 16 bits where products are computed in them."""
    weights = features.weights
    width = weights.bytes / weights.count if weights.count else 4.0
    return min(1.0, 2.0 / width) if precision in HALVES else 1.0
