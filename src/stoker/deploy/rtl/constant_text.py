"""Sums of products with constants as SystemVerilog: an adder a line, a register after each level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from stoker.deploy.rtl.constant_sums import ConstantSums, SharedSum, width
from stoker.deploy.rtl.structure import ConstantLayer

ARRAY = "constant_array"
_INDENT = "    "


def array_texts(layers: Sequence[ConstantLayer]) -> dict[str, str]:
    """Modules by file name: the sums of each layer, then ``constant_array``, whose parameter says which are made.

    Args:
        layers: of a design, each with its own place as number; nothing for none.
    """
    if not layers:
        return {}
    names = [f"constant_sums_{at}" for at in range(len(layers))]
    lines = [
        "// Sums of products with constants, of one layer.",
        f"module {ARRAY} #(",
        f"{_INDENT}parameter int LAYER = 0,",
        f"{_INDENT}parameter int IN_W = 8,",
        f"{_INDENT}parameter int OUT_W = 24",
        ") (",
        f"{_INDENT}input  logic             clk,",
        f"{_INDENT}input  logic [IN_W-1:0]  in_data,",
        f"{_INDENT}output logic [OUT_W-1:0] out_data",
        ");",
        f"{_INDENT}generate",
        *(
            f"{_INDENT * 2}{'end else ' if at else ''}if (LAYER == {at}) begin : layer_{at}\n"
            f"{_INDENT * 3}{name} sums (.clk, .in_data, .out_data);"
            for at, name in enumerate(names)
        ),
        f"{_INDENT * 2}end",
        f"{_INDENT}endgenerate",
        "endmodule",
        "",
    ]
    found = {f"{name}.sv": "\n".join([*sums_lines(layer, name), ""]) for name, layer in zip(names, layers, strict=True)}
    return found | {f"{ARRAY}.sv": "\n".join(lines)}


def sums_lines(layer: ConstantLayer, name: str) -> Iterator[str]:
    """A module that takes numbers in each cycle and gives their sums after as many cycles as there are levels.

    Raises:
        ValueError: the sums have no biases.
    """
    sums, count = layer.sums, len(layer.sums.inputs)
    read = _bits_read(sums, layer.acc_bits)
    made = [value for value in range(len(read)) if not count <= value < sums.given]
    yield f"// {len(sums.sums):,} additions in {sums.levels} levels."
    yield f"module {name} ("
    yield f"{_INDENT}input  logic clk,"
    yield f"{_INDENT}input  logic [{count * layer.in_bits - 1}:0] in_data,"
    yield f"{_INDENT}output logic [{len(sums.outputs) * layer.acc_bits - 1}:0] out_data"
    yield ");"
    for value in made:
        for bits, late in groupby(range(len(read[value])), key=read[value].__getitem__):
            names = ", ".join(_at(sums, value, sums.level(value) + each) for each in late)
            sign = "signed " if sums.ends(value)[0] < 0 else ""
            yield f"{_INDENT}logic {sign}[{bits - 1}:0] {names};"
    unused = [
        f"in_data[{(at + 1) * layer.in_bits - 1}:{at * layer.in_bits + bits}]"
        for at in range(count)
        for bits in (read[at][0] if read[at] else 0,)
        if bits < layer.in_bits
    ]
    steps = list(_steps(sums, read))
    if not steps:
        unused.append("clk")
    if unused:
        yield f"{_INDENT}logic unused;"
        yield f"{_INDENT}assign unused = &{{"
        yield from (f"{_INDENT * 2}{each}," for each in unused)
        yield f"{_INDENT * 2}1'b0"
        yield f"{_INDENT}}};"
    for at in range(count):
        if read[at]:
            yield f"{_INDENT}assign {_at(sums, at, 0)} = in_data[{at * layer.in_bits} +: {read[at][0]}];"
    if steps:
        yield f"{_INDENT}always_ff @(posedge clk) begin"
        yield from (f"{_INDENT * 2}{each}" for each in steps)
        yield f"{_INDENT}end"
    for at, each in enumerate(sums.outputs):
        if each.value is None or each.minus or each.shift:
            raise ValueError(f"`layer` must have biases, which outputs begin with; output {at} has none")
        term = _bits(sums, each.value, sums.levels, layer.acc_bits)
        yield f"{_INDENT}assign out_data[{at * layer.acc_bits} +: {layer.acc_bits}] = {term};"
    yield "endmodule"


def _steps(sums: ConstantSums, read: Sequence[Sequence[int]]) -> Iterator[str]:
    """What each register takes: sums, then values that wait."""
    for at, each in enumerate(sums.sums):
        if bits := read[sums.given + at]:
            yield f"{_at(sums, sums.given + at, each.level)} <= {_sum(sums, each, bits[0])};"
    for value, bits in enumerate(read):
        for stage, wide in enumerate(bits[1:], sums.level(value) + 1):
            yield f"{_at(sums, value, stage)} <= {_bits(sums, value, stage - 1, wide)};"


def waiting_bits(sums: ConstantSums) -> int:
    """Bits of registers in which inputs and sums wait for others of a higher level, all levels together."""
    return sum(
        width(*sums.ends(value)) * (last - sums.level(value))
        for value, last in enumerate(_kept(sums))
        if last is not None and not len(sums.inputs) <= value < sums.given
    )


def _kept(sums: ConstantSums) -> list[int | None]:
    """The last stage at which each value is read, in levels; None for inputs that nothing reads."""
    found: list[int | None] = [None] * (sums.given + len(sums.sums))

    def read(value: int, stage: int) -> None:
        found[value] = max(found[value] or 0, stage)

    for each in sums.sums:
        read(each.left, each.level - 1)
        read(each.right, each.level - 1)
    for each in sums.outputs:
        if each.value is not None:
            read(each.value, sums.levels)
    return found


def _bits_read(sums: ConstantSums, acc_bits: int) -> list[list[int]]:
    """Low bits that are read of each value, by the levels that it waits; none of constants and of what nothing reads.

    A sum may be narrower than what it adds: ends know nothing of numbers that are in both and cancel, and an output is
    as wide as it can become. Bits above those that are read change nothing below, so no register has them.
    """
    found: list[list[int]] = [[] for _ in range(sums.given + len(sums.sums))]

    def read(value: int, stage: int, bits: int) -> None:
        if bits <= 0 or len(sums.inputs) <= value < sums.given:
            return
        bits, late = min(bits, width(*sums.ends(value))), stage - sums.level(value)
        found[value] += [0] * (late + 1 - len(found[value]))
        found[value][: late + 1] = [max(bits, each) for each in found[value][: late + 1]]

    for each in sums.outputs:
        if each.value is not None:
            read(each.value, sums.levels, acc_bits)
    for at, each in reversed(list(enumerate(sums.sums, sums.given))):
        if found[at]:
            read(each.left, each.level - 1, found[at][0])
            read(each.right, each.level - 1, found[at][0] - each.shift)
    return found


def _sum(sums: ConstantSums, each: SharedSum, width_read: int) -> str:
    """So many bits of a sum; the bits of the left value below the shift pass by the adder."""
    stage, bits = each.level - 1, width_read - each.shift
    if bits <= 0:
        return _bits(sums, each.left, stage, width_read)
    added = (
        f"{_bits(sums, each.left, stage, bits, each.shift)} {'-' if each.minus else '+'} "
        f"{_bits(sums, each.right, stage, bits)}"
    )
    return f"{{{added}, {_bits(sums, each.left, stage, each.shift)}}}" if each.shift else added


def _bits(sums: ConstantSums, value: int, stage: int, bits: int, shift: int = 0) -> str:
    """So many bits of a value from a place on, in the cycle of a stage."""
    at = value - len(sums.inputs)
    if 0 <= at < len(sums.constants):
        return f"{bits}'h{(sums.constants[at] >> shift) & ((1 << bits) - 1):x}"
    name = _at(sums, value, stage)
    return f"{bits}'({name} >>> {shift})" if shift else f"{bits}'({name})"


def _at(sums: ConstantSums, value: int, stage: int) -> str:
    """A value's name in the cycle of a stage."""
    count, late = len(sums.inputs), stage - sums.level(value)
    name = f"x{value}" if value < count else f"s{value - sums.given}"
    return f"{name}_{late}" if late else name
