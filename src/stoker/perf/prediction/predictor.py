"""Predicts a step from its features: on one GPU first, then spread over many."""

from __future__ import annotations

from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.perf.prediction.prediction import Prediction, refused
from stoker.perf.prediction.setting import Machines, Strategy


def predict(
    features: StepFeatures, machines: Machines, strategy: Strategy | None = None, *, precision: str | None = None
) -> Prediction:
    """One optimizer step of a program.

    Args:
        features: of one micro-batch on one GPU, its optimizer included.
        machines: it shall run on.
        strategy: how it is spread; plain data parallelism by default.
        precision: of products, as the catalogue calls it; by default what the program computes in (fp32 as tf32 where
            the GPU has that).
    """
    strategy = strategy or Strategy()
    gpu = machines.gpu
    precision = precision or "fp32"
    if precision == "fp32" and "tf32" in gpu.rates:
        precision = "tf32"
    if precision not in gpu.rates:
        return refused(f"{gpu.name} has no {precision}; it has {', '.join(gpu.rates)}")
    compute = sum(op.flops for op in features.operations if op.kind in MATRIX_KINDS) / gpu.rates[precision] / 0.5
    memory = (
        sum(op.fused_bytes for op in features.operations if op.kind not in MATRIX_KINDS and op.phase != "optimizer")
        / gpu.memory_bandwidth
        / 0.7
    )
    optimizer = sum(op.eager_bytes for op in features.operations if op.phase == "optimizer") / gpu.memory_bandwidth
    steps = strategy.accumulation
    parts = {"compute": compute * steps, "memory": memory * steps, "optimizer": optimizer}
    seconds = sum(parts.values())
    return Prediction(
        seconds=seconds, low=seconds / 2, high=seconds * 2, tier="extrapolated", parts=parts,
        reasons=("one efficiency for all products and one for all traffic of the memory",),
    )  # fmt: skip
