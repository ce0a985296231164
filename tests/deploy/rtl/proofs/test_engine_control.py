"""An engine's control in all of its states: two small programs, all pauses, a change of programs at any time.

The engine is the whole one, at two lanes, but for the units that numbers pass without changing anything else: rescaling
and rows are stood for by as many registers, the banks by fixed words, the control port by its part in a switch. Their
own proofs are in `test_engine_units.py`, `test_engine_rows.py`, `test_engine_banks.py` and `test_engine_registers.py`.
"""

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from stoker.deploy.rtl.engine.instructions import Instruction, InstructionKind, Level, encoded
from tests.deploy.rtl.proofs.circuits import Circuit, Explored, WrongError, circuit_of, needs_yosys

pytestmark = [pytest.mark.integration, needs_yosys]

# Each word is one bit, another one in the next sample. The second of a sample is inverted by the unit for rows, and
# both leave in order. One program copies them before; the other one takes them by two instructions. What leaves says
# three times which program it is of: by its instruction, its weights and its scales.
WORDS = 2
INPUT = Instruction(kind=InstructionKind.INPUT, levels=(Level(count=WORDS, c=2),), full=2, last=True)
FIRST = Instruction(kind=InstructionKind.INPUT, full=2)
SECOND = Instruction(kind=InstructionKind.INPUT, c=2, full=2, last=True)
ROWS = Instruction(kind=InstructionKind.SHARES, a=2, c=2, size=1, rows=1, share_bits=1)
COPY = Instruction(array=True, levels=(Level(count=WORDS, a=2, c=2),), c=4, full=2)


def leaving(a: int, version: int) -> Instruction:
    return Instruction(
        kind=InstructionKind.OUTPUT, array=True, levels=(Level(count=WORDS, a=2),), a=a, full=2, last=True, end=True,
        zero=version, high=1,
    )  # fmt: skip


PROGRAMS = ([INPUT, ROWS, COPY, leaving(4, 0)], [FIRST, SECOND, ROWS, leaving(0, 1)])
ARRAY_STEPS = [sum(each.steps for each in program if each.array) for program in PROGRAMS]
PLACES = 2
"""Words that may be on their way, and lie behind the engine: it stands still after one sample that is not taken."""
ROW_CYCLES = 20
SLOWEST = 3 * (10 + WORDS + 20) + 10 + ROW_CYCLES
"""Cycles of a sample, and some."""


def rom() -> str:
    lines: list[str] = []
    for bank, program in enumerate(PROGRAMS):
        words = [word for each in program for word in encoded(each)]
        for at in range(0, len(words), 4):
            text = "".join(f"{word:08x}" for word in reversed(words[at : at + 4]))
            lines.append(f"6'd{32 * bank + at // 4}: data <= 128'h{text};")
    return "\n            ".join(lines)


