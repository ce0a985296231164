"""The instruction set: what an instruction does, and the 32 words of 32 bits in which it is written.

Nearly all are *nests*: seven loops, each of which moves four addresses by a constant. At each step a word of numbers
is read at any address of data memory; a second operand comes from data memory, from tables or from weights; the inner
loops add up. At the end of a sum it is brought to the result's scale and written. Layers differ in addresses alone:

======== ==================================================================================================
kind      what a step does
======== ==================================================================================================
NEST      ``acc[j] += first[j] * second[j]``; with ``array``: ``acc[j] += sum_i x[i] * weight[j][i]``; with
          ``largest``: ``acc[j] = max(acc[j], first[j])``. After the loops that reduce:
          ``clamp((((acc + bias) * M + 2^(S-1)) >> S) + zero, low, high)``, written to ``c``.
INPUT     A word of the input stream is written to ``c``.
OUTPUT    As NEST, the result goes to the output stream.
SHARES    For each row: ``total = sum(x)``, then each ``min((x << bits) + total // 2) // total, 2^bits - 1)``, and
          ``2^bits - 1`` where the total is 0.
NORMAL    For each row: a layer norm up to its gain, as ``LayerNorm`` has it.
======== ==================================================================================================

``a`` (first operand), ``c`` (results) and ``b`` (second operand) count numbers of data memory; ``b`` of tables counts
numbers of table memory, of weights words; ``p`` counts words of scales. Where ``lookup`` is set, a table is read
at ``table + b + index * row``, the index being ``x[0] - zero_a`` or ``y[0] - x[0]``; ``b`` is not added to the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from stoker.deploy.rtl.engine.shape import ADDRESS_BITS, COUNT_BITS, INSTRUCTION_WORDS, LEVELS


class InstructionKind(IntEnum):
    """What an instruction does."""

    NEST = 0
    INPUT = 1
    OUTPUT = 2
    SHARES = 3
    NORMAL = 4


class First(IntEnum):
    """A lane's first operand: its own number less the zero point, that of lane 0, or 1."""

    OWN = 0
    LANE_0 = 1
    ONE = 2


class Second(IntEnum):
    """A lane's second operand: 1, 0, a number of data memory less its zero point, or one of table memory."""

    ONE = 0
    ZERO = 1
    DATA = 2
    TABLE = 3


class Lookup(IntEnum):
    """What a table is read by besides ``b``: nothing, ``x[0] - zero_a``, or ``y[0] - x[0]``."""

    NONE = 0
    NUMBER = 1
    DISTANCE = 2


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A loop: how often, and by how much each address moves from one round to the next."""

    count: int = 1
    a: int = 0
    b: int = 0
    c: int = 0
    p: int = 0


class Instruction(msgspec.Struct, frozen=True, kw_only=True):
    """An instruction. What a kind does not use is 0."""

    kind: InstructionKind = InstructionKind.NEST
    array: bool = False
    largest: bool = False
    first: First = First.OWN
    second: Second = Second.ONE
    lookup: Lookup = Lookup.NONE
    unsigned_a: bool = False
    """Numbers at ``a`` have 16 bits without a sign."""
    unsigned_b: bool = False
    reduce: int = 0
    """Innermost loops that add up to one result."""
    tail_level: int = LEVELS
    """Loop in whose last round only ``tail`` numbers are written."""
    full: int = 1
    """Numbers written, from lane 0 on."""
    tail: int = 1
    last: bool = False
    """The sample's last word enters or leaves."""
    end: bool = False
    """The program's last instruction."""
    shift: int = 0
    zero_a: int = 0
    zero_b: int = 0
    zero: int = 0
    low: int = 0
    high: int = 0
    table: int = 0
    row: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    p: int = 0
    levels: tuple[Level, ...] = ()
    """Innermost first; at most seven."""
    size: int = 0
    """Numbers of a row."""
    rows: int = 0
    epsilon: int = 0
    root_bits: int = 0
    reciprocal_bits: int = 0
    normal_shift: int = 0
    share_bits: int = 0

    @property
    def steps(self) -> int:
        """Steps of a nest."""
        count = 1
        for level in self.levels:
            count *= level.count
        return count

    @property
    def results(self) -> int:
        """Words that a nest writes."""
        count = 1
        for level in self.levels[self.reduce :]:
            count *= level.count
        return count


