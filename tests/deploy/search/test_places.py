"""Weights in the circuit and tables on the host as choices of a search: what is picked is what is written."""

import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from msgspec import structs

from stoker.cli.deploy import rtl
from stoker.core.texts import to_json
from stoker.deploy.hardware.activity import keep_activity, read_activity
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.host_tables import on_host, tables_of
from stoker.deploy.package.folder import read_package, write_package
from stoker.deploy.rtl.constant_sums import signed_digits
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.search.families import (
    MOST_DIGITS,
    ConstantForms,
    Dataflow,
    DataflowDesign,
    SearchedPackage,
    constant_forms,
)
from stoker.deploy.search.model import model_of
from stoker.deploy.search.report import read_pick, report_of
from stoker.deploy.search.searching import DesignLimits, search
from stoker.deploy.tools.devices import fpga
from stoker.records.deploy.hardware import DesignActivity, UnitActivity
from stoker.records.deploy.search import SearchReport
from stoker.ui.deploy.search_html import render_search_page
from stoker.ui.deploy.search_text import render_search
from stoker.ui.deploy.search_words import write_proof
from tests.deploy.rtl.nets import NetBuilder

pytest.importorskip("scipy")
SMALL = fpga("ecp5-25k")
ROWS = (4_000, 9_000, 6_000, 300)


@cache
def dense() -> IntegerGraph:
    net = NetBuilder(1)
    return net.graph(net.dense(net.dense(net.input((16,), 4), 12, 4, weight_bits=4), 6, weight_bits=3))


@cache
def lookups(rows: tuple[int, ...] = ROWS) -> IntegerGraph:
    """Tables of more bits than a small part has, through a dense layer."""
    net = NetBuilder(2)
    made = [net.rows((), 16 if at % 2 else 8, num_rows=count) for at, count in enumerate(rows)]
    for name in made:
        net.values[name] = structs.replace(net.values[name], zero_point=0)
    return net.graph(net.dense(net.concat(*made), 4))


def searched(
    graph: IntegerGraph, wanted: DesignLimits, *, name: str = "net.pkg", digest: str = "d", host: bool = True,
    constants: ConstantForms | None = None,
) -> tuple[SearchReport, DataflowDesign]:  # fmt: skip
    package = SearchedPackage(name=name, digest=digest, graph=graph)
    family = Dataflow(package, SMALL, model_of(SMALL), constants or constant_forms(graph), host)
    outcome = search([family], wanted)
    design = outcome.nearest.design
    assert isinstance(design, DataflowDesign)
    return report_of(outcome, wanted, SMALL), design


def test_weights_go_into_the_circuit_where_that_takes_less() -> None:
    wanted = DesignLimits(rate_per_s=2e7)
    report, design = searched(dense(), wanted)
    _, without = searched(dense(), wanted, constants=ConstantForms())
    assert design.chosen.constant
    assert design.order < without.order
    assert 1 / design.interval >= 2e7
    assert {node.layer for node in design.structure.nodes.values() if node.constant} == set(design.chosen.constant)
    assert {each.form for each in report.forms} == {"memories", "circuit"}
    assert [each.layer for each in report.forms if each.taken] == list(design.foldings)
    for each in report.forms:
        assert each.cycles <= design.cycles
        assert each.form == "memories" or each.dsps < 6 + 12  # requantisers alone
    for shown in (render_search(report), render_search_page(report)):
        assert "in the circuit" in shown
        assert "constant_unit" in shown


def test_weights_stay_in_memories_where_the_circuit_saves_nothing() -> None:
    """Both families are searched, and the first of equals is picked; both forms are shown all the same."""
    net = NetBuilder(5)
    graph = net.graph(net.dense(net.input((48,)), 8))
    package = SearchedPackage(name="net.pkg", digest="d", graph=graph)
    forms = constant_forms(graph)
    families = [Dataflow(package, SMALL, model_of(SMALL)), Dataflow(package, SMALL, model_of(SMALL), forms)]
    for rate, circuit in ((1000.0, False), (2e7, True)):
        wanted = DesignLimits(rate_per_s=rate)
        report = report_of(search(families, wanted), wanted, SMALL)
        assert report.pick is not None
        assert bool(report.pick.constant) == circuit
        picked = [each.weights for each in report.families if not each.why]
        assert picked == ["any" if circuit else "memories"]
        assert [each.taken for each in report.forms] == [not circuit, circuit]
        assert "weights in memories or in the circuit" in " ".join(render_search(report).split())


