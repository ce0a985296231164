"""What adds up: dense layers and convolutions on the array, the rest lane by lane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator
from stoker.deploy.ir.graph import Integers
from stoker.deploy.rtl.engine.borders import bordered, dense_place, place_of
from stoker.deploy.rtl.engine.context import ProgramContext, strides_of
from stoker.deploy.rtl.engine.drafts import ImagePlace, Loop
from stoker.deploy.rtl.engine.instructions import First, Second
from stoker.deploy.rtl.engine.moves import permuted, spread
from stoker.deploy.rtl.engine.shape import ARRAY_BITS


def weighted(to: ProgramContext, operation: op.Linear | op.Convolution) -> None:
    """A layer with weights: on the array if its numbers fit; depthwise, and with wider numbers, lane by lane."""
    weight = to.graph.constants[operation.weight]
    source, out = to.value(operation.source), to.value(operation.output)
    if isinstance(operation, op.Linear):
        rows, size = math.prod(source.shape[:-1]), source.shape[-1]
        pixels, place = [Loop(rows, a=size, c=out.shape[-1])], dense_place(to, operation.output)
        _taps(to, operation, to.buffer(operation.source), place, pixels, weight[:, None, None], (size, size), (1, 1))
        return
    buffer, wide = bordered(to, operation)
    place = place_of(to, operation.output)
    (height, width, channels), depth = out.shape, source.shape[2]
    rows = Loop(height, a=operation.stride[0] * wide, c=place.pitch)
    if weight.shape[3] == 1 and operation.groups == channels:
        _depthwise(to, operation, buffer, place, rows, weight, wide)
    else:
        pixels = [rows, Loop(width, a=operation.stride[1] * depth, c=channels)]
        _taps(to, operation, buffer, place, pixels, weight, (wide, depth), operation.dilation)


def _taps(
    to: ProgramContext, operation: op.Linear | op.Convolution, buffer: str, place: ImagePlace, pixels: Sequence[Loop],
    weight: Integers, pitch: tuple[int, int], dilation: tuple[int, int],
) -> None:  # fmt: skip
    """Sums of products over taps and channels.

    Args:
        to: the program.
        operation: the layer.
        buffer: of its input.
        place: of its result.
        pixels: loops of the windows.
        weight: (outputs, height, width, channels of a group).
        pitch: numbers of a row and of a pixel.
        dilation: between taps.
    """
    groups = operation.groups if isinstance(operation, op.Convolution) else 1
    outputs, height, width, depth = weight.shape
    source, most = to.value(operation.source), 1 << (ARRAY_BITS - 1)
    numbers = source.low, source.high, source.zero_point
    array = min(numbers) >= -most and max(numbers) < most
    rows = to.lanes if array else 1
    if dilation[1] == 1 and groups == 1:
        weight = weight.reshape(outputs, height, 1, width * depth)  # a row of a window is one run of numbers
    each, columns, run = outputs // groups, weight.shape[2], weight.shape[3]
    blocks, steps = -(-each // to.lanes), -(-run // rows)
    wide = np.zeros((groups, blocks * to.lanes, height, columns, steps * rows), np.int64)
    wide[:, :each, ..., :run] = weight.reshape(groups, each, height, columns, run)
    # One word for each group, block, tap and step: (columns of the array, its rows).
    ordered = wide.reshape(groups, blocks, to.lanes, height, columns, steps, rows).transpose(0, 1, 3, 4, 5, 2, 6)
    words = ordered.reshape(-1, to.lanes, rows)
    unit = 1 if array else to.lanes
    law, moves = _law(to, operation, outputs, groups)
    inner = [
        Loop(height, a=dilation[0] * pitch[0], b=columns * steps * unit),
        Loop(columns, a=dilation[1] * pitch[1], b=steps * unit),
        Loop(steps, a=rows, b=unit),
    ]
    window = height * columns * steps * unit
    outer = [
        *pixels, Loop(groups, a=depth, b=blocks * window, c=each, p=blocks * moves),
        to.blocks(each, a=0, b=window, p=moves),
    ]  # fmt: skip
    fields: dict[str, Any] = (
        {"array": True, "weights": to.image.add_weights(words)}
        if array
        else {"first": First.LANE_0, "second": Second.TABLE, "table": to.image.add_table(words[..., 0])}
    )
    to.nest(
        a=buffer, c=place.buffer, start=(0, place.start), outer=outer, inner=inner, run=each, law=law,
        unsigned_a=to.unsigned(operation.source), **fields,
    )  # fmt: skip


def _depthwise(
    to: ProgramContext, operation: op.Convolution, buffer: str, place: ImagePlace, rows: Loop, weight: Integers,
    wide: int,
) -> None:  # fmt: skip
    """Each channel with its taps, a lane for each; words go on through pixels that follow each other."""
    channels, height, width, _ = weight.shape
    pixels, step = to.value(operation.output).shape[1], operation.stride[1]
    together = _pixels_of_words(pixels, channels, to.lanes) if step == 1 else 1
    run = together * channels
    blocks = -(-run // to.lanes)
    taps = np.zeros((blocks * to.lanes, height * width), np.int64)
    taps[:run] = np.tile(weight.reshape(channels, -1), (together, 1))
    table = to.image.add_table(taps.reshape(blocks, to.lanes, -1).transpose(0, 2, 1).reshape(-1, to.lanes))
    law, moves = _law(to, operation, channels, pixels=together)
    to.nest(
        a=buffer, c=place.buffer, start=(0, place.start), law=law, run=run, second=Second.TABLE, table=table,
        outer=[
            rows, Loop(pixels // together, a=step * run, c=run), to.blocks(run, b=height * width * to.lanes, p=moves)
        ],
        inner=[
            Loop(height, a=operation.dilation[0] * wide, b=width * to.lanes),
            Loop(width, a=operation.dilation[1] * channels, b=to.lanes),
        ],
        unsigned_a=to.unsigned(operation.source),
    )  # fmt: skip


def _pixels_of_words(pixels: int, channels: int, lanes: int) -> int:
    """How many pixels have words together, so that a row takes fewest: no more than fill their words to the end."""
    most = lanes // math.gcd(channels, lanes)
    shares = [each for each in range(1, most + 1) if pixels % each == 0]
    return min(shares, key=lambda each: (pixels // each * -(-each * channels // lanes), each))


def pooled(to: ProgramContext, operation: op.MaxPool | op.SumPool) -> None:
    """The largest of each window, or the sum."""
    source, out = to.value(operation.source), to.value(operation.output)
    largest = isinstance(operation, op.MaxPool)
    buffer, wide = bordered(to, operation)
    place = place_of(to, operation.output)
    height, width, channels = out.shape
    dilation = operation.dilation if isinstance(operation, op.MaxPool) else (1, 1)
    law, moves = to.unchanged(), (0, 0, 0)
    if isinstance(operation, op.SumPool):
        by, bias = operation.requantiser, -operation.kernel[0] * operation.kernel[1] * source.zero_point
        to.check_sums(operation.output, accumulator(operation, to.graph.values, to.graph.constants).bits)
        if by.multiplier is not None and to.graph.constants[by.multiplier].ndim > 1:
            factors = to.graph.constants[by.multiplier].shape
            law, moves = to.by_place(by, bias), (factors[1] * (factors[0] > 1), int(factors[1] > 1), 0)
        else:
            law, move = to.law(by, channels=channels, biases=bias)
            moves = (0, 0, move)
    to.nest(
        a=buffer, c=place.buffer, start=(0, place.start), law=law, run=channels, largest=largest,
        outer=[
            Loop(height, a=operation.stride[0] * wide, c=place.pitch, p=moves[0]),
            Loop(width, a=operation.stride[1] * channels, c=channels, p=moves[1]), to.blocks(channels, p=moves[2]),
        ],
        inner=[
            Loop(operation.kernel[0], a=dilation[0] * wide), Loop(operation.kernel[1], a=dilation[1] * channels)
        ],
        unsigned_a=to.unsigned(operation.source),
    )  # fmt: skip


def mean(to: ProgramContext, operation: op.Mean) -> None:
    """Sums over axes: lane by lane, or number by number where the last axis is among them."""
    source, out = to.value(operation.source), to.value(operation.output)
    last = len(source.shape) - 1
    before, after = strides_of(source.shape), strides_of(out.shape)
    bias = -math.prod(source.shape[axis] for axis in operation.axes) * source.zero_point
    law, moves = _law(to, operation, out.shape[-1], biases=bias)
    alone = last in operation.axes
    outer = [
        Loop(size, a=before[axis], c=after[axis]) for axis, size in enumerate(source.shape)
        if axis not in operation.axes and axis != last
    ]  # fmt: skip
    if not alone:
        outer.append(to.blocks(out.shape[-1], p=moves))
    to.nest(
        a=to.buffer(operation.source), c=to.buffer(operation.output), law=law, outer=outer,
        inner=[Loop(source.shape[axis], a=before[axis]) for axis in operation.axes],
        run=None if alone else out.shape[-1], unsigned_a=to.unsigned(operation.source),
    )  # fmt: skip


def rescaled(to: ProgramContext, operation: op.Rescale) -> None:
    """The same numbers in another scale."""
    out = to.value(operation.output)
    law, moves = _law(to, operation, out.shape[-1], biases=-to.value(operation.source).zero_point)
    to.nest(
        a=to.buffer(operation.source), law=law, **_flat(to, operation.output, moves),
        unsigned_a=to.unsigned(operation.source),
    )  # fmt: skip


def added(to: ProgramContext, operation: op.Add) -> None:
    """Sums of values with a factor each, which are a table of words; zero points are in the bias."""
    out, name = to.value(operation.output), operation.output
    values = [to.value(each) for each in operation.sources]
    sources = [spread(to, each, out.shape) for each in operation.sources]
    if len({to.unsigned(each) for each in operation.sources}) > 1:
        raise ValueError(f"`{name}`: values must all have 16 bits without a sign on an engine, or none of them")
    if len(sources) > 2:
        together = to.scratch(len(sources) * out.elements)
        for at, source in enumerate(sources):
            to.moved(source, together, [to.blocks(out.elements)], out.elements, c=at * out.elements)
        sources = [together]
    factors = np.repeat(np.array(operation.multipliers)[:, None], to.lanes, axis=1)
    pairs = zip(operation.multipliers, values, strict=True)
    law, moves = _law(to, operation, out.shape[-1], biases=-sum(by * each.zero_point for by, each in pairs))
    pair = len(sources) == 2
    to.nest(
        a=sources[0], pair=sources[1] if pair else None, law=law, **_flat(to, name, moves),
        inner=[Loop(len(values), a=0 if pair else out.elements, b=to.lanes, pair=pair)],
        second=Second.TABLE, table=to.image.add_table(factors), unsigned_a=to.unsigned(operation.sources[0]),
    )  # fmt: skip


def multiplied(to: ProgramContext, operation: op.Multiply) -> None:
    """Products of two values."""
    out = to.value(operation.output)
    first, second = operation.sources
    law, moves = _law(to, operation, out.shape[-1])
    to.nest(
        a=spread(to, first, out.shape), b=spread(to, second, out.shape), law=law,
        **_flat(to, operation.output, moves, b=to.lanes), second=Second.DATA, zero_a=to.value(first).zero_point,
        zero_b=to.value(second).zero_point, unsigned_a=to.unsigned(first), unsigned_b=to.unsigned(second),
    )  # fmt: skip


def product(to: ProgramContext, operation: op.MatMul) -> None:
    """Matrices: each number of a row of the first, times a row of the second."""
    first, second = operation.sources
    left, right, out = to.value(first), to.value(second), to.value(operation.output)
    inner, columns = left.shape[-1], out.shape[-1]
    buffer, shape = to.buffer(second), right.shape
    if operation.transposed:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        buffer = to.scratch(right.elements)
        permuted(to, to.buffer(second), shape, order, buffer)
        shape = tuple(shape[axis] for axis in order)
    law, moves = _law(to, operation, columns)
    moved = zip(
        out.shape[:-2],
        left.shape,
        strides_of(left.shape),
        shape,
        strides_of(shape),
        strides_of(out.shape),
        strict=False,
    )
    outer = [
        Loop(size, a=by if own > 1 else 0, b=other_by if other > 1 else 0, c=after)
        for size, own, by, other, other_by, after in moved
    ]
    to.nest(
        a=to.buffer(first), b=buffer, c=to.buffer(operation.output), law=law, run=columns,
        outer=[*outer, Loop(out.shape[-2], a=inner, c=columns), to.blocks(columns, a=0, b=to.lanes, p=moves)],
        inner=[Loop(inner, a=1, b=columns)], first=First.LANE_0, second=Second.DATA, zero_a=left.zero_point,
        zero_b=right.zero_point, unsigned_a=to.unsigned(first), unsigned_b=to.unsigned(second),
    )  # fmt: skip


def _law(
    to: ProgramContext, operation: op.Linear | op.Convolution | op.Mean | op.Rescale | op.Add | op.Multiply | op.MatMul,
    channels: int, groups: int = 1, *, biases: Integers | int = 0, pixels: int = 1,
) -> tuple[dict[str, int], int]:  # fmt: skip
    """Fields of an operation's requantiser once its sums are known to fit, and the moves of its scales."""
    found = accumulator(operation, to.graph.values, to.graph.constants)
    to.check_sums(operation.output, found.bits)
    if isinstance(operation, (op.Linear, op.Convolution)):
        biases = to.graph.constants[operation.bias]
    return to.law(operation.requantiser, channels=channels, biases=biases, groups=groups, pixels=pixels)


def _flat(to: ProgramContext, name: str, moves: int, b: int = 0) -> dict[str, Any]:
    """The result of a nest that goes through all its numbers: pixel by pixel where channels have separate scales.

    Args:
        to: the program.
        name: of the result.
        moves: by how much scales move from a word of channels to the next.
        b: by how much the second operand moves from a word to the next.
    """
    place = place_of(to, name)
    rows, run = place.runs
    each = to.value(name).shape[-1] if moves else run
    outer = [
        Loop(rows, a=run, b=run if b else 0, c=place.pitch),
        Loop(run // each, a=each, b=each if b else 0, c=each),
        to.blocks(each, b=b, p=moves),
    ]
    return {"c": place.buffer, "start": (0, place.start), "outer": outer, "run": each}