HEAD = (
    ("kind", 0, 0, 3), ("array", 0, 3, 1), ("largest", 0, 4, 1), ("first", 0, 5, 2), ("second", 0, 7, 2),
    ("lookup", 0, 9, 2), ("unsigned_a", 0, 11, 1), ("unsigned_b", 0, 12, 1), ("reduce", 0, 13, 3),
    ("tail_level", 0, 16, 3), ("full", 0, 19, 5), ("tail", 0, 24, 5), ("last", 0, 29, 1), ("end", 0, 30, 1),
    ("shift", 1, 0, 6), ("zero_a", 1, 8, 18), ("zero_b", 2, 0, 18), ("zero", 3, 0, 18), ("low", 4, 0, 18),
    ("high", 5, 0, 18), ("table", 6, 0, 20), ("row", 7, 0, 16),
)  # fmt: skip
"""Name, word, lowest bit and width of what all kinds have; signed numbers are two's complement."""
ROWS = (
    ("size", 11, 0, 16), ("rows", 12, 0, 16), ("epsilon", 13, 0, 64), ("root_bits", 15, 0, 6),
    ("reciprocal_bits", 16, 0, 6), ("normal_shift", 17, 0, 6), ("share_bits", 18, 0, 5),
)  # fmt: skip
"""What SHARES and NORMAL have in the place of loops."""
_BASES = 8
_LEVELS = 11
_PLACE = COUNT_BITS + 4 * ADDRESS_BITS  # of a loop: three words


def encoded(instruction: Instruction) -> tuple[int, ...]:
    """The words of an instruction.

    A loop is written with its rounds less 1, and with what each address moves by when it steps and the loops inside
    begin again.

    Raises:
        ValueError: a field does not hold its number.
    """
    found = 0
    rows = instruction.kind in (InstructionKind.SHARES, InstructionKind.NORMAL)
    for name, word, bit, width in (*HEAD, *(ROWS if rows else ())):
        number = int(getattr(instruction, name))
        if not -(1 << (width - 1)) <= number < 1 << width:
            raise ValueError(f"`{name}` must fit {width} bits, got {number}")
        found |= (number & ((1 << width) - 1)) << (32 * word + bit)
    for at, name in enumerate("abcp"):
        found |= _address(getattr(instruction, name)) << (32 * _BASES + ADDRESS_BITS * at)
    if not rows:
        for at, bits in enumerate(_loops(instruction)):
            found |= bits << (32 * _LEVELS + _PLACE * at)
    return tuple((found >> (32 * word)) & 0xFFFFFFFF for word in range(INSTRUCTION_WORDS))


def _loops(instruction: Instruction) -> Iterator[int]:
    """The bits of each loop: rounds, then the four moves."""
    if len(instruction.levels) > LEVELS:
        raise ValueError(f"`levels` must be at most {LEVELS} loops, got {len(instruction.levels)}")
    back = dict.fromkeys("abcp", 0)
    for level in instruction.levels:
        if not 1 <= level.count <= 1 << COUNT_BITS:
            raise ValueError(f"`count` of a loop must be 1 to {1 << COUNT_BITS}, got {level.count}")
        bits = level.count - 1
        for at, name in enumerate(back):
            stride = getattr(level, name)
            bits |= _address(stride - back[name]) << (COUNT_BITS + ADDRESS_BITS * at)
            back[name] += (level.count - 1) * stride
        yield bits


def _address(number: int) -> int:
    return number & ((1 << ADDRESS_BITS) - 1)
