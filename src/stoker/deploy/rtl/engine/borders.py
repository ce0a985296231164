"""Images with a border: it is written first, and what makes an image writes its rows into it where it can."""

from __future__ import annotations

from stoker.deploy.ir import operations as op
from stoker.deploy.rtl.engine.context import ProgramContext
from stoker.deploy.rtl.engine.cycles import BESIDES_STEPS
from stoker.deploy.rtl.engine.drafts import ImagePlace, Loop
from stoker.deploy.rtl.engine.instructions import First, Second

Border = tuple[tuple[int, int, int, int], int]
"""Rows above and below, columns left and right, and the number that they are of."""
WindowOperation = op.Convolution | op.MaxPool | op.SumPool


def bordered(to: ProgramContext, operation: WindowOperation) -> tuple[str, int]:
    """A buffer with an operation's input and its border, and the numbers of one of its rows."""
    name, border = operation.source, _border_of(to, operation)
    if not any(operation.padding):
        place = dense_place(to, name)
        return place.buffer, place.row
    if (name, *border) not in to.bordered:
        place = _framed(to, name, border)
        loops = [Loop(place.rows, a=place.row, c=place.pitch), to.blocks(place.row)]
        to.moved(to.buffer(name), place.buffer, loops, place.row, c=place.start)
    place = to.bordered[name, *border]
    return place.buffer, place.pitch


def dense_place(to: ProgramContext, name: str) -> ImagePlace:
    """A value's buffer, in which its rows follow each other."""
    value = to.value(name)
    rows = value.shape[0] if len(value.shape) == 3 else 1
    row = value.elements // rows
    return ImagePlace(buffer=to.buffer(name), rows=rows, row=row, pitch=row)


def place_of(to: ProgramContext, name: str) -> ImagePlace:
    """Where a value is written: inside a border if all that read it want the same one, which is written now."""
    readers = to.graph.consumers(name)
    borders = {_border_of(to, each) if isinstance(each, WindowOperation) else None for each in readers}
    border = next(iter(borders)) if len(borders) == 1 else None
    if border is None or not any(border[0]) or any(port.value == name for port in to.graph.outputs):
        return dense_place(to, name)
    writer, to.operation = to.operation, readers[0].output
    place = _framed(to, name, border)
    to.operation = writer
    return place


def _border_of(to: ProgramContext, operation: WindowOperation) -> Border:
    source = to.value(operation.source)
    return operation.padding, source.low if isinstance(operation, op.MaxPool) else source.zero_point


def _framed(to: ProgramContext, name: str, border: Border) -> ImagePlace:
    """A new buffer with a border and room for a value inside."""
    (top, bottom, before, after), fill = border
    height, width, channels = to.value(name).shape
    row, between = width * channels, (before + after) * channels
    wide = row + between
    size = (top + height + bottom) * wide
    buffer = to.drafting.buffer(f"{name}, bordered", size)
    # Numbers before the image and behind it, and between its rows: or, where that is quicker, all there are.
    start, end = top * wide + before * channels, after * channels + bottom * wide
    if start == end:
        parts = [(Loop(2, c=size - end), 0, start)]
    else:
        parts = [(Loop(1), at, run) for at, run in ((0, start), (size - end, end)) if run]
    if between and height > 1:
        parts.append((Loop(height - 1, c=wide), start + row, between))
    whole = [(Loop(1), 0, size)]
    for rounds, at, run in min(parts, whole, key=lambda each: _cycles(to, each)):
        to.nest(
            c=buffer, outer=[rounds, to.blocks(run, a=0)], run=run, start=(0, at), first=First.ONE,
            second=Second.ZERO, law=to.unchanged(fill),
        )  # fmt: skip
    place = ImagePlace(buffer=buffer, start=start, rows=height, row=row, pitch=wide)
    to.bordered[name, *border] = place
    return place


def _cycles(to: ProgramContext, parts: list[tuple[Loop, int, int]]) -> int:
    return sum(rounds.count * -(-run // to.lanes) + BESIDES_STEPS for rounds, _, run in parts)
