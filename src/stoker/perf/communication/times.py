"""Seconds of a step on one GPU, layer by layer, which an exchange can overlap with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from stoker.perf.features.records import MATRIX_KINDS, Layer, Operation, StepFeatures

_BALANCE = 100.0
"""FLOPs computed in the time of a byte: 150 on an A100 in 16 bits, 17 on a V100 in 32 bits. Weighs layers only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """One micro-batch on one GPU, and the optimizer.

    Attributes:
        forward_s, backward_s: of each of :func:`layers_of` the features, in their order.
        optimizer_s: of all weights.
        host_s: that the host needs to launch both passes, if the other times are those of the device alone. The two
            overlap and take the root of the sum of their squares, as in calibration.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    optimizer_s: float
    host_s: float = 0.0

    def __post_init__(self) -> None:
        if len(self.forward_s) != len(self.backward_s):
            raise ValueError(
                f"`forward_s` and `backward_s` must be of the same layers, got {len(self.forward_s)} and "
                f"{len(self.backward_s)}"
            )
        if min((*self.forward_s, *self.backward_s, self.optimizer_s, self.host_s)) < 0:
            raise ValueError("`forward_s`, `backward_s`, `optimizer_s` and `host_s` must not be negative")

    @property
    def compute_s(self) -> float:
        """Forward and backward pass of the device."""
        return sum(self.forward_s) + sum(self.backward_s)

    @property
    def step_s(self) -> float:
        """The step on one GPU."""
        return math.hypot(self.compute_s, self.host_s) + self.optimizer_s

    def scaled(self, factor: float) -> PassTimes:
        """The same on a GPU that is ``factor`` times as slow."""
        return replace(
            self,
            forward_s=tuple(each * factor for each in self.forward_s),
            backward_s=tuple(each * factor for each in self.backward_s),
            optimizer_s=self.optimizer_s * factor,
            host_s=self.host_s * factor,
        )

    @staticmethod
    def of(features: StepFeatures, seconds: Callable[[Operation], float]) -> PassTimes:
        """Layer times from the seconds of each operation; work outside known modules belongs to the first layer."""
        layers = layers_of(features)
        places = {layer.module: number for number, layer in enumerate(layers)}
        sums = {"forward": [0.0] * len(layers), "backward": [0.0] * len(layers)}
        optimizer = 0.0
        for operation in features.operations:
            if operation.phase == "optimizer":
                optimizer += seconds(operation)
            else:
                sums[operation.phase][places.get(operation.module, 0)] += seconds(operation)
        return PassTimes(forward_s=tuple(sums["forward"]), backward_s=tuple(sums["backward"]), optimizer_s=optimizer)

    @staticmethod
    def shared(features: StepFeatures, forward_s: float, backward_s: float, optimizer_s: float) -> PassTimes:
        """Layer times from the seconds of whole passes, divided by FLOPs and bytes."""
        weights = PassTimes.of(features, _weight)
        return PassTimes(
            forward_s=_shares(weights.forward_s, forward_s),
            backward_s=_shares(weights.backward_s, backward_s),
            optimizer_s=optimizer_s,
        )

    @staticmethod
    def measured(features: StepFeatures, step_s: float) -> PassTimes:
        """Layer times from the seconds of a whole step, divided by FLOPs and bytes.

        Raises:
            ValueError: the features have no operations.
        """
        weights = PassTimes.of(features, _weight)
        if not weights.step_s:
            raise ValueError(f"`features` must have operations, got none of {features.name}")
        return weights.scaled(step_s / weights.step_s)


def besides_products(features: StepFeatures) -> tuple[float, ...]:
    """Share of each layer's forward pass that is no product, by the bytes that its operations move."""
    layers = layers_of(features)
    places = {layer.module: number for number, layer in enumerate(layers)}
    whole, others = [0.0] * len(layers), [0.0] * len(layers)
    for each in features.operations:
        if each.phase == "forward":
            place = places.get(each.module, 0)
            whole[place] += each.eager_bytes
            others[place] += 0.0 if each.kind in MATRIX_KINDS else each.eager_bytes
    return tuple(other / size if size else 1.0 for other, size in zip(others, whole, strict=True))


def layers_of(features: StepFeatures) -> tuple[Layer, ...]:
    """Layers in the order of the forward pass; one that holds everything if the features name none."""
    if features.layers:
        return features.layers
    weights = features.weights
    return (
        Layer(
            module="",
            dense_bytes=weights.dense_bytes,
            dense_gradient_bytes=weights.dense_gradient_bytes,
            embedding_bytes=weights.embedding_bytes,
            embedding_gradient_bytes=weights.embedding_gradient_bytes,
            saved_bytes=features.activation_peak_bytes,
        ),
    )


def _weight(operation: Operation) -> float:
    flops = operation.flops if operation.kind in MATRIX_KINDS else 0.0
    return max(flops / _BALANCE, operation.fused_bytes)


def _shares(weights: tuple[float, ...], total: float) -> tuple[float, ...]:
    whole = sum(weights)
    return tuple(total * (weight / whole if whole else 1 / len(weights)) for weight in weights)
