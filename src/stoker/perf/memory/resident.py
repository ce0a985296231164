"""What the fullest GPU of one replica holds, before replicas share anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.perf.communication.blocks import Unit, output_bytes, units_of
from stoker.perf.communication.pipeline_stages import PipelineStage, split_layers, stages_of
from stoker.perf.communication.times import layers_of
from stoker.perf.features.records import Layer, StepFeatures
from stoker.perf.strategy import Strategy

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
    notes: tuple[str, ...] = ()

    @property
    def weight_width(self) -> float:
        """Bytes of a parameter."""
        return self.weights / self.count if self.count else 4.0

    @staticmethod
    def fullest(features: StepFeatures, strategy: Strategy) -> Held:
        """Memory of the fullest stage; stages are cut as evenly by bytes as blocks allow."""
        cut = _Cut(features, strategy)
        stages = stages_of(cut.layers, cut.sizes, strategy.pipeline)
        # One forward, one backward in turn (1F1B): a stage has one more micro-batch open than stages follow.
        open_batches = [min(strategy.accumulation, strategy.pipeline - place) for place in range(len(stages))]
        found = [cut.held(stage, count) for stage, count in zip(stages, open_batches, strict=True)]
        return max(found, key=lambda held: held.weights + held.gradients + held.states + held.activations)


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
            notes=self._notes(units),
        )

    def _activations(
        self, layers: Sequence[Layer], share: Sequence[float], units: Sequence[Unit], open_batches: int
    ) -> float:
        saved = [layer.saved_bytes * part for layer, part in zip(layers, share, strict=True)]
        if not self._strategy.checkpointing:
            return sum(saved) * open_batches + self._beside
        blocks = [unit for unit in units if unit.path]
        inside = [sum(saved[unit.start : unit.stop]) for unit in blocks]
        inputs = [min(own, output_bytes(layers, unit)) for own, unit in zip(inside, blocks, strict=True)]
        kept = sum(saved) - sum(inside) + sum(inputs)
        return kept * open_batches + max(inside, default=0.0) + self._beside

    def _notes(self, units: Sequence[Unit]) -> tuple[str, ...]:
        if self._strategy.checkpointing and not any(unit.path for unit in units):
            return (f"{self._features.name} has no blocks that are told apart: recomputation saves nothing",)
        return ()


def _weights(layer: Layer) -> int:
    return layer.dense_bytes + layer.embedding_bytes


def _gradients(layer: Layer) -> int:
    return layer.dense_gradient_bytes + layer.embedding_gradient_bytes
