"""What a GPU must hold, until `stoker.perf.memory` says it: weights, gradients, optimizer state, activations."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.perf.features.records import StepFeatures
from stoker.perf.prediction.setting import Machines, Strategy

_ALLOWANCE_BYTES = 1.5e9


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes of a GPU."""

    needed: float
    available: float

    @property
    def missing(self) -> float:
        """What it lacks; 0 where it fits."""
        return max(0.0, self.needed - self.available)


def fit(features: StepFeatures, machines: Machines, strategy: Strategy) -> Fit:
    """Of one micro-batch under a strategy."""
    weights = features.weights
    replicas = strategy.replicas(machines.gpus)
    parts = strategy.tensor * strategy.pipeline
    gradients = weights.dense_gradient_bytes + weights.embedding_gradient_bytes
    n = replicas
    shards = {"zero1": (1, 1, n), "zero2": (1, n, n), "fsdp": (n, n, n)}
    shard = shards.get(strategy.data, (1, 1, 1))
    held = weights.bytes / shard[0] + gradients / shard[1] + weights.optimizer_bytes / shard[2]
    if strategy.data == "pearl":
        held -= (weights.embedding_bytes + weights.embedding_gradient_bytes) * (1 - 1 / replicas)
    activations = features.activation_peak_bytes
    if strategy.checkpointing:
        activations = min(activations, sum(layer.output_bytes for layer in features.layers) / 3 or activations / 5)
    return Fit((held + activations) / parts + _ALLOWANCE_BYTES, machines.gpu.memory_bytes)
