"""Units that compute, at small widths: every number that can come in, against the law or plain whole numbers.

They have no loops: what leaves depends on the inputs of a few cycles before alone, so all inputs from any state are all
there is. Wider units differ in widths alone; tests of whole networks draw from those.
"""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.deploy.arithmetic.requantising import requantise
from stoker.deploy.ir.operations import Requantiser
from tests.deploy.rtl.proofs.circuits import circuit_of, needs_yosys

pytestmark = [pytest.mark.integration, needs_yosys]


def signed(numbers: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    return numbers - ((numbers >> (bits - 1) & 1) << bits)


def law_of(acc: NDArray[np.int64], factor: int | None, shift: int, zero: int, low: int, high: int) -> NDArray[np.int32]:
    by = Requantiser(multiplier=None if factor is None else "m", shift=shift, zero_point=zero, low=low, high=high)
    return requantise(acc, by, {"m": np.array(factor or 0)})


def requantiser(acc_bits: int, bits: int, factor: int | None, shift: int, zero: int, low: int, high: int) -> str:
    """SystemVerilog around one; its factor is in a file."""
    return f"""
module top (input clk, rst, input [{acc_bits - 1}:0] acc, input valid, output [{bits - 1}:0] result, output done);
    requantise #(
        .LANES(1), .ACC_W({acc_bits}), .OUT_W({bits}), .SHIFT({shift}), .ZERO({zero}), .LOW({low}), .HIGH({high}),
        .MULTIPLIERS({int(factor is not None)}), .FILE("factors.hex")
    ) unit (.clk, .rst, .in_data(acc), .in_valid(valid), .out_data(result), .out_valid(done));
endmodule
"""


@pytest.mark.parametrize(
    ("acc_bits", "bits", "factor", "shift", "zero", "low", "high"),
    [
        (8, 4, None, 0, 0, -8, 7),
        (8, 4, None, 1, -3, -8, 7),
        (10, 4, None, 5, 3, 3, 7),
        (12, 8, 1, 3, 0, -128, 127),
        (12, 4, 3, 7, 2, -8, 7),
        (14, 8, 21845, 18, -100, -128, 127),
        (17, 8, 40961, 25, 5, 5, 127),
        (18, 8, 65535, 26, -128, -128, 127),  # from here on an accumulator is split
        (19, 8, 32769, 26, 17, -128, 127),
        (20, 4, 9, 14, 0, -8, 7),
        (10, 8, 0, 46, 1, -128, 127),
    ],
)
def test_every_accumulator_is_requantised_by_the_law(
    tmp_path: Path, acc_bits: int, bits: int, factor: int | None, shift: int, zero: int, low: int, high: int
) -> None:  # fmt: skip
    top = requantiser(acc_bits, bits, factor, shift, zero, low, high)
    circuit = circuit_of(tmp_path, top, "requantise", files={"factors.hex": f"{factor or 0:04x}\n"})
    every = np.arange(1 << acc_bits)
    none = np.array(0)
    cycles = [{"acc": every, "valid": np.array(1)}] + [{"acc": ~every, "valid": none}] * 5
    found = circuit.run(cycles, len(every))[5]
    assert found["done"].all()
    law = law_of(signed(every, acc_bits), factor, shift, zero, low, high)
    assert (signed(found["result"], bits) == law).all()
    assert factor == 0 or len(np.unique(law)) > 2


@pytest.mark.parametrize("change", [("(WIDE+1)'(1)", "(WIDE+1)'(0)"), ("WIDE'(LOW - ZERO)", "WIDE'(LOW)")])
def test_a_mistake_in_it_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    """Rounding down, and an end without the zero point."""
    top = """
module top (input clk, rst, input [9:0] acc, output [3:0] result);
    logic done;
    requantise #(.LANES(1), .ACC_W(10), .OUT_W(4), .SHIFT(5), .ZERO(3), .LOW(2), .HIGH(7)) unit (
        .clk, .rst, .in_data(acc), .in_valid(1'b1), .out_data(result), .out_valid(done)
    );
endmodule
"""
    every = np.arange(1 << 10)
    found = circuit_of(tmp_path, top, "requantise", changes=[change]).run([{"acc": every}] * 6, 1 << 10)[5]
    assert (signed(found["result"], 4) != law_of(signed(every, 10), None, 5, 3, 2, 7)).any()


def test_every_number_times_a_constant(tmp_path: Path) -> None:
    factors = (-32767, -1000, -5, -1, 0, 1, 3, 7, 23171, 32767, 65535)
    ends = ((1, -7), (0, 63))
    units = "".join(
        f"scaled #(.IN_W(6), .IN_SIGNED({sign}), .OUT_W(24), .BY({by}), .ZERO({zero})) by{at}_{sign} "
        f"(.clk, .x, .y(y[{24 * (at + sign * len(factors))} +: 24]));\n"
        for at, by in enumerate(factors)
        for sign, zero in ends
    )
    top = f"module top (input clk, input [5:0] x, output [{48 * len(factors) - 1}:0] y);\n{units}endmodule\n"
    every = np.arange(1 << 6)
    circuit = circuit_of(tmp_path, top, "scaled")
    found = circuit.bits([{"x": every}] + [{"x": ~every}] * 3, 1 << 6)[3]["y"]
    for at, by in enumerate(factors):
        for sign, zero in ends:
            low = 24 * (at + sign * len(factors))
            result = (found[low : low + 24].astype(np.int64) << np.arange(24)[:, None]).sum(axis=0)
            numbers = signed(every, 6) if sign else every
            assert (signed(result, 24) == by * (numbers - zero)).all()


@pytest.mark.slow("four million cases, of which each bit is computed")
def test_every_product_of_an_updatable_factor(tmp_path: Path) -> None:
    top = """
module top (input clk, input [1:0] x, input [2:0] zero, input [16:0] by, output [20:0] y);
    scaled_by #(.IN_W(2), .IN_SIGNED(1), .OUT_W(21)) unit (.clk, .x, .zero, .by, .y);
endmodule
"""
    every = np.arange(1 << 22)
    x, zero, by = every & 3, every >> 2 & 7, every >> 5
    cycles = [{"x": x, "zero": zero, "by": ~by}, {"x": ~x, "zero": ~zero, "by": by}, {}, {}]
    found = circuit_of(tmp_path, top, "scaled_by").run(cycles, len(every))[3]
    assert (signed(found["y"], 21) == (signed(x, 2) - signed(zero, 3)) * signed(by, 17)).all()


@pytest.mark.parametrize(("count", "bits"), [(1, 5), (2, 5), (3, 4), (5, 3), (7, 2)])
def test_every_sum_of_a_tree(tmp_path: Path, count: int, bits: int) -> None:
    levels = (count - 1).bit_length()
    out = bits + levels
    top = f"""
module top (input clk, input [{count * bits - 1}:0] x, output [{out - 1}:0] y);
    adder_tree #(.COUNT({count}), .IN_W({bits}), .OUT_W({out}), .LEVELS({levels})) unit (.clk, .in_data(x), .total(y));
endmodule
"""
    every = np.arange(1 << (count * bits))
    found = circuit_of(tmp_path, top, "adder_tree").run([{"x": every}] + [{"x": ~every}] * levels, len(every))[levels]
    parts = [signed(every >> (bits * at) & ((1 << bits) - 1), bits) for at in range(count)]
    assert (signed(found["y"], out) == sum(parts)).all()


@pytest.mark.parametrize(("pe", "own", "sign"), [(1, 0, 1), (1, 0, 0), (2, 0, 1), (2, 1, 0)])
def test_every_sum_of_products(tmp_path: Path, pe: int, own: int, sign: int) -> None:
    """All numbers in two beats, all weights of a beat, each sum with its bias, one right after another."""
    bits = weight_bits = 2
    lanes, acc_bits, sums = 2, 9, 16
    each = 1 if own else lanes
    words = 2 * sums
    weights = np.arange(words)[:, None] * 5 + np.arange(pe)[None, :] * 3
    packed = weights % (1 << (weight_bits * each))  # of a PE in a beat: all there are
    biases = (np.arange(sums)[:, None] * 37 + np.arange(pe)[None, :] * 11) % 512
    files = {
        "weights.hex": "".join(f"{_word(row, weight_bits * each):x}\n" for row in packed),
        "biases.hex": "".join(f"{_word(row, acc_bits):x}\n" for row in biases),
    }
    top = f"""
module top (
    input clk, rst, ahead, input [{lanes * bits - 1}:0] x, input valid, first, last, output [{pe * acc_bits - 1}:0] y,
    output done
);
    mac_array #(
        .PE({pe}), .TAPS(1), .LANES({lanes}), .OWN({own}), .IN_W({bits}), .IN_SIGNED({sign}),
        .WEIGHT_W({weight_bits}), .ACC_W({acc_bits}), .WORDS({words}), .SUMS({sums}), .WEIGHTS("weights.hex"),
        .BIASES("biases.hex")
    ) unit (
        .clk, .rst, .ahead, .in_data(x), .in_valid(valid), .in_first(first), .in_last(last), .out_data(y),
        .out_valid(done)
    );
endmodule
"""
    circuit = circuit_of(tmp_path, top, "adder_tree", "mac_array", files=files)
    every = np.arange(1 << (2 * lanes * bits))
    beat = [every & 15, every >> 4]
    one, none = np.array(1), np.array(0)
    cycles: list[dict[str, NDArray[np.int64]]] = [{"rst": one, "valid": none}] * 2
    for at in range(words + 2 + 4):
        live = 2 <= at < words + 2
        cycles.append(
            {
                "ahead": np.array(int(at < words)), "x": beat[at % 2], "valid": np.array(int(live)),
                "first": np.array(int(live and at % 2 == 0)), "last": np.array(int(live and at % 2 == 1)), "rst": none,
            }
        )  # fmt: skip
    results = [each["y"] for each in circuit.run(cycles, len(every))[3:] if each["done"].all()]
    assert len(results) == sums
    for at, result in enumerate(results):
        for p in range(pe):
            due = np.full(len(every), int(signed(biases[at, p], acc_bits)))
            for step in range(2):
                for lane in range(each):
                    number = beat[step] >> (bits * (p if own else lane)) & 3
                    weight = packed[2 * at + step, p] >> (weight_bits * lane) & 3
                    due += (signed(number, bits) if sign else number) * int(signed(weight, weight_bits))
            assert (signed(result >> (acc_bits * p) & 511, acc_bits) == signed(due & 511, acc_bits)).all()


def _word(numbers: NDArray[np.int64], bits: int) -> int:
    return sum(int(number) << (bits * at) for at, number in enumerate(numbers))
