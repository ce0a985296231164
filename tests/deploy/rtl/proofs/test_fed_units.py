"""Pools, lookups and tables at small sizes: all numbers of several words, with pauses on both sides, against the law.

Their control does not look at numbers, so that all cases go through in step.
"""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.deploy.rtl.geometry import Windows
from tests.deploy.rtl.proofs.circuits import WrongError, circuit_of, needs_yosys
from tests.deploy.rtl.proofs.test_arithmetic import law_of, signed
from tests.deploy.rtl.proofs.test_streams import _QUEUE, _SENDER

pytestmark = [pytest.mark.integration, needs_yosys]

COMMON = ("counter", "credits", "fifo", "output_fifo")
Case = NDArray[np.int64]
_LONG = 600
"""Cycles in which all words go through any of them; how many it takes is seen on a few cases."""
_AFTER = 12
"""Cycles in which a word too many would still come."""


class FedUnit:
    """A unit between a sender of all numbers and a reader that keeps what comes.

    Args:
        module: its name.
        parameters: of it.
        words: sent, in all.
        bits: of a word.
        results: due.
        result_bits: of one.
        uses: units that it uses.
        files: of memories.
        law: from words (words, cases) to results (results, cases), both unsigned.
    """

    def __init__(
        self, module: str, parameters: Mapping[str, object], *, words: int, bits: int, results: int, result_bits: int,
        uses: tuple[str, ...], files: Mapping[str, str], law: Callable[[Case], Case],
    ) -> None:  # fmt: skip
        self.words, self.bits, self.results, self.result_bits = words, bits, results, result_bits
        self.units, self.files, self.law = (*COMMON, *uses, module), files, law
        given = ", ".join(f".{name}({value})" for name, value in parameters.items())
        self.top = f"""
module top (
    input clk, rst, offer, out_ready, input [{words * bits - 1}:0] x, output [{results * result_bits - 1}:0] y,
    output logic [7:0] count
);
    logic [7:0] at;
    logic held, in_valid, in_ready, out_valid;
    logic [{bits - 1}:0] in_data;
    logic [{result_bits - 1}:0] out_data;
    logic [{result_bits - 1}:0] results [{results}];
    assign in_data = (at < {words}) ? x[at*{bits} +: {bits}] : '0;
    assign in_valid = !rst && at < {words} && (held || offer);
    {module} #({given}) unit (.clk, .rst, .in_data, .in_valid, .in_ready, .out_data, .out_valid, .out_ready);
    always_ff @(posedge clk) begin
        held <= in_valid && !in_ready;
        if (rst) begin
            at <= '0;
            count <= '0;
        end else begin
            at <= at + 8'(in_valid && in_ready);
            count <= count + 8'(out_valid && out_ready);
            if (out_valid && out_ready && count < {results}) results[count] <= out_data;
        end
    end
    generate
        for (genvar i = 0; i < {results}; i++) begin : each
            assign y[i*{result_bits} +: {result_bits}] = results[i];
        end
    endgenerate
endmodule
"""

    def check(
        self, folder: Path, *, pauses: float, cells: bool = False, changes: tuple[tuple[str, str], ...] = ()
    ) -> None:
        circuit = circuit_of(folder, self.top, *self.units, files=self.files, cells=cells, changes=changes)
        cases = np.arange(1 << (self.words * self.bits))
        random = np.random.default_rng(7)
        paused = random.random((_LONG, 2)) >= pauses
        cycles: list[dict[str, Case]] = [{"rst": np.array(1)}] * 3
        cycles += [{"rst": np.array(0), "offer": offer, "out_ready": ready} for offer, ready in paused.astype(int)]
        counts = [each["count"][:, 0] for each in circuit.bits(cycles, 8)]
        ended = [at for at, bits in enumerate(counts) if at > 3 and int(bits @ (1 << np.arange(8))) == self.results]
        assert ended, "it does not end"
        whole = [{**each, "x": cases} for each in cycles[: ended[0] + _AFTER]]
        (last,) = circuit.bits(whole, len(cases), skip=len(whole) - 1)
        assert (last["count"] == np.array([self.results >> at & 1 for at in range(8)])[:, None]).all()
        sent = np.stack([cases >> (self.bits * at) & ((1 << self.bits) - 1) for at in range(self.words)])
        got = last["y"].reshape(self.results, self.result_bits, -1).astype(np.int64)
        got = (got << np.arange(self.result_bits)[None, :, None]).sum(axis=1)
        wanted = self.law(sent) & ((1 << self.result_bits) - 1)
        assert (got == wanted).all()
        assert len(np.unique(wanted)) > 2


