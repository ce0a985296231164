"""What looks at whole rows: softmax and layer norm, by passes of nests and the unit that divides."""

from __future__ import annotations

import math

import numpy as np

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator, normal_bound
from stoker.deploy.rtl.engine.context import ProgramContext
from stoker.deploy.rtl.engine.drafts import Loop
from stoker.deploy.rtl.engine.instructions import First, InstructionKind, Lookup, Second
from stoker.deploy.rtl.engine.shape import NUMBER_BITS

MOST_RECIPROCAL_BITS = 46
MOST_CENTRED_BITS = 32
"""Widest magnitude of ``D * x - sum(x)``: what the netlist's square and product are wide."""


def softmax(to: ProgramContext, operation: op.Softmax) -> None:
    """The largest of each row, a table of exponentials of the distance from it, and their shares."""
    value, out = to.value(operation.source), to.value(operation.output)
    size, count = value.shape[-1], value.elements
    rows = count // size
    source, mask = to.buffer(operation.source), 0
    if operation.mask is not None:
        kept = np.broadcast_to(to.graph.constants[operation.mask] != 0, value.shape).ravel().astype(np.int64)
        mask = to.image.add_table(kept[None])
        parts = [kept[at : at + to.lanes] for at in range(0, count, to.lanes)]
        fill = to.image.add_scales([(1 - part) * value.low for part in parts], [np.ones_like(part) for part in parts])
        source = to.scratch(count)
        # What is masked becomes the least number, which is never larger than another.
        to.nest(
            a=to.buffer(operation.source), c=source, outer=[to.blocks(count, b=to.lanes, p=1)], run=count,
            second=Second.TABLE, table=mask, law=to.unchanged() | {"p": fill}, unsigned_a=to.unsigned(operation.source),
        )  # fmt: skip
    largest, powers = to.scratch(rows), to.scratch(count)
    unsigned = to.unsigned(operation.source)
    to.nest(
        a=source, c=largest, outer=[Loop(rows, a=size, c=1)], inner=[Loop(size, a=1)], largest=True, unsigned_a=unsigned
    )
    to.nest(
        a=source, b=largest, c=powers, outer=[Loop(rows, a=size, b=1, c=size), Loop(size, a=1, c=1)], first=First.ONE,
        second=Second.TABLE, lookup=Lookup.DISTANCE, row=1, unsigned_a=unsigned, unsigned_b=unsigned,
        table=to.image.add_table(to.graph.constants[operation.table][None]),
    )  # fmt: skip
    if operation.mask is not None:
        every, powers = powers, to.scratch(count)
        to.nest(
            a=every, c=powers, outer=[to.blocks(count, b=to.lanes)], run=count, second=Second.TABLE, table=mask,
            unsigned_a=True,
        )  # fmt: skip
    to.nest(
        kind=InstructionKind.SHARES, a=powers, c=to.buffer(operation.output), size=size, rows=rows, share_bits=out.bits,
        unsigned_a=True,
    )  # fmt: skip


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
