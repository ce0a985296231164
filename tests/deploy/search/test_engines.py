"""Engines as a family: the smallest that holds a model, the front beside dataflow's, what each lacks."""

from pathlib import Path

import pytest
from msgspec import structs

from stoker.core.texts import to_json
from stoker.deploy.hardware.calibrating import calibrate_engines, judged_engines
from stoker.deploy.rtl.engine.compiling import compiled, least_engine
from stoker.deploy.rtl.engine.cycles import cycles_by_value, sample_cycles
from stoker.deploy.rtl.engine.shape import LANES, OPERAND_BITS, EngineShape
from stoker.deploy.search.engine_model import ENGINES, engine_model_of, fitted_engines
from stoker.deploy.search.engines import EngineFamily
from stoker.deploy.search.families import Dataflow, SearchedPackage
from stoker.deploy.search.model import model_of
from stoker.deploy.search.report import engine_of, foldings_of, read_pick, report_of
from stoker.deploy.search.searching import DesignLimits, RefusedFamily, search
from stoker.deploy.tools.devices import FPGAS, Fpga, fpga
from stoker.ui.deploy.search_html import render_search_page
from stoker.ui.deploy.search_text import render_calibration, render_search
from tests.deploy.rtl.engine.nets import attention
from tests.deploy.rtl.nets import residual_digits, tower

pytest.importorskip("scipy")
PART = fpga("ecp5-45k")


MODEL = engine_model_of(PART)


def packaged(graph) -> SearchedPackage:
    return SearchedPackage(name="net.pkg", digest="d", graph=graph)


