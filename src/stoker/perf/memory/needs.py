"""What a step keeps on one GPU, part by part, and whether it fits.

Weights, gradients and the optimizer's state are those of the features; ZeRO divides them among replicas stage by stage
(arXiv 1910.02054, section 5), tensor and pipeline parallelism divide the layers. Activations are the traced peak; with
recomputation a block keeps its input alone, and one block at a time all of its own (arXiv 1604.06174, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.perf.catalogue import Gpu
from stoker.perf.communication.blocks import Unit, output_bytes, units_of
from stoker.perf.communication.cutting import Stage, split_layers, stages_of
from stoker.perf.communication.times import layers_of
from stoker.perf.features.records import Layer, StepFeatures
from stoker.perf.prediction.setting import Machines, Strategy

CONTEXT_BYTES = 0.75e9
"""Of a process before it allocates anything: the CUDA context, kernels and the buffers of NCCL (assumed; 0.3 to 1 GB
are reported, more on newer GPUs)."""
FRAGMENTED = 0.05
"""Share of the allocator's memory that no tensor can use (assumed for steps that repeat; arXiv 2401.08156 reports 15 %
and more where sizes change)."""
_REDUCE_BUCKET = 500_000_000
"""Elements of DeepSpeed's buckets for ZeRO-1 and -2, its documented default."""
_HALVES = ("fp16", "bf16")
PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "input", "context", "fragmentation")
"""What a GPU's memory holds, in the order in which it is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a step fits.

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
        """Bytes that are lacking; 0 where it fits."""
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
    """Bytes that programs can have of a GPU's memory."""
    return gpu.memory_bytes


def needs(
    features: StepFeatures, strategy: Strategy, gpus: int = 1, *, precision: str = "fp32",
    batch_size: int | None = None, master_copies: bool = False,
) -> tuple[dict[str, float], tuple[str, ...]]:  # fmt: skip
    """Bytes by part on the fullest GPU, and what was assumed.

    Args:
        features: of one micro-batch on one GPU, its optimizer included.
        strategy: how the step is spread.
        gpus: over how many.
        precision: of products; sharded weights are gathered in it.
        batch_size: samples of a micro-batch, if other than that of the features: activations grow in proportion.
        master_copies: whether the optimizer keeps fp32 copies of 16-bit weights, as DeepSpeed and Megatron do.

    Raises:
        ValueError: the GPUs cannot be divided so.
    """
    replicas = strategy.replicas(gpus)
    growth = (batch_size or features.batch_size) / features.batch_size
    kept = _Kept(features, strategy, growth)
    weights, gradients = kept.weights, kept.gradients
    width = weights / kept.count if kept.count else 4.0
    states = kept.share * features.weights.optimizer_bytes + (4.0 * kept.count if master_copies and width < 4 else 0.0)
    gathered = min(1.0, 2.0 / width) if precision in _HALVES else 1.0
    buffers = 0.0
    if replicas > 1:
        if strategy.data == "fsdp":
            buffers = 2 * kept.largest_unit * gathered + kept.largest_unit * gathered
        elif strategy.data in ("zero1", "zero2"):
            buffers = min(gradients, _REDUCE_BUCKET * width)
        else:
            buffers = gradients  # DDP's buckets are copies, by default
        weights /= replicas if strategy.data == "fsdp" else 1
        gradients /= replicas if strategy.data in ("fsdp", "zero2") else 1
        states /= replicas if strategy.data in ("fsdp", "zero1", "zero2") else 1
    parts = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": states,
        "activations": kept.activations,
        "buffers": buffers,
        "input": features.input_bytes * growth,
    }
    parts["fragmentation"] = FRAGMENTED * sum(parts.values())
    parts["context"] = CONTEXT_BYTES
    return {name: parts[name] for name in PARTS}, kept.notes


class _Kept:
    """What the fullest stage of one replica keeps, before replicas share anything."""

    def __init__(self, features: StepFeatures, strategy: Strategy, growth: float) -> None:
        self.layers = layers_of(features)
        divided = split_layers(features) if strategy.tensor > 1 else frozenset[int]()
        self._share = [1.0 / strategy.tensor if place in divided else 1.0 for place in range(len(self.layers))]
        sizes = [layer.dense_bytes + layer.embedding_bytes + layer.saved_bytes * growth for layer in self.layers]
        stages = stages_of(self.layers, [max(size, 1.0) for size in sizes], strategy.pipeline)
        self._features, self._strategy, self._growth = features, strategy, growth
        candidates = [
            self._stage(stage, min(strategy.accumulation, strategy.pipeline - place))
            for place, stage in enumerate(stages)
        ]
        self.weights, self.gradients, self.activations, self.largest_unit = max(candidates, key=sum)
        whole = features.weights.bytes
        self.share = self.weights / whole if whole else 1.0
        self.count = features.weights.count * self.share
        self.notes = ("activations grow in proportion to the batch",) if growth != 1 else ()

    def _stage(self, stage: Stage, in_flight: int) -> tuple[float, float, float, float]:
        layers = self.layers[stage.start : stage.stop]
        share = self._share[stage.start : stage.stop]
        held = [(layer.dense_bytes + layer.embedding_bytes) * part for layer, part in zip(layers, share, strict=True)]
        gradients = sum(
            (layer.dense_gradient_bytes + layer.embedding_gradient_bytes) * part
            for layer, part in zip(layers, share, strict=True)
        )
        units = units_of(layers)
        largest = max(sum(held[unit.start : unit.stop]) for unit in units)
        return sum(held), gradients, self._activations(layers, share, units, in_flight), largest

    def _activations(
        self, layers: Sequence[Layer], share: Sequence[float], units: Sequence[Unit], in_flight: int
    ) -> float:
        """The traced peak, less what is not kept; that of a stage in proportion to what it keeps."""
        saved = [layer.saved_bytes * part for layer, part in zip(layers, share, strict=True)]
        beside = max(0, self._features.activation_peak_bytes - sum(layer.saved_bytes for layer in self.layers))
        kept = sum(saved)
        if self._strategy.checkpointing and sum(saved):
            blocks = [unit for unit in units if unit.path]
            inside = [sum(saved[unit.start : unit.stop]) for unit in blocks]
            inputs = sum(output_bytes(layers, unit) for unit in blocks)
            kept = min(kept, kept - sum(inside) + inputs)
            return (kept * in_flight + max(inside, default=0.0) + beside) * self._growth
        return (kept * in_flight + beside) * self._growth
