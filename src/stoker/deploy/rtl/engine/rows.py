"""What looks at whole rows: softmax and layer norm, by passes of nests and the unit that divides."""

from __future__ import annotations

import math

import numpy as np

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator, normal_bound
from stoker.deploy.rtl.engine.context import ProgramContext, strides_of
from stoker.deploy.rtl.engine.drafts import Loop
from stoker.deploy.rtl.engine.instructions import First, InstructionKind, Lookup, Second
from stoker.deploy.rtl.engine.moves import spread
from stoker.deploy.rtl.engine.shape import NUMBER_BITS

MOST_RECIPROCAL_BITS = 46
MOST_CENTRED_BITS = 32
"""Widest magnitude of ``D * x - sum(x)``: what the netlist's square and product are wide."""


def softmax(to: ProgramContext, operation: op.Softmax) -> None:
    """The largest of each row, a table of exponentials of the distance from it, and their shares."""
    value, out = to.value(operation.source), to.value(operation.output)
    size, count = value.shape[-1], value.elements
    rows, unsigned = count // size, to.unsigned(operation.source)
    counted = _Counted(to, operation)
    # What is masked becomes the least number, which is never larger than another.
    source = counted.passes(to.buffer(operation.source), value.low, unsigned)
    largest, powers = to.scratch(rows), to.scratch(count)
    to.nest(
        a=source, c=largest, outer=[Loop(rows, a=size, c=1)], inner=[Loop(size, a=1)], largest=True, unsigned_a=unsigned
    )
    to.nest(
        a=source, b=largest, c=powers, outer=[Loop(rows, a=size, b=1, c=size), Loop(size, a=1, c=1)], first=First.ONE,
        second=Second.TABLE, lookup=Lookup.DISTANCE, row=1, unsigned_a=unsigned, unsigned_b=unsigned,
        table=to.image.add_table(to.graph.constants[operation.table][None]),
    )  # fmt: skip
    powers, shares = counted.passes(powers), to.buffer(operation.output)
    if counted.may_be_nothing:
        shares = to.scratch(count)
    to.nest(kind=InstructionKind.SHARES, a=powers, c=shares, size=size, rows=rows, share_bits=out.bits, unsigned_a=True)
    if counted.may_be_nothing:  # and then all shares of the row are the largest number so far
        counted.passes(shares, target=to.buffer(operation.output))


class _Counted:
    """What a softmax counts: the passes that put another number in the place of all else.

    Args:
        to: the program.
        operation: the softmax.

    Attributes:
        may_be_nothing: whether a row may be masked as a whole.
    """

    def __init__(self, to: ProgramContext, operation: op.Softmax) -> None:
        self._to, self._operation = to, operation
        self._shape = to.value(operation.source).shape
        self._count = math.prod(self._shape)
        self._kept, self._table = np.ones(self._count, np.int64), 0
        if operation.mask is not None:
            self._kept = np.broadcast_to(to.graph.constants[operation.mask] != 0, self._shape).ravel().astype(np.int64)
            self._table = to.image.add_table(self._kept[None])
        empty = not self._kept.reshape(-1, self._shape[-1]).any(axis=1).all()
        self.may_be_nothing = empty or operation.counts is not None

    def passes(self, source: str, other: int = 0, unsigned: bool = True, target: str | None = None) -> str:
        """The buffer of numbers that are as they were where they count, and another one elsewhere."""
        to, operation = self._to, self._operation
        if operation.mask is not None:
            made = target if target is not None and operation.counts is None else to.scratch(self._count)
            parts = [self._kept[at : at + to.lanes] for at in range(0, self._count, to.lanes)]
            law, moves = to.unchanged(), 0
            if other:
                fill = [(1 - part) * other for part in parts]
                law, moves = law | {"p": to.image.add_scales(fill, [np.ones_like(part) for part in parts])}, 1
            to.nest(
                a=source, c=made, outer=[to.blocks(self._count, b=to.lanes, p=moves)], run=self._count,
                second=Second.TABLE, table=self._table, law=law, unsigned_a=unsigned,
            )  # fmt: skip
            source = made
        if operation.counts is not None:
            made = target or to.scratch(self._count)
            loops, counts = self._walk(operation.counts)
            to.nest(
                a=source, b=counts, c=made, outer=loops, run=self._shape[-1], second=Second.DATA, zero_a=other,
                law=to.unchanged(other), unsigned_a=unsigned,
            )  # fmt: skip
            source = made
        return source

    def _walk(self, name: str) -> tuple[list[Loop], str]:
        """Loops over the scores and the value that says what counts, and the buffer of that value."""
        to, shape, own = self._to, self._shape, self._to.value(name).shape
        counts = to.buffer(name)
        if own[-1] != shape[-1]:  # one number for a row: a word of it has as many as one of scores
            own = (*own[:-1], shape[-1])
            counts = spread(to, name, own)
        moves = [0 if size == 1 else move for size, move in zip(own, strides_of(own), strict=True)]
        loops = [Loop(size, a=by, b=b, c=by) for size, by, b in zip(shape, strides_of(shape), moves, strict=True)]
        return [*loops[:-1], to.blocks(shape[-1], b=to.lanes)], counts


def layer_norm(to: ProgramContext, operation: op.LayerNorm) -> None:
    """Normalised rows, of 16 bits, then gain and offset lane by lane."""
    value, name = to.value(operation.source), operation.output
    size = value.shape[-1]
    if normal_bound(operation, size) >= 1 << (NUMBER_BITS - 1):
        raise ValueError(
            f"`{name}`: normalised numbers must fit {NUMBER_BITS} bits on an engine, need "
            f"{normal_bound(operation, size).bit_length() + 1}; use fewer `normal_bits`"
        )
    if operation.reciprocal_bits > MOST_RECIPROCAL_BITS:
        raise ValueError(
            f"`{name}`: `reciprocal_bits` must be at most {MOST_RECIPROCAL_BITS} on an engine, got "
            f"{operation.reciprocal_bits}"
        )
    if (size * (value.high - value.low)).bit_length() > MOST_CENTRED_BITS:
        raise ValueError(f"`{name}`: rows of {size} numbers are too long for an engine's squares")
    normal = to.scratch(value.elements)
    to.nest(
        kind=InstructionKind.NORMAL, a=to.buffer(operation.source), c=normal, size=size, rows=value.elements // size,
        epsilon=operation.epsilon, root_bits=operation.root_bits, reciprocal_bits=operation.reciprocal_bits,
        normal_shift=operation.reciprocal_bits - operation.root_bits - operation.normal_bits,
        unsigned_a=to.unsigned(operation.source),
    )  # fmt: skip
    to.check_sums(name, accumulator(operation, to.graph.values, to.graph.constants).bits)
    law, moves = to.law(
        operation.requantiser, channels=size, biases=to.graph.constants[operation.offset].astype(np.int64)
    )
    gain = to.image.add_table(to.graph.constants[operation.gain][None])
    to.nest(
        a=normal, c=to.buffer(name), law=law, run=size, second=Second.TABLE, table=gain,
        outer=[Loop(math.prod(value.shape[:-1]), a=size, c=size), to.blocks(size, b=to.lanes, p=moves)],
    )  # fmt: skip
