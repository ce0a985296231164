"""Requantisers by thresholds at small widths: every sum of every channel, with pauses, against the law."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.deploy.arithmetic.requantising import requantise, thresholds_of
from stoker.deploy.ir.operations import Requantiser
from stoker.deploy.ir.values import bits_of, type_range
from stoker.deploy.rtl.memories import threshold_words
from stoker.deploy.tools.synthesis import YOSYS
from stoker.deploy.tools.wasm import command_of, prepare
from tests.deploy.rtl.proofs.circuits import Circuit, circuit_of, needs_yosys, unit_text

pytestmark = [pytest.mark.integration, needs_yosys]


class ComparedUnit:
    """A requantiser by thresholds, with one multiplier or one a channel.

    Args:
        acc_bits: of an accumulator.
        bits: of a result.
        by: the law but for its multipliers.
        factors: multipliers, ``lanes`` of them in a word.
        lanes: of a word.
        ends: least and largest sum; all that the accumulator holds by default.
    """

    def __init__(
        self, acc_bits: int, bits: int, by: Requantiser, factors: list[int], lanes: int = 1,
        ends: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.acc_bits, self.bits, self.by, self.factors, self.lanes = acc_bits, bits, by, factors, lanes
        self.ends = ends or type_range(acc_bits, True)
        self.steps = (by.high - by.low).bit_length()

    def circuit(self, folder: Path, *, cells: bool = False, changes: tuple[tuple[str, str], ...] = ()) -> Circuit:
        low, high = self.ends
        constants = {"m": np.array(self.factors)}
        rows = np.array(thresholds_of(self.by, constants, self.ends), np.int64)
        least, most = int(rows.min()), high + 1 if (self.by.high - self.by.low + 1).bit_count() > 1 else int(rows.max())
        width = max(1, bits_of(least, most) - (least >= 0))
        words = threshold_words(rows, self.lanes, width, high + 1)
        top = f"""