@pytest.mark.parametrize("tables", [False, True])
def test_what_is_picked_is_what_is_written(tables: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the report, and by the command that it shows: the same files as the search counted."""
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    write_package("net.pkg", lookups() if tables else dense(), "net")
    package = read_package(Path("net.pkg"))
    report, design = searched(package.graph, DesignLimits(rate_per_s=1e6 if tables else 2e7), digest=package.digest)
    pick = report.pick
    assert pick is not None
    assert bool(pick.host_tables) == tables
    assert pick.constant or tables
    Path("search.json").write_bytes(to_json(report))
    assert read_pick(Path("search.json"), package.digest) == pick
    assert rtl.main(["net.pkg", "--folding", "search.json", "--out", "picked"]) == 0
    words = shlex.split(report.command)
    assert words[:3] == ["stoker", "deploy", "rtl"]
    assert rtl.main(words[3:]) == 0
    picked, typed = read_design(Path("picked")), read_design(Path("rtl"))
    assert picked.digest == typed.digest == report.design
    assert (picked.cycles, picked.constant) == (design.cycles, design.chosen.constant)
    assert picked.host_tables == pick.host_tables


def test_tables_leave_the_chip_where_it_has_no_room_with_the_fewest_bytes() -> None:
    graph = lookups()
    report, design = searched(graph, DesignLimits(rate_per_s=1e6))
    assert report.pick is not None
    away = design.structure.host_tables
    demands = tables_of(graph)
    assert 0 < len(away) < len(demands)
    # As many block memories as are left hold so many bits: the cut of fewest bytes for that room is the same.
    assert sorted(away) == sorted(on_host(demands, SMALL.block_rams * 16 * 1024))
    assert design.host_bytes == sum(each.more_bytes for each in demands if each.layer in away)
    assert report.proof is not None
    assert report.proof.more_bytes == design.host_bytes
    by_name = {each.layer: each for each in report.tables}
    for demand in demands:
        shown = by_name[demand.layer]
        assert shown.on_host == (demand.layer in away)
        assert shown.sample_bytes == (demand.host_bytes if shown.on_host else demand.chip_bytes)
        if shown.on_host:  # rows come in words of the stream, all of them
            assert shown.words * shown.bus_bits == 8 * demand.size
        else:
            assert (shown.words, shown.bus_bits) == (1, 32)
    cut = "no other tables on the host let a design fit with fewer than"
    assert cut in write_proof(report)
    assert cut not in write_proof(structs.replace(report, pick=None, nearest=report.pick))  # where none fits
    kept, _ = searched(graph, DesignLimits(rate_per_s=1e6), host=False)
    assert kept.pick is None
    assert any("block RAMs" in each for each in kept.misses)
    for text in (render_search(report), render_search_page(report)):
        assert "on the host" in text
        assert "MB/s at its rate" in text


def test_the_nearest_design_takes_no_more_of_the_rest_than_it_must() -> None:
    """Tables alone are too much at every pace: the slowest pace in time has the fewest multipliers."""
    graph = lookups((40_000, 90_000))
    wanted = DesignLimits(rate_per_s=1000.0)
    package = SearchedPackage(name="net", digest="d", graph=graph)
    family = Dataflow(package, SMALL, model_of(SMALL))
    found = search([family], wanted).nearest
    every = [family.design(pace) for pace in family.paces()]
    in_time = [each for each in every if wanted.slowness(each) <= 1]
    assert found.excess > 1
    assert found.design.estimate.demand.dsps == min(each.estimate.demand.dsps for each in in_time)
    assert found.design.order == min(each.order for each in in_time)


def test_layers_without_a_form_in_the_circuit_are_named() -> None:
    net = NetBuilder(3)
    apart = net.conv(net.input((4, 4, 4)), 4, groups=4)
    large = net.dense(net.flat(apart), 96)
    graph = net.graph(net.dense(large, 16))
    found = constant_forms(graph)
    assert found.refused[apart] == "its channels are in 4 groups"
    digits = sum(1 for each in graph.constants[graph.operations[-1].weight].flat for _ in signed_digits(int(each)))
    assert digits > MOST_DIGITS
    assert "digits, and up to 4,000 were looked at" in found.refused[graph.operations[-1].output]
    assert found.sums.keys() == {each.output for each in graph.operations if each.output not in found.refused} - {
        each.output for each in graph.operations if not hasattr(each, "weight")
    }
    report, _ = searched(graph, DesignLimits(), constants=ConstantForms(refused=found.refused))
    assert any(note == f"weights of {apart} are in memories: its channels are in 4 groups" for note in report.notes)


def test_changes_of_bits_are_shown_of_just_the_design_that_was_counted(tmp_path: Path) -> None:
    report, _ = searched(dense(), DesignLimits(rate_per_s=1e6))
    units = (
        UnitActivity(unit="u1", layer="v1", kind="matrix_unit", changes=300.0, share_frac=0.75),
        UnitActivity(unit="", layer="", kind="", changes=100.0, share_frac=0.25),
    )
    counted = DesignActivity(samples=7, changes=400.0, units=units)
    assert read_activity(report.design, tmp_path) is None
    asked = "stoker deploy verify net.pkg --design rtl --activity"
    for shown in (render_search(report), render_search_page(report)):
        assert asked in " ".join(shown.split())
    keep_activity(report.design, structs.replace(counted, samples=3), tmp_path)
    keep_activity(report.design, counted, tmp_path)
    assert read_activity(report.design, tmp_path) == counted
    assert read_activity("0" * 64, tmp_path) is None
    (kept,) = tmp_path.iterdir()
    kept.replace(tmp_path / f"changes-{'1' * 64}.json")
    assert read_activity("1" * 64, tmp_path) is None  # another design's
    known = structs.replace(report, activity=counted)
    for shown in (render_search(known), render_search_page(known)):
        assert "over 7 samples: an index to compare by, not power" in shown
        assert asked not in " ".join(shown.split())


def test_tables_whose_row_numbers_are_cut_out_of_an_input_are_on_the_host() -> None:
    """``x[:, 1]`` has no unit: without the host the package is refused, with it the design has rows as inputs."""
    net = NetBuilder(4)
    made = [net.rows((1,), 8, num_rows=5), net.rows((1,), 8, num_rows=7)]
    for name in made:
        net.values[name] = structs.replace(net.values[name], zero_point=0)
    apart = net.graph(net.dense(net.flat(net.concat(*made)), 3))
    first, second = (port.value for port in apart.inputs)
    ids = structs.replace(apart.values[first], name="ids", shape=(2,), high=4, bits=16)
    graph = checked(
        replace(
            apart,
            inputs=(structs.replace(apart.inputs[0], name="ids", value="ids", shape=(2,), order=(0,)),),
            values={**apart.values, "ids": ids}
            | {each: structs.replace(apart.values[each], high=4, bits=16) for each in (first, second)},
            operations=(
                op.Slice(source="ids", output=first, axis=0, start=0, stop=1),
                op.Slice(source="ids", output=second, axis=0, start=1, stop=2),
                *apart.operations,
            ),
        )
    )
    with pytest.raises(ValueError, match="got Slice"):
        searched(graph, DesignLimits(), host=False)
    report, design = searched(graph, DesignLimits())
    assert report.pick is not None
    assert report.pick.host_tables == design.structure.host_tables == tuple(sorted(made))
    assert [each.on_host for each in report.tables] == [True, True]
