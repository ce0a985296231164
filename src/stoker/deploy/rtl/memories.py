"""What the memories of units begin with: weights, biases, tables, and what requantisers multiply by or compare with.

Words are in the order in which they are read.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stoker.deploy.arithmetic.requantising import thresholds_of
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.values import bits_of
from stoker.deploy.rtl.folding import Folding, LayerWork
from stoker.deploy.rtl.structure import MemoryFile

WIDEST_COMPARED = 8
"""Bits of a result that thresholds may give: each bit more doubles them."""
Requantised: TypeAlias = op.Linear | op.Convolution | op.SumPool | op.Mean | op.Rescale | op.EmbeddingBag
"""Operations whose requantisers may multiply, and for which there is a unit."""


def packed(numbers: Integers, bits: int) -> MemoryFile:
    """A word for each row of numbers, the first number lowest.

    Args:
        numbers: of shape (words, numbers of a word).
        bits: of a number, two's complement.
    """
    whole = numbers.astype(np.int64)
    planes: NDArray[np.uint8] = ((whole[:, :, None] >> np.arange(bits)) & 1).astype(np.uint8)
    lines = np.packbits(planes.reshape(len(whole), -1), axis=1, bitorder="little")
    return MemoryFile(
        bits=bits * numbers.shape[1], words=tuple(int.from_bytes(line.tobytes(), "little") for line in lines)
    )


def weight_words(weight: Integers, work: LayerWork, folding: Folding, bits: int) -> MemoryFile:
    """The weights of one window's beats, each word those of PE sums with their taps and lanes.

    Args:
        weight: (output channels, height, width, input channels of a group), or (outputs, inputs) of a dense layer.
        work: of the layer.
        folding: of its unit.
        bits: of a weight.
    """
    taps, pe = folding.taps, folding.pe
    steps = work.windows.taps // taps
    if work.depthwise:
        ordered = weight.reshape(-1, pe, steps, taps).transpose(0, 2, 1, 3)
    else:
        folds = work.outputs // work.groups // pe
        words = work.windows.channels // work.groups // folding.lanes
        parts = weight.reshape(work.groups, folds, pe, steps, taps, words, folding.lanes)
        ordered = parts.transpose(0, 1, 3, 5, 2, 4, 6)
    return packed(ordered.reshape(-1, work.multipliers(folding)), bits)


def by_channel(numbers: Integers, lanes: int, bits: int) -> MemoryFile:
    """Numbers of channels, ``lanes`` of them in a word."""
    return packed(numbers.reshape(-1, lanes), bits)


def law_of(
    graph: IntegerGraph, operation: Requantised | op.Add, lanes: int, *, compared: bool
) -> tuple[dict[str, int], dict[str, MemoryFile]]:
    """Parameters of a unit's requantiser, and the memory of its multipliers where it has some.

    Args:
        graph: that the operation is in.
        operation: of the unit.
        lanes: of a word of results.
        compared: whether it compares with thresholds (:func:`threshold_memories`) in place of multiplying.

    Raises:
        ValueError: multipliers are neither one nor one a channel.
    """
    by, channels = operation.requantiser, graph.values[operation.output].shape[-1]
    factors = _factors(graph, by)
    if factors is not None and (factors.size not in (1, channels) or factors.shape[-1:] not in ((), (factors.size,))):
        raise ValueError(
            f"`{operation.output}`: multipliers must be one, or one a channel, got {factors.shape}; "
            "count all elements of windows at borders (`count_include_pad=True`)"
        )
    words = 0 if factors is None else max(factors.size // lanes, 1)
    if compared:
        low, high = _sum_ends(graph, operation)
        least, most = _threshold_ends(graph, by, (low, high))
        return {
            "LOW": by.low, "HIGH": by.high, "THRESHOLDS": words, "THRESHOLD_W": _stored_bits(least, most),
            "THRESHOLD_SIGNED": int(least < 0), "SUM_W": bits_of(low, high + 1),
        }, {}  # fmt: skip
    laws = {"SHIFT": by.shift, "ZERO": by.zero_point, "LOW": by.low, "HIGH": by.high, "MULTIPLIERS": words}
    if factors is None:
        return laws, {}
    flat: Integers = np.repeat(factors.ravel(), lanes) if factors.size == 1 else factors.ravel()
    return laws, {"factors": by_channel(flat, lanes, 16)}


def comparable(graph: IntegerGraph) -> tuple[str, ...]:
    """Layers whose requantisers multiply, and whose results have so few bits that thresholds may give them."""
    return tuple(
        operation.output
        for operation in graph.operations
        if isinstance(operation, Requantised)
        for by in (operation.requantiser,)
        if _factors(graph, by) is not None
        and by.low < by.high
        and graph.values[operation.output].bits <= WIDEST_COMPARED
    )


def threshold_memories(graph: IntegerGraph, value: str, lanes: int) -> dict[str, MemoryFile]:
    """The memories of a layer's thresholds, by kind.

    Args:
        graph: that it is in.
        value: its result, one of :func:`comparable`.
        lanes: of a word of results.
    """
    operation = graph.producer(value)
    assert isinstance(operation, Requantised), "it has multipliers"
    ends = _sum_ends(graph, operation)
    rows = np.array(thresholds_of(operation.requantiser, graph.constants, ends), np.int64)
    bits = _stored_bits(*_threshold_ends(graph, operation.requantiser, ends))
    words = threshold_words(rows, lanes, bits, ends[1] + 1)
    return {f"thresholds_{end}": memory for end, memory in words.items()}


def threshold_words(thresholds: Integers, lanes: int, bits: int, beyond: int) -> dict[str, MemoryFile]:
    """Memories of ``thresholds.sv`` by the end of their names, ``STEP_LANE``.

    A step's word is the middle one of those thresholds that the bits before it have left; the search goes over a power
    of two of results, so that some are never reached.

    Args:
        thresholds: of shape (channels, results but the lowest); one channel for all.
        lanes: channels of a word.
        bits: of a threshold.
        beyond: a threshold that no sum reaches.
    """
    channels, count = thresholds.shape
    steps = count.bit_length()
    whole = np.full((channels, 1 << steps), beyond, np.int64)
    whole[:, 1 : count + 1] = thresholds
    if channels == 1:
        whole = np.repeat(whole, lanes, axis=0)
    by_lane = whole.reshape(-1, lanes, 1 << steps)
    found: dict[str, MemoryFile] = {}
    for step in range(steps):
        size = 1 << (steps - step)
        middle = by_lane[:, :, size // 2 :: size]
        for lane in range(lanes):
            found[f"{step}_{lane:04}"] = packed(middle[:, lane].reshape(-1, 1), bits)
    return found


def _threshold_ends(graph: IntegerGraph, by: op.Requantiser, ends: tuple[int, int]) -> tuple[int, int]:
    """The least and the largest threshold of a layer; with one that no sum reaches where results are no power of two.

    They never fall, so that those of the first and of the last result are all there is to look at.
    """
    first, last = (
        [row[0] for row in thresholds_of(structs.replace(by, low=result - 1, high=result), graph.constants, ends)]
        for result in (by.low + 1, by.high)
    )
    filled = (by.high - by.low + 1).bit_count() == 1
    return min(first), max(last) if filled else ends[1] + 1


def _stored_bits(least: int, most: int) -> int:
    """Bits of a threshold in memory, without a sign where none has one; at least one."""
    return max(1, bits_of(least, most) - (least >= 0))


def _factors(graph: IntegerGraph, by: op.Requantiser) -> Integers | None:
    """Multipliers of a requantiser; None where all are 1."""
    factors = None if by.multiplier is None else graph.constants[by.multiplier]
    return None if factors is None or (factors == 1).all() else factors


def _sum_ends(graph: IntegerGraph, operation: op.Operation) -> tuple[int, int]:
    """The least and the largest finished sum of an operation."""
    found = accumulator(operation, graph.values, graph.constants)
    return int(found.low.min()), int(found.high.max())
