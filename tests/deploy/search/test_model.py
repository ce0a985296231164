"""The model that is shipped against what it was fitted to; the fit; what is counted."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from stoker.deploy.hardware import calibrating
from stoker.deploy.hardware.calibrating import judged, measured, specimens_on
from stoker.deploy.rtl.folding import works_of
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.search.contents import UnitContents
from stoker.deploy.search.model import MeasuredSpecimen, ResourceModel, design_contents, estimated, fitted, model_of
from stoker.deploy.search.specimens import (
    compared_specimens,
    narrow_specimens,
    small_networks,
    small_specimens,
    specimens,
)
from stoker.deploy.tools.devices import Fpga, fpga
from stoker.deploy.tools.synthesis import Resources
from stoker.ui.deploy.search_text import render_calibration
from tests.deploy.search.unplaced import unplaced_model

PARTS = [fpga(name) for name in ("ecp5-45k", "ice40-hx8k", "xc7a100t")]


@pytest.fixture(scope="module", params=PARTS, ids=[each.name for each in PARTS])
def shipped(request: pytest.FixtureRequest) -> tuple[Fpga, ResourceModel, list[Structure]]:
    part: Fpga = request.param
    return (
        part,
        model_of(part),
        [
            lower(each.graph, each.foldings, constant=each.constant, thresholds=each.thresholds)
            for each in specimens_on(part)
        ],
    )


Shipped = tuple[Fpga, ResourceModel, list[Structure]]


def test_the_shipped_model_is_of_these_specimens_and_near_them(shipped: Shipped) -> None:
    part, model, structures = shipped
    assert [each.name for each in model.specimens] == [each.name for each in specimens_on(part)]
    rows = judged(model, structures).rows
    assert all(row.dsps[0] == row.dsps[1] and row.block_rams[0] == row.block_rams[1] for row in rows)
    assert any(row.clock_mhz is not None for row in rows) == part.is_placed
    # Small designs on 7 series are far from the sum of their parts, for tables of six inputs swallow some of them.
    luts_worst, flip_flops_worst = (0.2, 0.2) if part.is_placed else (0.45, 0.25)
    bars = (("luts", 0.08, luts_worst), ("flip_flops", 0.08, flip_flops_worst), ("clock_mhz", 0.08, 0.2))
    for kind, usual, worst in bars:
        pairs = [pair for row in rows if (pair := getattr(row, kind)) is not None]
        if not pairs:
            continue
        errors = [abs(guess / found - 1) for found, guess in pairs]
        assert median(errors) <= usual
        assert max(errors) <= worst


def test_the_fit_gives_the_shipped_weights(shipped: Shipped) -> None:
    pytest.importorskip("scipy")
    part, model, structures = shipped
    found = fitted(list(zip(structures, model.specimens, strict=True)), part, model.obtained)
    for kind in ("luts", "flip_flops", "period_ns"):
        assert getattr(found, kind) == pytest.approx(getattr(model, kind), rel=1e-6, abs=1e-9)
        assert all(weight >= 0 for weight in getattr(found, kind).values())


def test_another_grade_takes_the_same_and_is_slower() -> None:
    fast, slow = (model_of(fpga(name)) for name in ("ice40-hx8k", "ice40-up5k"))
    contents = UnitContents(adders=40, products=400, registers=90)
    assert slow.demand(contents) == fast.demand(contents)
    clocks = [each.clock_mhz(each.demand(contents), 34) or 0.0 for each in (fast, slow)]
    assert clocks[0] / clocks[1] == pytest.approx(fast.slower["up"].median)
    assert "times slower (2.52 to 2.82 in 13 designs" in slow.obtained


def test_contents_add_up() -> None:
    one, other = UnitContents(adders=3, multipliers=1), UnitContents(adders=1, units=1)
    assert (one + other) == UnitContents(adders=4, multipliers=1, units=1)
    assert one.times(3) == one + one + one
    assert (UnitContents(longest=17) + UnitContents(longest=34)).times(2).longest == 34


def test_multipliers_with_registers_take_in_what_is_around_them() -> None:
    plain, registered = model_of(fpga("ecp5-45k")), unplaced_model()
    inside = UnitContents(
        registers=40, taken_registers=40, adders=20, taken_adders=20, muxes=9, taken_muxes=9, multipliers=1
    )
    alone = UnitContents(multipliers=1)
    assert registered.demand(inside) == registered.demand(alone)
    assert plain.demand(inside).flip_flops > plain.demand(alone).flip_flops
    assert plain.demand(inside).luts > plain.demand(alone).luts


def test_narrow_products_are_lookup_tables_where_multipliers_are_left_to_wider_ones() -> None:
    narrow = UnitContents(multipliers=3, narrow_multipliers=2, products=60, narrow_products=40)
    plain, leaving = (model.demand(narrow) for model in (model_of(fpga("ecp5-45k")), unplaced_model()))
    assert (plain.dsps, plain.luts) == (3, 0)
    assert leaving.dsps == 1
    assert leaving.luts == 40


def test_bits_of_sums_that_wait_or_are_subtracted_have_logic_cells() -> None:
    """One each, where a cell has a lookup table and a flip-flop; elsewhere lookup tables add, and flip-flops wait."""
    plain = UnitContents(sums=100, sum_registers=110, waiting=40)
    more = UnitContents(sums=100, sum_registers=110, waiting=60, subtracted=30)
    for part in PARTS:
        model = model_of(part)
        one, other = model.demand(plain), model.demand(more)
        assert other.luts - one.luts == pytest.approx(50 * model.luts["sums"] if part.name == "ice40-hx8k" else 0)
        assert other.flip_flops - one.flip_flops == pytest.approx(20 * model.flip_flops["sums"])
        assert model.luts["sums"] == pytest.approx(1, abs=0.1)
        assert model.sums_off is not None
        assert model.sums_off.worst_frac < 0.15


def test_small_specimens_are_of_weights_in_the_circuit_and_fit_where_few_of_the_others_do() -> None:
    small = {each.name for each in small_specimens()}
    found = specimens_on(fpga("ice40-hx8k"))
    assert small < {each.name for each in found if each.constant}
    assert all(each.constant for each in small_specimens())
    assert not small & {each.name for each in specimens_on(fpga("ecp5-45k"))}


def test_compared_specimens_are_of_thresholds_on_devices_without_multipliers() -> None:
    own = {each.name: each for each in compared_specimens()}
    found = {each.name for each in specimens_on(fpga("ice40-hx8k"))}
    assert {*own} < found
    assert not {*own} & {each.name for part in ("ecp5-45k", "xc7a100t") for each in specimens_on(fpga(part))}
    bits = {each.graph.values[name].bits for each in own.values() for name in each.thresholds}
    assert bits == {4, 6, 8}
    for each in own.values():  # results that sums don't reach would have no thresholds
        assert all(
            value.high > 0.8 * value.type_high for name in each.thresholds for value in [each.graph.values[name]]
        )


def test_products_of_fewer_than_nine_bits_are_narrow() -> None:
    for specimen in narrow_specimens():
        found = design_contents(lower(specimen.graph, specimen.foldings))
        arrays = sum(work.multipliers(specimen.foldings[name]) for name, work in works_of(specimen.graph).items())
        assert found.narrow_multipliers == arrays
        assert 0 < found.narrow_products < found.products
    for specimen in specimens():
        assert design_contents(lower(specimen.graph, specimen.foldings)).narrow_multipliers == 0


def test_a_model_without_clocks_has_one_that_is_stated() -> None:
    model = unplaced_model()
    demand = model.demand(UnitContents(adders=40, multipliers=3))
    assert model.clock_mhz(demand, 17) is None
    assert model.at(80.0).clock_mhz(demand, 17) == pytest.approx(80.0)
    assert model.at(80.0).demand(UnitContents(adders=40, multipliers=3)) == demand


def test_specimens_without_clocks_are_fitted_and_shown_without_them() -> None:
    pytest.importorskip("scipy")
    part, known = fpga("xc7a100t"), unplaced_model()
    chosen = specimens_on(part)
    assert {each.name for each in narrow_specimens()} < {each.name for each in chosen}
    structures = [lower(each.graph, each.foldings, constant=each.constant) for each in chosen]
    measured = [
        MeasuredSpecimen(
            name=each.name, luts=round(found.luts), flip_flops=round(found.flip_flops), dsps=found.dsps,
            block_rams=found.block_rams, clock_mhz=None,
        )
        for each, structure in zip(chosen, structures, strict=True)
        for found in (estimated(structure, known).demand,)
    ]  # fmt: skip
    model = fitted(list(zip(structures, measured, strict=True)), part, "by hand")
    assert (model.family, model.grade, model.period_ns) == ("xc7", "", {})
    report = judged(model, structures)
    for row in report.rows:
        assert row.clock_mhz is None
        assert row.luts[1] == pytest.approx(row.luts[0], rel=0.01)
        assert row.flip_flops[1] == pytest.approx(row.flip_flops[0], rel=0.01)
        assert (row.dsps[0], row.block_rams[0]) == (row.dsps[1], row.block_rams[1])
    shown = render_calibration(report)
    assert "MHz" not in shown
    assert f"0 of {len(chosen)} designs differ" in shown


def test_small_networks_are_few_combinations() -> None:
    for each in small_networks():
        count = 1
        for work in works_of(each.graph).values():
            count *= len(list(work.foldings()))
        assert count < 3000


def test_a_specimen_lies_in_a_folder_as_other_commands_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next command removes what is left of one that was killed."""
    seen: list[Path] = []

    def synthesised(folder: Path, *_: Any, **__: Any) -> tuple[Path, Resources]:
        assert any(folder.iterdir())
        seen.append(folder)
        return folder, Resources(luts=1, flip_flops=1, dsps=0, block_rams=0)

    def not_placed(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(calibrating, "synthesise", synthesised)
    monkeypatch.setattr(calibrating, "place", not_placed)
    assert len(list(measured(specimens()[:1], PARTS[0], limit_s=1.0))) == 1
    assert seen[0].parent.parent.name.startswith("stoker-deploy-specimen-")
    assert not seen[0].exists()
