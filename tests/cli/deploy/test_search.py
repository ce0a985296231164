"""`stoker deploy search`, and the commands that take what it picked."""

import json
import shlex
from pathlib import Path

import pytest
from msgspec import structs

from stoker.cli.main import main
from stoker.core.texts import to_json
from stoker.deploy.package.folder import write_package
from stoker.deploy.rtl.engine.files import read_engine
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.search.engine_model import engine_model_of
from stoker.deploy.search.model import model_of
from stoker.deploy.tools.devices import fpga
from tests.deploy.rtl.nets import NetBuilder, residual_digits

pytest.importorskip("safetensors")
pytest.importorskip("scipy")

MEMORIES = ["--weights", "memories"]
"""The additions of the network's layers take seconds."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_package("digits.pkg", residual_digits(), "digits")
    return Path("digits.pkg")


def test_a_pick_is_built(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*MEMORIES, "--rate", "5k", "--latency", "1ms", "--out", "search.json", "--html", "search.html"]
    assert main(["deploy", "search", str(package), *options]) == 0
    assert "wrote search.html" in capsys.readouterr().out
    assert "Memory map" in Path("search.html").read_text()
    assert main(["deploy", "search", str(package), "--rate", "5k", *MEMORIES]) == 0
    page = capsys.readouterr().out
    for said in ("Build digits.pkg as dataflow", "combinations of foldings as fast", "sets the pace", "Families"):
        assert said in page
    pick = json.loads(Path("search.json").read_text())["pick"]
    assert main(["deploy", "rtl", str(package), "--folding", "search.json", "--out", "rtl"]) == 0
    design = read_design(Path("rtl"))
    assert (design.cycles, design.multipliers) == (pick["cycles"], pick["multipliers"])


def test_a_picked_engine_is_built_and_its_sizes_are_the_search_s(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "search", str(package), "--structure", "engine", "--out", "search.json"]) == 0
    said = capsys.readouterr().out
    assert "Build digits.pkg as an engine of 4 lanes" in said
    assert "digits.pkg as dataflow" not in said
    found = json.loads(Path("search.json").read_text())
    pick = found["pick"]
    for command in (
        ["deploy", "rtl", str(package), "--folding", "search.json", "--out", "rtl"],
        shlex.split(found["command"])[1:],
    ):
        assert main(command) == 0
        design = read_engine(Path("rtl"))
        assert (design.cycles, structs.asdict(design.shape)) == (pick["cycles"], pick["engine"])


def test_nothing_that_fits_ends_with_status_2_and_the_nearest(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--rate", "900k", "--device", "ecp5-25k", "--weights", "memories"]
    assert main(["deploy", "search", str(package), *options, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["pick"] is None
    assert any("DSPs" in miss and "too many" in miss for miss in found["misses"])
    assert found["nearest"]["foldings"]
    assert main(["deploy", "search", str(package), *options, "--out", "none.json"]) == 2
    capsys.readouterr()
    assert main(["deploy", "rtl", str(package), "--folding", "none.json", "--out", "rtl"]) == 2
    assert "must have a pick, and nothing kept its limits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate", "fast"], "`--rate` must be samples a second such as 20000, 20k or 1.5M, got 'fast'"),
        (["--loss", "0.005"], "`--loss` must be a share in percent such as 0.5%, got '0.005'"),
        (["--loss", "101%"], "`--loss` must be at least 0% and at most 100%, such as 0.5%, got '101%'"),
        (["--latency", "0"], "`--latency` must be a positive time such as 400us"),
        (["--device", "xc7"], "`--device` must be one of ecp5-25k"),
        (["--device", "xc7a35t", "--latency", "40us"], "`latency` is in seconds and needs a clock"),
        (["--device", "xc7a35t", "--clock", "0"], "`--clock` must be a clock in MHz such as 100MHz, got '0'"),
        (["--clock", "100MHz"], "`clock` must be left out for ecp5-45k, whose clocks are estimated"),
        (["--device", "ice40-hx8k", "--structure", "engine"], "is of hardware multipliers, and ice40-hx8k has none"),
        (["--model", "none.json"], "`--model` must be a file that `stoker deploy calibrate` wrote"),
        (["--out", "missing/search.json"], "`--out` must name a file that can be written"),
    ],
)
def test_wrong_options_are_one_line(
    package: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "search", str(package), *MEMORIES, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_model_of_a_file_is_taken_where_no_clock_is_known(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = structs.replace(model_of(fpga("xc7a35t")), obtained="measured here")
    Path("model.json").write_bytes(to_json(model))
    options = ["--device", "xc7a35t", "--model", "model.json", "--structure", "dataflow"]
    assert main(["deploy", "search", str(package), *options]) == 0
    page = capsys.readouterr().out
    assert "measured here" in page
    assert "synthesised, not placed: no clock; times are in cycles" in " ".join(page.split())


def test_a_model_of_engines_is_taken_from_a_file(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = structs.replace(engine_model_of(fpga("xc7a35t")), obtained="engines measured here")
    Path("engines.json").write_bytes(to_json(model))
    options = ["--structure", "engine", "--model", "engines.json"]
    assert main(["deploy", "search", str(package), *options, "--device", "xc7a35t"]) == 0
    assert "engines measured here" in capsys.readouterr().out
    for device, said in (
        ("ecp5-45k", "`--model` must be of ecp5-45k, ecp5 of grade 6, got xc7 of grade "),
        ("ice40-hx8k", "`--model` must be of ice40-hx8k, ice40 of grade hx, got xc7 of grade "),
    ):
        assert main(["deploy", "search", str(package), *options, "--device", device]) == 2
        assert said in capsys.readouterr().err


def test_engines_are_calibrated_where_there_are_multipliers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "calibrate", "--structure", "engine", "--device", "ice40-up5k"]) == 2
    assert "takes 5,939 of its 5,280 lookup tables" in capsys.readouterr().err


def test_foldings_of_another_package_are_refused(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = NetBuilder(0)
    write_package("other.pkg", net.graph(net.dense(net.input((6,)), 4)), "other")
    assert main(["deploy", "search", str(package), *MEMORIES, "--out", "search.json"]) == 0
    capsys.readouterr()
    assert main(["deploy", "verify", "other.pkg", "--folding", "search.json"]) == 2
    assert "must be of this package, and its pick is of `digits.pkg`" in capsys.readouterr().err


def test_several_packages_are_one_front(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = NetBuilder(1)
    write_package("small.pkg", net.graph(net.dense(net.input((6,)), 4)), "small")
    assert main(["deploy", "search", str(package), "small.pkg", *MEMORIES, "--rate", "10k", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(dict.fromkeys(each["package"] for each in found["families"])) == ["digits.pkg", "small.pkg"]
    assert found["pick"]["package"] == "small.pkg"
    assert "of the device where the pick takes" in found["families"][0]["why"]
