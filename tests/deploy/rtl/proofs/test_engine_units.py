"""Units of an engine at small widths: all numbers, all rounds, against the law or plain whole numbers."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.deploy.rtl.proofs.circuits import Circuit, circuit_of, needs_yosys
from tests.deploy.rtl.proofs.test_arithmetic import signed

pytestmark = [pytest.mark.integration, needs_yosys]

ACC_BITS, M_BITS, PLACED_BITS = 18, 8, 18
Numbers = NDArray[np.int64]


def requantiser(folder: Path, *, cells: bool = False, changes: tuple[tuple[str, str], ...] = ()) -> Circuit:
    top = f"""
module top (
    input clk, input [{ACC_BITS - 1}:0] sums, bias, input [{M_BITS - 1}:0] factor, input [5:0] shift,
    input [17:0] zero, low, high, output [15:0] result
);
    engine_requantise #(.LANES(1), .ACC_W({ACC_BITS}), .M_W({M_BITS})) unit (
        .clk, .sums, .scales({{factor, bias}}), .shift, .zero, .low, .high, .results(result)
    );
endmodule
"""
    return circuit_of(folder, top, "engine_requantise", cells=cells, changes=changes)


def requantised(circuit: Circuit, cases: dict[str, Numbers], count: int) -> Numbers:
    """Results of sums; what comes before and after them is other."""
    settled = {name: cases[name] for name in ("shift", "zero", "low", "high")}
    scales = {name: cases[name] for name in ("bias", "factor")}
    other = {name: ~array for name, array in scales.items()}
    cycles = [{**settled, **other, "sums": ~cases["sums"]}] * 2
    cycles += [{**settled, **other, "sums": cases["sums"]}, {**settled, **scales, "sums": ~cases["sums"]}]
    cycles += [{**settled, **other, "sums": ~cases["sums"]}] * 7
    return signed(circuit.run(cycles, count)[10]["result"], 16)


def law(cases: dict[str, Numbers]) -> Numbers:
    acc = signed(cases["sums"] + cases["bias"] & ((1 << ACC_BITS) - 1), ACC_BITS)
    shift = cases["shift"]
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    total = (acc * cases["factor"] + half) >> shift
    zero, low, high = (signed(cases[name] & ((1 << PLACED_BITS) - 1), PLACED_BITS) for name in ("zero", "low", "high"))
    return np.clip(total + zero, low, high)


@pytest.mark.parametrize(
    ("bias", "factor", "shift", "zero", "low", "high"),
    [
        (0, 1, 0, 0, -32768, 32767),
        (5, 255, 9, -3, -128, 127),
        (-77, 129, 14, 100, 0, 255),
        (-131072, 3, 2, -7, -7, 100),
        (131071, 200, 25, 1, -8, 7),
        (1000, 0, 40, 13, -128, 127),
    ],
)
def test_every_sum_is_requantised_by_the_law(
    tmp_path: Path, bias: int, factor: int, shift: int, zero: int, low: int, high: int
) -> None:
    every = np.arange(1 << ACC_BITS)
    given = {"bias": bias, "factor": factor, "shift": shift, "zero": zero, "low": low, "high": high}
    cases = {"sums": every, **{name: np.array(number) for name, number in given.items()}}
    wanted = law(cases)
    assert (requantised(requantiser(tmp_path), cases, len(every)) == wanted).all()
    assert factor == 0 or len(np.unique(wanted)) > 2


def swept(seed: int) -> tuple[dict[str, Numbers], int]:
    """All shifts and factors, with sums, biases and ends of all sizes."""
    random = np.random.default_rng(seed)
    count = 1 << (6 + M_BITS + 3)
    every = np.arange(count)
    span = 1 << ACC_BITS
    low = random.integers(-(1 << 15), 1 << 15, count)
    return {
        "sums": random.integers(0, span, count), "bias": random.integers(0, span, count), "shift": every & 63,
        "factor": every >> 6 & ((1 << M_BITS) - 1), "zero": random.integers(-(1 << 16), 1 << 16, count), "low": low,
        "high": np.minimum(low + (1 << random.integers(0, 16, count)), (1 << 15) - 1),
    }, count  # fmt: skip


def test_every_shift_of_every_factor(tmp_path: Path) -> None:
    cases, count = swept(0)
    wanted = law(cases)
    assert (requantised(requantiser(tmp_path), cases, count) == wanted).all()
    assert len(np.unique(wanted)) > 10_000


@pytest.mark.slow("synthesises a unit")
def test_cells_shift_by_every_factor(tmp_path: Path) -> None:
    cases, count = swept(1)
    assert (requantised(requantiser(tmp_path, cells=True), cases, count) == law(cases)).all()


@pytest.mark.parametrize(
    "change", [("halved && shifted[0]", "1'b0"), ("{less_one[5:3], 3'd0}", "{less_one[4:3], 3'd0}")]
)
def test_a_mistake_in_a_requantiser_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    cases, count = swept(0)
    assert (requantised(requantiser(tmp_path, changes=(change,)), cases, count) != law(cases)).any()


@pytest.mark.parametrize("cells", [False, pytest.param(True, marks=pytest.mark.slow("synthesises a unit"))])
def test_every_sum_of_an_array(tmp_path: Path, cells: bool) -> None:
    """All numbers of a word times all weights, of two columns."""
    top = """