STANDS_FOR = f"""
module engine_bank #(parameter int W = 128, parameter int WORDS = 256) (
    input logic clk, bank, input logic [$clog2(WORDS)-1:0] address, output logic [W-1:0] data, input logic write,
    input logic [$clog2(WORDS)-1:0] load_address, input logic [W-1:0] load_data
);
    generate
        if (W == 128) begin : instructions
            always_ff @(posedge clk) case ({{bank, address}})
            {rom()}
            default: data <= '0;
            endcase
        end else if (W == 36) begin : tables
            assign data = '0;
        end else begin : numbers
            always_ff @(posedge clk) data <= bank ? W'(3) : W'(1);
        end
    endgenerate
endmodule
module engine_requantise #(parameter int LANES = 8, parameter int ACC_W = 35, parameter int M_W = 16) (
    input logic clk, input logic [LANES*ACC_W-1:0] sums, input logic [LANES*(ACC_W+M_W)-1:0] scales,
    input logic [5:0] shift, input logic [17:0] zero, low, high, output logic [LANES*16-1:0] results
);
    logic [7:0] data, by_weights, by_scales;
    always_ff @(posedge clk) begin
        data <= {{data[6:0], sums[0]}};
        by_weights <= {{by_weights[6:0], sums[1]}};
        by_scales <= {{by_scales[6:0], scales[1]}};   // a cycle after their sums
    end
    assign results = (LANES*16)'({{{{by_scales[6], zero[0], by_weights[7]}} & {{3{{high[0]}}}}, data[7]}});
endmodule
module engine_rows #(parameter int ADDRESS_W = 20, parameter int COUNT_W = 16) (
    input logic clk, rst, start, norm, input logic [ADDRESS_W-1:0] a, c, input logic [COUNT_W-1:0] size, rows,
    input logic [63:0] epsilon, input logic [5:0] root_bits, reciprocal_bits, shift, input logic [4:0] share_bits,
    output logic [ADDRESS_W-1:0] read_address, input logic [17:0] x, output logic write,
    output logic [ADDRESS_W-1:0] write_address, output logic [15:0] write_data, output logic busy
);
    // Longer than the next instruction takes until it reads.
    logic [4:0] count;
    assign busy = count != '0;
    always_ff @(posedge clk) begin
        if (rst) count <= '0;
        else if (start) count <= 5'd1;
        else if (busy) count <= (count == 5'd{ROW_CYCLES}) ? '0 : count + 1'b1;
        if (start) begin
            read_address <= a;
            write_address <= c;
        end
        write <= !rst && count == 5'd{ROW_CYCLES - 1};
        write_data <= {{15'd0, !x[0]}};
    end
endmodule
module engine_registers #(
    parameter logic [31:0] LIMIT = 0, parameter int LOAD_W = 512, parameter int PROGRAM_SLICES = 4,
    parameter int WEIGHT_SLICES = 16, parameter int TABLE_SLICES = 5, parameter int SCALE_SLICES = 13
) (
    input logic clk, rst, sample_in, sample_out, in_waits, out_waits, misplaced, moved, array_works, switched,
    output logic pending, bank, loaded, output logic [3:0] load_write, output logic [19:0] load_address,
    output logic [LOAD_W-1:0] load_data, input logic [7:0] s_axi_awaddr, input logic s_axi_awvalid,
    output logic s_axi_awready, input logic [31:0] s_axi_wdata, input logic s_axi_wvalid, output logic s_axi_wready,
    output logic [1:0] s_axi_bresp, output logic s_axi_bvalid, input logic s_axi_bready, input logic [7:0] s_axi_araddr,
    input logic s_axi_arvalid, output logic s_axi_arready, output logic [31:0] s_axi_rdata,
    output logic [1:0] s_axi_rresp, output logic s_axi_rvalid, input logic s_axi_rready
);
    always_ff @(posedge clk) begin
        if (rst) begin
            pending <= 1'b0;
            bank <= 1'b0;
            loaded <= 1'b0;
        end else if (switched) begin
            pending <= 1'b0;
            bank <= !bank;
            loaded <= 1'b1;
        end else if (s_axi_awvalid) pending <= 1'b1;
    end
    // What the counters are told, for whom reads them.
    assign s_axi_rdata = 32'({{
        loaded, bank, switched, pending, array_works, moved, misplaced, out_waits, in_waits, sample_out, sample_in
    }});
    assign {{load_write, load_address, load_data}} = '0;
    assign {{s_axi_awready, s_axi_wready, s_axi_bresp, s_axi_bvalid, s_axi_arready, s_axi_rresp, s_axi_rvalid}} = '0;
endmodule
"""

WATCHED = f"""
module top (
    input clk, rst, offer, out_ready, request, output ready, waits, stands, changed, behind, done, switches, bad
);
    logic in_ready, out_valid, out_last;
    logic [31:0] out_data, told;
    logic sample_in, sample_out, in_waits, out_waits, misplaced, moved, array_works, pending, switched, bank, loaded;
    assign {{
        loaded, bank, switched, pending, array_works, moved, misplaced, out_waits, in_waits, sample_out, sample_in
    }} = told[10:0];
    engine #(
        .LANES(2), .DATA_WORDS(4), .WEIGHT_WORDS(2), .TABLE_WORDS(2), .SCALE_WORDS(2), .INSTRUCTIONS(4)
    ) unit (
        .clk, .rst, .in_data({{31'd0, odd}}), .in_valid(offer), .in_ready, .in_last(odd), .out_data, .out_valid,
        .out_ready, .out_last, .s_axi_awaddr(8'd0), .s_axi_awvalid(request), .s_axi_awready(), .s_axi_wdata(32'd0),
        .s_axi_wvalid(1'b0), .s_axi_wready(), .s_axi_bresp(), .s_axi_bvalid(), .s_axi_bready(1'b0),
        .s_axi_araddr(8'd0), .s_axi_arvalid(1'b0), .s_axi_arready(), .s_axi_rdata(told), .s_axi_rresp(),
        .s_axi_rvalid(), .s_axi_rready(1'b0)
    );

    // Words that have come and not left: version, number, and whether it is a sample's last.
    logic [3:0][2:0] queue;
    logic [2:0] count, left;
    logic second, odd, version, any, waited;
    logic [2:0] works;
    logic taken, gone;
    assign taken = offer && in_ready;
    assign gone = out_valid && out_ready;
    assign left = count - 3'(gone);
    always_ff @(posedge clk) begin
        second <= !rst && second != taken;
        odd <= !rst && odd != (taken && second);
        if (taken && !second) version <= bank;
        if (taken && !second) any <= 1'b1;
        if (rst) any <= 1'b0;
        count <= rst ? '0 : left + 3'(taken);
        if (gone) queue <= {{3'd0, queue[3:1]}};
        if (taken) queue[left[1:0]] <= {{second ? version : bank, odd != second, second}};
        if (rst || (taken && !second)) works <= '0;
        else works <= works + 3'(array_works);
        waited <= !rst && out_valid && !out_ready;
    end
    logic [2:0] next;
    assign next = queue[0];
    assign ready = loaded || pending;
    assign waits = pending;
    assign switches = switched;
    assign stands = count == 3'd4;
    assign changed = taken && !second && any && version != bank;
    assign behind = switched && count != '0;
    assign done = gone && out_last;
    assign bad = !rst && (
        // No word without one that came; data, version and end of the oldest, whatever the pauses; none is taken back.
        (out_valid && (count == '0 || out_data != 32'({{next[2], next[2], next[2] && next[1], next[1]}}) ||
                       out_last != next[0])) || (waited && !out_valid) || (taken && count == 3'd4 && !gone) ||
        // No sample begins before a model is there, or while a switch waits; a sample's switch comes after its end.
        (taken && !loaded) || (switched && second) ||
        // What is counted.
        sample_in != (taken && second) || sample_out != (gone && out_last) || in_waits != (offer && !in_ready) ||
        out_waits != (out_valid && !out_ready) || misplaced != (taken && odd != second) || (taken && !moved) ||
        (taken && !second && any && works != (version ? 3'd{ARRAY_STEPS[1]} : 3'd{ARRAY_STEPS[0]}))
    );
endmodule
"""

