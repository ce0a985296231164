"""An engine's control port: its handshakes and what its writes do, in all states; its counters, under random transfers.

Valid signals of the sender come and go as they like, which is more than AXI4-Lite allows it: what holds then holds for
each sender that keeps to the protocol.
"""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.deploy.rtl.proofs.circuits import Circuit, WrongError, circuit_of, needs_yosys

pytestmark = [pytest.mark.integration, needs_yosys]

Numbers = NDArray[np.int64]

_PORT = """
    .s_axi_awaddr(a), .s_axi_awvalid(a_valid), .s_axi_awready(a_ready), .s_axi_wdata(w), .s_axi_wvalid(w_valid),
    .s_axi_wready(w_ready), .s_axi_bresp(b_resp), .s_axi_bvalid(b_valid), .s_axi_bready(b_ready), .s_axi_araddr(r),
    .s_axi_arvalid(ask_valid), .s_axi_arready(ask_ready), .s_axi_rdata(data), .s_axi_rresp(r_resp),
    .s_axi_rvalid(r_valid), .s_axi_rready(r_ready)
"""
_PORT_SIGNALS = """
    logic [7:0] a, r;
    logic [31:0] w, data;
    logic [1:0] b_resp, r_resp;
    logic a_ready, w_ready, b_valid, ask_ready, r_valid;
    logic pending, bank, loaded, switched;
"""
_NO_EVENTS = """
    .sample_in(1'b0), .sample_out(1'b0), .in_waits(1'b0), .out_waits(1'b0), .misplaced(1'b0), .moved(1'b1),
    .array_works(1'b0)
"""

# A write is a digest to come, a switch, words of a model, or one that may always be made. What is read, if anything, is
# the identity, the number of switches or the status. `idle` is a cycle between two samples.
WRITES = f"""
module top (
    input clk, rst, a_valid, w_valid, b_ready, r_ready, idle, input [1:0] to, from,
    output waits, stalled, switches_once, reads, bad
);
    {_PORT_SIGNALS}
    logic ask_valid;
    assign a = (to == 2'd0) ? 8'h2c : (to == 2'd1) ? 8'h34 : (to == 2'd2) ? 8'h38 : 8'h20;
    assign w = '0;
    assign r = (from == 2'd1) ? 8'h00 : (from == 2'd2) ? 8'h38 : 8'h08;
    assign ask_valid = from != 2'd0;
    assign switched = idle && pending;
    engine_registers #(.LOAD_W(64)) unit (
        .clk, .rst, {_NO_EVENTS}, .switched, .pending, .bank, .loaded, .load_write(), .load_address(), .load_data(),
        {_PORT}
    );

    // What is owed to the sender, and what the switch has made.
    logic taken, asked, owes_b, owes_r, due_pending, due_bank, due_loaded, due_status;
    logic [1:0] switches, due_data;
    assign taken = a_valid && a_ready;
    assign asked = ask_valid && ask_ready;
    always_ff @(posedge clk) begin
        owes_b <= !rst && (taken || (owes_b && !b_ready));
        owes_r <= !rst && (asked || (owes_r && !r_ready));
        due_pending <= !rst && !switched && (due_pending || (taken && to == 2'd2));
        due_bank <= !rst && due_bank != switched;
        due_loaded <= !rst && (due_loaded || switched);
        switches <= rst ? '0 : switches + 2'(switched);
        if (asked) begin
            due_status <= from == 2'd3;
            due_data <= (from == 2'd1) ? 2'b11 : (from == 2'd2) ? switches : {{due_pending, 1'b0}};
        end
    end
    logic held, may;
    assign held = due_pending && to != 2'd3;
    assign may = !held && (!owes_b || b_ready);
    assign waits = a_valid && w_valid && held;
    assign stalled = owes_b && !b_ready && a_valid && w_valid;
    assign switches_once = switched && taken;
    assign reads = owes_r && r_ready && due_data == 2'd3;
    assign bad = !rst && (
        // Both halves of a write are taken in the same cycle, at once where nothing is in the way.
        (a_valid && a_ready) != (w_valid && w_ready) || (a_valid && w_valid && may) != taken ||
        // One response each, which stays until it is taken; no error.
        b_valid != owes_b || r_valid != owes_r || b_resp != '0 || r_resp != '0 || (ask_ready && owes_r) ||
        (!owes_r && !ask_ready) || (owes_r && (due_status ? data[2:1] : data[1:0]) != due_data) ||
        pending != due_pending || bank != due_bank || loaded != due_loaded
    );
endmodule
"""


