"""What a memory of a design becomes: block memory, distributed memory of lookup tables, or plain logic; how many.

Source: yosys's pass ``memory_libmap`` takes the form of least cost. Its costs, and the shapes of each family's
memories, are facts of yosys 0.70, restated here; memories of a design have one reading port and at most one writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Form = Literal["block", "distributed", "logic"]
Family = Literal["ecp5", "ice40"]
"""Families whose memories are known; those of others would have to be found by synthesis."""
_WITH_DISTRIBUTED = ("ecp5",)
"""Families whose lookup tables can be memories."""
_PORT = 2.0
_DISTRIBUTED_PORT = 8.0
"""Cost of a port that only reads, in a block memory and in distributed ones; the latter as synthesis shows it."""
_ROM_BIT, _RAM_BIT = 1 / 16, 1.0
"""Cost of a bit in plain logic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShape:
    """A memory of a unit.

    Attributes:
        use: what it holds.
        words: of it.
        bits: of a word.
        written: whether it can be written to; else it holds constants.
        clocked: whether it is read by a clock; else at once, which block memories can't.
    """

    use: str
    words: int
    bits: int
    written: bool = False
    clocked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedMemory:
    """What a memory becomes.

    Attributes:
        form: of it.
        cells: block memories, or distributed ones of 16 x 4 bits; 0 for logic.
    """

    form: Form
    cells: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A kind of block memory: ``widths`` of its words, the least of which ``1 << address_bits`` fit."""

    address_bits: int
    widths: tuple[int, ...]
    byte: int
    cost: float
    least_written: int = 0
    """Place in ``widths`` of the narrowest word that can be written."""


_BLOCKS: Mapping[Family, tuple[_Block, ...]] = {
    "ecp5": (
        _Block(address_bits=14, widths=(1, 2, 4, 9, 18), byte=9, cost=128.0),
        _Block(address_bits=14, widths=(1, 2, 4, 9, 18, 36), byte=9, cost=128.0, least_written=3),
    ),
    "ice40": (
        _Block(address_bits=11, widths=(2, 4, 8), byte=8, cost=64.0),
        _Block(address_bits=11, widths=(2, 4, 8, 16), byte=1, cost=64.0, least_written=3),
    ),
}
_DISTRIBUTED_WORDS, _DISTRIBUTED_BITS, _DISTRIBUTED_COST = 16, 4, 4.0


def mapped(shape: MemoryShape, family: Family) -> MappedMemory:
    """What a memory becomes on a family of FPGAs."""
    size = shape.words * shape.bits
    best, found = size * (_RAM_BIT if shape.written else _ROM_BIT), MappedMemory(form="logic")
    if shape.written and family in _WITH_DISTRIBUTED:  # constants never are in distributed memory
        deep = -(-shape.words // _DISTRIBUTED_WORDS)
        cells = -(-deep * shape.bits // _DISTRIBUTED_BITS)
        cost = cells * _DISTRIBUTED_COST + _deep_cost(deep, shape) + _DISTRIBUTED_PORT
        if cost < best:
            best, found = cost, MappedMemory(form="distributed", cells=cells)
    # Without distributed memory, one that is read at once takes in the register that follows it.
    if shape.clocked or family not in _WITH_DISTRIBUTED:
        for block in _BLOCKS[family]:
            cost, cells = _in_blocks(shape, block)
            if cost < best:
                best, found = cost, MappedMemory(form="block", cells=cells)
    return found


def _in_blocks(shape: MemoryShape, block: _Block) -> tuple[float, int]:
    """Cost and number of block memories, over all widths of their words."""
    found: tuple[float, int] | None = None
    for place, width in enumerate(block.widths):
        if shape.written and place < block.least_written:
            continue
        byte = min(block.byte, width) if shape.written else 1
        deep = -(-shape.words // (1 << (block.address_bits - place)))  # widths double, parity bits come on top
        cells = -(-deep * (-(-shape.bits // byte) * byte) // width)
        cost = cells * block.cost + _deep_cost(deep, shape) + _PORT
        # The pass remembers its best cost as a whole number.
        if found is None or cost < int(found[0]):
            found = cost, cells
    assert found is not None
    return found


def _deep_cost(deep: int, shape: MemoryShape) -> float:
    """What selecting among several of them costs: multiplexers of what is read, enables of what is written."""
    return 0.5 * (deep - 1) * shape.bits + (0.5 * deep if shape.written and deep > 1 else 0.0)
