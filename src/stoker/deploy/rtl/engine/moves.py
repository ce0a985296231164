"""What only moves numbers: ends of the model, copies in another order, rows of tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator
from stoker.deploy.rtl.engine.borders import dense_place, place_of
from stoker.deploy.rtl.engine.context import ProgramContext, strides_of
from stoker.deploy.rtl.engine.drafts import Loop
from stoker.deploy.rtl.engine.instructions import First, InstructionKind, Lookup, Second


def entered(to: ProgramContext) -> None:
    """The sample's words into the buffers of the inputs, one after another."""
    for at, port in enumerate(to.graph.inputs):
        to.operation = port.value
        place = dense_place(to, port.value)
        if place.row % to.lanes == 0:  # else a word of the stream holds the end of a row and the next one's beginning
            place = place_of(to, port.value)
        rows, run = place.runs
        to.nest(
            kind=InstructionKind.INPUT, c=place.buffer, outer=[Loop(rows, c=place.pitch), to.blocks(run)], run=run,
            start=(0, place.start), last=at + 1 == len(to.graph.inputs),
        )  # fmt: skip


def left(to: ProgramContext) -> None:
    """The results to the output stream, one after another."""
    for at, port in enumerate(to.graph.outputs):
        to.operation = f"{port.name}, leaving"
        size = to.value(port.value).elements
        to.nest(
            kind=InstructionKind.OUTPUT, a=to.buffer(port.value), outer=[to.blocks(size, c=0)], run=size,
            last=at + 1 == len(to.graph.outputs),
        )  # fmt: skip


def concat(to: ProgramContext, operation: op.Concat) -> None:
    """Each input at its place in the result's rows."""
    out, at = to.value(operation.output).shape, 0
    wide = math.prod(out[operation.axis :])
    for name in operation.sources:
        run = math.prod(to.value(name).shape[operation.axis :])
        rows = math.prod(out[: operation.axis])
        to.moved(
            to.buffer(name), to.buffer(operation.output), [Loop(rows, a=run, c=wide), to.blocks(run)], run, c=at
        )  # fmt: skip
        at += run


def cut(to: ProgramContext, operation: op.Slice) -> None:
    """The parts of an axis."""
    source, out, axis = to.value(operation.source).shape, to.value(operation.output).shape, operation.axis
    inside = math.prod(source[axis + 1 :])
    outer = [
        Loop(math.prod(source[:axis]), a=source[axis] * inside, c=out[axis] * inside),
        Loop(out[axis], a=operation.step * inside, c=inside),
    ]
    run = inside
    if operation.step == 1:
        outer, run = outer[:1], out[axis] * inside
    to.moved(
        to.buffer(operation.source), to.buffer(operation.output), [*outer, to.blocks(run)], run,
        a=operation.start * inside,
    )  # fmt: skip


def permuted(to: ProgramContext, source: str, shape: Sequence[int], order: Sequence[int], target: str) -> None:
    """A buffer's numbers in another order: by words where the last axis stays last, else one by one."""
    before = strides_of(shape)
    sizes = [shape[axis] for axis in order]
    after = strides_of(sizes)
    if order[-1] == len(order) - 1:
        loops = [Loop(size, a=before[axis], c=move) for size, axis, move in zip(sizes, order, after, strict=True)][:-1]
        to.moved(source, target, [*loops, to.blocks(sizes[-1])], sizes[-1])
        return
    loops = [Loop(size, a=before[axis], c=move) for size, axis, move in zip(sizes, order, after, strict=True)]
    to.moved(source, target, loops, None)


def spread(to: ProgramContext, name: str, shape: Sequence[int]) -> str:
    """A buffer in which a value has the shape that it is broadcast to."""
    own = to.value(name).shape
    if tuple(own) == tuple(shape):
        return to.buffer(name)
    target = to.scratch(math.prod(shape))
    moves = [0 if size == 1 else move for size, move in zip(own, strides_of(own), strict=True)]
    loops = [
        Loop(size, a=move, c=after)
        for size, move, after in zip(shape, moves, strides_of(shape), strict=True)
    ][:-1]  # fmt: skip
    alone = own[-1] == 1 and shape[-1] > 1
    to.moved(
        to.buffer(name), target, [*loops, to.blocks(shape[-1], a=0 if alone else to.lanes)], shape[-1],
        first=First.LANE_0 if alone else First.OWN,
    )  # fmt: skip
    return target


def fixed(to: ProgramContext, operation: op.FixedValue) -> None:
    """Numbers that are the same for each sample, out of table memory."""
    numbers = to.graph.constants[operation.array].ravel()
    table = to.image.add_table(numbers[None])
    to.nest(
        c=to.buffer(operation.output), outer=[to.blocks(len(numbers), a=0, b=to.lanes)], run=len(numbers),
        first=First.ONE, second=Second.TABLE, table=table,
    )  # fmt: skip


def table(to: ProgramContext, operation: op.Table) -> None:
    """A function of one number: an entry of a table for each."""
    value, place = to.value(operation.source), place_of(to, operation.output)
    entries = to.image.add_table(to.graph.constants[operation.table][None])
    rows, run = place.runs
    to.nest(
        a=to.buffer(operation.source), c=place.buffer, start=(0, place.start),
        outer=[Loop(rows, a=run, c=place.pitch), Loop(run, a=1, c=1)], first=First.ONE, second=Second.TABLE,
        lookup=Lookup.NUMBER, zero_a=value.type_low, table=entries, row=1, unsigned_a=to.unsigned(operation.source),
    )  # fmt: skip


def rows(to: ProgramContext, operation: op.Embedding | op.EmbeddingBag) -> None:
    """Rows of a table by their numbers, or sums of them."""
    entries = to.graph.constants[operation.table]
    size, value = entries.shape[1], to.value(operation.source)
    wide = -(-size // to.lanes) * to.lanes
    start = to.image.add_table(entries)
    inner: list[Loop] = []
    law, moves, count = to.unchanged(), 0, value.elements
    if isinstance(operation, op.EmbeddingBag):
        to.check_sums(operation.output, accumulator(operation, to.graph.values, to.graph.constants).bits)
        inner = [Loop(value.shape[-1], a=1)]
        count //= value.shape[-1]
        law, moves = to.law(operation.requantiser, channels=size)
    to.nest(
        a=to.buffer(operation.source), c=to.buffer(operation.output),
        outer=[Loop(count, a=value.elements // count, c=size), to.blocks(size, a=0, b=to.lanes, p=moves)], inner=inner,
        run=size, first=First.ONE, second=Second.TABLE, lookup=Lookup.NUMBER, table=start, law=law,
        row=wide, unsigned_a=to.unsigned(operation.source),
    )  # fmt: skip
