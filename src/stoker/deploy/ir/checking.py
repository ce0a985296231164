"""Whether a graph is sound: every name there, shapes fitting, ranges proven, accumulators within 62 bits.

Graphs come from packages too, which anyone may have written: an engine runs what passed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import DOUBLE_BITS, accumulator, centred_squares, product_bits, value_range
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.row_numbers import broken_highs, broken_moves
from stoker.deploy.ir.shapes import shape_of
from stoker.deploy.ir.values import MOST_BITS, MOST_INDEX_BITS, IntegerValue, ModelPort

MOST_PRODUCT_BITS = 63
"""Width of ``acc * M + 2^(S-1)``, sign included: all executions hold it in 64 bits."""
MOST_SHIFT = 46
_MULTIPLIER_HIGH = 0xFFFF


def checked(graph: IntegerGraph) -> IntegerGraph:
    """The graph itself, if it is sound.

    Raises:
        ValueError: the first rule that it breaks, with the operation, the value found and the rule.
    """
    for rule in _broken(graph):
        raise ValueError(rule)
    return graph


def _broken(graph: IntegerGraph) -> Iterator[str]:
    """Rules that a graph breaks, as sentences."""
    for name, value in graph.values.items():
        yield from _value(name, value)
    for port in (*graph.inputs, *graph.outputs):
        if port.value not in graph.values:
            yield f"`{port.name}` must stand for a value of the graph, got `{port.value}`"
    for port in graph.inputs:
        if graph.values[port.value].highs and port.dtype == "float32":
            yield f"`{port.name}` must hold row numbers, whose largest differ by place, got {port.dtype}"
    known = {port.value for port in graph.inputs}
    for operation in graph.operations:
        yield from _names(graph, operation, known)
        yield from _operation(graph, operation)
        known.add(operation.output)
    for port in graph.outputs:
        if port.value not in known:
            yield f"output `{port.name}` must be a value that is computed, got `{port.value}`"
    for port in (*graph.inputs, *graph.outputs):
        yield from _port(port, graph.values[port.value])


def _value(name: str, value: IntegerValue) -> Iterator[str]:
    if name != value.name:
        yield f"`{name}` must be kept under its name, got `{value.name}`"
    if not 1 <= value.bits <= MOST_INDEX_BITS:
        yield f"`{name}`: `bits` must be 1 to {MOST_BITS}, or {MOST_INDEX_BITS} for row numbers, got {value.bits}"
    if any(size < 1 for size in value.shape):
        yield f"`{name}`: sizes of `shape` must be at least 1, got {value.shape}"
    if not value.type_low <= value.low <= value.high <= value.type_high:
        yield f"`{name}`: the range must lie within {value.type_low} to {value.type_high}, got {value.low, value.high}"
    if not value.type_low <= value.zero_point <= value.type_high:
        yield f"`{name}`: `zero_point` must be a number of its type, got {value.zero_point}"
    if not (0 < value.scale < float("inf")):
        yield f"`{name}`: `scale` must be positive and finite, got {value.scale}"
    yield from broken_highs(value)


def _names(graph: IntegerGraph, operation: op.Operation, known: set[str]) -> Iterator[str]:
    """Names that an operation reads before they exist, or writes twice."""
    for name in op.sources_of(operation):
        if name not in known:
            yield f"`{operation.output}` reads `{name}`, which must be computed before it"
    for name in op.constants_of(operation):
        if name not in graph.constants:
            yield f"`{operation.output}` reads the constant `{name}`, which the graph lacks"
    if operation.output in known:
        yield f"`{operation.output}` must be computed once"
    if operation.output not in graph.values:
        yield f"`{operation.output}` must be a value of the graph"


def _operation(graph: IntegerGraph, operation: op.Operation) -> Iterator[str]:
    out, name = graph.values[operation.output], operation.output
    shape = shape_of(operation, graph.values, graph.constants)
    if np.prod(shape) != out.elements if isinstance(operation, op.Reshape) else shape != out.shape:
        yield f"`{name}`: the shape must be {shape}, got {out.shape}"
    if isinstance(operation, op.Reshape):
        source = graph.values[operation.source]
        if source.elements != out.elements:
            yield f"`{name}`: a reshape must keep {source.elements} numbers, got {out.elements}"
    if out.bits > MOST_BITS:
        yield f"`{name}`: a result must have at most {MOST_BITS} bits, got {out.bits}"
    yield from _tables(graph, operation)
    if isinstance(operation, op.LayerNorm):
        yield from _norm(graph, operation)
    if isinstance(operation, op.REQUANTISED):
        yield from _requantiser(graph, operation.requantiser, operation)
    elif isinstance(operation, (op.MaxPool, op.Concat, op.Reshape, op.Permute, op.Slice)):
        for source in (graph.values[each] for each in op.sources_of(operation)):
            if (source.bits, source.signed, source.zero_point) != (out.bits, out.signed, out.zero_point):
                yield f"`{name}` only moves numbers: its type and zero point must be those of `{source.name}`"
    low, high = value_range(operation, graph.values, graph.constants)
    if not out.low <= low <= high <= out.high:
        yield f"`{name}`: the range must hold {low} to {high}, which can occur, got {out.low, out.high}"
    yield from broken_moves(operation, graph.values)


def _requantiser(graph: IntegerGraph, by: op.Requantiser, operation: op.Operation) -> Iterator[str]:
    name, out = operation.output, graph.values[operation.output]
    if not 0 <= by.shift <= MOST_SHIFT:
        yield f"`{name}`: `shift` must be 0 to {MOST_SHIFT}, got {by.shift}"
    if not out.type_low <= by.low <= by.high <= out.type_high or by.zero_point != out.zero_point:
        yield f"`{name}`: the requantiser must clamp within the result's type and have its zero point"
    if by.multiplier is not None:
        array = graph.constants[by.multiplier]
        if int(array.min()) < 0 or int(array.max()) > _MULTIPLIER_HIGH:
            yield f"`{by.multiplier}`: multipliers must be 0 to {_MULTIPLIER_HIGH}"
        if np.broadcast_shapes(array.shape, out.shape) != out.shape:
            yield f"`{by.multiplier}` must broadcast over {out.shape}, got {array.shape}"
        elif array.ndim > 1 and not isinstance(operation, op.SumPool):
            yield f"`{by.multiplier}` must have one number, or one for each channel, got {array.shape}"
    found = accumulator(operation, graph.values, graph.constants)
    if isinstance(operation, (op.Linear, op.Convolution, op.MatMul)) and found.bits > DOUBLE_BITS:
        yield f"`{name}`: sums of products must fit {DOUBLE_BITS} bits, need {found.bits}"
    width = product_bits(found, by, graph.constants)
    if width > MOST_PRODUCT_BITS:
        yield f"`{name}`: `acc * M` must fit {MOST_PRODUCT_BITS} bits, needs {width}; use fewer bits or a smaller layer"


def _norm(graph: IntegerGraph, operation: op.LayerNorm) -> Iterator[str]:
    """Sums, roots and reciprocals of a layer norm that 63 bits don't hold."""
    name, source = operation.output, graph.values[operation.source]
    size = source.shape[-1]
    if min(operation.epsilon, operation.root_bits, operation.normal_bits) < 0:
        yield f"`{name}`: `epsilon`, `root_bits` and `normal_bits` must be at least 0"
    elif not operation.root_bits + operation.normal_bits <= operation.reciprocal_bits < MOST_PRODUCT_BITS:
        yield f"`{name}`: `reciprocal_bits` must hold a root's and a fraction's bits, got {operation.reciprocal_bits}"
    elif (
        centred_squares(source, size) + operation.epsilon
    ).bit_length() + 2 * operation.root_bits >= MOST_PRODUCT_BITS:
        yield f"`{name}`: the squares of {size} numbers must fit {MOST_PRODUCT_BITS} bits; use fewer `root_bits`"
    elif (
        math.isqrt(size << (2 * (operation.reciprocal_bits - operation.root_bits + 1))).bit_length()
        > MOST_PRODUCT_BITS - 1
    ):
        yield f"`{name}`: normalised numbers must fit {MOST_PRODUCT_BITS} bits; use fewer `reciprocal_bits`"
    for constant in (operation.gain, operation.offset):
        if graph.constants[constant].shape != (size,):
            yield f"`{constant}` must have one number for each of {size} elements"


