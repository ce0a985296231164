"""A small step made by hand, whose times can be worked out on paper."""

from __future__ import annotations

from typing import Any

from stoker.perf.features.records import Layer, Operation, StepFeatures, Unknown, Weights


def operation(kind: str, **values: Any) -> Operation:
    """One operation; what is not said does not matter."""
    usual: dict[str, Any] = {
        "name": kind, "kind": kind, "phase": "forward", "dtype": "float16", "dims": (1, 1, 1, 1), "module": "blocks.0",
        "count": 1, "flops": 0.0, "eager_bytes": 0.0, "fused_bytes": 0.0, "fused_count": 1,
    }  # fmt: skip
    return Operation(**(usual | values))


def product(**values: Any) -> Operation:
    """A large square product of 2 x 4096³ FLOPs in 16 bits."""
    side = 4096
    usual: dict[str, Any] = {"dims": (1, side, side, side), "flops": 2.0 * side**3, "eager_bytes": 6.0 * side**2}
    return operation("matmul", **(usual | values))


def step(*operations: Operation, unknown: tuple[Unknown, ...] = (), **values: Any) -> StepFeatures:
    """Features of some operations, whose two layers have 100 MB of gradients each."""
    usual: dict[str, Any] = {
        "name": "made by hand", "target": "cuda", "batch_size": 8, "operations": operations, "input_bytes": 0,
        "activation_peak_bytes": 0, "peak_bytes": 0, "unknown": unknown,
        "weights": Weights(
            dense_count=50_000_000, embedding_count=0, dense_bytes=200_000_000, embedding_bytes=0,
            dense_gradient_bytes=200_000_000, embedding_gradient_bytes=0, embedding_touched_bytes=0,
            optimizer_bytes=400_000_000,
        ),
        "layers": tuple(Layer(module=f"blocks.{place}", dense_bytes=100_000_000, dense_gradient_bytes=100_000_000)
            for place in range(2)),
    }  # fmt: skip
    return StepFeatures(**(usual | values))


def training() -> StepFeatures:
    """Forward, backward and optimizer of two layers."""
    traffic: dict[str, Any] = {"eager_bytes": 3e9, "fused_bytes": 2e9, "count": 40, "fused_count": 20}
    return step(
        product(), product(module="blocks.1"), operation("pointwise", **traffic),
        product(phase="backward", count=2, flops=4.0 * 4096**3),
        product(phase="backward", module="blocks.1", count=2, flops=4.0 * 4096**3),
        operation("norm", phase="backward", **traffic),
        operation("pointwise", phase="optimizer", dtype="float32", eager_bytes=4e9, fused_bytes=2e9, count=6),
    )  # fmt: skip
