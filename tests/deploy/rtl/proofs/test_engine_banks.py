"""An engine's memory of two models: one is changed only while it is not read.

In every state of a small one; and at random in block memory, whose model answers wrongly where a place is read and
written at once.
"""

import subprocess
from importlib import resources
from pathlib import Path

import pytest

from stoker.deploy.tools.devices import fpga
from stoker.deploy.tools.netlists import cells_as_text
from stoker.deploy.tools.synthesis import synthesise_texts
from stoker.deploy.tools.verilator import simulator_of
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.proofs.circuits import WrongError, circuit_of, needs_yosys, unit_text

pytestmark = [pytest.mark.integration, needs_yosys]

LIMIT_S = 100.0

# What is known of a word is what was written to it. All inputs are free: `bank` changes in any cycle, also in that of a
# write. `same_place`: the place that is read is written, to another bit; `exchanged`: a change between known models.
BANK = """
module top (input clk, rst, bank, input address, input write, input load_address, load_data,
            output same_place, exchanged, bad);
    localparam int WORDS = 2;
    logic data;
    engine_bank #(.W(1), .WORDS(WORDS)) unit (.clk, .bank, .address, .data, .write, .load_address, .load_data);

    logic was, due, due_known;
    logic [WORDS-1:0] first, first_known, second, second_known, running, running_known, coming, coming_known;
    assign exchanged = bank != was && &first_known && &second_known && first != second;
    assign {running, running_known} = (bank == was) ? {first, first_known} : {second, second_known};
    assign {coming, coming_known} = (bank == was) ? {second, second_known} : {first, first_known};
    assign same_place = write && address == load_address && running_known[address] && running[address] != load_data;
    always_ff @(posedge clk) begin
        was <= bank;
        first <= running;
        second <= coming;
        first_known <= rst ? '0 : running_known;
        second_known <= rst ? '0 : coming_known;
        if (write) begin
            second[load_address] <= load_data;
            second_known[load_address] <= !rst;
        end
        due <= running[address];
        due_known <= !rst && running_known[address];
    end
    assign bad = !rst && due_known && data != due;
endmodule
"""


@pytest.mark.parametrize("cells", [False, pytest.param(True, marks=pytest.mark.slow("synthesises a unit"))])
def test_a_model_is_changed_only_while_it_is_not_read(tmp_path: Path, cells: bool) -> None:
    found = circuit_of(tmp_path, BANK, "engine_bank", cells=cells).explore()
    assert {"same_place", "exchanged"} <= found.seen


@pytest.mark.parametrize(
    "change",
    [
        ("{!bank, load_address}", "{bank, load_address}"),
        ("words[{bank, address}]", "words[{!bank, address}]"),
        ("if (write) words", "words"),
        ("data <= words[{bank, address}];", "last <= {bank, address}; data <= words[last];"),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    names = ("(* no_rw_check *)", "logic [$clog2(WORDS):0] last; (* no_rw_check *)")
    wrong = circuit_of(tmp_path, BANK, "engine_bank", changes=[names, change])
    with pytest.raises(WrongError):
        wrong.explore()


def read_wrongly(folder: Path, change: tuple[str, str]) -> tuple[int, int, int]:
    """Words that block memory reads wrongly, all that it reads, and those that are written at the same time."""
    unit, part = "engine_bank", fpga("ecp5-25k")
    text = unit_text(unit)
    assert change[0] in text
    file = f"{unit}.sv"
    netlist, taken = synthesise_texts({file: text.replace(*change)}, [file], unit, part, limit_s=LIMIT_S)
    assert taken.block_rams
    made = cells_as_text(netlist, unit, part, limit_s=LIMIT_S)
    harness = folder / "harness.cpp"
    harness.write_text(Path(__file__).with_name("bank_harness.cpp").read_text())
    (folder / "streams.hpp").write_text(resources.files("stoker.deploy.tools").joinpath("streams.hpp").read_text())
    program = simulator_of(made, unit, ["cells.v"], harness, "", kind="cells", limit_s=LIMIT_S)
    found = subprocess.run([program], check=True, timeout=LIMIT_S, capture_output=True, text=True).stdout
    wrong, known, same = map(int, found.split())
    return wrong, known, same


@needs_verilator
@pytest.mark.slow("synthesises the unit, and compiles a simulator of its cells")
@pytest.mark.parametrize("change", [("!bank", "!bank"), ("{!bank, load_address}", "{bank, load_address}")])
def test_block_memory_is_never_read_where_it_is_written(tmp_path: Path, change: tuple[str, str]) -> None:
    wrong, known, same = read_wrongly(tmp_path, change)
    assert min(known, same) > 1000
    assert (wrong != 0) == (change[0] != change[1])
