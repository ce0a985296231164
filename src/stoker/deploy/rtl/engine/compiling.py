"""From an integer graph to an engine's program: instructions, buffers by their lives, images of the memories.

Pure: the same graph and engine give the same program. What does not fit is refused, with the memory and what it lacks.
"""

from __future__ import annotations

from dataclasses import replace

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.engine import moves, rows, sums
from stoker.deploy.rtl.engine.context import ProgramContext
from stoker.deploy.rtl.engine.drafts import too_small
from stoker.deploy.rtl.engine.image import ModelImage
from stoker.deploy.rtl.engine.shape import ADDRESS_BITS, FETCH_WORDS, INSTRUCTION_WORDS, EngineShape

_LEAST_WORDS = 16
"""A memory has at least so many: fewer save nothing on an FPGA."""


def compiled(graph: IntegerGraph, shape: EngineShape) -> ModelImage:
    """A model as a program of an engine.

    Args:
        graph: sound, as ``checked`` says.
        shape: of the engine.

    Raises:
        ValueError: a memory is too small, or an operation has numbers that the engine has no place for.
    """
    to = ProgramContext(graph, shape)
    moves.entered(to)
    for operation in graph.operations:
        to.operation = operation.output
        _operation(to, operation)
    moves.left(to)
    instructions, operations = to.drafting.instructions()
    found = ModelImage(
        shape=shape, instructions=instructions, operations=operations, weights=tuple(to.image.weights),
        tables=tuple(to.image.tables), scales=tuple(to.image.scales),
        data_words=to.drafting.words(to.drafting.addresses()),
    )  # fmt: skip
    _check_room(found)
    return found


def least_engine(graph: IntegerGraph, lanes: int) -> ModelImage:
    """A model on the engine of so many lanes whose memories are just large enough for it.

    Args:
        graph: sound, as ``checked`` says.
        lanes: of the engine.

    Raises:
        ValueError: no engine has the room, or an operation has numbers that engines have no place for.
    """
    most = (1 << ADDRESS_BITS) // lanes
    found = compiled(
        graph,
        EngineShape(
            lanes=lanes, data_words=most, weight_words=most, table_words=most, scale_words=most, instructions=most
        ),
    )
    shape = EngineShape(
        lanes=lanes, data_words=_room(found.data_words), weight_words=_room(len(found.weights)),
        table_words=_room(len(found.tables)), scale_words=_room(len(found.scales)),
        instructions=_room(len(found.instructions)),
    )  # fmt: skip
    return replace(found, shape=shape)


def _room(words: int) -> int:
    """The next power of two."""
    return max(_LEAST_WORDS, 1 << (words - 1).bit_length())


def _operation(to: ProgramContext, operation: op.Operation) -> None:
    match operation:
        case op.Linear() | op.Convolution():
            sums.weighted(to, operation)
        case op.MaxPool() | op.SumPool():
            sums.pooled(to, operation)
        case op.Mean():
            sums.mean(to, operation)
        case op.Add():
            sums.added(to, operation)
        case op.Multiply():
            sums.multiplied(to, operation)
        case op.MatMul():
            sums.product(to, operation)
        case op.Rescale():
            sums.rescaled(to, operation)
        case op.Table():
            moves.table(to, operation)
        case op.Concat():
            moves.concat(to, operation)
        case op.Reshape():
            to.alias(operation.output, operation.source)
        case op.Permute():
            shape = to.value(operation.source).shape
            moves.permuted(to, to.buffer(operation.source), shape, operation.order, to.buffer(operation.output))
        case op.Slice():
            moves.cut(to, operation)
        case op.Embedding() | op.EmbeddingBag():
            moves.rows(to, operation)
        case op.LayerNorm():
            rows.layer_norm(to, operation)
        case op.Softmax():
            rows.softmax(to, operation)
        case op.FixedValue():
            moves.fixed(to, operation)


def _check_room(image: ModelImage) -> None:
    for name, words in image.memories.items():
        each = INSTRUCTION_WORDS // FETCH_WORDS if name == "instructions" else 1
        needed, there = len(words) // each, image.shape.words[name] // each
        if needed > there:
            raise ValueError(too_small(name, needed, there))
