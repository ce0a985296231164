"""`stoker run --fit`: what an unmodified program gets, what it is said of it, and what it leaves in files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from stoker.cli.explain import main as explain
from stoker.cli.main import main
from stoker.cli.report import main as report
from stoker.core.errors import ConfigError
from stoker.perf.memory.choice.options import BY_HAND
from stoker.records.fitting import FitRun
from stoker.records.fitting_file import read_fits
from stoker.records.memory import MemoryReport
from stoker.run.fitting.devices import device_of
from stoker.run.fitting.rank_planning import PlannedRanks, place_of
from tests.train.bits import same
from tests.warm import programs

PROGRAMS = Path(__file__).parent / "programs"


def started(folder: Path, *options: str, program: str = "fitted.py") -> subprocess.CompletedProcess[str]:
    """A program's end, under `stoker run` with some options or, without one, under plain python."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    environ |= {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    name = "fitted" if options else "plain"
    before = ("-m", "stoker", "run", "--run-dir", str(folder / "run"), *options) if options else ()
    return programs.run(
        [sys.executable, *before, str(PROGRAMS / program), str(folder / name)], env=environ, cwd=folder,
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Stoker's lines about the fit."""
    return [line for line in done.stderr.splitlines() if line.startswith("stoker: fit: ")]


def found(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the plain program and the fitted one have written."""
    plain, fitted = (json.loads((folder / f"{name}.json").read_text()) for name in ("plain", "fitted"))
    return plain, fitted


def run_of(folder: Path) -> FitRun:
    (run,) = read_fits(folder / "run").runs
    return run


@pytest.mark.integration
@pytest.mark.slow("a program is traced twice and run twice")
def test_a_program_fits_with_equal_losses_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert started(tmp_path).returncode == 0
    done = started(tmp_path, "--fit", "auto", "--device-memory", "8MB")
    assert done.returncode == 0, done.stderr
    plain, fitted = found(tmp_path)
    assert fitted == plain, "losses, evaluation, the average and the counter are equal bit for bit"
    ours, theirs = (torch.load(tmp_path / f"{name}.pt") for name in ("fitted", "plain"))
    assert same(ours, theirs), "the checkpoint as well, in its order"
    assert b"stoker" not in (tmp_path / "fitted.whole.pt").read_bytes()

    run = run_of(tmp_path)
    assert run.plan.certified
    assert run.plan.plain_bytes > 8_000_000 >= run.plan.peak_bytes
    assert {"used_up", "recompute"} >= set(run.applied) >= {"recompute"}
    repeated = [path for measure in run.plan.of("recompute") for path in measure.paths]
    assert "1" not in repeated
    assert any("`1`" in each.name and "writes `calls`" in each.reason for each in run.plan.rejected)
    assert len(run.counted) == 3
    assert run.counted_bytes <= 8_000_000
    assert run.counted_bytes == pytest.approx(run.plan.peak_bytes, rel=0.01)

    plan, outcome = said(done)
    assert "do not fit 8.0 MB: " in plan
    assert "losses equal" in plan
    assert "counted 7." in outcome
    assert report([str(tmp_path / "run")]) == 0
    assert "Fit of fitted.py · emulated device · carried out" in capsys.readouterr().out
    assert report([str(tmp_path / "run"), "--html", str(tmp_path / "page.html")]) == 0
    assert "Fit into memory" in (tmp_path / "page.html").read_text()
    assert explain([str(tmp_path / "run")]) == 0
    assert "do not fit 8.0 MB" in " ".join(capsys.readouterr().out.split())


@pytest.mark.integration
@pytest.mark.slow("a program is traced twice and run twice")
def test_a_program_that_updates_its_weights_itself_gets_what_needs_no_optimizer(tmp_path: Path) -> None:
    assert started(tmp_path, program="by_hand.py").returncode == 0
    done = started(tmp_path, "--fit", "auto", "--device-memory", "9MB", program="by_hand.py")
    assert done.returncode == 0, done.stderr
    plain, fitted = found(tmp_path)
    assert fitted == plain
    run = run_of(tmp_path)
    assert run.plan.certified
    assert run.plan.passes_by_hand == 1
    assert run.applied == ("recompute",), "though all weights are updated by one call"
    reasons = {each.name: each.reason for each in run.plan.rejected}
    assert reasons["gradients used up in the backward pass"] == BY_HAND
    assert reasons["states of the optimizer in host memory"] == BY_HAND
    assert len(run.counted) == 3
    assert max(each.bytes for each in run.counted[1:]) == pytest.approx(run.plan.peak_bytes, rel=5e-3)


@pytest.mark.integration
@pytest.mark.slow("a program is traced for a report, for its largest batch, and for its run")
@pytest.mark.timeout(300)  # a dozen traces, each in a process that imports torch
def test_a_report_promises_what_the_run_then_does_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = [
        "memory",
        "--cpu",
        "--memory",
        "8MB",
        "--json",
        str(PROGRAMS / "fitted.py"),
        "--",
        str(tmp_path / "fitted"),
    ]
    assert main(words) == 1
    promised = msgspec.json.decode(capsys.readouterr().out, type=MemoryReport)
    assert {share.name.partition(":")[0] for share in promised.lines} == {"fitted.py"}, "its own lines, not stoker's"
    assert promised.plan is not None
    assert promised.plan.certified
    done = started(tmp_path, "--fit", "auto", "--device-memory", "8MB")
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path)
    assert run.plan == promised.plan, "one model of choice: the same measures, the same peak, the same seconds"
    assert run.plan.plain_bytes == promised.peak_bytes
    assert run.counted_bytes == pytest.approx(promised.plan.peak_bytes, rel=0.005)
    assert promised.largest_batch is not None
    assert promised.largest_fitted is not None
    assert promised.largest_batch < 512 <= promised.largest_fitted


@pytest.mark.integration
@pytest.mark.slow("a program is traced twice and run twice")
@pytest.mark.parametrize("budget_mb", [11.2, 9.4, 7.5, 6.5])
def test_a_cache_that_blocks_write_to_is_written_to_once(tmp_path: Path, budget_mb: float) -> None:
    """Repeated with the cache that the first pass has filled, the model's own mask would not match its keys."""
    assert started(tmp_path, program="cached.py").returncode == 0
    done = started(tmp_path, "--fit", "auto", "--device-memory", f"{budget_mb}MB", program="cached.py")
    assert done.returncode == 0, done.stderr
    plain, fitted = found(tmp_path)
    assert fitted == plain
    ours, theirs = (torch.load(tmp_path / f"{name}.pt") for name in ("fitted", "plain"))
    assert same(ours, theirs)
    run = run_of(tmp_path)
    assert run.plan.certified
    assert run.left == ()
    repeated = [path for measure in run.plan.of("recompute") for path in measure.paths]
    assert any("attention" in path or path.count(".") == 1 for path in repeated), "what writes to the cache"
    assert run.counted_bytes <= budget_mb * 1e6
    assert run.counted_bytes == pytest.approx(run.plan.peak_bytes, rel=0.01)


@pytest.mark.integration
@pytest.mark.slow("a program is traced twice and run twice")
def test_what_fits_no_other_way_lies_in_host_memory(tmp_path: Path) -> None:
    assert started(tmp_path).returncode == 0
    done = started(tmp_path, "--fit", "auto", "--device-memory", "5.5MB")
    assert done.returncode == 0, done.stderr
    plain, fitted = found(tmp_path)
    assert fitted == plain, "also the counter of a block that is not recomputed, which is away"
    ours, theirs = (torch.load(tmp_path / f"{name}.pt") for name in ("fitted", "plain"))
    assert same(ours, theirs)
    run = run_of(tmp_path)
    assert {"offload", "states_away"} <= set(run.applied)
    assert run.left == ()
    assert any("1" in measure.paths for measure in run.plan.of("offload"))
    assert run.counted_bytes <= 5_500_000
    assert run.counted_bytes == pytest.approx(run.plan.peak_bytes, rel=0.01)
    assert any("priced at" in note and "emulated" in note for note in run.plan.notes)
    assert "in host memory" in said(done)[0]


@pytest.mark.integration
@pytest.mark.slow("a program is traced and run, three times")
def test_a_program_that_fits_is_left_alone_and_one_that_cannot_does_not_start(tmp_path: Path) -> None:
    assert started(tmp_path).returncode == 0
    done = started(tmp_path, "--fit", "auto", "--device-memory", "1GB")
    assert done.returncode == 0, done.stderr
    assert found(tmp_path)[0] == found(tmp_path)[1]
    (line,) = said(done)
    assert "nothing is changed" in line
    assert (run_of(tmp_path).applied, run_of(tmp_path).counted) == ((), ())
    (tmp_path / "fitted.json").unlink()

    done = started(tmp_path, "--fit", "auto", "--device-memory", "1.1MB")
    assert done.returncode == 2
    assert not (tmp_path / "fitted.json").exists(), "before the first step"
    assert "`--device-memory` must have room for a step of the program" in done.stderr
    assert "the nearest miss has" in done.stderr
    assert "and lacks" in done.stderr
    assert "advised, not done: " in done.stderr


@pytest.mark.integration
@pytest.mark.slow("a program is traced and run")
def test_a_report_touches_nothing(tmp_path: Path) -> None:
    assert started(tmp_path).returncode == 0
    done = started(tmp_path, "--fit", "report", "--device-memory", "1.1MB")
    assert done.returncode == 0, done.stderr
    assert found(tmp_path)[0] == found(tmp_path)[1]
    line, *advised = said(done)
    assert "the nearest miss" in line
    assert any("bf16 around the model's call of fitted.py:40" in each for each in advised)
    assert any("for each step of fitted.py:43" in each for each in advised)
    assert all("advised, not done" in each for each in advised)
    run = run_of(tmp_path)
    assert (run.mode, run.applied, run.counted) == ("report", (), ())


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fit", "auto"), "must know the memory to fit into"),
        (("--fit", "auto", "--device-memory", "5"), "`device-memory` must be a size of at least 1 MiB"),
        (("--fit", "auto", "--device-memory", "5G"), "ambiguous"),
        (("--fit", "always", "--device-memory", "5GB"), "`fit` must be"),
    ],
)
def test_wrong_sizes_are_refused_before_the_program_starts(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    done = started(tmp_path, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "fitted.json").exists()


@pytest.mark.parametrize(
    ("environ", "program", "found"),
    [
        ({"WORLD_SIZE": "1"}, ["train.py"], None),
        ({"WORLD_SIZE": "4", "RANK": "2"}, ["train.py"], PlannedRanks(4, False, ("train.py",))),
        ({}, ["-m", "train"], None),
        ({}, ["torchrun", "--nproc-per-node=1", "train.py"], None),
        (
            {},
            ["torchrun", "--nproc-per-node", "2", "--nnodes=3", "train.py", "x"],
            PlannedRanks(6, True, ("train.py", "x")),
        ),
    ],
)
def test_ranks_are_known_from_their_launcher(
    environ: dict[str, str], program: list[str], found: PlannedRanks | None
) -> None:
    assert place_of(environ, program) == found


def test_a_number_of_ranks_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="`--nproc-per-node` must be a number for `--fit`, got auto"):
        place_of({}, ["torchrun", "--nproc-per-node", "auto", "train.py"])


def test_a_stated_size_without_a_gpu_is_of_an_emulated_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, whose memory is the budget")
    device = device_of(10**9)
    assert (device.budget, device.target, device.emulated) == (10**9, "cpu", True)
    with pytest.raises(ConfigError, match="device-memory 20GB"):
        device_of(None)