def pooled(windows: Windows, bits: int, *, sign: bool, largest: bool, images: int, zero: int = 0) -> FedUnit:
    """Images one after another, of one channel; sums are halved, with a zero point and ends."""
    height, width = windows.size
    low = -(1 << (bits - 1)) if sign else 0
    acc_bits = bits if largest else bits + 4
    ends = (-3, 2)
    parameters = {
        "LARGEST": int(largest), "IN_W": bits, "IN_SIGNED": int(sign), "OUT_W": bits,
        "ACC_W": bits if largest and sign else acc_bits + int(largest), "HEIGHT": height, "WIDTH": width,
        "KERNEL_Y": windows.kernel[0], "KERNEL_X": windows.kernel[1], "STRIDE_Y": windows.stride[0],
        "STRIDE_X": windows.stride[1], "DILATION_Y": windows.dilation[0], "DILATION_X": windows.dilation[1],
        "TOP": windows.padding[0], "LEFT": windows.padding[2], "OUT_Y": windows.out[0], "OUT_X": windows.out[1],
        "ROWS": windows.ring_rows(), "PAD": low if largest else zero, "IN_ZERO": zero, "SHIFT": 1, "ZERO": 1,
        "LOW": ends[0], "HIGH": ends[1],
    }  # fmt: skip

    def law(sent: Case) -> Case:
        numbers = (signed(sent, bits) if sign else sent).reshape(images, height, width, -1)
        found: list[Case] = []
        for image, row, column in itertools.product(range(images), *map(range, windows.out)):
            inside: list[Case] = []
            for down, right in itertools.product(*map(range, windows.kernel)):
                y = row * windows.stride[0] - windows.padding[0] + down * windows.dilation[0]
                x = column * windows.stride[1] - windows.padding[2] + right * windows.dilation[1]
                if 0 <= y < height and 0 <= x < width:
                    inside.append(numbers[image, y, x])
            if largest:
                found.append(np.max(inside, axis=0))
            else:
                found.append(law_of(np.sum(inside, axis=0) - zero * len(inside), None, 1, 1, *ends).astype(np.int64))
        return np.stack(found)

    count = height * width
    return FedUnit(
        "pool_unit", parameters, words=images * count, bits=bits, results=images * windows.out[0] * windows.out[1],
        result_bits=bits, uses=("requantise", "window"), files={}, law=law,
    )  # fmt: skip


def looked_up(count: int, rows: int, words: int, *, summed: bool, sums: int) -> FedUnit:
    """Sums of rows one after another, or rows as they are, of entries that are all different where they can be."""
    entry_bits, index_bits = 3, (rows - 1).bit_length()
    wide = 1 << (words - 1).bit_length() if words > 1 else 2
    table = np.array([[(5 * row + 3 * word + 1) % 8 for word in range(wide)] for row in range(rows)])
    ends = (-5, 4)
    windows = Windows(size=(1, count), channels=1, kernel=(1, count))
    parameters = {
        "IN_W": index_bits, "COUNT": count, "ROWS_OF_TABLE": rows, "WORDS": words, "SUMMED": int(summed),
        "ENTRY_W": entry_bits, "ACC_W": 6 if summed else entry_bits, "OUT_W": 4 if summed else entry_bits, "SHIFT": 1,
        "ZERO": 1, "LOW": ends[0], "HIGH": ends[1], "ROWS": windows.ring_rows(), "ENTRIES": '"entries.hex"',
    }  # fmt: skip

    def law(sent: Case) -> Case:
        groups = sent.reshape(sums, count, -1)
        found: list[Case] = []
        for each in groups:
            for word in range(words):
                total = signed(table[:, word], entry_bits)[each].sum(axis=0)
                found.append(law_of(total, None, 1, 1, *ends).astype(np.int64) if summed else total)
        return np.stack(found)

    return FedUnit(
        "lookup_unit", parameters, words=sums * count, bits=index_bits, results=sums * words,
        result_bits=4 if summed else entry_bits, uses=("requantise", "window"), law=law,
        files={"entries.hex": "".join(f"{entry:x}\n" for entry in table.ravel())},
    )  # fmt: skip