@pytest.mark.parametrize("graph", [residual_digits(), tower(2), attention(1)], ids=["residual", "tower", "attention"])
@pytest.mark.parametrize("lanes", LANES)
def test_the_least_engine_is_the_smallest_whose_memories_hold_the_model(graph, lanes: int) -> None:
    image = least_engine(graph, lanes)
    assert compiled(graph, image.shape).memories == image.memories
    for name in ("data_words", "weight_words", "table_words", "scale_words", "instructions"):
        words = getattr(image.shape, name)
        if words > 16:
            smaller = {each: getattr(image.shape, each) for each in image.shape.__struct_fields__} | {name: words // 2}
            with pytest.raises(ValueError, match="the engine's memory of"):
                compiled(graph, EngineShape(**smaller))


def test_paces_are_cycles_by_closed_form_and_a_wider_array_is_taken_where_it_is_faster() -> None:
    own = EngineFamily(packaged(residual_digits()), PART, MODEL)
    images = {lanes: least_engine(residual_digits(), lanes) for lanes in LANES}
    assert own.paces() == sorted({sample_cycles(image) for image in images.values()})
    for image in images.values():
        assert own.design(sample_cycles(image)).cycles <= sample_cycles(image)
        assert 1 + sum(cycles_by_value(image).values()) == sample_cycles(image)
    with pytest.raises(ValueError, match="cycles a sample at least, not 3"):
        own.design(3)


@pytest.mark.parametrize("device", ["ecp5-45k", "xc7a100t"])
def test_the_model_is_near_the_engines_that_it_was_fitted_to(device: str) -> None:
    part = fpga(device)
    model = engine_model_of(part)
    assert tuple(each.shape for each in model.engines) == ENGINES
    assert (model.family, model.grade) == (part.family, part.grade)
    for each in model.engines:
        demand = model.demand(each.shape)
        assert (demand.dsps, demand.block_rams) == (each.dsps, each.block_rams)
        assert demand.luts == pytest.approx(each.luts, rel=0.1)
        assert demand.flip_flops == pytest.approx(each.flip_flops, rel=0.1)
        if each.clock_mhz is not None:
            assert model.clock_mhz == pytest.approx(each.clock_mhz, rel=0.2)
    assert (model.clock_mhz is not None) == part.is_placed
    again = fitted_engines(model.engines, part, model.obtained)
    # To rounding: machines solve the least squares with other instructions.
    assert again.luts == pytest.approx(model.luts)
    assert again.flip_flops == pytest.approx(model.flip_flops)
    assert again.period_ns == pytest.approx(model.period_ns)
    report = judged_engines(model)
    assert [row.luts[0] for row in report.rows] == [each.luts for each in model.engines]
    assert ("MHz" in render_calibration(report)) == part.is_placed


def test_an_engine_without_a_clock_is_searched_in_cycles_or_at_one_that_is_stated() -> None:
    part, package = fpga("xc7a100t"), packaged(attention(1))
    model = engine_model_of(part)
    report = report_of(search([EngineFamily(package, part, model)], DesignLimits()), DesignLimits(), part)
    assert report.pick is not None
    assert (report.pick.structure, report.pick.clock_mhz, report.pick.rate_per_s) == ("engine", None, None)
    assert report.pick.cycles == min(sample_cycles(least_engine(attention(1), lanes)) for lanes in LANES[:3])
    assert "synthesised, not placed" in " ".join(render_search(report).split())
    stated, wanted = model.at(50.0), DesignLimits(rate_per_s=1000.0)
    report = report_of(search([EngineFamily(package, part, stated)], wanted), wanted, part, clock_mhz=50.0)
    assert report.pick is not None
    assert report.pick.rate_per_s == pytest.approx(50e6 / report.pick.cycles)
    assert "50 MHz as stated" in stated.obtained


def test_both_structures_have_their_fronts_and_the_other_one_what_it_lacks(tmp_path: Path) -> None:
    package = packaged(residual_digits())
    families = [Dataflow(package, PART, model_of(PART)), EngineFamily(package, PART, MODEL)]
    wanted = DesignLimits(rate_per_s=20_000.0)
    report = report_of(search(families, wanted), wanted, PART)
    assert [each.structure for each in report.families] == ["dataflow", "engine"]
    assert all(each.front for each in report.families)
    assert {each.structure for each in report.front} <= {"dataflow", "engine"}
    assert report.pick is not None
    assert report.pick.structure == "dataflow"
    assert "DSPs: 24 too many" in report.families[1].why
    for shown in (render_search(report), render_search_page(report)):
        assert "engine, 4 lanes" in shown


def test_what_has_no_unit_is_built_as_an_engine_and_read_again(tmp_path: Path) -> None:
    package = packaged(attention(1))
    with pytest.raises(ValueError, match="must be of a kind that a dataflow design has a unit for"):
        Dataflow(package, PART, model_of(PART))
    wanted = DesignLimits()
    refused = RefusedFamily("net.pkg", "dataflow", "no unit for it")
    report = report_of(search([EngineFamily(package, PART, MODEL)], wanted), wanted, PART, [refused])
    assert report.pick is not None
    assert report.proof is None
    assert report.families[1].why == "no unit for it"
    text, page = render_search(report), render_search_page(report)
    for words in ("Program", "no unit for it", "cycles a sample", "an engine of"):
        assert words in text
        assert words in page
    path = tmp_path / "search.json"
    path.write_bytes(to_json(report))
    pick = read_pick(path, "d")
    assert foldings_of(pick) == {}
    shape = engine_of(pick)
    assert shape is not None
    assert sample_cycles(compiled(attention(1), shape)) == pick.cycles


@pytest.mark.parametrize("part", [each for each in FPGAS if not each.dsps], ids=lambda each: each.name)
def test_a_part_without_multipliers_is_refused_with_what_the_least_engine_takes(part: Fpga) -> None:
    said = f"hardware multipliers, and {part.name} has none for it: .* of its {part.luts:,} lookup tables"
    with pytest.raises(ValueError, match=said):
        engine_model_of(part)
    with pytest.raises(ValueError, match=said):
        calibrate_engines(part, limit_s=1.0)


def test_an_address_of_few_bits_takes_no_multiplier_where_narrow_products_are_lookup_tables() -> None:
    small = EngineShape(lanes=8, data_words=256, weight_words=256, table_words=16, scale_words=16, instructions=16)
    for device, fewer in (("ecp5-45k", 0), ("xc7a100t", 1)):
        model = engine_model_of(fpga(device))
        for larger in ({"weight_words": 512}, {"table_words": 64}):
            assert model.demand(structs.replace(small, **larger)).dsps - model.demand(small).dsps == fewer


def test_a_distributed_memory_is_read_into_registers_that_block_memories_have() -> None:
    model = engine_model_of(fpga("xc7a100t"))
    tables, blocks = (EngineShape(lanes=4, table_words=words) for words in (16, 512))
    assert model.demand(tables).flip_flops - model.demand(blocks).flip_flops == 4 * OPERAND_BITS
