"""Requantisers by thresholds as a choice of a search: where multipliers are of lookup tables, and nowhere else."""

import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from stoker.cli.deploy import rtl, search
from stoker.core.texts import to_json
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.package.folder import read_package, write_package
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.rtl.memories import comparable
from stoker.deploy.search.contents import contents_of
from stoker.deploy.search.families import ConstantForms, Dataflow, DataflowDesign, SearchedPackage, constant_forms
from stoker.deploy.search.model import DeviceDemand, model_of
from stoker.deploy.search.report import read_pick, report_of
from stoker.deploy.search.searching import DesignLimits
from stoker.deploy.search.searching import search as searched_in
from stoker.deploy.search.space import may_compare
from stoker.deploy.tools.devices import Fpga, fpga
from stoker.records.deploy.search import SearchReport
from stoker.ui.deploy.search_html import render_search_page
from stoker.ui.deploy.search_text import render_search
from tests.deploy.rtl.nets import NetBuilder

pytest.importorskip("scipy")
SOFT = fpga("ice40-hx8k")
WANTED = DesignLimits(rate_per_s=20_000.0)


@cache
def narrow() -> IntegerGraph:
    """Of four bits but for the last layer; the average has no array."""
    net = NetBuilder(1)
    found = net.conv(net.input((8, 8, 1), 4), 8, (3, 3), 4, weight_bits=4)
    found = net.sum_pool(found, (2, 2), (2, 2), bits=4)
    return net.graph(net.dense(net.dense(net.flat(found), 16, 4, weight_bits=4), 10, 9, weight_bits=4))


def searched(
    part: Fpga, *, compares: bool = True, constants: ConstantForms | None = None, digest: str = "d"
) -> tuple[SearchReport, DataflowDesign]:
    package = SearchedPackage(name="net.pkg", digest=digest, graph=narrow())
    family = Dataflow(package, part, model_of(part), constants or ConstantForms(), compares=compares)
    outcome = searched_in([family], WANTED)
    design = outcome.nearest.design
    assert isinstance(design, DataflowDesign)
    return report_of(outcome, WANTED, part), design


def test_thresholds_are_taken_where_multipliers_are_of_lookup_tables() -> None:
    report, design = searched(SOFT)
    other, without = searched(SOFT, compares=False)
    assert report.pick is not None
    assert other.pick is not None
    conv, pool, hidden = comparable(narrow())  # the scores have too many bits
    assert set(report.pick.thresholds) == {conv, pool, hidden}
    assert not other.pick.thresholds
    assert design.order < without.order
    assert report.pick.luts < 0.8 * other.pick.luts
    assert [each.requantiser for each in report.families] == ["multipliers or thresholds"]
    assert [each.requantiser for each in other.families] == ["multipliers"]
    assert {memory.use for layer in report.layers if layer.layer == conv for memory in layer.memories} >= {"thresholds"}
    for shown in (render_search(report), render_search_page(report)):
        assert "the results of 3 layers by thresholds" in " ".join(shown.split())
        assert "multipliers or thresholds" in " ".join(shown.split())


def test_what_was_added_up_is_the_design() -> None:
    _, design = searched(SOFT)
    added, whole = design.chosen.demand, design.estimate.demand
    assert added.luts == pytest.approx(whole.luts, rel=0.01)
    assert added.block_rams == whole.block_rams
    assert set(design.chosen.compared) < set(design.structure.thresholds)


@pytest.mark.parametrize(("high", "kept"), [(1, 0), (3, 0), (15, 2)])
def test_the_channel_is_kept_for_the_steps_behind_the_second(high: int, kept: int) -> None:
    """That is for no step where results have one bit."""
    widths = {"LANES": 1, "DEPTH": 8, "ACC_W": 8, "A_W": 4, "A_BY": 1, "ONE": 1, "OUT_W": 4}
    of = {**widths, "SUM_W": 5, "LOW": 0, "HIGH": high, "THRESHOLD_W": 5}
    one, eight = (contents_of("add_unit", {**of, "THRESHOLDS": words}) for words in (1, 8))
    assert eight.registers - one.registers == kept * 3


@pytest.mark.parametrize("name", ["ecp5-25k", "xc7a35t"])
def test_where_a_device_has_multipliers_nothing_changes(name: str) -> None:
    part = fpga(name)
    model = model_of(part) if part.is_placed else model_of(part).at(100.0)
    package = SearchedPackage(name="net.pkg", digest="d", graph=narrow())
    for forms in (ConstantForms(), constant_forms(narrow())):
        families = [Dataflow(package, part, model, forms, compares=compares) for compares in (True, False)]
        assert [each.requantiser for each in families] == ["multipliers", "multipliers"]
        pace = families[0].paces()[len(families[0].paces()) // 2]
        first, second = (each.written(each.design(pace)) for each in families)
        assert first == second
        assert not first.thresholds


def test_hardware_multipliers_are_never_given_up() -> None:
    small, large = DeviceDemand(luts=50.0, dsps=1), DeviceDemand(luts=100.0, dsps=1)
    assert may_compare(large, small)
    assert not may_compare(small, large)
    assert not may_compare(replace(large, dsps=3), small)


def test_multipliers_stay_where_block_memories_are_scarce() -> None:
    _, design = searched(SOFT)
    _, without = searched(SOFT, compares=False)
    taken, least = design.estimate.demand.block_rams, without.estimate.demand.block_rams
    assert taken > least
    report, _ = searched(replace(SOFT, block_rams=least))
    assert report.pick is not None
    assert report.pick.block_rams <= least


def test_weights_in_the_circuit_have_both_forms() -> None:
    package = SearchedPackage(name="net.pkg", digest="d", graph=narrow())
    family = Dataflow(package, SOFT, model_of(SOFT), constant_forms(narrow()))
    fastest = family.design(family.paces()[0])
    assert fastest.structure.thresholds
    forms = {(each.constant, each.compared) for choices in family._choices.values() for each in choices}
    assert forms == {(constant, compared) for constant in (False, True) for compared in (False, True)}


def test_what_is_picked_is_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the report, and by the command that it shows: the same files as the search counted."""
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    write_package("net.pkg", narrow(), "net")
    digest = read_package(Path("net.pkg")).digest
    report, design = searched(SOFT, digest=digest)
    Path("search.json").write_bytes(to_json(report))
    assert read_pick(Path("search.json"), digest) == report.pick
    assert rtl.main(["net.pkg", "--folding", "search.json", "--out", "picked"]) == 0
    words = shlex.split(report.command)
    assert words[:3] == ["stoker", "deploy", "rtl"]
    assert rtl.main(words[3:]) == 0
    picked, typed = read_design(Path("picked")), read_design(Path("rtl"))
    assert picked.digest == typed.digest == report.design
    assert (picked.cycles, picked.thresholds) == (design.cycles, design.structure.thresholds)


def test_a_search_leaves_thresholds_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    write_package("net.pkg", narrow(), "net")
    words = ["net.pkg", "--device", SOFT.name, "--weights", "memories", "--rate", "20k", "--out", "search.json"]
    digest = read_package(Path("net.pkg")).digest
    for more, some in (([], True), (["--requantisers", "multipliers"], False)):
        assert search.main([*words, *more]) == 0
        assert bool(read_pick(Path("search.json"), digest).thresholds) == some
    assert rtl.main(["net.pkg", "--folding", "search.json", "--out", "rtl", "--updatable"]) == 0
