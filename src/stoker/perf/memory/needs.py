"""What a step keeps on one GPU, part by part, and whether it fits.

Weights, gradients and optimizer state come from the features; ZeRO divides them among replicas stage by stage (arXiv
1910.02054, section 5), tensor and pipeline parallelism divide the layers. Activations are the traced peak; with
recomputation a block keeps only its input, and one block at a time all its activations (arXiv 1604.06174, section 4).
Constants state what a step allocates besides tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.perf.catalogue import Gpu
from stoker.perf.features.records import StepFeatures
from stoker.perf.memory.reserve import CONTEXT_BYTES
from stoker.perf.memory.resident import Held
from stoker.perf.strategy import Machines, Strategy

FRAGMENTED = 0.05
"""Share of its memory that the allocator cannot use (assumed, for steps that are all alike; arXiv 2401.08156 finds
15 % and more where sizes change)."""
_REDUCE_BUCKET = 500_000_000
"""Elements of a bucket of DeepSpeed's ZeRO-1 and -2: its default."""
_HBM, _GDDR = 1.06, 0.985
"""Bytes that programs get of each byte in the data sheet: see :func:`capacity`."""
_WITH_HBM = ("P100", "V100", "A100", "H100", "H200", "B200")
_HALVES = ("fp16", "bf16")
_MASTER_BYTES = 4.0

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "input", "context", "fragmentation")
"""What a GPU's memory holds, in the order in which it is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a step fits; true as a condition if it does.

    Attributes:
        needed: bytes on the fullest GPU.
        available: bytes that the GPU has.
        parts: bytes by name, of :data:`PARTS`; they sum to ``needed``.
        notes: what was assumed, as sentences.
    """

    needed: float
    available: float
    parts: Mapping[str, float]
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> float:
        """Missing bytes; 0 if it fits."""
        return max(0.0, self.needed - self.available)

    def __bool__(self) -> bool:
        return self.missing == 0


def fits(
    features: StepFeatures, machines: Machines, strategy: Strategy | None = None, *, precision: str = "fp32",
    batch_size: int | None = None, master_copies: bool = False,
) -> Fit:  # fmt: skip
    """Whether a step fits into the memory of each GPU; arguments as those of :func:`needs`."""
    parts, notes = needs(
        features, strategy or Strategy(), machines.gpus,
        precision=precision, batch_size=batch_size, master_copies=master_copies,
    )  # fmt: skip
    return Fit(needed=sum(parts.values()), available=capacity(machines.gpu), parts=parts, notes=notes)


def capacity(gpu: Gpu) -> float:
    """Bytes that a GPU offers to programs.

    Vendors call GB what are mostly GiB: PyTorch reports 79.15 GiB of an H100 with 80 GB and 39.59 of an A100 with 40
    in its out-of-memory errors. Cards with GDDR memory lose a sixteenth of it to ECC: 14.75 GiB of a T4 with 16 GB.
    """
    return gpu.memory_bytes * (_HBM if gpu.name.startswith(_WITH_HBM) else _GDDR)


def needs(
    features: StepFeatures, strategy: Strategy, gpus: int = 1, *, precision: str = "fp32",
    batch_size: int | None = None, master_copies: bool = False,
) -> tuple[dict[str, float], tuple[str, ...]]:  # fmt: skip
    """Bytes by part on the fullest GPU, and what was assumed.

    Args:
        features: of a step on one GPU; with gradient accumulation, of a micro-batch.
        strategy: how the step is spread.
        gpus: number of GPUs.
        precision: of products; sharded weights are gathered in it.
        batch_size: samples of a micro-batch, if other than that of the features: activations grow in proportion.
        master_copies: whether the optimizer keeps fp32 copies of 16-bit weights, as DeepSpeed's and Megatron's do.

    Raises:
        ValueError: the GPUs cannot be divided this way.
    """
    features = features.one_micro_batch()
    replicas = strategy.replicas(gpus)
    growth = (batch_size or features.batch_size) / features.batch_size
    held = Held.fullest(features, strategy)
    weights, gradients, states = _kept(held, strategy, replicas)
    masters = _MASTER_BYTES * held.count if master_copies and held.weight_width < _MASTER_BYTES else 0.0
    temporaries = held.optimizer_temporaries * states
    parts = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": (held.states + masters) * states,
        "activations": max(held.activations * growth, temporaries),
        "buffers": _buffers(held, strategy, precision) if replicas > 1 else 0.0,
        "input": features.input_bytes * growth,
    }
    parts["fragmentation"] = FRAGMENTED * sum(parts.values())
    parts["context"] = CONTEXT_BYTES
    grown = ("activations grow in proportion to the batch",) if growth != 1 else ()
    return {name: parts[name] for name in PARTS}, grown


def divided(features: StepFeatures, strategy: Strategy, replicas: int) -> tuple[float, float, float]:
    """Shares of weights, gradients and optimizer states that a GPU of a replica keeps."""
    held = Held.fullest(features.one_micro_batch(), strategy)
    weights, gradients, states = _kept(held, strategy, replicas)
    return (
        weights / held.weights if held.weights else 1.0,
        gradients / held.gradients if held.gradients else 1.0,
        states,
    )


def _kept(held: Held, strategy: Strategy, replicas: int) -> tuple[float, float, float]:
    """Bytes of weights and of gradients on each GPU, and its share of the optimizer's state.

    Partitioned embeddings divide the tables alone. Parameter servers keep the tables and all of the optimizer's state;
    a worker holds the dense weights, and of tables the rows and gradients that it looks up.
    """
    if replicas == 1:
        return held.weights, held.gradients, 1.0
    if strategy.data == "pearl":
        tables = held.tables * (1 - 1 / replicas)
        share = 1 - tables / held.weights if held.weights else 1.0
        return held.weights - tables, held.gradients - held.table_gradients * (1 - 1 / replicas), share
    if strategy.data == "ps":
        return held.weights - held.tables + held.touched, held.gradients - held.table_gradients + held.touched, 0.0
    weights = held.weights / (replicas if strategy.data == "fsdp" else 1)
    gradients = held.gradients / (replicas if strategy.data in ("fsdp", "zero2") else 1)
    return weights, gradients, 1.0 / replicas if strategy.data in ("fsdp", "zero1", "zero2") else 1.0


def _buffers(held: Held, strategy: Strategy, precision: str) -> float:
    """Buffers of an exchange besides gradients.

    FSDP: two units' weights, this one's and the next one's, and the gradients of one. ZeRO: a bucket. DDP: all buckets,
    which are copies by default (``gradient_as_bucket_view=False``; for ResNet-50 they took 101 MB: pytorch/pytorch pull
    request 41954).
    """
    if strategy.data == "fsdp":
        gathered = min(1.0, 2.0 / held.weight_width) if precision in _HALVES else 1.0
        return 3 * held.largest_unit * gathered
    if strategy.data in ("zero1", "zero2"):
        return min(held.gradients, _REDUCE_BUCKET * held.weight_width)
    if strategy.data in ("ps", "pearl"):
        return held.gradients - held.table_gradients
    # Factors of all ranks may take as much again.
    return held.gradients * (2 if strategy.data == "late" else 1)
