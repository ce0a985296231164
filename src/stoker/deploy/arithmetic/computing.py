"""One operation of the graph on arrays with a batch, by its law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.arithmetic import sums
from stoker.deploy.arithmetic.normalising import layer_norm, softmax
from stoker.deploy.arithmetic.requantising import requantise, requantise_double
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import DOUBLE_BITS, accumulator, product_bits
from stoker.deploy.ir.graph import IntegerGraph, Integers


def compute(operation: op.Operation, sources: Sequence[Integers], graph: IntegerGraph, batch: int) -> Integers:
    """The operation's result, of shape (batch, …) and 32 bits.

    Args:
        operation: one of the graph's.
        sources: arrays of the values that it reads, (batch, …), within their ranges.
        graph: a checked one.
        batch: samples; what constants are repeated for.
    """
    output = graph.values[operation.output]
    if isinstance(operation, op.REQUANTISED):
        return _requantised(operation, sums_of(operation, sources, graph), graph)
    match operation:
        case op.MaxPool():
            return sums.max_pool(operation, sources[0], graph.values[operation.source])
        case op.Table():
            first = graph.values[operation.source].type_low
            return graph.constants[operation.table].astype(np.int32)[sources[0] - first]
        case op.Concat():
            return np.concatenate(sources, axis=operation.axis + 1)
        case op.Reshape():
            return sources[0].reshape(batch, *output.shape)
        case op.Permute():
            return sources[0].transpose(0, *(axis + 1 for axis in operation.order))
        case op.Slice():
            cut = slice(operation.start, operation.stop, operation.step)
            return sources[0][(slice(None),) * (operation.axis + 1) + (cut,)]
        case op.Embedding():
            return graph.constants[operation.table].astype(np.int32)[sources[0]]
        case op.Softmax():
            return softmax(operation, sources[0], output, graph.constants, *sources[1:])
        case op.FixedValue():
            array = graph.constants[operation.array].astype(np.int32)
            return np.broadcast_to(array, (batch, *array.shape))


def sums_of(operation: op.Operation, sources: Sequence[Integers], graph: IntegerGraph) -> NDArray[Any]:
    """The accumulator of an operation that has one, before its requantiser: whole numbers, in doubles or 64 bits."""
    values, constants = graph.values, graph.constants
    match operation:
        case op.Linear():
            return sums.linear(operation, sources[0], constants)
        case op.Convolution():
            return sums.convolution(operation, sources[0], values[operation.source], constants)
        case op.SumPool():
            return sums.sum_pool(operation, sources[0], values[operation.source])
        case op.Mean():
            return sums.mean(operation, sources[0], values[operation.source])
        case op.Add():
            return sums.add(operation, list(sources), values)
        case op.Multiply():
            first, second = (
                array.astype(np.int64) - values[name].zero_point
                for array, name in zip(sources, operation.sources, strict=True)
            )
            return first * second
        case op.MatMul():
            return sums.matmul(operation, sources[0], sources[1], values)
        case op.Rescale():
            return sources[0].astype(np.int64) - values[operation.source].zero_point
        case op.EmbeddingBag():
            return constants[operation.table].astype(np.int64)[sources[0]].sum(axis=-2)
        case op.LayerNorm():
            return layer_norm(operation, sources[0], constants)
        case _:
            raise ValueError(f"`{operation.output}` must have an accumulator, got {type(operation).__name__}")


def _requantised(operation: op.Operation, acc: NDArray[Any], graph: IntegerGraph) -> Integers:
    assert isinstance(operation, op.REQUANTISED)
    by = operation.requantiser
    if acc.dtype == np.float64:
        width = product_bits(accumulator(operation, graph.values, graph.constants), by, graph.constants)
        if width <= DOUBLE_BITS + 1:
            return requantise_double(acc, by, graph.constants)
    return requantise(acc, by, graph.constants)