module top (input clk, input [3:0] x, input [7:0] weights, output [9:0] sums);
    engine_array #(.LANES(2), .X_W(2), .WEIGHT_W(2)) unit (.clk, .x, .weights, .sums);
endmodule
"""
    every = np.arange(1 << 12)
    x, weights = every & 15, every >> 4
    circuit = circuit_of(tmp_path, top, "adder_tree", "engine_array", cells=cells)
    found = circuit.run([{"x": x, "weights": weights}] + [{"x": ~x, "weights": ~weights}] * 2, len(every))[2]["sums"]
    for column in range(2):
        due = sum(
            signed(x >> (2 * row) & 3, 2) * signed(weights >> (2 * (2 * column + row)) & 3, 2) for row in range(2)
        )
        assert (signed(found >> (5 * column) & 31, 5) == due).all()


LEVELS, ADDRESS_BITS, COUNT_BITS = 3, 3, 2


def nest(folder: Path, *, cells: bool = False, changes: tuple[tuple[str, str], ...] = ()) -> Circuit:
    loops = LEVELS * (COUNT_BITS + 4 * ADDRESS_BITS)
    top = f"""
module top (
    input clk, start, step, input [{loops - 1}:0] loops, input [{4 * ADDRESS_BITS - 1}:0] bases,
    input [2:0] reduce, tail_level, output [{4 * ADDRESS_BITS - 1}:0] addresses, output first, last, short_word, ends
);
    logic [{ADDRESS_BITS - 1}:0] a, b, c, p;
    assign addresses = {{p, c, b, a}};
    engine_nest #(.LEVELS({LEVELS}), .ADDRESS_W({ADDRESS_BITS}), .COUNT_W({COUNT_BITS})) unit (
        .clk, .start, .step, .loops, .bases, .reduce, .tail_level, .a, .b, .c, .p, .first, .last, .short_word, .ends
    );
endmodule
"""
    return circuit_of(folder, top, "engine_nest", cells=cells, changes=changes)


def wrong_steps(circuit: Circuit) -> int:
    """Steps at which something is not as plain loops have it: all rounds, sums and tails, random moves, with pauses."""
    count = 1 << (LEVELS * COUNT_BITS + 2 + 3 + 2)
    every, random = np.arange(count), np.random.default_rng(5)
    rounds = [every >> (COUNT_BITS * level) & 3 for level in range(LEVELS)]
    reduce, tail = every >> 6 & 3, every >> 8 & 7
    moves = random.integers(0, 1 << ADDRESS_BITS, (LEVELS, 4, count))
    bases = random.integers(0, 1 << ADDRESS_BITS, (4, count))
    loops = np.zeros(count, np.int64)
    for level in range(LEVELS):
        low = level * (COUNT_BITS + 4 * ADDRESS_BITS)
        loops |= rounds[level] << low
        for which in range(4):
            # A loop that goes on takes back what those inside have moved.
            back = sum(rounds[inner] * moves[inner, which] for inner in range(level))
            move = (moves[level, which] - back) % (1 << ADDRESS_BITS)
            loops |= move << (low + COUNT_BITS + ADDRESS_BITS * which)
    given = {
        "loops": loops, "reduce": reduce, "tail_level": tail,
        "bases": sum(bases[which] << (ADDRESS_BITS * which) for which in range(4)),
    }  # fmt: skip
    steps = [int(each) for each in random.integers(0, 2, 150)]
    cycles = [{**given, "start": np.array(1), "step": np.array(0)}]
    cycles += [{**given, "start": np.array(0), "step": np.array(step)} for step in steps]
    wrong, at = 0, np.zeros(count, np.int64)
    total = np.prod([each + 1 for each in rounds], axis=0)
    for seen, step in zip(circuit.run(cycles, count)[1:], steps, strict=True):
        live, rest = at < total, at
        first, last, ends = (np.ones(count, bool) for _ in range(3))
        short, due = np.zeros(count, bool), bases.copy()
        for level in range(LEVELS):
            now = rest % (rounds[level] + 1)
            rest = rest // (rounds[level] + 1)
            due += now * moves[level]
            first &= (level >= reduce) | (now == 0)
            last &= (level >= reduce) | (now == rounds[level])
            short |= (tail == level) & (now == rounds[level])
            ends &= now == rounds[level]
        due = sum(due[which] % (1 << ADDRESS_BITS) << (ADDRESS_BITS * which) for which in range(4))
        for name, wanted in (
            ("addresses", due), ("first", first), ("last", last), ("short_word", short), ("ends", ends)
        ):  # fmt: skip
            wrong += int((live & (seen[name] != wanted)).sum())
        at = at + step
    assert (at >= total).all()
    return wrong


@pytest.mark.parametrize("cells", [False, pytest.param(True, marks=pytest.mark.slow("synthesises a unit"))])
def test_every_nest_of_loops(tmp_path: Path, cells: bool) -> None:
    assert not wrong_steps(nest(tmp_path, cells=cells))


@pytest.mark.parametrize("change", [("left == COUNT_W'(1)", "left == COUNT_W'(2)"), ("(&at_last[i:0])", "at_last[i]")])
def test_a_mistake_in_a_nest_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    assert wrong_steps(nest(tmp_path, changes=(change,)))


@pytest.mark.parametrize("lanes", [2, 4])
def test_every_turn_of_a_word(tmp_path: Path, lanes: int) -> None:
    log = lanes.bit_length() - 1
    top = f"""