def test_each_write_and_each_read_is_answered_once(tmp_path: Path) -> None:
    found = circuit_of(tmp_path, WRITES, "engine_registers").explore()
    assert {"waits", "stalled", "switches_once", "reads"} <= found.seen


@pytest.mark.parametrize(
    "change",
    [
        ("(!s_axi_bvalid || s_axi_bready)", "1'b1"),
        ("!(loads && pending)", "1'b1"),
        ("s_axi_awvalid && s_axi_wvalid &&", "s_axi_awvalid &&"),
        ("else if (s_axi_bready) s_axi_bvalid", "else s_axi_bvalid"),
        ("s_axi_arready = !s_axi_rvalid", "s_axi_arready = 1'b1"),
        ("if (s_axi_arvalid && s_axi_arready) begin", "begin"),
        ("s_axi_awaddr[7:2] >= 6'h0b", "s_axi_awaddr[7:2] > 6'h0b"),
        ("bank <= !bank", "bank <= bank"),
        ("else if (switched) begin", "else if (pending) begin"),
        ("else if (written && s_axi_awaddr[7:2] == 6'h0e)", "else if (s_axi_wvalid && s_axi_awaddr[7:2] == 6'h0e)"),
    ],
)
def test_a_mistake_in_a_handshake_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    wrong = circuit_of(tmp_path, WRITES, "engine_registers", changes=[change])
    with pytest.raises(WrongError):
        wrong.explore()


# Words of 64 bits at most, in one piece or two; a piece has one bit that is free. A write says where a model goes on,
# in which memory, at place 0 or 1; or it is a piece of a model, a switch, a digest; or there is none.
SLICES = (1, 2, 2, 1)
LOADS = f"""
module top (input clk, rst, d, idle, input [2:0] write, output [3:0] kind, output again, bad);
    localparam logic [3:0] TWO = 4'b{"".join(str(each - 1) for each in reversed(SLICES))};
    {_PORT_SIGNALS}
    logic a_valid, w_valid, b_ready, ask_valid, r_ready;
    assign a_valid = write != 3'd7;
    assign {{w_valid, b_ready, ask_valid, r_ready, r}} = {{a_valid, 1'b1, 1'b0, 1'b1, 8'd0}};
    assign a = !write[2] ? 8'h30 : (write == 3'd4) ? 8'h34 : (write == 3'd5) ? 8'h38 : 8'h2c;
    assign w = {{2'd0, write[2] ? 2'd0 : write[1:0], 27'd0, d}};
    assign switched = idle && pending;
    logic [3:0] load_write;
    logic [19:0] load_address;
    logic [63:0] load_data;
    engine_registers #(
        .LOAD_W(64), .PROGRAM_SLICES({SLICES[0]}), .WEIGHT_SLICES({SLICES[1]}), .TABLE_SLICES({SLICES[2]}),
        .SCALE_SLICES({SLICES[3]})
    ) unit (
        .clk, .rst, {_NO_EVENTS}, .switched, .pending, .bank, .loaded, .load_write, .load_address, .load_data,
        {_PORT}
    );

    // Words are due a cycle after their last piece, and at no other time. None before a place was given.
    logic known, half, first_d, due, due_switch;
    logic [1:0] to_memory, at, due_memory, due_at, due_pieces;
    logic taken, given, placed, ends;
    assign taken = a_valid && a_ready;
    assign given = taken && write == 3'd4;
    assign placed = taken && !write[2];
    assign ends = given && (!TWO[to_memory] || half);
    always_ff @(posedge clk) begin
        known <= !rst && (known || placed);
        if (placed) begin
            to_memory <= write[1:0];
            at <= 2'(d);
            half <= 1'b0;
        end
        if (given) begin
            half <= TWO[to_memory] && !half;
            first_d <= d;
            if (ends) at <= at + 1'b1;
        end
        due <= !rst && ends;
        due_memory <= ends ? to_memory : '0;
        due_at <= ends ? at : '0;
        due_pieces <= ends ? {{d, half && first_d}} : '0;
        due_switch <= !rst && known;
    end
    assign kind = load_write;
    assign again = due && given;
    assign bad = !rst && due_switch && (
        load_write != (due ? 4'd1 << due_memory : '0) || (due && load_address[1:0] != due_at) ||
        (due && (load_data[32] != due_pieces[1] || load_data[63:33] != '0)) ||
        (due && TWO[due_memory] && (load_data[0] != due_pieces[0] || load_data[31:1] != '0)) ||
        // The last word of a model is in its memory before the switch: both are in the order of the writes.
        (due && switched)
    );
endmodule
"""