def tabled(bits: int, lanes: int, words: int, *, sign: bool) -> FedUnit:
    """Words of several numbers, and a table of all different entries."""
    entries = np.random.default_rng(3).permutation(1 << bits)

    def law(sent: Case) -> Case:
        found = np.zeros_like(sent)
        for lane in range(lanes):
            number = sent >> (bits * lane) & ((1 << bits) - 1)
            at = number ^ (1 << (bits - 1)) if sign else number  # entry 0 is the least number's
            found |= entries[at] << (bits * lane)
        return found

    return FedUnit(
        "table_unit",
        {"LANES": lanes, "IN_W": bits, "IN_SIGNED": int(sign), "OUT_W": bits, "DEPTH": 4, "ENTRIES": '"entries.hex"'},
        words=words, bits=lanes * bits, results=words, result_bits=lanes * bits, uses=(), law=law,
        files={"entries.hex": "".join(f"{entry:x}\n" for entry in entries)},
    )  # fmt: skip


OVERLAPPING = Windows(size=(2, 2), channels=1, kernel=(2, 2), padding=(1, 0, 1, 0))
APART = Windows(size=(2, 2), channels=1, kernel=(2, 2), stride=(2, 2))
UNITS: dict[str, Callable[[], FedUnit]] = {
    "largest, signed": lambda: pooled(OVERLAPPING, 3, sign=True, largest=True, images=1),
    "largest, unsigned": lambda: pooled(APART, 2, sign=False, largest=True, images=2),
    "sums, signed": lambda: pooled(OVERLAPPING, 3, sign=True, largest=False, images=1, zero=-2),
    "sums, unsigned": lambda: pooled(APART, 2, sign=False, largest=False, images=2, zero=1),
    "rows": lambda: looked_up(1, 8, 2, summed=False, sums=4),
    "sums of rows": lambda: looked_up(2, 4, 2, summed=True, sums=3),
    "sums of three rows": lambda: looked_up(3, 4, 1, summed=True, sums=2),
    "a table, signed": lambda: tabled(4, 1, 3, sign=True),
    "a table, unsigned": lambda: tabled(2, 2, 3, sign=False),
}


@pytest.mark.parametrize("pauses", [0.0, 0.4])
@pytest.mark.parametrize("name", UNITS)
def test_all_numbers_are_the_laws(tmp_path: Path, name: str, pauses: float) -> None:
    UNITS[name]().check(tmp_path, pauses=pauses)


@pytest.mark.slow("synthesises a unit")
@pytest.mark.parametrize("name", ["largest, signed", "sums, unsigned", "rows", "sums of rows", "a table, signed"])
def test_cells_give_the_laws_numbers(tmp_path: Path, name: str) -> None:
    UNITS[name]().check(tmp_path, pauses=0.3, cells=True)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("largest, signed", ("ACC_W'(x) > total", "ACC_W'(x) < total")),
        ("largest, signed", ("tap_first ||", "")),
        ("sums, signed", ("- ACC_W'(IN_ZERO)", "")),
        ("rows", ("word == WORD_W'(WORDS - 1)", "1'b1")),
        ("sums of rows", ("first[1] ? '0 : total", "total")),
        ("a table, signed", ("(IN_SIGNED != 0) ? IN_W'(1 << (IN_W - 1)) : '0", "'0")),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, name: str, change: tuple[str, str]) -> None:
    with pytest.raises(AssertionError):
        UNITS[name]().check(tmp_path, pauses=0.0, changes=(change,))


TABLE = f"""
module top (input clk, rst, offer, d, out_ready, output full, empty, bad);
    localparam int MOST = 3;
    localparam int PATIENCE = 3;
    logic in_ready, out_data, out_valid, wrong;
    {_SENDER}{_QUEUE}
    table_unit #(.LANES(1), .IN_W(1), .IN_SIGNED(1), .OUT_W(1), .DEPTH(MOST), .ENTRIES("entries.hex")) unit (
        .clk, .rst, .in_data(data), .in_valid(valid), .in_ready, .out_data, .out_valid, .out_ready
    );
    assign wrong = 1'b0;
endmodule
"""
"""A signed number of one bit is the other of the entries, which are 1 and 0: words leave as they came."""


def test_a_table_in_all_its_states(tmp_path: Path) -> None:
    files = {"entries.hex": "1\n0\n"}
    found = circuit_of(tmp_path, TABLE, *COMMON, "table_unit", files=files).explore()
    assert {"full", "empty"} <= found.seen
    assert found.states > 50
    wrong = circuit_of(
        tmp_path, TABLE, *COMMON, "table_unit", files=files, changes=[("free >= CW'(TAKE)", "1'b1")]
    )  # fmt: skip
    with pytest.raises(WrongError):
        wrong.explore()