module top (input [{2 * lanes - 1}:0] x, input [{log - 1}:0] turn, output [{2 * lanes - 1}:0] y);
    engine_turn #(.LANES({lanes}), .W(2)) unit (.in_data(x), .turn, .out_data(y));
endmodule
"""
    every = np.arange(1 << (2 * lanes + log))
    x, turn = every & ((1 << (2 * lanes)) - 1), every >> (2 * lanes)
    (found,) = circuit_of(tmp_path, top, "engine_turn").run([{"x": x, "turn": turn}], len(every))
    due = sum((x >> (2 * ((lane + turn) % lanes)) & 3) << (2 * lane) for lane in range(lanes))
    assert (found["y"] == due).all()


def data_memory(folder: Path, lanes: int, words: int, changes: tuple[tuple[str, str], ...] = ()) -> Circuit:
    wide, bits = 16 * lanes, (lanes * words - 1).bit_length()
    top = f"""
module top (
    input clk, input [{bits - 1}:0] a, b, c, input write, input [{wide - 1}:0] data,
    input [{lanes.bit_length() - 1}:0] count,
    output [{wide - 1}:0] at_a, at_b
);
    engine_data #(.LANES({lanes}), .WORDS({words}), .ADDRESS_W({bits})) unit (
        .clk, .a_address(a), .a_data(at_a), .b_address(b), .b_data(at_b), .write, .c_address(c), .c_data(data),
        .c_count(count)
    );
endmodule
"""
    return circuit_of(folder, top, "engine_turn", "engine_data", changes=changes)


def wrong_reads(circuit: Circuit, lanes: int, words: int) -> int:
    """Numbers that differ after words of all sizes were written to all places, and read from all."""
    size = lanes * words
    every = np.arange(size * (lanes + 1) * size * size)
    c, count = every % size, every // size % (lanes + 1)
    a, b = every // (size * (lanes + 1)) % size, every // (size * (lanes + 1) * size)
    random = np.random.default_rng(9)
    held = random.integers(0, 1 << 15, (size, len(every)))
    new = random.integers(0, 1 << 15, (lanes, len(every)))

    def word(numbers: Numbers) -> Numbers:
        return (numbers << (16 * np.arange(lanes))[:, None]).sum(axis=0)

    none = {"write": np.array(0)}
    cycles = [
        {"write": np.array(1), "c": np.array(at), "data": word(held[at : at + lanes]), "count": np.array(lanes)}
        for at in range(0, size, lanes)
    ]
    cycles += [{"write": np.array(1), "c": c, "data": word(new), "count": count}]
    cycles += [{**none, "c": ~c, "data": ~word(new), "count": np.array(lanes)}] * 4
    cycles += [{**none, "a": a, "b": b}, *[{**none, "a": ~a, "b": ~b}] * 3]
    for lane in range(lanes):
        place = (c + lane) % size
        for at in range(size):
            held[at] = np.where((place == at) & (lane < count), new[lane], held[at])
    found = circuit.run(cycles, len(every))[-1]
    columns = np.arange(len(every))
    return sum(
        int((found[port] >> (16 * lane) & 0xFFFF != held[(address + lane) % size, columns]).sum())
        for port, address in (("at_a", a), ("at_b", b))
        for lane in range(lanes)
    )


@pytest.mark.parametrize(("lanes", "words"), [(2, 2), (2, 4)])
def test_every_place_of_a_data_memory(tmp_path: Path, lanes: int, words: int) -> None:
    assert not wrong_reads(data_memory(tmp_path, lanes, words), lanes, words)


@pytest.mark.parametrize("change", [("(LANES - 1 - i)", "(0)"), ("= -c_address[LW-1:0]", "= c_address[LW-1:0] + 1'b1")])
def test_a_mistake_in_a_data_memory_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    assert wrong_reads(data_memory(tmp_path, 2, 2, (change,)), 2, 2)


LANE_TOP = """
module top (
    input clk, rst, array, largest, input [1:0] first_kind, second_kind, input unsigned_a, unsigned_b,
    input [17:0] zero_a, zero_b, input [31:0] x, y, input [35:0] entries, input valid, first, last, input [39:0] tree,
    output done, output [34:0] sum_0, sum_1
);
    engine_lanes #(.LANES(2), .ACC_W(35), .TREE_W(20)) unit (
        .clk, .rst, .array, .largest, .first_kind, .second_kind, .unsigned_a, .unsigned_b, .zero_a, .zero_b, .x, .y,
        .table_word(entries), .valid, .first, .last, .tree, .done, .sums({sum_1, sum_0})
    );
