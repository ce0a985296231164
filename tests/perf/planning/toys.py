"""A small program's features, and predictors simple enough to be checked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

from stoker.perf.catalogue import gpu
from stoker.perf.features.records import Layer, Operation, StepFeatures, Weights
from stoker.perf.memory import Fit
from stoker.perf.planning.batches import Batches
from stoker.perf.planning.offers import Offer
from stoker.perf.planning.pricing import TrainingJob
from stoker.perf.planning.space import Candidate
from stoker.perf.prediction.prediction import Prediction

PARAMETERS = 1_000_000


def features(batch_size: int = 8) -> StepFeatures:
    """One linear layer and its optimizer."""
    flops = 2.0 * PARAMETERS * batch_size
    product = Operation(
        name="mm", kind="matmul", phase="forward", dtype="float32", dims=(1, batch_size, 1000, 1000), module="linear",
        count=1, flops=flops, eager_bytes=4.0 * (PARAMETERS + 2000 * batch_size),
        fused_bytes=4.0 * (PARAMETERS + 2000 * batch_size), fused_count=1,
    )  # fmt: skip
    adam = Operation(
        name="_fused_adam", kind="pointwise", phase="optimizer", dtype="float32", dims=(PARAMETERS,), module="",
        count=1, flops=12.0 * PARAMETERS, eager_bytes=28.0 * PARAMETERS, fused_bytes=28.0 * PARAMETERS, fused_count=1,
    )  # fmt: skip
    size = 4 * PARAMETERS
    weights = Weights(
        dense_count=PARAMETERS, embedding_count=0, dense_bytes=size, embedding_bytes=0, dense_gradient_bytes=size,
        embedding_gradient_bytes=0, embedding_touched_bytes=0, optimizer_bytes=2 * size,
    )  # fmt: skip
    saved = 8000 * batch_size
    return StepFeatures(
        name="toy", target="cuda", batch_size=batch_size, operations=(product, adam), weights=weights,
        input_bytes=4000 * batch_size, activation_peak_bytes=saved, peak_bytes=4 * size + saved,
        layers=(Layer(module="linear", dense_bytes=size, dense_gradient_bytes=size, saved_bytes=saved),),
    )  # fmt: skip


def offer(name: str = "T4", gpus: int = 8, per_hour: float = 1.0, cores: float | None = None) -> Offer:
    """Servers of some GPU."""
    return Offer(name=f"{gpus}x {name}", gpu=gpu(name), gpus=gpus, per_hour=per_hour, cores=cores)


def seconds(found: StepFeatures, candidate: Candidate) -> Prediction:
    """1 ms a sample and 10 ms a micro-batch on a T4, exchange that grows with the GPUs and differs by strategy."""
    strategy = candidate.strategy
    pace = gpu("T4").rates["fp32"] / candidate.offer.gpu.rates["fp32"]
    computing = (1e-3 * candidate.micro_batch + 10e-3) * pace * (1.3 if strategy.recomputed else 1.0)
    passes = strategy.accumulation + strategy.pipeline - 1
    slower = {"ddp": 1.0, "zero1": 0.9, "zero2": 1.1, "fsdp": 1.2, "ps": 5.0, "pearl": 3.0}[strategy.data]
    parts = {
        "compute": computing * passes / (strategy.tensor * strategy.pipeline),
        "communication": 0.1e-3 * slower * math.log2(candidate.gpus) * (1 + strategy.tensor / 4),
        "optimizer": 1e-3,
    }
    step = sum(parts.values())
    return Prediction(seconds=step, low=step / 1.5, high=step * 1.5, tier="extrapolated", parts=parts)


def roomy(found: StepFeatures, candidate: Candidate) -> Fit:
    """1 GB of weights, shared by whoever shares them, and 0.5 GB a sample, a fifth of it recomputed."""
    strategy = candidate.strategy
    shared = strategy.tensor * strategy.pipeline * (candidate.replicas if strategy.data == "fsdp" else 1)
    kept = 0.5e9 * candidate.micro_batch * (0.2 if strategy.recomputed else 1.0)
    needed = 1e9 / shared + kept / (strategy.tensor * strategy.pipeline)
    return Fit(needed=needed, available=candidate.offer.gpu.memory_bytes, parts={"all": needed})


def job(samples: int = 1_000_000, cpu_seconds_per_sample: float | None = None) -> TrainingJob:
    """With the predictors above."""
    return TrainingJob(
        samples=samples, batches=Batches(features()), cpu_seconds_per_sample=cpu_seconds_per_sample,
        predict=seconds, fits=roomy, refuses=lambda found, candidate: "",
        spares=lambda found, candidate: replace(candidate.strategy, recomputed=("blocks",)),
    )  # fmt: skip
