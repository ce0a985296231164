"""What `stoker deploy verify` shows of cells and of changes of bits."""

from msgspec import structs

from stoker.records.deploy.hardware import (
    DesignActivity,
    FittedDesign,
    UnitActivity,
    UpdatedWay,
    VerifiedDesign,
    VerifiedNetlist,
    VerifiedUnit,
    VerifiedUpdates,
    VerifiedWay,
)
from stoker.ui.deploy.hardware_text import render_fit, render_verification


def way(differing: int = 0, problem: str = "") -> VerifiedWay:
    return VerifiedWay(
        way="back to back", samples=4, outputs=40, differing=differing, interval=9.0, latency=20, problem=problem
    )


def test_a_design_whose_cells_differ_is_not_equal() -> None:
    for cells in (
        VerifiedNetlist(device="ecp5-25k", ways=(way(3),)),
        VerifiedNetlist(
            device="ecp5-25k", units=(VerifiedUnit(layer="v1", kind="matrix_unit", luts=99, ways=(way(3),)),)
        ),
    ):
        found = VerifiedDesign(ways=(way(),), cycles=9, netlist=cells)
        assert not found.equal
        shown = render_verification(found)
        assert "outputs are NOT the law's" in shown
        assert "Cells of ecp5-25k, as yosys made them" in shown
    sound = VerifiedDesign(ways=(way(),), cycles=9, netlist=VerifiedNetlist(device="ecp5-25k", ways=(way(),)))
    assert sound.equal
    assert "every output is the law's" in render_verification(sound)


def test_a_design_that_was_not_placed_has_no_clock_and_no_seconds() -> None:
    taken = {"luts": (900, 20_800), "flip_flops": (800, 41_600), "dsps": (10, 90), "block_rams": (2, 100)}
    found = FittedDesign(device="xc7a35t", **taken, clock_mhz=None, cycles=128, latency_cycles=190)
    assert (found.latency_s, found.rate_per_s) == (None, None)
    shown = render_fit(found)
    for words in ("xc7a35t, synthesised, not placed: no clock", "190 cycles, simulated", "a sample in 128 cycles"):
        assert words in shown
    for words in ("MHz", "samples/s", " us", "routed"):
        assert words not in shown
    placed = render_fit(FittedDesign(device="ecp5-25k", **taken, clock_mhz=100.0, cycles=128, latency_cycles=190))
    assert "placed and routed" in placed
    assert "100.0 MHz" in placed


def test_a_problem_of_a_units_cells_is_shown() -> None:
    unit = VerifiedUnit(layer="v1", kind="matrix_unit", luts=99, ways=(way(problem="it stood still"),))
    netlist = VerifiedNetlist(device="ecp5-25k", units=(unit,))
    assert "it stood still" in render_verification(VerifiedDesign(ways=(way(),), cycles=9, netlist=netlist))


def test_a_change_of_models_says_its_bytes_both_ways_on_an_engine() -> None:
    changed = UpdatedWay(
        way="back to back", samples=4, outputs=40, differing=0, mixed=1, updates=2, load_cycles=3792,
        until_next_cycles=3861, problem="",
    )  # fmt: skip
    updates = VerifiedUpdates(ways=(changed,), bytes=1564)
    for found, said in (
        (updates, "1,564 bytes each time"),
        (structs.replace(updates, bytes_back=15144), "15,144 back"),
    ):
        shown = render_verification(VerifiedDesign(ways=(way(),), cycles=9, updates=found))
        assert said in shown
        assert "3,792" in shown
        assert "outputs are NOT the law's" in shown  # a sample is mixed


def test_changes_are_shown_by_unit_and_called_no_power() -> None:
    units = (
        UnitActivity(unit="u1_v1", layer="v1", kind="matrix_unit", changes=1500.0, share_frac=0.75),
        UnitActivity(unit="u2_x4", layer="", kind="resize_stream", changes=300.0, share_frac=0.15),
        UnitActivity(unit="", layer="", kind="", changes=200.0, share_frac=0.1),
    )
    activity = DesignActivity(samples=4, changes=2000.0, units=units)
    shown = render_verification(VerifiedDesign(ways=(way(),), cycles=9, activity=activity))
    assert "an index to compare by, not power" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["v1", "matrix_unit", "1,500", "75.0", "%"] in rows
    assert ["u2_x4", "resize_stream", "300", "15.0", "%"] in rows
    assert any(row[:1] == ["around"] and row[-3:] == ["200", "10.0", "%"] for row in rows)


def test_a_placed_design_has_its_index_or_the_command_that_counts_it() -> None:
    fitted = FittedDesign(
        device="ecp5-25k", luts=(900, 24_288), flip_flops=(800, 24_288), dsps=(3, 28), block_rams=(0, 56),
        clock_mhz=100.0, cycles=9, latency_cycles=40,
    )  # fmt: skip
    command = "stoker deploy verify PACKAGE --design rtl --activity"
    assert command in render_fit(fitted, counting=command)
    assert "changes" not in render_fit(fitted)  # an engine's are not counted
    unit = UnitActivity(unit="u1_v1", layer="v1", kind="matrix_unit", changes=2000.0, share_frac=1.0)
    known = structs.replace(fitted, activity=DesignActivity(samples=4, changes=2000.0, units=(unit,)))
    shown = render_fit(known, counting=command)
    assert command not in shown
    assert "over 4 samples: an index to compare by, not power" in shown
    assert ["v1", "matrix_unit", "2,000", "100.0", "%"] in [line.split() for line in shown.splitlines()]