def test_each_word_of_a_model_is_loaded_once(tmp_path: Path) -> None:
    found = circuit_of(tmp_path, LOADS, "engine_registers").explore()
    assert {f"kind[{at}]" for at in range(4)} | {"again"} <= found.seen


@pytest.mark.slow("synthesises a unit")
@pytest.mark.parametrize("top", [WRITES, LOADS], ids=["handshakes", "loading"])
def test_cells_answer_and_load_once(tmp_path: Path, top: str) -> None:
    assert circuit_of(tmp_path, top, "engine_registers", cells=True).explore().states > 100


@pytest.mark.parametrize(
    "change",
    [
        ("s_axi_wdata[19:0] - 1'b1", "s_axi_wdata[19:0]"),
        ("slice == slices - 1'b1", "slice == slices"),
        ("slice <= complete ? '0 : slice + 1'b1", "slice <= slice + 1'b1"),
        ("load_write <= '0;\n        if (written", "if (written"),
        ("{s_axi_wdata, word[LOAD_W-1:32]}", "{word[LOAD_W-33:0], s_axi_wdata}"),
        ("given = written", "given = s_axi_wvalid"),
        ("s_axi_wdata[29:28]", "s_axi_wdata[28:27]"),
    ],
)
def test_a_mistake_in_loading_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    wrong = circuit_of(tmp_path, LOADS, "engine_registers", changes=[change])
    with pytest.raises(WrongError):
        wrong.explore()


EVENTS = ("sample_in", "sample_out", "in_waits", "out_waits", "misplaced", "moved", "array_works", "idle")
LIMIT = 5
COUNTERS = f"""
module top (
    input clk, rst, {", ".join(EVENTS)}, input [7:0] a, r, input [31:0] w,
    input a_valid, w_valid, b_ready, ask_valid, r_ready,
    output a_ready, b_valid, ask_ready, r_valid, pending, bank, output [31:0] data
);
    logic w_ready, loaded, switched;
    logic [1:0] b_resp, r_resp;
    assign switched = idle && pending;
    engine_registers #(.LIMIT({LIMIT}), .LOAD_W(64)) unit (
        .clk, .rst, {", ".join(f".{name}" for name in EVENTS if name != "idle")}, .switched, .pending, .bank, .loaded,
        .load_write(), .load_address(), .load_data(), {_PORT}
    );
endmodule
"""
COUNTED = {"cycles": 0x0C, "sample_in": 0x10, "sample_out": 0x14, "in_waits": 0x18, "out_waits": 0x1C,
           "array_works": 0x28}  # fmt: skip
READ = (0x00, 0x04, 0x08, 0x20, 0x24, 0x2C, 0x34, 0x38, 0x7C, *COUNTED.values())


