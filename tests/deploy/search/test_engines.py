"""Engines as a family: the smallest that holds a model, the front beside dataflow's, what each lacks."""

from pathlib import Path

import pytest
from msgspec import structs

from stoker.core.texts import to_json
from stoker.deploy.rtl.engine.compiling import compiled, least_engine
from stoker.deploy.rtl.engine.cycles import cycles_by_value, sample_cycles
from stoker.deploy.rtl.engine.shape import LANES, EngineShape
from stoker.deploy.search.engine_model import engine_model_of, fitted_engines
from stoker.deploy.search.engines import EngineFamily
from stoker.deploy.search.families import Dataflow, SearchedPackage
from stoker.deploy.search.model import model_of
from stoker.deploy.search.report import engine_of, foldings_of, read_pick, report_of
from stoker.deploy.search.searching import DesignLimits, RefusedFamily, search
from stoker.deploy.tools.devices import fpga
from stoker.ui.deploy.search_html import render_search_page
from stoker.ui.deploy.search_text import render_search
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


def test_the_model_is_near_the_engines_that_it_was_fitted_to() -> None:
    for each in MODEL.engines:
        demand = MODEL.demand(each.shape)
        assert (demand.dsps, demand.block_rams) == (each.dsps, each.block_rams)
        assert demand.luts == pytest.approx(each.luts, rel=0.1)
        assert demand.flip_flops == pytest.approx(each.flip_flops, rel=0.1)
        if each.clock_mhz is not None:
            assert MODEL.clock_mhz == pytest.approx(each.clock_mhz, rel=0.2)
    again = fitted_engines(MODEL.engines, PART, MODEL.obtained)
    for kind in ("luts", "flip_flops"):  # to the last digit they depend on the machine's linear algebra
        assert getattr(again, kind) == pytest.approx(getattr(MODEL, kind), rel=1e-9)
    assert structs.replace(again, luts=MODEL.luts, flip_flops=MODEL.flip_flops) == MODEL


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


def test_a_part_without_multipliers_is_refused() -> None:
    with pytest.raises(ValueError, match="an engine's array is of hardware multipliers, and ice40-hx8k has none"):
        engine_model_of(fpga("ice40-hx8k"))
