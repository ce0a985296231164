"""What the fullest GPU of one replica holds, before replicas share anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.perf.communication.blocks import Unit, output_bytes, units_of
from stoker.perf.communication.pipeline_stages import PipelineStage, split_layers, stages_of
from stoker.perf.communication.times import layers_of
from stoker.perf.features.records import Layer, StepFeatures
from stoker.perf.memory.choice.tree_choice import Repeat, StepPart, choose_parts
from stoker.perf.strategy import Strategy

_FLOPS_A_BYTE = 60.0
"""FLOPs that take as long as moving a byte (assumed; 156 of an A100's in half precision, 10 in single precision)."""
_LAYERS_BESIDE = 2
"""Layers whose activations may be alive a second time, as gradients, at the peak of the backward pass (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes on one GPU, of the micro-batch that was traced.

    Attributes:
        count: parameters.
        states: of the optimizer.
        activations: at the peak of forward and backward pass.
        optimizer_temporaries: what the optimizer's step allocates, if the traced peak was there; 0 otherwise.
        largest_unit: weights of the largest unit that is gathered together.
        tables: weights that are only looked up, part of ``weights``.
        table_gradients: theirs, part of ``gradients``.
        touched: rows of tables that a micro-batch looks up, at most all of them.
    """

    count: float
    weights: float
    gradients: float
    states: float
    activations: float
    optimizer_temporaries: float
    largest_unit: float
    tables: float
    table_gradients: float
    touched: float

    @property
    def weight_width(self) -> float:
        """Bytes of a parameter."""
        return self.weights / self.count if self.count else 4.0

    @staticmethod
    def fullest(features: StepFeatures, strategy: Strategy) -> Held:
        """Memory of the fullest stage; stages are cut as evenly by bytes as blocks allow."""
        cut = _Cut(features, strategy)
        found = [cut.held(stage, count) for stage, count in cut.stages()]
        return max(found, key=lambda held: held.weights + held.gradients + held.states + held.activations)


def quickest_blocks(features: StepFeatures, strategy: Strategy, room: float) -> tuple[str, ...] | None:
    """Blocks to recompute, in the least time in which the activations of each stage fit; None if they never do.

    Args:
        features: of a step on one GPU.
        strategy: how it is spread.
        room: bytes for the activations of a stage.
    """
    cut, seconds = _Cut(features, strategy), dict[str, float]()
    for each in features.operations:
        if each.phase == "forward":
            taken = max(each.flops / _FLOPS_A_BYTE, each.eager_bytes)
            seconds[each.module] = seconds.get(each.module, 0.0) + taken
    found = [cut.quickest(stage, count, room, seconds) for stage, count in cut.stages()]
    if any(each is None for each in found):
        return None
    return tuple(dict.fromkeys(path for each in found for path in each or ()))


class _Cut:
    """Layers, and the share of each on one GPU."""

    def __init__(self, features: StepFeatures, strategy: Strategy) -> None:
        self._features, self._strategy = features, strategy
        self.layers = layers_of(features)
        divided = split_layers(features) if strategy.tensor > 1 else frozenset[int]()
        self._share = [1.0 / strategy.tensor if place in divided else 1.0 for place in range(len(self.layers))]
        state = features.weights.optimizer_bytes / features.weights.bytes if features.weights.bytes else 0.0
        kept = [(_weights(layer) * (1 + state) + _gradients(layer) + layer.saved_bytes) for layer in self.layers]
        self.sizes = [max(1.0, size * share) for size, share in zip(kept, self._share, strict=True)]
        saved = sum(layer.saved_bytes for layer in self.layers)
        beside = max(0.0, features.activation_peak_bytes - saved)
        likely = _LAYERS_BESIDE * max((layer.saved_bytes + layer.output_bytes for layer in self.layers), default=0)
        is_optimizer = bool(features.layers) and beside > likely
        self._beside = min(beside, likely) if is_optimizer else beside
        self._temporaries = features.activation_peak_bytes if is_optimizer else 0.0

    def stages(self) -> list[tuple[PipelineStage, int]]:
        """Stages, and the micro-batches that each has open."""
        strategy = self._strategy
        stages = stages_of(self.layers, self.sizes, strategy.pipeline)
        # One forward, one backward in turn (1F1B): a stage has one more micro-batch open than stages follow.
        open_batches = [min(strategy.accumulation, strategy.pipeline - place) for place in range(len(stages))]
        return list(zip(stages, open_batches, strict=True))

    def held(self, stage: PipelineStage, open_batches: int) -> Held:
        """Memory that one stage holds."""
        weights_of_model = self._features.weights
        layers = self.layers[stage.start : stage.stop]
        share = self._share[stage.start : stage.stop]
        weights = [_weights(layer) * part for layer, part in zip(layers, share, strict=True)]
        units = units_of(layers)
        part = sum(weights) / weights_of_model.bytes if weights_of_model.bytes else 1.0
        return Held(
            count=weights_of_model.count * part,
            weights=sum(weights),
            gradients=sum(_gradients(layer) * part for layer, part in zip(layers, share, strict=True)),
            states=weights_of_model.optimizer_bytes * part,
            activations=self._activations(layers, share, units, open_batches),
            optimizer_temporaries=self._temporaries * part,
            largest_unit=max(sum(weights[unit.start : unit.stop]) for unit in units),
            tables=sum(layer.embedding_bytes * part for layer, part in zip(layers, share, strict=True)),
            table_gradients=sum(
                layer.embedding_gradient_bytes * part for layer, part in zip(layers, share, strict=True)
            ),
            touched=min(weights_of_model.embedding_touched_bytes, weights_of_model.embedding_bytes) * part,
        )

    def _activations(
        self, layers: Sequence[Layer], share: Sequence[float], units: Sequence[Unit], open_batches: int
    ) -> float:
        alive = most = 0.0
        for path, own, kept in _kept(layers, share, units):
            if path and self._strategy.repeats(path):
                # While it runs backward, one micro-batch of it is whole again, and what follows it is gone.
                most = max(most, alive + min(own * open_batches, kept * open_batches + own))
                alive += kept * open_batches
            else:
                alive += own * open_batches
                most = max(most, alive)
        return max(most, alive) + self._beside

    def quickest(
        self, stage: PipelineStage, open_batches: int, room: float, seconds: Mapping[str, float]
    ) -> tuple[str, ...] | None:
        """Blocks of a stage to recompute, in the least time in which its activations fit; None if they never do.

        Args:
            stage: to look at.
            open_batches: micro-batches that it has open.
            room: bytes for its activations.
            seconds: of the forward pass of each module, in any unit.
        """
        layers, share = self.layers[stage.start : stage.stop], self._share[stage.start : stage.stop]
        units = units_of(layers)
        before, parts = self._beside, list[StepPart]()
        for unit, (path, own, kept) in zip(units, _kept(layers, share, units), strict=True):
            repeats: tuple[Repeat, ...] = ()
            if path and kept < own:
                again = min(own * open_batches, kept * open_batches + own)
                taken = sum(seconds.get(layer.module, 0.0) for layer in layers[unit.start : unit.stop])
                saves = int((own - kept) * open_batches)
                repeats = (Repeat("nothing", saves, taken, math.ceil(before + again)),)
            before += own * open_batches
            parts.append(StepPart(path, math.ceil(before), repeats))
        found = choose_parts([*parts, StepPart("", math.ceil(before))], math.floor(room))
        return None if found is None else tuple(found)


def _kept(layers: Sequence[Layer], share: Sequence[float], units: Sequence[Unit]) -> list[tuple[str, float, float]]:
    """Path of each unit, bytes that it keeps of a micro-batch, and bytes of its input, which a repeated one keeps."""
    found: list[tuple[str, float, float]] = []
    for unit in units:
        run = slice(unit.start, unit.stop)
        own = sum(layer.saved_bytes * part for layer, part in zip(layers[run], share[run], strict=True))
        found.append((unit.path, own, min(own, output_bytes(layers, unit))))
    return found


def _weights(layer: Layer) -> int:
    return layer.dense_bytes + layer.embedding_bytes


def _gradients(layer: Layer) -> int:
    return layer.dense_gradient_bytes + layer.embedding_gradient_bytes