def wrong_reads(circuit: Circuit, cycles: int, count: int = 1 << 10) -> tuple[int, dict[int, int]]:
    """Words read that the map has otherwise, and how many there were of each register with something in it.

    Every case has its own random transfers and events. Words of the bus are small, so that the watchdog bites.
    """
    random = np.random.default_rng(17)
    often = {"moved": 8, "out_waits": 8, "b_ready": 2, "misplaced": 24}

    def drawn(name: str) -> Numbers:
        odds = often.get(name, 2)
        return (random.integers(0, odds, count) == 0).astype(np.int64)

    lines = ("a_valid", "w_valid", "b_ready", "ask_valid", "r_ready")
    given = [
        {
            **{name: drawn(name) for name in (*EVENTS, *lines)}, "rst": np.array(int(at < 2)),
            "w": random.integers(0, 12, count) << np.where(random.integers(0, 2, count) == 1, 0, 20),
            # Counters are cleared now and then.
            "a": random.choice([0x20, 0x2C, 0x38, 0x24, 0x28, 0x0C, 0x00] * 2 + [0x08], count)
            | random.integers(0, 4, count),
            "r": random.choice(READ, count) | random.integers(0, 4, count),
        }
        for at in range(cycles)
    ]  # fmt: skip
    none = np.zeros(count, np.int64)
    counts = dict.fromkeys(COUNTED, none)
    limit, digest, coming, switches, idle = none + LIMIT, none, none, none, none
    stuck, misplaced, pending = none > 0, none > 0, none > 0
    owed, due = none > 0, none
    coming_known, digest_known, due_known = none > 0, none == 0, none > 0
    wrong, seen_of = 0, dict.fromkeys(READ, 0)
    for now, seen in zip(given[2:], circuit.run(given, count)[2:], strict=True):
        wrong += int((seen["r_valid"] != owed).sum() + (seen["pending"] != pending).sum())
        wrong += int((owed & due_known & (seen["data"] != due)).sum())
        # What is read is as it was before this cycle.
        asked = (now["ask_valid"] == 1) & ~owed
        register = now["r"] & ~3
        words = {0x00: none + 0x53544F4B, 0x04: digest, 0x08: 4 * pending + 2 * misplaced + stuck, 0x20: limit,
                 0x38: switches, **{COUNTED[name]: each for name, each in counts.items()}}  # fmt: skip
        due = np.where(asked, np.select([register == at for at in words], list(words.values()), 0), due)
        due_known = np.where(asked, (register != 0x04) | digest_known, due_known)
        for at in READ:
            seen_of[at] += int((asked & (register == at) & (due != 0)).sum())
        owed = asked | (owed & (now["r_ready"] == 0))
        written = (now["a_valid"] == 1) & (seen["a_ready"] == 1)
        to = now["a"] & ~3
        switched = pending & (now["idle"] == 1)
        digest, digest_known = np.where(switched, coming, digest), np.where(switched, coming_known, digest_known)
        switches = switches + switched
        coming = np.where(written & (to == 0x2C), now["w"], coming)
        coming_known = coming_known | (written & (to == 0x2C))
        pending = (pending & ~switched) | (written & (to == 0x38))
        clear = written & (to == 0x08)
        counts = {
            name: np.where(clear, 0, each + (1 if name == "cycles" else now[name])) for name, each in counts.items()
        }
        misplaced = ~clear & (misplaced | (now["misplaced"] == 1))
        stuck = ~clear & (stuck | ((limit != 0) & (idle == limit)))
        resting = (now["moved"] == 0) & (now["out_waits"] == 0) & (now["in_waits"] == 1)
        idle = np.where(clear | ~resting, 0, idle + 1)
        limit = np.where(written & (to == 0x20), now["w"], limit)
    return wrong, seen_of


def test_reads_are_what_the_map_says(tmp_path: Path) -> None:
    wrong, seen = wrong_reads(circuit_of(tmp_path, COUNTERS, "engine_registers"), 120)
    assert not wrong
    # Registers that are written alone, and places without one, read as 0.
    assert [at for at, times in seen.items() if not times] == [0x24, 0x2C, 0x34, 0x7C]


@pytest.mark.slow("synthesises a unit")
def test_cells_read_what_the_map_says(tmp_path: Path) -> None:
    assert not wrong_reads(circuit_of(tmp_path, COUNTERS, "engine_registers", cells=True), 60)[0]


@pytest.mark.parametrize(
    "change",
    [
        ("samples_out + 32'(sample_out)", "samples_out + 32'(sample_in)"),
        ("6'h06: s_axi_rdata <= ins_waited", "6'h06: s_axi_rdata <= outs_waited"),
        ("moved || out_waits || !in_waits", "moved || !in_waits"),
        ("limit != '0 && idle == limit", "idle == limit"),
        ("array_cycles <= '0;", ""),
        ("if (misplaced) wrong_end <= 1'b1", "wrong_end <= misplaced"),
        ("digest <= next_digest", "digest <= s_axi_wdata"),
    ],
)
def test_a_mistake_in_a_counter_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    assert wrong_reads(circuit_of(tmp_path, COUNTERS, "engine_registers", changes=[change]), 40)[0]
