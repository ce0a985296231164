"""`stoker sim` on the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from stoker.cli.main import main


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)
    rows = [
        f"{number * 20},{draw.choice([1, 1, 2, 4])},{draw.expovariate(1 / 900) + 30:.0f},{draw.choice([4, 16, 48])}\n"
        for number in range(80)
    ]
    (tmp_path / "jobs.csv").write_text("arrival_s,gpus,duration_s,cpus_per_gpu\n" + "".join(rows), encoding="utf-8")
    return "jobs.csv"


def run(*arguments: str) -> int:
    return main(["sim", *arguments])


def test_policies_side_by_side_and_what_is_assumed(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(jobs, "--nodes", "2x4x16", "--cpu-nodes", "2x32", "--samples", "2", "--jobs", "60") == 0
    text = capsys.readouterr().out
    for said in (
        "stoker sim · jobs.csv",
        "Simulated: nothing of this ran.",
        "8 GPUs · 96 CPUs, 64 of them on nodes without GPUs · 60 jobs in each of 2 samples",
        "jct-known",
        "Why jobs wait for their GPUs",
        "squashed area",
        "2 nodes with 4 GPUs and 16 CPUs, and 2 with 32 CPUs alone.",
        "CPUs for each GPU at full speed are the trace's.",
        "Next  stoker sim jobs.csv",
    ):
        assert said in text


def test_json_has_what_the_table_has(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(jobs, "--nodes", "2x4x16", "--cpu-nodes", "4x32", "--policy", "jct", "--samples", "1", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in report["policies"]}
    assert set(rows) == {"none", "jct"}
    assert rows["none"]["jct_gain"] == 1.0
    assert rows["jct"]["jct_gain"] > 1.2
    assert all(bound["mean_jct_s"] <= rows["jct"]["mean_jct_s"] for bound in report["bounds"])


def test_a_page_with_the_map(jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "sim.html"
    assert run(jobs, "--nodes", "1x4x16", "--policy", "jct", "--samples", "1", "--jobs", "8", "--map",
               "--html", str(page)) == 0  # fmt: skip
    assert f"wrote {page}" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    for said in ("Where there is something to gain", "load 0.9", "Policies side by side", "Simulated: nothing"):
        assert said in text
    assert "<script" not in text


def test_the_schema_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--schema") == 0
    assert "cpus_per_gpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "`TRACE` must be philly, v2023, muri or a CSV file, got nothing"),
        (["philly"], "`--traces DIR` must name the folder that holds philly_2017.csv"),
        (["none.csv"], "`none.csv` must be a file that can be read"),
        (["jobs.csv", "--nodes", "8x8"], "`--nodes` must be 3 whole numbers such as 8x8x64, got '8x8'"),
        (["jobs.csv", "--nodes", "8x0x64"], "`--nodes` must be nodes, GPUs and CPUs of at least 1, got '8x0x64'"),
        (["jobs.csv", "--policy", "best"], "`--policy` must be one of none, static, greedy"),
        (["jobs.csv", "--demand", "much"], "`--demand` must be goldminer, synergy, trace or a positive number"),
        (["jobs.csv", "--nodes", "1x1x1", "--jobs", "0"], "`--jobs` must be a whole number of at least 1"),
        (["jobs.csv", "--quota", "ann"], "`--quota` must be a user and a whole number of CPUs such as ann=128"),
        (["jobs.csv", "--load", "0"], "`--load` must be trace or a number from 0.01 to 100, got '0'"),
    ],
)
def test_mistakes_are_one_line(jobs: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    del jobs
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") <= 2


def test_a_trace_without_demand_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text("arrival_s,gpus,duration_s\n0,1,60\n5,99,60\n", encoding="utf-8")
    assert run("own.csv", "--demand", "trace") == 2
    assert "`--demand` must be goldminer, synergy or a number for own.csv" in capsys.readouterr().err
    assert run("own.csv", "--nodes", "1x4x8", "--samples", "1", "--policy", "jct") == 0
