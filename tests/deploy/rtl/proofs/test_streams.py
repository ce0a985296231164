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
    wrong = circuit_of(tmp_path, fifo(3), "fifo", changes=changes)
    with pytest.raises(WrongError):
        wrong.explore()


def resized(before: int, after: int) -> str:
    """Words of one bit for each lane, as a queue of lanes."""
    return f"""
module top (input clk, rst, offer, input [{before - 1}:0] d, input out_ready, output full, empty, bad);
    localparam int IN = {before};
    localparam int OUT = {after};
    logic held, valid, in_ready, out_valid, waited;
    logic [IN-1:0] held_d, data;
    logic [OUT-1:0] out_data, waited_d;
    assign valid = held || offer;
    assign data = held ? held_d : d;
    resize_stream #(.W(1), .IN_LANES(IN), .OUT_LANES(OUT)) unit (
        .clk, .rst, .in_data(data), .in_valid(valid), .in_ready, .out_data, .out_valid, .out_ready
    );
    logic [2*IN+2*OUT-1:0] queue, fewer;
    logic [4:0] count, left;
    assign left = count - ((out_valid && out_ready) ? 5'(OUT) : '0);
    assign fewer = (out_valid && out_ready) ? queue >> OUT : queue;
    always_ff @(posedge clk) begin
        held <= !rst && valid && !in_ready;
        held_d <= data;
        waited <= !rst && out_valid && !out_ready;
        waited_d <= out_data;
        count <= rst ? '0 : left + ((valid && in_ready) ? 5'(IN) : '0);
        queue <= fewer;
        if (valid && in_ready) queue[left +: IN] <= data;
    end
    assign full = valid && !in_ready;
    assign empty = count == '0;
    // Whole words are offered at once, and room for a word that leaves is given in the same cycle.
    assign bad = !rst && (
        out_valid != (count >= 5'(OUT)) || (out_valid && out_data != queue[OUT-1:0]) ||
        (full && out_ready && left == '0) || (count == '0 && !in_ready) || count > 5'(IN + OUT) ||
        (waited && (!out_valid || out_data != waited_d))
    );
endmodule
"""


@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 3), (2, 4), (2, 1), (3, 1)])
def test_words_of_other_sizes(tmp_path: Path, before: int, after: int) -> None:
    found = circuit_of(tmp_path, resized(before, after), "resize_stream").explore()
    assert {"full", "empty"} <= found.seen


@pytest.mark.parametrize(
    ("sizes", "change"),
    [
        ((1, 3), ("{in_data, out_data[OUT_LANES*W-1:IN_LANES*W]}", "{out_data[OUT_LANES*W-IN_LANES*W-1:0], in_data}")),
        ((3, 1), ("(left == CW'(1) && out_ready)", "left == CW'(1)")),
        ((3, 1), ("left <= left - 1'b1", "left <= left - 2'd2")),
    ],
)
def test_a_mistake_in_it_is_found(tmp_path: Path, sizes: tuple[int, int], change: tuple[str, str]) -> None:
    wrong = circuit_of(tmp_path, resized(*sizes), "resize_stream", changes=[change])
    with pytest.raises(WrongError):
        wrong.explore()


def forked(readers: int) -> str:
    return f"""
module top (input clk, rst, offer, d, input [{readers - 1}:0] out_ready, output apart, bad);
    localparam int READERS = {readers};
    logic in_ready, out_data;
    logic [READERS-1:0] out_valid, had;
    {_SENDER}
    fork_stream #(.W(1), .READERS(READERS)) unit (
        .clk, .rst, .in_data(data), .in_valid(valid), .in_ready, .out_data, .out_valid, .out_ready
    );
    // Who has had the word that is there.
    always_ff @(posedge clk) had <= (rst || !valid || in_ready) ? '0 : had | (out_valid & out_ready);
    assign apart = had != '0;
    assign bad = !rst && (
        out_valid != (had ^ {{READERS{{valid}}}}) || (valid && out_data != data) ||
        (valid && in_ready != &(had | out_ready))
    );
endmodule
"""


@pytest.mark.parametrize("readers", [2, 3])
def test_each_reader_has_each_word_once(tmp_path: Path, readers: int) -> None:
    assert "apart" in circuit_of(tmp_path, forked(readers), "fork_stream").explore().seen
    wrong = circuit_of(tmp_path, forked(readers), "fork_stream", changes=[("taken | out_ready;", "out_ready;")])
    with pytest.raises(WrongError):
        wrong.explore()


