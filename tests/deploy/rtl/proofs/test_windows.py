"""The line buffer at small sizes: in every state that it can ever reach, whatever both sides' pauses, over all images.

Words are numbered within an image. What leaves must be the numbers of each window's taps, in the order in which a
folded array uses them, again and again.
"""

import itertools
from pathlib import Path

import pytest

from stoker.deploy.rtl.geometry import Windows
from tests.deploy.rtl.proofs.circuits import WrongError, circuit_of, needs_yosys

pytestmark = [pytest.mark.integration, needs_yosys]

PATIENCE = 9
"""Cycles in which a word is there and work has room, and still nothing moves: rows are handed over, reads take four."""


def beats(windows: Windows, groups: int, folds: int, taps: int) -> list[tuple[list[int | None], bool, bool]]:
    """Beats of an image: numbers of words (None: padding), whether a sum begins and whether it ends."""
    height, width = windows.size
    words = windows.channels
    each = words // groups
    step_x = min(taps, windows.kernel[1])
    step_y = taps // step_x
    found: list[tuple[list[int | None], bool, bool]] = []
    for row, column, group, _ in itertools.product(*map(range, (*windows.out, groups, folds))):
        places = [
            (top, left, word)
            for top in range(0, windows.kernel[0], step_y)
            for left in range(0, windows.kernel[1], step_x)
            for word in range(each)
        ]
        for at, (top, left, word) in enumerate(places):
            numbers: list[int | None] = []
            for down, right in itertools.product(range(step_y), range(step_x)):
                y = row * windows.stride[0] - windows.padding[0] + (top + down) * windows.dilation[0]
                x = column * windows.stride[1] - windows.padding[2] + (left + right) * windows.dilation[1]
                inside = 0 <= y < height and 0 <= x < width
                numbers.append((y * width + x) * words + group * each + word if inside else None)
            found.append((numbers, at == 0, at == len(places) - 1))
    return found


def watched(windows: Windows, groups: int = 1, folds: int = 1, taps: int = 1) -> str:
    """The unit between a sender of numbered words and a reader that knows all beats of an image."""
    height, width = windows.size
    count = height * width * windows.channels
    bits = count.bit_length()
    pad = (1 << bits) - 1
    due = beats(windows, groups, folds, taps)
    each = taps * bits + 2
    table = 0
    for at, (numbers, first, last) in enumerate(due):
        data = sum((pad if number is None else number) << (bits * tap) for tap, number in enumerate(numbers))
        table |= (data | first << (taps * bits) | last << (taps * bits + 1)) << (at * each)
    parameters = {
        "LANES": 1, "W": bits, "WORDS": windows.channels, "HEIGHT": height, "WIDTH": width,
        "KERNEL_Y": windows.kernel[0], "KERNEL_X": windows.kernel[1], "STRIDE_Y": windows.stride[0],
        "STRIDE_X": windows.stride[1], "DILATION_Y": windows.dilation[0], "DILATION_X": windows.dilation[1],
        "TOP": windows.padding[0], "LEFT": windows.padding[2], "OUT_Y": windows.out[0], "OUT_X": windows.out[1],
        "GROUPS": groups, "FOLDS": folds, "TAPS": taps, "PAD": pad, "ROWS": windows.ring_rows(),
    }  # fmt: skip
    given = ", ".join(f".{name}({value})" for name, value in parameters.items())
    return f"""
module top (input clk, rst, in_valid, room, output full, bad);
    localparam int COUNT = {len(due)};
    localparam int EACH = {each};
    localparam logic [COUNT*EACH-1:0] DUE = {len(due) * each}'h{table:x};
    logic in_ready, take, ahead, out_valid, out_first, out_last;
    logic [{bits - 1}:0] word;
    logic [EACH-3:0] out_data;
    logic [{max(1, (len(due) - 1).bit_length()) - 1}:0] beat;
    logic [3:0] taken;
    logic [1:0] before;
    logic [3:0] idle;
    window #({given}) unit (
        .clk, .rst, .in_data(word), .in_valid, .in_ready, .room, .take, .ahead, .out_data, .out_valid, .out_first,
        .out_last
    );
    always_ff @(posedge clk) begin
        if (rst) begin
            word <= '0;
            beat <= '0;
            taken <= '0;
            before <= '0;
            idle <= '0;
        end else begin
            if (in_valid && in_ready) word <= (word == {count - 1}) ? '0 : word + 1'b1;
            if (out_valid) beat <= (beat == {len(due) - 1}) ? '0 : beat + 1'b1;
            taken <= {{taken[2:0], take}};
            before <= {{before[0], ahead}};
            idle <= (!in_valid || !room || in_ready || out_valid) ? '0 : idle + 4'(idle != '1);
        end
    end
    assign full = in_valid && !in_ready;
    // Work is told of when its last beat is on its way, and the weights' address two cycles before each beat.
    assign bad = !rst && (
        (out_valid && {{out_last, out_first, out_data}} != DUE[beat*EACH +: EACH]) || before[1] != out_valid ||
        taken[3] != (out_valid && out_last) || idle > 4'd{PATIENCE}
    );
endmodule
"""


CASES = {
    "3x3 of 3x3, padded": (Windows(size=(3, 3), channels=1, kernel=(3, 3), padding=(1, 1, 1, 1)), 1, 1, 1),
    "the same, three taps": (Windows(size=(3, 3), channels=1, kernel=(3, 3), padding=(1, 1, 1, 1)), 1, 1, 3),
    "the same, nine taps": (Windows(size=(3, 3), channels=1, kernel=(3, 3), padding=(1, 1, 1, 1)), 1, 1, 9),
    "2x2 of 4x3, stride 2, 1": (Windows(size=(4, 3), channels=1, kernel=(2, 2), stride=(2, 1)), 1, 1, 1),
    "one pixel, two folds": (Windows(size=(1, 1), channels=3), 1, 2, 1),
    "two groups, two folds": (Windows(size=(2, 2), channels=2, kernel=(2, 1)), 2, 2, 1),
    "dilated, odd padding": (Windows(size=(3, 2), channels=1, kernel=(2, 2), dilation=(2, 1), padding=(1, 0, 0, 1)), 1,
                             1, 2),
    "stride beyond the window": (Windows(size=(5, 2), channels=1, kernel=(1, 1), stride=(3, 2)), 1, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_beats_are_those_of_the_windows(tmp_path: Path, case: str) -> None:
    found = circuit_of(tmp_path, watched(*CASES[case]), "counter", "window").explore()
    assert "full" in found.seen
    assert found.states > 100


@pytest.mark.parametrize(
    "change",
    [
        ("giving[0] = NW'(STRIDE_Y)", "giving[0] = NW'(STRIDE_Y + 1)"),
        ("x >= 0 && x < XW'(ROW_WORDS)", "x < XW'(ROW_WORDS)"),
        ("need <= NW'(FIRST_NEED);\n                else if", "need <= NW'(FIRST_NEED - 1);\n                else if"),
        ("issue = room && filled >= need", "issue = room && filled + 1'b1 >= need"),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    wrong = circuit_of(tmp_path, watched(*CASES["3x3 of 3x3, padded"]), "counter", "window", changes=[change])
    with pytest.raises(WrongError):
        wrong.explore()
