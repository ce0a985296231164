"""`stoker deploy rtl`, and what `verify` and `fit` refuse before any tool runs."""

import json
from pathlib import Path

import pytest

from stoker.cli.deploy import fit, rtl, verify
from stoker.core.errors import ConfigError
from stoker.deploy.package.folder import write_package
from stoker.deploy.rtl.engine.files import read_engine
from stoker.deploy.rtl.generate import read_design
from tests.deploy.rtl.nets import NetBuilder, residual_digits, tower


@pytest.fixture
def package(tmp_path: Path) -> Path:
    write_package(tmp_path / "digits.pkg", residual_digits(), "digits")
    return tmp_path / "digits.pkg"


def test_a_design_is_written_and_shown(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rtl"
    assert rtl.main([str(package), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "6,144 cycles a sample in a full pipeline, by closed form" in shown
    assert "matrix_unit" in shown
    design = read_design(out)
    assert (design.cycles, sorted(design.fifos.values())) == (6144, [2, 325])
    assert rtl.main([str(package), "--out", str(out), "--cycles", "2048", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cycles"] <= 2048
    assert found["multipliers"] > design.multipliers


def test_a_folding_of_ones_own(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = residual_digits()
    name = graph.operations[1].output
    arguments = [str(package), "--out", str(tmp_path / "rtl"), "--multipliers", "30", "--json"]
    assert rtl.main([*arguments, "--fold", f"{name}=2x4x3"]) == 0
    layers = {each["layer"]: each["fold"] for each in json.loads(capsys.readouterr().out)["layers"]}
    assert layers[name] == "2 x 4 x 3"
    with pytest.raises(ConfigError, match=rf"`fold`: {name} has no folding .*; each part must divide"):
        rtl.main([*arguments, "--fold", f"{name}=3x4"])
    with pytest.raises(ConfigError, match=r"`fold` must name a layer of .*, got nothing"):
        rtl.main([*arguments, "--fold", "nothing=1x1"])


def test_weights_in_the_circuit(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = residual_digits().operations[-1].output
    arguments = [str(package), "--out", str(tmp_path / "rtl")]
    assert rtl.main([*arguments, "--constant", f"{last}=5", "--json"]) == 0
    found = {each["layer"]: (each["kind"], each["fold"]) for each in json.loads(capsys.readouterr().out)["layers"]}
    assert found[last] == ("constant_unit", "5 x 32 x 1")
    assert rtl.main([*arguments, "--constant", last, "--json"]) == 0
    found = {each["layer"]: each["fold"] for each in json.loads(capsys.readouterr().out)["layers"]}
    assert found[last] == "10 x 32 x 1"
    with pytest.raises(ConfigError, match=rf"`constant`: results of {last} must divide its 10 channels, got 3"):
        rtl.main([*arguments, "--constant", f"{last}=3"])
    with pytest.raises(ConfigError, match=r"`constant` must name a layer of .*, got nothing"):
        rtl.main([*arguments, "--constant", "nothing"])
    with pytest.raises(ConfigError, match="`--constant` is of a dataflow design"):
        rtl.main([*arguments, "--constant", last, "--structure", "engine"])


def test_bounds_that_cannot_be_kept(package: Path, tmp_path: Path) -> None:
    arguments = [str(package), "--out", str(tmp_path / "rtl")]
    with pytest.raises(ConfigError, match=r"`multipliers` must be at least 5, one a layer, got 4"):
        rtl.main([*arguments, "--multipliers", "4"])
    with pytest.raises(
        ConfigError, match=r"`cycles` must be at least 64 for a layer of 73728 products, got 1|`cycles`"
    ):
        rtl.main([*arguments, "--cycles", "1"])


def test_a_design_of_another_package_is_refused(package: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "rtl", tmp_path / "other.pkg"
    write_package(other, residual_digits(1), "digits")
    rtl.main([str(other), "--out", str(out), "--json"])
    loader = tmp_path / "calib.py"
    loader.write_text("import numpy as np\ndef batches():\n    return [{'image': np.zeros((2, 8, 8, 1), int)}]\n")
    for data in ([], ["--data", f"{loader}:batches"]):  # batches are read before the design
        with pytest.raises(ConfigError, match=r"must be a design of `.*digits.pkg`, and was made from another"):
            verify.main([str(package), "--design", str(out), *data])


def test_an_updatable_design_says_what_an_update_is(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rtl"
    assert rtl.main([str(package), "--out", str(out), "--updatable"]) == 0
    design = read_design(out)
    assert design.updates is not None
    words = design.updates.words
    assert f"{4 * words:,} bytes in {words:,} cycles; memories have two banks" in capsys.readouterr().out


def test_an_update_that_does_not_fit_is_refused_before_a_tool_runs(package: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "rtl", tmp_path / "other.pkg"
    net = NetBuilder(3)
    write_package(other, net.graph(net.dense(net.input((4,)), 2)), "other")
    rtl.main([str(package), "--out", str(out), "--updatable", "--json"])
    arguments = [str(package), "--design", str(out), "--update", str(other)]
    with pytest.raises(ConfigError, match=r"must be of the design's structure, and differs: the layer v\d+ is in one"):
        verify.main(arguments)
    rtl.main([str(package), "--out", str(out), "--json"])
    with pytest.raises(ConfigError, match=r"must take updates; write it with `stoker deploy rtl --updatable`"):
        verify.main(arguments)


def test_a_folder_without_a_design_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must hold a design: .*; write one with `stoker deploy rtl`"):
        fit.main([str(tmp_path)])


def test_a_program_of_an_engine_is_written_and_shown(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, other = tmp_path / "engine", tmp_path / "larger"
    assert rtl.main([str(package), "--out", str(out), "--structure", "engine"]) == 0
    shown = capsys.readouterr().out
    assert "an array of 8 x 8, 88 multipliers of 18 x 18 in all" in shown
    assert "Convolution" in shown
    sizes = ["--lanes", "4", "--memory", "data=2048", "--memory", "weights=1024"]
    assert rtl.main([str(package), "--out", str(other), "--structure", "engine", *sizes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memories"]["weights"][1] == 1024
    assert found["cycles"] == read_engine(other).cycles > read_engine(out).cycles
    assert sum(each["cycles"] for each in found["layers"]) + 1 == found["cycles"]


def test_options_of_the_other_structure_are_refused(package: Path, tmp_path: Path) -> None:
    arguments = [str(package), "--out", str(tmp_path / "rtl")]
    with pytest.raises(ConfigError, match="`--lanes` is of an engine; add `--structure engine`"):
        rtl.main([*arguments, "--lanes", "4"])
    with pytest.raises(ConfigError, match="`--cycles` is of a dataflow design; leave it out for an engine"):
        rtl.main([*arguments, "--structure", "engine", "--cycles", "100"])
    with pytest.raises(ConfigError, match=r"memory of weights must hold 193 words .*: 129 too few; .*weights=256`"):
        rtl.main([*arguments, "--structure", "engine", "--memory", "weights=64"])
    with pytest.raises(ConfigError, match="`lanes` must be one of 2, 4, 8, 16, got 3"):
        rtl.main([*arguments, "--structure", "engine", "--lanes", "3"])
    with pytest.raises(ConfigError, match=r"`--memory.* must be NAME=WORDS, .*, got 'weight=64'"):
        rtl.main([*arguments, "--structure", "engine", "--memory", "weight=64"])


def test_an_engine_with_another_package_is_refused(package: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "engine", tmp_path / "other.pkg"
    write_package(other, residual_digits(1), "digits")
    assert rtl.main([str(other), "--out", str(out), "--structure", "engine"]) == 0
    with pytest.raises(ConfigError, match=r"was made from another; write it again with .* --structure engine`"):
        verify.main([str(package), "--design", str(out)])


def test_an_update_of_an_engine_that_cannot_be_is_refused_before_a_tool_runs(package: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pkg"
    write_package(other, tower(0), "tower")
    with pytest.raises(ConfigError, match="the other model must have as many numbers in its inputs as the one that"):
        verify.main([str(package), "--structure", "engine", "--update", str(other)])


def test_cells_are_of_a_dataflow_design(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    assert rtl.main([str(package), "--out", str(out), "--structure", "engine"]) == 0
    with pytest.raises(ConfigError, match=r"`--netlist` is of a dataflow design, and .* holds an engine"):
        verify.main([str(package), "--design", str(out), "--netlist", "ecp5-25k"])
    with pytest.raises(ConfigError, match="`--units` is of cells, and needs `--netlist`"):
        verify.main([str(package), "--units"])


def test_tables_without_room_stay_on_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = tower(1)
    write_package(tmp_path / "tower.pkg", graph, "tower")
    arguments = [str(tmp_path / "tower.pkg"), "--out", str(tmp_path / "rtl")]
    assert rtl.main([*arguments, "--table-room", "1"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 3 tables: 0.7 kbit less on the chip" in shown
    (away,) = read_design(tmp_path / "rtl").host_tables
    assert away in {end.port for end in read_design(tmp_path / "rtl").inputs}
    assert rtl.main([*arguments, "--table-room", "0", "--json"]) == 0
    assert all(each["on_host"] for each in json.loads(capsys.readouterr().out)["tables"])
    assert not list((tmp_path / "rtl").glob("*_entries.hex"))
    with pytest.raises(
        ConfigError,
        match=r"must have its tables on the chip, got .* on the host; search with `--tables chip`, or leave out",
    ):
        rtl.main([*arguments, "--table-room", "0", "--updatable"])
    with pytest.raises(ConfigError, match="`--table-room` is of a dataflow design"):
        rtl.main([*arguments, "--table-room", "0", "--structure", "engine"])
