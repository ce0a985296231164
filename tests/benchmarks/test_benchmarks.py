"""The benchmarks run and say what they must say; what they measure is not checked here."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as table
from benchmarks.support.harness import Options, Report, layout, parse

pytest.importorskip("torch")
pytest.importorskip("cv2")


@pytest.mark.parametrize("name", table.BARS)
def test_a_bar_names_itself_and_parses_its_arguments(name):
    module = importlib.import_module(f"benchmarks.{name}")
    assert module.BAR.name == name
    assert parse(module.BAR, ["--quick", "--json"]) == (Options(size="quick", rounds=5), True)
    assert parse(module.BAR, [])[0].size == "full"
    assert module.BAR.headline


def test_rounds_are_positive(capsys):
    bar = importlib.import_module("benchmarks.resume").BAR
    with pytest.raises(SystemExit):
        parse(bar, ["--rounds", "0"])
    assert "`--rounds` must be at least 1, got 0" in capsys.readouterr().err


@pytest.fixture(scope="module")
def forks():
    command = [sys.executable, "-W", "error::UserWarning", str(Path(__file__).with_name("forks.py"))]
    quiet = {**os.environ, "KINETO_LOG_LEVEL": "99"}  # torch's profiler tells where it starts
    with subprocess.Popen(command, env=quiet, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.mark.integration
@pytest.mark.slow("the first bar waits for torch; a calibration measures this machine")
@pytest.mark.timeout(300)  # a calibration of the CPU takes a minute and a half on a busy machine
@pytest.mark.parametrize("name", table.BARS)
def test_the_last_line_of_a_tiny_run_is_json(name, forks, tmp_path):
    print(name, tmp_path, file=forks.stdin, flush=True)
    status = forks.stdout.readline()
    said = (tmp_path / "err").read_text()
    assert status == "0\n", said
    assert said == ""
    result = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    assert list(result) == ["bar", "figures", "holds"]
    assert result["bar"] == name
    assert isinstance(result["holds"], bool) or "skipped" in result["figures"]
    assert {"skipped", *importlib.import_module(f"benchmarks.{name}").BAR.headline} & set(result["figures"])
    assert all(isinstance(value, int | float | str) for value in result["figures"].values())


def test_claims_hold_by_their_median():
    report = Report()
    report.at_least("up", "more", [0.5, 2.0, 3.0], 1.5)
    report.at_most("down", "less", [0.5, 2.0, 3.0], 1.5)
    assert [claim.holds for claim in report.claims] == [True, False]
    assert not report.holds
    assert report.figures["up"] == 2.0
    assert (report.figures["up_low"], report.figures["up_high"]) == (0.5, 3.0)


def test_what_cannot_be_measured_neither_holds_nor_fails():
    report = Report()
    report.skip("no namespaces")
    assert report.notes == ["not measured: no namespaces"]
    assert table.Finding("a", report.figures, None, 0.0).verdict == "not measured"
    assert table.Finding("a", {}, None, 0.0).verdict == "did not finish"


def test_a_table_aligns_names_left_and_figures_right():
    assert layout(["what", "n"], [["a", "100"], ["long", "1"]]).splitlines() == [
        "  what    n",
        "  ---------",
        "  a     100",
        "  long    1",
    ]


def test_all_refuses_an_unknown_bar(capsys):
    with pytest.raises(SystemExit):
        table.main(["feed_everything"])
    assert "`BAR` must be one of feed_images" in capsys.readouterr().err
