"""Parts of an update at small sizes: which words a memory keeps and passes on, and when samples are held back."""

from pathlib import Path

import pytest

from tests.deploy.rtl.proofs.circuits import WrongError, circuit_of, needs_yosys

pytestmark = [pytest.mark.integration, needs_yosys]


def tapped(bits: int, depth: int) -> str:
    """Pieces with one bit that is free, at the lowest place; words of one piece or two."""
    pieces = -(-bits // 32)
    return f"""
module top (input clk, rst, there, start, d, output passes, bad);
    localparam int W = {bits};
    localparam int DEPTH = {depth};
    localparam int PIECES = {pieces};
    logic [33:0] update, update_on;
    logic write;
    logic [{max(1, (depth - 1).bit_length()) - 1}:0] write_at;
    logic [W-1:0] written;
    assign update = {{there, start, 31'd0, d}};
    chain_tap #(.W(W), .DEPTH(DEPTH)) unit (.clk, .rst, .update, .update_on, .write, .write_at, .written);

    // Pieces since a start; none of a word is kept before one.
    logic [3:0] count;
    logic own, whole;
    logic [PIECES-1:0] word;
    logic due, due_on, due_start, due_d;
    logic [3:0] due_at;
    assign own = there && !start && count < 4'(DEPTH * PIECES);
    assign whole = (count + 1'b1) % PIECES == 0;
    always_ff @(posedge clk) begin
        count <= rst ? 4'(DEPTH * PIECES) : (there && start) ? '0 : count + 4'(own);
        if (own) word <= PIECES'({{d, word}} >> 1);
        due <= !rst && own && whole;
        due_at <= count / PIECES;
        due_on <= !rst && there && !own;
        due_start <= start;
        due_d <= d;
    end
    logic [W-1:0] expected;
    assign expected = {"{W'(word[1]), 32'(word[0])}" if pieces == 2 else "W'(word)"};
    assign passes = due_on && !due_start;
    assign bad = !rst && (
        write != due || (write && (4'(write_at) != due_at || written != expected)) || update_on[33] != due_on ||
        (due_on && update_on[32:0] != {{due_start, 31'd0, due_d}})
    );
endmodule
""".replace("{W'(word[1]), 32'(word[0])}", "W'({word[1], 31'd0, word[0]})")


@pytest.mark.parametrize(("bits", "depth"), [(2, 1), (2, 3), (33, 2)])
def test_a_memory_keeps_its_words_and_passes_on_the_rest(tmp_path: Path, bits: int, depth: int) -> None:
    found = circuit_of(tmp_path, tapped(bits, depth), "counter", "chain_tap").explore()
    assert "passes" in found.seen


def test_a_word_too_many_is_found(tmp_path: Path) -> None:
    change = ("full <= next == AW'(DEPTH - 1)", "full <= next == AW'(DEPTH - 2)")
    wrong = circuit_of(tmp_path, tapped(2, 3), "counter", "chain_tap", changes=[change])
    with pytest.raises(WrongError):
        wrong.explore()


GATE = """
module top (input clk, rst, hold, in_valid, out_ready, output held, bad);
    localparam int WORDS = 3;
    logic [1:0] at;
    logic last, in_ready, out_valid, begins;
    assign last = at == 2'(WORDS - 1);
    sample_gate unit (.clk, .rst, .hold, .last, .in_valid, .in_ready, .out_valid, .out_ready, .begins);
    always_ff @(posedge clk) begin
        if (rst) at <= '0;
        else if (out_valid && out_ready) at <= last ? '0 : at + 1'b1;
    end
    // A sample that has begun goes on.
    assign held = in_valid && !out_valid;
    assign bad = !rst && (
        out_valid != (in_valid && !(hold && at == '0)) || in_ready != (out_ready && !(hold && at == '0)) ||
        begins != (out_valid && out_ready && at == '0)
    );
endmodule
"""


def test_no_sample_begins_while_it_is_held(tmp_path: Path) -> None:
    assert "held" in circuit_of(tmp_path, GATE, "sample_gate").explore().seen
    wrong = circuit_of(tmp_path, GATE, "sample_gate", changes=[("hold && first", "hold")])
    with pytest.raises(WrongError):
        wrong.explore()
