"""`stoker perf fleet` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.main import main


def run(*arguments: str) -> int:
    return main(["perf", "fleet", *arguments])


def test_a_made_up_fleet_is_shown_written_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = str(tmp_path / "jobs.csv")
    assert run("--synthetic", "300", "--seed", "2", "--write", jobs) == 0
    said = capsys.readouterr()
    assert "stoker fleet · synthetic fleet of 300 jobs, seed 2" in said.out
    assert "300 synthetic jobs, none of which ever ran" in said.err
    assert f"stoker perf fleet --synthetic 300 --seed 2 --write {jobs} --html fleet.html" in said.out
    assert run(jobs, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["synthetic"]
    assert report["jobs"] == 300
    assert sum(report["shares"][-1]["at_gpu"].values()) == pytest.approx(1)


def test_a_page_is_written_or_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "fleet.html"
    assert run("--synthetic", "50", "--html", str(page)) == 0
    assert capsys.readouterr().out.startswith(f"wrote {page} (")
    assert run("--synthetic", "50", "--html", "-") == 0
    assert capsys.readouterr().out == page.read_text(encoding="utf-8")


def test_overlap_and_hardware_change_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = tmp_path / "ours.toml"
    ours.write_text("ethernet_bytes_per_s = 12.5e9")
    assert run("--synthetic", "50", "--overlap", "full", "--hardware", str(ours)) == 0
    text = capsys.readouterr().out
    assert "parts of a step overlap: the longest is all of it (unverified)" in text
    assert "100 Gbps" in text


def test_the_schema_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--schema") == 0
    text = capsys.readouterr().out
    for column in ("architecture", "num_gpus", "traffic_bytes", "duration_s"):
        assert column in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "`JOBS` or `--synthetic` must be given, got neither"),
        (["a.csv", "--synthetic", "3"], "`JOBS` or `--synthetic` must be given, got both"),
        (["--synthetic", "0"], "`--synthetic` must be a whole number of at least 1, got '0'"),
        (["--synthetic", "1", "--seed", "-1"], "`--seed` must be a whole number of at least 0, got '-1'"),
        (["a.csv", "--write", "b.csv"], "`--write` must go with `--synthetic`"),
        (["none.csv"], "`none.csv` must be a file that can be read"),
        (["--synthetic", "1", "--html", "none/page.html"], "`--html` must name a file that can be written"),
        (["--synthetic", "1", "--write", "none/jobs.csv"], "`none/jobs.csv` must be a file that can be written"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") <= 2


def test_the_group_knows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "--help"]) == 0
    assert "fleet" in capsys.readouterr().out
    assert main(["perf"]) == 2
    assert main(["perf", "fleets"]) == 2
    assert "did you mean `stoker perf fleet`?" in capsys.readouterr().err
