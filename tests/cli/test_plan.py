"""`stoker plan` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.main import main
from tests.perf.planning.toys import features

PRICES = """
currency = "USD"

[[offer]]
gpu = "A100-80GB-SXM"
gpus = 8
per_hour = 20
cores = 96

[[offer]]
gpu = "A10"
gpus = 1
per_hour = 1.3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With features of a small program and a list of prices, and nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found.json").write_bytes(features(64).to_json())
    (tmp_path / "prices.toml").write_text(PRICES, encoding="utf-8")
    return tmp_path


def run(*arguments: str) -> int:
    return main(["plan", *arguments])


def test_it_says_what_to_take_and_why_not_the_rest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert (
        run("found.json", "--samples", "1e12", "--prices", "prices.toml", "--budget", "1e6", "--deadline", "90d") == 0
    )
    text = capsys.readouterr().out
    assert "stoker plan · toy" in text
    assert "1,000,000,000,000 samples · within 90 days · for $1,000,000 · global batch of 64" in text
    for said in (
        "Take ",
        "Cheapest within 90 days",
        "Worth a look",
        "Not taken, and why",
        "Next  stoker plan found.json",
    ):
        assert said in text


def test_factors_are_considered_on_request(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    for words, listed in (((), False), (("--comm", "auto"), True)):
        assert run("found.json", "--samples", "1e9", "--gpu", "A10", "--max-gpus", "8", "--json", *words) == 0
        report = json.loads(capsys.readouterr().out)
        assert ("DDP, late-multiply" in {family["name"] for family in report["families"]}) == listed


def test_one_program_must_be_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    for words in ((), ("found.json", "-m", "own.train")):
        assert run(*words, "--samples", "1e6") == 2
        assert "`PROGRAM` or `-m MODULE` must be given, and not both" in capsys.readouterr().err


def test_json_holds_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert run("found.json", "--samples", "1e9", "--prices", "prices.toml", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["currency"] == "USD"
    assert {plan["gpu"] for plan in report["front"]} <= {"A100-80GB-SXM", "A10"}
    assert all(plan["cost"]["low"] <= plan["cost"]["likely"] <= plan["cost"]["high"] for plan in report["front"])


def test_a_page_is_written_or_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("found.json", "--samples", "1e9", "--html", "plan.html") == 0
    assert capsys.readouterr().out.startswith("wrote plan.html (")
    assert run("found.json", "--samples", "1e9", "--html", "-") == 0
    assert capsys.readouterr().out == (folder / "plan.html").read_text(encoding="utf-8")


def test_limits_that_no_plan_keeps_end_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert run("found.json", "--samples", "1e15", "--deadline", "1h") == 1
    assert "No plan meets the limits; the closest is" in capsys.readouterr().out


def test_gpus_cores_and_batches_can_be_chosen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    chosen = ["--gpu", "A100-80GB-SXM", "--prices", "prices.toml", "--cpu-seconds-per-sample", "5ms"]
    assert run("found.json", "--samples", "1e9", *chosen, "--batch", "512", "--max-gpus", "8", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {plan["gpu"] for plan in report["front"]} == {"A100-80GB-SXM"}
    assert all(plan["global_batch"] == 512 for plan in report["front"])
    assert all(plan["cores"] <= 96.001 for plan in report["front"])
    assert run("found.json", "--samples", "1e9", *chosen, "--batch", "per-gpu", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert all(plan["global_batch"] == 64 * plan["replicas"] for plan in report["front"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["found.json", "--samples", "1", "--budget", "5"], "`--budget` must go with `--prices FILE`"),
        (["found.json", "--samples", "1", "--gpu", "H9"], "`--gpu` must be one of M40"),
        (["found.json", "--samples", "1", "--prices", "none.toml"], "`none.toml` must be a file that can be read"),
        (["found.json", "--samples", "1", "--batch", "many"], "`--batch` must be global, per-gpu or a whole number"),
        (["prices.toml.json", "--samples", "1"], "`prices.toml.json` must be a file that can be read"),
        (["bad.json", "--samples", "1"], "`bad.json` must be what `stoker perf features --json` writes"),
        (["found.json", "--samples", "1", "--html", "none/page.html"], "`--html` must name a file that can be written"),
        (["none.py", "--samples", "1"], "`none.py` must be a Python program, and is no file"),
        (["none.py:step", "--samples", "1"], "`none.py` must be a Python file, and is none"),
        (["bad.toml", "--samples", "1"], "`bad.toml` must be"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.json").write_text("{}", encoding="utf-8")
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") <= 2


def test_a_deadline_in_days_is_a_time_like_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Days were taken, and missing from the units that the error names."""
    del folder
    assert run("found.json", "--samples", "1e9", "--deadline", "3d", "--json") == 0
    assert json.loads(capsys.readouterr().out)["deadline_h"] == 72
    assert run("found.json", "--samples", "1e9", "--deadline", "3w") == 2
    assert "use us, ms, s, min, h or d" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["found.json"],
        ["found.json", "--samples", "0"],
        ["found.json", "--samples", "1.5"],
        ["found.json", "--samples", "nan"],
        ["found.json", "--samples", "1", "--budget", "0"],
        ["found.json", "--samples", "1", "--budget", "-3"],
        ["found.json", "--samples", "1", "--deadline", "0h"],
        ["found.json", "--samples", "1", "--deadline", "soon"],
        ["found.json", "--samples", "1", "--max-gpus", "0"],
        ["found.json", "--samples", "1", "--nonsense"],
    ],
)
def test_options_say_what_they_want(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert run(*arguments) == 2
    assert "; see `stoker plan --help` [STOKER1001]" in capsys.readouterr().err