module top (
    input clk, rst, input [{self.lanes * self.acc_bits - 1}:0] acc, input valid,
    output [{self.lanes * self.bits - 1}:0] result, output done
);
    thresholds #(
        .LANES({self.lanes}), .ACC_W({self.acc_bits}), .OUT_W({self.bits}), .SUM_W({bits_of(low, high + 1)}),
        .W({width}), .SIGNED({int(least < 0)}), .LOW({self.by.low}), .HIGH({self.by.high}),
        .WORDS({max(1, len(self.factors) // self.lanes)}), .FILE("t")
    ) unit (.clk, .rst, .in_data(acc), .in_valid(valid), .out_data(result), .out_valid(done));
endmodule
"""
        files = {f"t_{name}.hex": memory.text() for name, memory in words.items()}
        return circuit_of(folder, top, "thresholds", files=files, cells=cells, changes=changes)

    def differing(self, circuit: Circuit) -> int:
        """Results that are not the law's, of all sums to each channel, one right after another and with pauses."""
        low, high = self.ends
        sums = np.arange(low, high + 1)
        words = 2 * max(1, len(self.factors) // self.lanes) + 1
        sent: list[list[NDArray[np.int64]]] = [
            [np.roll(sums, 5 * word + 3 * lane) for lane in range(self.lanes)] for word in range(words)
        ]
        none = np.array(0)
        cycles: list[dict[str, NDArray[np.int64]]] = [{"rst": np.array(1), "valid": none}] * 2
        for at, word in enumerate(sent):
            mask = (1 << self.acc_bits) - 1
            packed = sum((each & mask) << (self.acc_bits * lane) for lane, each in enumerate(word))
            cycles.append({"rst": none, "valid": np.array(1), "acc": np.asarray(packed)})
            cycles += [{"rst": none, "valid": none, "acc": ~cycles[-1]["acc"]}] * (at % 3)
        cycles += [{"rst": none, "valid": none, "acc": sums}] * self.steps
        results = [each["result"] for each in circuit.run(cycles, len(sums))[2:] if each["done"].any()]
        assert len(results) == words
        found, seen = 0, set[int]()
        for at, (word, result) in enumerate(zip(sent, results, strict=True)):
            for lane, each in enumerate(word):
                factor = self.factors[(at * self.lanes + lane) % len(self.factors)]
                law = requantise(each, self.by, {"m": np.array(factor)})
                got = result >> (self.bits * lane) & ((1 << self.bits) - 1)
                found += int((got != law & ((1 << self.bits) - 1)).sum())
                seen |= {*law.tolist()}
        assert len(seen) > 1
        return found


def law(shift: int, zero: int, low: int, high: int) -> Requantiser:
    return Requantiser(multiplier="m", shift=shift, zero_point=zero, low=low, high=high)


UNITS = {
    "four bits, a channel": ComparedUnit(10, 4, law(12, 0, 0, 15), [100]),
    "a sign, three channels": ComparedUnit(11, 4, law(16, -3, -8, 7), [301, 65535, 0]),
    "no power of two, with a rectifier": ComparedUnit(9, 4, law(13, 2, 2, 12), [500, 200]),
    "one bit": ComparedUnit(8, 1, law(9, 0, 0, 1), [3]),
    "two lanes of two channels": ComparedUnit(9, 3, law(14, 1, -4, 3), [600, 90, 77, 1000], lanes=2),
    "one multiplier for both lanes": ComparedUnit(8, 4, law(10, 0, -8, 7), [99], lanes=2),
    "no shift": ComparedUnit(8, 4, law(0, 0, -8, 7), [1, 2]),
    "sums of fewer bits than the accumulator": ComparedUnit(12, 4, law(10, 0, 0, 15), [80, 300], ends=(-100, 63)),
    "eight bits": ComparedUnit(12, 8, law(15, -20, -128, 127), [2000, 4001]),
}


@pytest.mark.parametrize("name", UNITS)
def test_every_sum_is_requantised_by_the_law(tmp_path: Path, name: str) -> None:
    unit = UNITS[name]
    assert unit.differing(unit.circuit(tmp_path)) == 0


@pytest.mark.parametrize("change", [("sum >= least", "sum > least"), ("AW'(WORDS - 1)", "AW'(WORDS)")])
def test_a_mistake_in_it_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    """Thresholds that are not reached, and a channel too many."""
    unit = UNITS["a sign, three channels"]
    assert unit.differing(unit.circuit(tmp_path, changes=(change,))) > 0


@pytest.mark.slow("synthesises a unit")
@pytest.mark.parametrize("name", ["a sign, three channels", "two lanes of two channels"])
def test_its_cells_do_the_same(tmp_path: Path, name: str) -> None:
    unit = UNITS[name]
    assert unit.differing(unit.circuit(tmp_path, cells=True)) == 0


def test_lanes_beyond_a_thousand_find_their_memories(tmp_path: Path) -> None:
    """The last two of 1,001 by their names alone; yosys refuses a memory whose file is not there."""
    prepare(YOSYS)
    words = threshold_words(np.array([[1]]), 1001, 1, 1)
    assert {"0_0000", "0_0999", "0_1000"} < {*words}
    for name, memory in words.items():
        (tmp_path / f"t_{name}.hex").write_text(memory.text())
    (tmp_path / "thresholds.sv").write_text(unit_text("thresholds").replace("48 + i", "48 + (i + 999)"))
    given = {"LANES": 2, "ACC_W": 2, "OUT_W": 1, "SUM_W": 2, "W": 1, "SIGNED": 0, "LOW": 0, "HIGH": 1, "WORDS": 1}
    parameters = "".join(f".{name}({value}), " for name, value in given.items())
    (tmp_path / "top.sv").write_text(f'module top; thresholds #({parameters}.FILE("t")) unit (); endmodule\n')
    script = "read_verilog -sv -defer thresholds.sv top.sv; hierarchy -top top"
    elaborated = [*command_of(YOSYS), "-q", "-p", script]
    subprocess.run(elaborated, cwd=tmp_path, check=True, timeout=300)
    (tmp_path / "t_0_1000.hex").unlink()
    found = subprocess.run(elaborated, cwd=tmp_path, check=False, timeout=300, capture_output=True, text=True)
    assert "t_0_1000.hex" in found.stdout + found.stderr