def _tables(graph: IntegerGraph, operation: op.Operation) -> Iterator[str]:
    """Constants too short for what reads them."""
    name = operation.output
    if isinstance(operation, (op.Linear, op.Convolution)):
        weight = graph.constants[operation.weight]
        most = 1 << (operation.weight_bits - 1)
        if int(weight.min(initial=0)) < -most or int(weight.max(initial=0)) >= most:
            yield f"`{operation.weight}` must fit {operation.weight_bits} bits"
        if graph.constants[operation.bias].shape != weight.shape[:1]:
            yield f"`{operation.bias}` must have one number for each of {len(weight)} channels"
    elif isinstance(operation, (op.Table, op.Softmax)):
        source = graph.values[operation.source]
        if graph.constants[operation.table].shape != (1 << source.bits,):
            yield f"`{operation.table}` must have an entry for each of {1 << source.bits} numbers"
        if isinstance(operation, op.Softmax) and not 0 < int(graph.constants[operation.table][0]) <= _MULTIPLIER_HIGH:
            yield f"`{operation.table}`: the first entry must be above 0 and fit 16 bits"
        if isinstance(operation, op.Softmax) and operation.counts is not None:
            counts = graph.values[operation.counts]
            if not 0 <= counts.low <= counts.high <= 1:
                yield f"`{name}`: `counts` must hold 0 and 1, got {counts.low} to {counts.high}"
    elif isinstance(operation, (op.Embedding, op.EmbeddingBag)):
        source = graph.values[operation.source]
        if not 0 <= source.low <= source.high < len(graph.constants[operation.table]):
            yield f"`{name}`: rows {source.low} to {source.high} must be in `{operation.table}`"


def _port(port: ModelPort, value: IntegerValue) -> Iterator[str]:
    if sorted(port.order) != list(range(len(port.shape))):
        yield f"`{port.name}`: `order` must name each axis once, got {port.order}"
    elif np.prod([port.shape[axis] for axis in port.order]) != value.elements:
        yield f"`{port.name}`: the caller's shape {port.shape} must have the numbers of {value.shape}"