UNITS = (
    "fifo", "credits", "output_fifo", "adder_tree", "engine_turn", "engine_data", "engine_nest", "engine_array",
    "engine_lanes",
)  # fmt: skip
SMALL = (
    ("localparam int PLACES = 32;", f"localparam int PLACES = {PLACES};"),
    # One loop of one round or two is enough, and no comparison of numbers.
    (".LEVELS(7), .ADDRESS_W(A_W), .COUNT_W(16)", ".LEVELS(1), .ADDRESS_W(A_W), .COUNT_W(1)"),
    ("code[352 +: 672]", "{code[368 +: 80], code[352]}"),
    (".rst, .array, .largest,", ".rst, .array, .largest(1'b0),"),
)


def control(folder: Path, *changes: tuple[str, str], cells: bool = False) -> Circuit:
    text = resources.files("stoker.deploy.rtl").joinpath("engine", "units", "engine.sv").read_text(encoding="utf-8")
    for old, new in (*SMALL, *changes):
        assert old in text, old
        text = text.replace(old, new)
    return circuit_of(folder, STANDS_FOR + text + WATCHED, *UNITS, cells=cells)


def unanswered(circuit: Circuit, found: Explored) -> int:
    """States after which no sample leaves in the time of one, or no switch is made, though words come and are taken."""
    count = found.states
    like = np.packbits(np.ones(count, np.uint8))
    state = [np.packbits(found.reached[:, at]) for at in range(circuit.registers)]
    _, outputs = circuit.step(state, {}, like)
    due, due_switch = outputs["ready"], outputs["waits"]
    for _ in range(SLOWEST):
        state, outputs = circuit.step(state, {"offer": like, "out_ready": like}, like)
        due, due_switch = due & ~outputs["done"], due_switch & ~outputs["switches"]
    return int(np.unpackbits(due | due_switch, count=count).sum())


@pytest.mark.slow("a hundred thousand states")
def test_samples_are_of_one_version_whatever_the_pauses(tmp_path: Path) -> None:
    circuit = control(tmp_path)
    found = circuit.explore()
    assert {"stands", "changed", "behind", "done"} <= found.seen
    assert not unanswered(circuit, found)


@pytest.mark.slow("synthesises an engine; a hundred thousand states")
def test_cells_keep_versions_apart(tmp_path: Path) -> None:
    found = control(tmp_path, cells=True).explore()
    assert {"stands", "changed", "behind", "done"} <= found.seen


@pytest.mark.slow("up to a hundred thousand states")
@pytest.mark.parametrize(
    "change",
    [
        ("switched = state == WAITS && pending", "switched = pending"),
        ("!pending && loaded && in_valid", "!pending && in_valid"),
        ("!on_way && !rows_busy", "!rows_busy"),
        ("!on_way && !rows_busy", "!on_way"),
        ("(enters ? in_valid : (!leaves || room))", "(enters ? in_valid : 1'b1)"),
        ("(enters ? in_valid : (!leaves || room))", "(!leaves || room)"),
        (".array_works(begins && array)", ".array_works(state == RUN && array)"),
        ("in_last != (ends && last_word)", "in_last != ends"),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    wrong = control(tmp_path, change)
    with pytest.raises(WrongError):
        wrong.explore()


@pytest.mark.slow("some ten thousand states")
def test_a_program_without_an_end_is_found(tmp_path: Path) -> None:
    wrong = control(tmp_path, ("state <= end_program ? WAITS : FETCH", "state <= FETCH"))
    assert unanswered(wrong, wrong.explore())
