"""Units that carry words, at small widths: in every state that they can ever reach, under all inputs and all pauses.

Next to each unit stands what it must do: a queue of the words on their way, or their numbers. `bad` is 1 where the two
differ, or the unit offers nothing though it could.
"""

from pathlib import Path

import pytest

from tests.deploy.rtl.proofs.circuits import WrongError, circuit_of, needs_yosys

pytestmark = [pytest.mark.integration, needs_yosys]

# A sender that keeps a word until it is taken, and a reader; both pause whenever they like. `d` is any bit.
_SENDER = """
    logic held, held_d, valid, data;
    assign valid = held || offer;
    assign data = held ? held_d : d;
    always_ff @(posedge clk) begin
        held <= !rst && valid && !in_ready;
        held_d <= data;
    end
"""
# Words between are a queue of at most MOST bits: what leaves is the oldest, and stays until it is taken. With a word
# inside and a reader that waits, one is offered after at most PATIENCE cycles.
_QUEUE = """
    logic [MOST:0] queue;
    logic [4:0] count;
    logic [2:0] idle;
    logic waited, waited_d, wrong_count;
    assign wrong_count = count > 5'(MOST);
    always_ff @(posedge clk) begin
        if (rst) begin
            count <= '0;
            idle <= '0;
            waited <= 1'b0;
        end else begin
            count <= count + 5'(valid && in_ready) - 5'(out_valid && out_ready);
            idle <= (out_valid || count == '0) ? '0 : idle + 3'(idle != '1);
            waited <= out_valid && !out_ready;
        end
        waited_d <= out_data;
        queue <= (out_valid && out_ready) ? queue >> 1 : queue;
        if (valid && in_ready) queue[count - 5'(out_valid && out_ready)] <= data;
    end
    assign full = count == 5'(MOST);
    assign empty = count == '0;
    assign bad = !rst && (
        wrong_count || (out_valid && (count == '0 || out_data != queue[0])) || idle > 3'(PATIENCE) ||
        (waited && (!out_valid || out_data != waited_d)) || wrong
    );
"""


def fifo(depth: int) -> str:
    return f"""
module top (input clk, rst, offer, d, out_ready, output full, empty, bad);
    localparam int MOST = {depth};
    localparam int PATIENCE = 1;
    logic in_ready, out_data, out_valid, wrong;
    {_SENDER}{_QUEUE}
    fifo #(.W(1), .DEPTH(MOST)) unit (
        .clk, .rst, .in_data(data), .in_valid(valid), .in_ready, .out_data, .out_valid, .out_ready
    );
    assign wrong = in_ready != (count != MOST);
endmodule
"""


DEEP = ("DEPTH <= 32", "DEPTH <= 1")
"""Makes the form in block memory at a depth that its parameter does not allow for."""


@pytest.mark.parametrize(
    ("depth", "changes"), [(1, ()), (2, ()), (3, ()), (4, ()), (2, (DEEP,)), (3, (DEEP,)), (4, (DEEP,))]
)
def test_a_fifo_holds_its_words_in_order(tmp_path: Path, depth: int, changes: tuple[tuple[str, str], ...]) -> None:
    found = circuit_of(tmp_path, fifo(depth), "fifo", changes=changes).explore()
    print(found)
    assert {"full", "empty"} <= found.seen
    assert found.states > 2**depth


@pytest.mark.parametrize(
    "changes",
    [
        (("count != CW'(DEPTH)", "1'b1"),),
        (("(head == END) ? '0 : head + 1'b1", "head + 1'b1"),),
        (DEEP, ("(!held || out_ready)", "1'b1")),
        (DEEP, ("count != CW'(held)", "count != '0")),
    ],
)
def test_a_mistake_in_a_fifo_is_found(tmp_path: Path, changes: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(WrongError):
        circuit_of(tmp_path, fifo(3), "fifo", changes=changes).explore()