endmodule
"""


def wrong_sums(circuit: Circuit) -> int:
    """Sums of four terms, of all kinds of operands, that differ: numbers at random, a pause between."""
    count = 1 << 12
    every, random = np.arange(count), np.random.default_rng(11)
    given = {
        "array": every & 1, "largest": every >> 1 & 1, "first_kind": every >> 2 & 3, "second_kind": every >> 4 & 3,
        "unsigned_a": every >> 6 & 1, "unsigned_b": every >> 7 & 1,
    }  # fmt: skip
    zeros = {name: random.integers(-(1 << 15), 1 << 15, count) for name in ("zero_a", "zero_b")}
    given |= zeros
    terms = [
        {
            "x": random.integers(0, 1 << 16, (2, count)), "y": random.integers(0, 1 << 16, (2, count)),
            "entries": random.integers(-(1 << 15), 1 << 15, (2, count)),
            "tree": random.integers(-(1 << 19), 1 << 19, (2, count)),
        }
        for _ in range(4)
    ]  # fmt: skip
    bits = {"x": 16, "y": 16, "entries": 18, "tree": 20}
    starts = (3, 5, 6, 7)  # cycles of the terms
    none = np.array(0)
    cycles = [{**given, "rst": np.array(int(at < 3)), "valid": none, "first": none, "last": none} for at in range(13)]
    for at, (start, term) in enumerate(zip(starts, terms, strict=True)):
        cycles[start] |= {"valid": np.array(1), "first": np.array(int(at == 0)), "last": np.array(int(at == 3))}
        for name, numbers in term.items():
            # The array's sums come three cycles after the word.
            cycles[start + 3 * (name == "tree")][name] = sum(
                (each & ((1 << bits[name]) - 1)) << (bits[name] * lane) for lane, each in enumerate(numbers)
            )  # fmt: skip
    seen = circuit.run(cycles, count)
    array = given["array"] == 1
    wrong = int((np.array([each["done"] for each in seen[3:]]).sum(axis=0) != 1).sum())
    wrong += int((np.where(array, seen[11]["done"], seen[10]["done"]) != 1).sum())
    for lane in range(2):
        total = np.zeros(count, np.int64)
        for at, term in enumerate(terms):
            own, first = (np.where(given["unsigned_a"] == 1, n, signed(n, 16)) for n in (term["x"][lane], term["x"][0]))
            other = np.where(given["unsigned_b"] == 1, term["y"][lane], signed(term["y"][lane], 16))
            left = np.select([given["first_kind"] == 0, given["first_kind"] == 1], [own, first], 0) - zeros["zero_a"]
            left = np.where(given["first_kind"] >= 2, 1, left)
            kinds = [given["second_kind"] == kind for kind in range(4)]
            right = np.select(kinds, [1, 0, other - zeros["zero_b"], term["entries"][lane]], 0)
            each = np.where(array, term["tree"][lane], np.where(given["largest"] == 1, left, left * right))
            total = each if at == 0 else np.where(given["largest"] == 1, np.maximum(total, each), total + each)
        got = np.where(array, seen[11][f"sum_{lane}"], seen[10][f"sum_{lane}"])
        wrong += int((signed(got, 35) != signed(total & ((1 << 35) - 1), 35)).sum())
    return wrong


def test_sums_of_all_kinds_of_operands(tmp_path: Path) -> None:
    assert not wrong_sums(circuit_of(tmp_path, LANE_TOP, "engine_lanes"))


@pytest.mark.parametrize("change", [("term > acc", "term < acc"), ("!unsigned_b && ", ""), ("lasts[1]", "lasts[0]")])
def test_a_mistake_in_the_lanes_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    assert wrong_sums(circuit_of(tmp_path, LANE_TOP, "engine_lanes", changes=(change,)))