def joined(first: int, second: int) -> str:
    """Words of both are numbered within a pixel; the joined stream has them in order."""
    return f"""
module top (input clk, rst, a_valid, b_valid, out_ready, output moved, bad);
    localparam int FIRST = {first};
    localparam int SECOND = {second};
    logic [2:0] a, b, at, out_data;
    logic a_ready, b_ready, out_valid;
    concat_stream #(.W(3), .FIRST(FIRST), .SECOND(SECOND)) unit (
        .clk, .rst, .a_data(a), .a_valid, .a_ready, .b_data(b), .b_valid, .b_ready, .out_data, .out_valid, .out_ready
    );
    always_ff @(posedge clk) begin
        if (rst) begin
            a <= '0;
            b <= 3'(FIRST);
            at <= '0;
        end else begin
            if (a_valid && a_ready) a <= (a == 3'(FIRST - 1)) ? '0 : a + 1'b1;
            if (b_valid && b_ready) b <= (b == 3'(FIRST + SECOND - 1)) ? 3'(FIRST) : b + 1'b1;
            if (out_valid && out_ready) at <= (at == 3'(FIRST + SECOND - 1)) ? '0 : at + 1'b1;
        end
    end
    assign moved = out_valid && out_ready;
    assign bad = !rst && (
        (out_valid && out_data != at) || (moved != (a_valid && a_ready || b_valid && b_ready)) ||
        (a_ready && b_ready) || out_valid != ((at < 3'(FIRST)) ? a_valid : b_valid)
    );
endmodule
"""


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 1), (1, 3), (3, 4)])
def test_two_streams_in_turn(tmp_path: Path, first: int, second: int) -> None:
    assert "moved" in circuit_of(tmp_path, joined(first, second), "concat_stream").explore().seen
    wrong = circuit_of(
        tmp_path, joined(first, second), "concat_stream", changes=[("word >= CW'(FIRST)", "word > CW'(FIRST)")]
    )
    with pytest.raises(WrongError):
        wrong.explore()


def pipelined(depth: int, beats: int, latency: int) -> str:
    """Work that takes some cycles between `credits` and the FIFO: each piece makes so many words, in turn."""
    return f"""
module top (input clk, rst, offer, d, out_ready, output full, empty, bad);
    localparam int MOST = {depth};
    localparam int BEATS = {beats};
    localparam int LATENCY = {latency};
    localparam int PATIENCE = 7;
    logic room, take, data, valid, in_ready, out_data, out_valid, wrong;
    logic [LATENCY+BEATS:0] going, words;
    logic [1:0] pause;
    // A piece of work is begun every BEATS cycles at most, as arrays begin sums.
    assign take = offer && room && pause == '0;
    credits #(.DEPTH(MOST), .TAKE(BEATS)) places (.clk, .rst, .take, .give(out_valid && out_ready), .room);
    always_ff @(posedge clk) begin
        pause <= (rst || take) ? (rst ? '0 : 2'(BEATS - 1)) : pause - 2'(pause != '0);
        going <= rst ? '0 : {{going[LATENCY+BEATS-1:0], 1'b0}} | (take ? (LATENCY+BEATS+1)'((1 << BEATS) - 1) : '0);
    end
    assign valid = going[LATENCY];
    assign data = d;
    {_QUEUE}
    fifo #(.W(1), .DEPTH(MOST)) unit (
        .clk, .rst, .in_data(data), .in_valid(valid), .in_ready, .out_data, .out_valid, .out_ready
    );
    assign wrong = valid && !in_ready;
endmodule
"""


@pytest.mark.parametrize(("depth", "beats", "latency"), [(2, 1, 1), (3, 1, 2), (4, 2, 2), (5, 2, 3)])
def test_work_that_is_begun_has_a_place(tmp_path: Path, depth: int, beats: int, latency: int) -> None:
    found = circuit_of(tmp_path, pipelined(depth, beats, latency), "fifo", "credits").explore()
    assert {"full", "empty"} <= found.seen
    top = pipelined(depth, beats, latency).replace("DEPTH(MOST), .TAKE", "DEPTH(MOST + 1), .TAKE")
    wrong = circuit_of(tmp_path, top, "fifo", "credits")
    with pytest.raises(WrongError):
        wrong.explore()


def serialised(beats: int) -> str:
    """A wide word comes at the earliest when the last but one of the narrow ones has left."""
    return f"""
module top (input clk, rst, offer, input [{beats - 1}:0] d, output empty, bad);
    localparam int BEATS = {beats};
    logic in_valid, out_data, out_valid;
    logic [3:0] left;
    logic [BEATS-1:0] word;
    assign in_valid = offer && left <= 4'd1;
    serialise #(.W(1), .BEATS(BEATS)) unit (.clk, .rst, .in_data(d), .in_valid, .out_data, .out_valid);
    always_ff @(posedge clk) begin
        left <= rst ? '0 : in_valid ? 4'(BEATS) : left - 4'(left != '0);
        word <= in_valid ? d : word >> 1;
    end
    assign empty = left == '0;
    assign bad = !rst && (out_valid != !empty || (out_valid && out_data != word[0]));
endmodule
"""


@pytest.mark.parametrize("beats", [1, 2, 3, 5])
def test_words_in_turn(tmp_path: Path, beats: int) -> None:
    assert "empty" in circuit_of(tmp_path, serialised(beats), "serialise").explore().seen
