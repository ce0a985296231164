"""Splits one replica over several GPUs: tensor parallelism within layers, pipeline stages between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.perf.communication.blocks import Unit, output_bytes, units_of
from stoker.perf.communication.times import layers_of
from stoker.perf.features.records import MATRIX_KINDS, Layer, StepFeatures, block_of

ALL_REDUCES = 2
"""Exchanges of a block's activations, in the forward pass as well as in the backward pass (Megatron-LM, arXiv
1909.08053, section 3: one after the attention, one after the MLP)."""
_WIDE_LOSS, _NARROW_LOSS = 1.27, 0.3


def split_layers(features: StepFeatures) -> frozenset[int]:
    """Places of layers that tensor parallelism divides.

    In blocks all except those that normalise, and the block's own work (its residual additions); outside of blocks
    those with products: embeddings and output are cut along the vocabulary (arXiv 1909.08053, section 3).
    """
    blocks = features.transformer_blocks
    kinds: dict[str, set[str]] = {}
    for operation in features.operations:
        kinds.setdefault(operation.module, set()).add(operation.kind)
    found: set[int] = set()
    for place, layer in enumerate(layers_of(features)):
        path, own = block_of(layer.module), kinds.get(layer.module, set())
        is_whole = "norm" in own or layer.module == path
        if own & (MATRIX_KINDS | {"embedding"}) or (path in blocks and not is_whole):
            found.add(place)
    return frozenset(found)


def narrowed(features: StepFeatures, count: int) -> float:
    """Factor by which split products take longer than their share of the whole: narrower ones are less efficient.

    Source: products of MPT on A100s take 1.27 + 0.3 x 1024 / width of their time at the vendor's rate
        (:mod:`stoker.perf.study.workloads.gpt` assumes the same, as calibrated on MPT); the width is that of the
        residual stream.
    """
    widths = [
        min(operation.dims[2:])
        for operation in features.operations
        if operation.kind == "matmul" and len(operation.dims) == 4 and operation.dims[0] == 1
    ]
    if not widths:
        return 1.0
    loss = _NARROW_LOSS * 1024 / max(widths)
    return (_WIDE_LOSS + loss * count) / (_WIDE_LOSS + loss)


def activations(features: StepFeatures) -> tuple[int, float]:
    """Blocks that tensor parallelism cuts, and bytes of activations that go from one to the next."""
    blocks = features.transformer_blocks
    layers = layers_of(features)
    found = {unit.path: output_bytes(layers, unit) for unit in units_of(layers) if unit.path in blocks}
    return len(found), max(found.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """Consecutive layers of a pipeline.

    Attributes:
        start, stop: places of its layers.
        output_bytes: what it sends to the next stage; 0 for the last.
    """

    start: int
    stop: int
    output_bytes: int


def stages_of(layers: Sequence[Layer], seconds: Sequence[float], count: int) -> tuple[PipelineStage, ...]:
    """The layers in ``count`` stages, cut between blocks, so that the longest takes as little time as possible.

    Args:
        layers: in the order of the forward pass.
        seconds: of each of them, forward and backward.
        count: of stages.

    Raises:
        ValueError: there are fewer blocks than stages.
    """
    units = units_of(layers)
    if len(units) < count:
        raise ValueError(f"`pipeline` must be at most {len(units)}, the parts that can be told apart, got {count}")
    costs = [sum(seconds[unit.start : unit.stop]) for unit in units]
    limit = _least_limit(costs, count)
    groups = _packed(costs, limit, count)
    stages: list[PipelineStage] = []
    for start, stop in groups:
        last: Unit = units[stop - 1]
        sent = output_bytes(layers, last) if stop < len(units) else 0
        stages.append(PipelineStage(units[start].start, last.stop, sent))
    return tuple(stages)


def _least_limit(costs: Sequence[float], count: int) -> float:
    """Least time within which all stages fit, to a millionth."""
    low, high = max(costs), sum(costs)
    while high - low > 1e-6 * max(high, 1e-12):
        middle = (low + high) / 2
        if _needed(costs, middle) <= count:
            high = middle
        else:
            low = middle
    return high


def _needed(costs: Sequence[float], limit: float) -> int:
    stages, filled = 1, 0.0
    for cost in costs:
        if filled + cost > limit:
            stages, filled = stages + 1, 0.0
        filled += cost
    return stages


def _packed(costs: Sequence[float], limit: float, count: int) -> list[tuple[int, int]]:
    """First and last + 1 part of each stage; each has one at least."""
    groups: list[tuple[int, int]] = []
    start, filled = 0, 0.0
    for place, cost in enumerate(costs):
        must_cut = len(costs) - place <= count - len(groups) - 1
        if place > start and (filled + cost > limit or must_cut):
            groups.append((start, place))
            start, filled = place, 0.0
        filled += cost
    groups.append((start, len(costs)))
    return groups
