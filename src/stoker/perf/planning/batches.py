"""The features of a step at other sizes of its batch.

Two traced sizes give a straight line through each figure of each operation, which is exact for all that is computed
sample by sample. With one traced size alone, each operation is judged on what grows with the batch and what belongs to
the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from stoker.perf.features.records import Layer, Operation, StepFeatures

_OPERATION = ("flops", "eager_bytes", "fused_bytes")
_LAYER = ("saved_bytes", "output_bytes", "embedding_gradient_bytes")
_WEIGHTS = ("embedding_gradient_bytes", "embedding_touched_bytes")
_STEP = ("input_bytes", "activation_peak_bytes", "peak_bytes")


class Batches:
    """Features by size of the micro-batch.

    Args:
        traced: steps of a program; of one that accumulates gradients a micro-batch counts.
        own: samples of the program's own step; by default of the smallest traced one.

    Attributes:
        traced: one micro-batch of each, by ascending size.
        own: samples of the program's own step.
        is_exact: whether other sizes lie on a line between traced ones.
    """

    def __init__(self, *traced: StepFeatures, own: int | None = None) -> None:
        if not traced:
            raise ValueError("`traced` must hold one trace or more, got none")
        self._steps = {found.batch_size: found for found in traced}
        self.own = min(self._steps) if own is None else own
        self.traced = tuple(sorted((found.one_micro_batch() for found in traced), key=lambda found: found.batch_size))
        self.is_exact = len(self.traced) > 1 and _alike(self.traced[0], self.traced[-1])
        self._known = {found.batch_size: found for found in self.traced}

    @property
    def first(self) -> StepFeatures:
        """The smallest traced micro-batch."""
        return self.traced[0]

    def at(self, batch_size: int) -> StepFeatures:
        """The step with batches of so many samples.

        Raises:
            ValueError: no sample, or less.
        """
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {batch_size}")
        if batch_size not in self._known:
            first, last = self.traced[0], self.traced[-1]
            self._known[batch_size] = (
                on_line(first, last, batch_size) if self.is_exact else scaled(self._nearest(batch_size), batch_size)
            )
        return self._known[batch_size]

    def step(self, batch_size: int) -> StepFeatures:
        """The program's step with ``batch_size`` samples: as traced, or else in one micro-batch.

        Raises:
            ValueError: no sample, or less.
        """
        return self._steps.get(batch_size) or self.at(batch_size)

    def _nearest(self, batch_size: int) -> StepFeatures:
        return min(self.traced, key=lambda found: abs(math.log(found.batch_size / batch_size)))


def _alike(one: StepFeatures, other: StepFeatures) -> bool:
    """Whether both consist of the same operations, except for their sizes."""
    if len(one.operations) != len(other.operations) or one.batch_size == other.batch_size:
        return False
    pairs = zip(one.operations, other.operations, strict=True)
    same = (
        (a.name, a.kind, a.phase, a.module, len(a.dims), a.count)
        == (b.name, b.kind, b.phase, b.module, len(b.dims), b.count)
        for a, b in pairs
    )
    return all(same) and [layer.module for layer in one.layers] == [layer.module for layer in other.layers]


def on_line(first: StepFeatures, last: StepFeatures, batch_size: int) -> StepFeatures:
    """Figures on the straight lines through those of two sizes of the batch; never below zero."""
    share = (batch_size - first.batch_size) / (last.batch_size - first.batch_size)

    def between(low: float, high: float) -> float:
        return max(0.0, low + (high - low) * share)

    def moved(one: Any, other: Any, names: Sequence[str]) -> Any:
        values: dict[str, Any] = {name: between(getattr(one, name), getattr(other, name)) for name in names}
        whole = {name: round(value) if isinstance(getattr(one, name), int) else value for name, value in values.items()}
        return replace(one, **whole)

    operations = tuple(
        replace(
            moved(one, other, _OPERATION) if one.phase != "optimizer" else one,
            dims=tuple(round(between(low, high)) for low, high in zip(one.dims, other.dims, strict=True)),
        )
        for one, other in zip(first.operations, last.operations, strict=True)
    )
    step: StepFeatures = moved(first, last, _STEP)
    return replace(
        step,
        batch_size=batch_size,
        operations=operations,
        weights=moved(first.weights, last.weights, _WEIGHTS),
        layers=tuple(moved(a, b, _LAYER) for a, b in zip(first.layers, last.layers, strict=True)),
    )


def scaled(features: StepFeatures, batch_size: int) -> StepFeatures:
    """One traced step with another size of the batch.

    FLOPs of the passes grow with it. Bytes and sizes of weights stay: these are recognised by the sizes of the
    products that a module's forward pass computes. Activations grow as a whole.
    """
    times = batch_size / features.batch_size
    shapes = _Shapes(features.operations)
    operations = tuple(_scaled(operation, times, shapes) for operation in features.operations)
    weights, activations = features.weights, round(features.activation_peak_bytes * times)
    grown = activations - features.activation_peak_bytes
    touched = round(weights.embedding_touched_bytes * times)
    # Sparse gradients are the touched rows; dense ones the whole table.
    sparse = weights.embedding_gradient_bytes < weights.embedding_bytes
    return replace(
        features,
        batch_size=batch_size,
        operations=operations,
        weights=replace(
            weights,
            embedding_touched_bytes=touched,
            embedding_gradient_bytes=round(weights.embedding_gradient_bytes * (times if sparse else 1.0)),
        ),
        layers=tuple(_scaled_layer(layer, times) for layer in features.layers),
        input_bytes=round(features.input_bytes * times),
        activation_peak_bytes=activations,
        peak_bytes=max(0, features.peak_bytes + grown),
        assumptions=(*features.assumptions, f"scaled from a batch of {features.batch_size} to {batch_size}"),
    )


def _scaled_layer(layer: Layer, times: float) -> Layer:
    sparse = layer.embedding_gradient_bytes < layer.embedding_bytes
    return replace(
        layer,
        saved_bytes=round(layer.saved_bytes * times),
        output_bytes=round(layer.output_bytes * times),
        embedding_gradient_bytes=round(layer.embedding_gradient_bytes * (times if sparse else 1.0)),
    )


class _Shapes:
    """Rows of activations and elements of weights, by module, from the products of the forward pass."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._rows: set[tuple[str, int]] = set()
        self._weights: set[tuple[str, int]] = set()
        for operation in operations:
            if operation.kind == "matmul" and operation.phase == "forward" and operation.dims[0] == 1:
                _, rows, n, k = operation.dims
                self._rows.add((operation.module, rows))
                self._weights.update(((operation.module, n * k), (operation.module, n)))

    def is_cast(self, operation: Operation) -> bool:
        """Whether an operation copies weights or their gradients to another precision."""
        return operation.name == "_to_copy" and (operation.module, operation.dims[0]) in self._weights

    def is_weight_gradient(self, operation: Operation) -> bool:
        """Whether a product of the backward pass sums over the rows of activations."""
        _, m, _, k = operation.dims
        rows = self._rows
        return (operation.module, k) in rows and (operation.module, m) not in rows


def _scaled(operation: Operation, times: float, shapes: _Shapes) -> Operation:
    if operation.phase == "optimizer" or shapes.is_cast(operation):
        return operation
    dims, fixed = list(operation.dims), 0.0
    place = 0
    if operation.kind == "matmul":
        batch, m, n, k = dims
        if batch == 1:
            gradient = operation.phase == "backward" and shapes.is_weight_gradient(operation)
            place = 3 if gradient else 1
            fixed = (m * n if gradient else n * k) / (m * k + k * n + m * n)
    elif operation.name.startswith("embedding_dense_backward"):
        looked_up, width, rows = dims
        # Read twice, added, and the whole table zeroed: see the formula of the same name.
        fixed = rows * width / (rows * width + 3 * looked_up * width)
    if dims:
        dims[place] = max(1, round(dims[place] * times))
    grown = fixed + (1 - fixed) * times
    return replace(
        operation,
        dims=tuple(dims),
        flops=operation.flops * times,
        eager_bytes=operation.eager_bytes * grown,
        fused_bytes=operation.fused_bytes * grown,
    )
