"""What a memory of a design becomes: block memory, distributed memory of lookup tables, or plain logic; how many.

Source: yosys's pass ``memory_libmap`` takes the form of least cost. Its costs, and the shapes of each family's
memories, are facts of yosys 0.70, restated here; memories of a design have one reading port and at most one writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stoker.deploy.tools.devices import Family

Form = Literal["block", "distributed", "logic"]
DISTRIBUTED_LUTS = 4
"""Lookup tables of a distributed memory, on all families that have them."""
_PORT = 2.0
_PORT_AT_ONCE = 8.0
"""Cost of a port that only reads, by a clock or at once: what is written is to be read in the same cycle."""
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
        cells: block memories, as they are counted in the family's parts, or distributed ones of
            :data:`DISTRIBUTED_LUTS` lookup tables; 0 for logic.
    """

    form: Form
    cells: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A kind of block memory: ``widths`` of its words, the least of which ``1 << address_bits`` fit.

    It counts as ``units`` block memories of a part.
    """

    address_bits: int
    widths: tuple[int, ...]
    byte: int
    cost: float
    least_written: int = 0
    """Place in ``widths`` of the narrowest word that can be written."""
    units: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Distributed:
    """A kind of distributed memory: so many words of so many bits.

    Where bits are left over, ``scaled`` of its cost shrinks with those that are used.
    """

    words: int
    bits: int
    cost: float
    scaled: float = 0.0


_HALVES = (1, 2, 4, 9, 18)
_BLOCKS: Mapping[Family, tuple[_Block, ...]] = {
    "ecp5": (
        _Block(address_bits=14, widths=_HALVES, byte=9, cost=128.0),
        _Block(address_bits=14, widths=(*_HALVES, 36), byte=9, cost=128.0, least_written=3),
    ),
    "ice40": (
        _Block(address_bits=11, widths=(2, 4, 8), byte=8, cost=64.0),
        _Block(address_bits=11, widths=(2, 4, 8, 16), byte=1, cost=64.0, least_written=3),
    ),
    # RAMB18, RAMB36, and two of the latter in a cascade; their widest words need a port that only writes.
    "xc7": (
        _Block(address_bits=14, widths=(*_HALVES, 36), byte=9, cost=129.0),
        _Block(address_bits=15, widths=(*_HALVES, 36, 72), byte=9, cost=257.0, units=2),
        _Block(address_bits=16, widths=(1, 2, 4, 9), byte=9, cost=513.0, units=4),
    ),
}
_DISTRIBUTED: Mapping[Family, tuple[_Distributed, ...]] = {
    "ecp5": (_Distributed(words=16, bits=4, cost=4.0),),
    "ice40": (),
    "xc7": (
        _Distributed(words=32, bits=4, cost=8.0, scaled=8.0),
        _Distributed(words=64, bits=2, cost=8.0, scaled=8.0),
        _Distributed(words=128, bits=1, cost=8.0),
        _Distributed(words=32, bits=6, cost=8.0, scaled=7.0),
        _Distributed(words=64, bits=3, cost=8.0, scaled=7.0),
    ),
}


def mapped(shape: MemoryShape, family: Family) -> MappedMemory:
    """What a memory becomes on a family of FPGAs."""
    size = shape.words * shape.bits
    best, found = size * (_RAM_BIT if shape.written else _ROM_BIT), MappedMemory(form="logic")
    if shape.written:  # constants never are in distributed memory
        for kind in _DISTRIBUTED[family]:
            cost, cells = _in_distributed(shape, kind)
            if cost < best:
                best, found = cost, MappedMemory(form="distributed", cells=cells)
    # Without distributed memory, one that is read at once takes in the register that follows it.
    if shape.clocked or not _DISTRIBUTED[family]:
        for block in _BLOCKS[family]:
            cost, cells = _in_blocks(shape, block)
            if cost < best:
                best, found = cost, MappedMemory(form="block", cells=cells * block.units)
    return found


def _in_distributed(shape: MemoryShape, kind: _Distributed) -> tuple[float, int]:
    """Cost and number of distributed memories."""
    deep = -(-shape.words // kind.words)
    whole, rest = divmod(shape.bits, kind.bits)
    last = kind.cost - kind.scaled * (1 - rest / kind.bits) if rest else 0.0
    port = _PORT if shape.clocked else _PORT_AT_ONCE
    cost = deep * (whole * kind.cost + last) + _deep_cost(deep, shape) + port
    return cost, deep * (whole + bool(rest))


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
