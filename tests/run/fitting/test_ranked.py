"""`stoker run --fit` around and inside of a launcher of ranks: what they share, and what they say of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.records.fitting import FitRun
from stoker.records.fitting_file import read_fits
from tests.cache.cluster.etcd_server import free_port
from tests.warm import programs

pytestmark = pytest.mark.integration
PROGRAM = str(Path(__file__).parent / "programs" / "ranked.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STAGED = "12MB"
"""What a pipeline of the program with large blocks fits alone."""
SHARED, LEAST = "16.5MB", "9MB"
"""What optimizer states in shares fit, and what needs shares of weights as well; DDP has 17.6 MB.

Whatever the measured rate of the link, states in shares take less than weights in shares; where blocks count their
passes, nothing else fits ``SHARED``. Blocks that are repeated or stages may be the quicker ones where they can be had.
"""


def launched(folder: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The end of a launcher of two ranks of the program, under `stoker run` with some options."""
    own = ("-m", "stoker", "run", "--run-dir", str(folder / f"{name}.run"), *options)
    return programs.run(
        [sys.executable, *own, *TORCHRUN, PROGRAM, str(folder / name)], env=environ_of(folder), cwd=folder,
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip


def environ_of(folder: Path) -> dict[str, str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("STOKER_")}
    return environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}


def ranks(folder: Path, name: str, *options: str, word: str = "") -> list[str]:
    """What two ranks say, each started as a launcher does: under `stoker run` with some options, or plain without one.

    Args:
        folder: of all that is written.
        name: of the program's files.
        options: of stoker.
        word: for the program.
    """
    common = environ_of(folder) | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    own = ("-m", "stoker", "run", "--run-dir", str(folder / f"{name}.run"), *options) if options else ()
    started = [
        programs.Program(
            [sys.executable, *own, PROGRAM, str(folder / name), *filter(None, [word])], cwd=folder, text=True,
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [each.communicate(timeout=100)[1] for each in started]
    assert not any(each.returncode for each in started), said
    return said


def lines_of(text: str) -> list[str]:
    """Stoker's lines about the fit."""
    return [line for line in text.splitlines() if line.startswith("stoker: fit: ")]


def written(folder: Path, name: str) -> list[dict[str, Any]]:
    """What the ranks have written."""
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(2)]


def run_of(folder: Path, name: str) -> FitRun:
    (run,) = read_fits(folder / f"{name}.run").runs
    return run


def check_alike(folder: Path, name: str, tolerance: float) -> None:
    """Losses, an evaluation and a checkpoint of rank 0 alone are those of DDP."""
    for ours, theirs in zip(written(folder, name), written(folder, "plain"), strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=tolerance, abs=0.0)
        assert ours["kind"] == "DistributedDataParallel"
        assert ours.get("seen", 0.0) == pytest.approx(theirs.get("seen", 0.0), rel=100 * tolerance, abs=1e-9)
    ours, theirs = (torch.load(folder / f"{each}.pt") for each in (name, "plain"))
    assert list(ours["model"]) == list(theirs["model"])
    for key, value in theirs["model"].items():
        assert type(ours["model"][key]) is torch.Tensor
        torch.testing.assert_close(ours["model"][key], value, rtol=0.0, atol=1e4 * tolerance**1.5)
    assert list(ours["optimizer"]["state"]) == list(theirs["optimizer"]["state"])


def check_peak(run: FitRun, rel: float = 0.03) -> None:
    """What was counted is what was predicted, and within the budget."""
    assert run.plan.certified
    assert len(run.counted) == 3
    assert run.counted_bytes == pytest.approx(run.plan.peak_bytes, rel=rel)
    assert run.counted_bytes <= run.plan.budget_bytes


@pytest.mark.slow("a program is traced, and run on two ranks, twice")
def test_ranks_share_weights_where_nothing_else_fits(tmp_path: Path) -> None:
    ranks(tmp_path, "plain")
    first, second = ranks(tmp_path, "fitted", "--fit", "auto", "--device-memory", LEAST)
    check_alike(tmp_path, "fitted", 1e-6)
    run = run_of(tmp_path, "fitted")
    assert "fsdp2" in run.applied
    check_peak(run)
    plan, outcome = lines_of(first)
    assert "FSDP2 over 2 ranks" in plan
    assert "losses within 1e-6" in plan
    assert "more than predicted" not in outcome
    assert not lines_of(second), "one rank speaks"


@pytest.mark.slow("a program is traced, and two ranks start python and torch")
def test_a_launcher_under_stoker(tmp_path: Path) -> None:
    ranks(tmp_path, "plain")
    done = launched(tmp_path, "fitted", "--fit", "auto", "--device-memory", LEAST)
    assert done.returncode == 0, done.stderr
    check_alike(tmp_path, "fitted", 1e-6)
    check_peak(run_of(tmp_path, "fitted"))


@pytest.mark.slow("a program is traced, and two ranks start python and torch, under stoker")
def test_stoker_under_a_launcher(tmp_path: Path) -> None:
    ranks(tmp_path, "plain")
    own = ("-m", "stoker", "run", "--run-dir", str(tmp_path / "fitted.run"), "--fit", "auto")
    done = programs.run(
        [sys.executable, *TORCHRUN, *own, "--device-memory", LEAST, PROGRAM, str(tmp_path / "fitted")],
        env=environ_of(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_alike(tmp_path, "fitted", 1e-6)
    check_peak(run_of(tmp_path, "fitted"))


@pytest.mark.slow("a program is traced, and run on two ranks, twice")
@pytest.mark.parametrize(("size", "word", "kind"), [(SHARED, "counting", "zero1"), (LEAST, "", "fsdp2")])
def test_an_exchange_leaves_shares_alone(size: str, word: str, kind: str, tmp_path: Path) -> None:
    ranks(tmp_path, "plain", word=word)
    first, _ = ranks(tmp_path, "fitted", "--fit", "auto", "--device-memory", size, "--comm", "auto", word=word)
    check_alike(tmp_path, "fitted", 1e-6)
    run = run_of(tmp_path, "fitted")
    assert kind in run.applied
    check_peak(run)
    assert "exchange of Sequential: left to `--fit`, which keeps it in shares" in first


@pytest.mark.slow("a program is traced, and run on two ranks, twice")
@pytest.mark.parametrize(
    ("word", "size", "reason"),
    [
        ("copied", LEAST, r"FSDP2 is left out: `Sequential` must have no copy in the program.*\(on rank 1\)"),
        ("strided", SHARED, "ZeRO-1 is left out: `6.weight` must fill its memory for its state to be shared"),
    ],
)
def test_what_one_rank_cannot_share_no_rank_does(word: str, size: str, reason: str, tmp_path: Path) -> None:
    ranks(tmp_path, "plain", word=word)
    first, _ = ranks(tmp_path, "fitted", "--fit", "auto", "--device-memory", size, word=word)
    lines = lines_of(first)
    assert any(re.search(reason, line) for line in lines), lines
    assert not {"zero1", "fsdp2"} & set(run_of(tmp_path, "fitted").applied)
    for ours, theirs in zip(written(tmp_path, "fitted"), written(tmp_path, "plain"), strict=True):
        assert ours == theirs


@pytest.mark.slow("a program is traced, and run on two ranks, twice")
def test_layers_are_in_stages_where_nothing_else_fits(tmp_path: Path) -> None:
    ranks(tmp_path, "plain", word="large")
    first, second = ranks(tmp_path, "fitted", "--fit", "auto", "--device-memory", STAGED, word="large")
    check_alike(tmp_path, "fitted", 1e-5)
    run = run_of(tmp_path, "fitted")
    assert run.applied == ("stages",)
    assert len(run.counted) == 3
    assert run.counted_bytes == pytest.approx(run.predicted_bytes, rel=0.03)
    assert run.counted_bytes <= run.plan.budget_bytes
    plan, outcome = lines_of(first)
    assert "layers in 2 stages, one a rank, cut at " in plan
    assert "losses within rounding" in plan
    assert "more than predicted" not in outcome
    assert not lines_of(second), "one rank speaks"
    assert any(each.name.startswith("weights in shares") for each in run.plan.rejected)


@pytest.mark.exhaustive
@pytest.mark.slow("a program is traced, and run on two ranks, twice")
def test_what_one_rank_cannot_capture_no_rank_has_in_stages(tmp_path: Path) -> None:
    ranks(tmp_path, "plain", word="branching")
    first, _ = ranks(tmp_path, "fitted", "--fit", "auto", "--device-memory", STAGED, word="branching")
    lines = lines_of(first)
    reason = r"a pipeline is left out: `Sequential` must be one graph that torch.export captures.*\(on rank 1\)"
    assert any(re.search(reason, line) for line in lines), lines
    assert "stages" not in run_of(tmp_path, "fitted").applied
    for ours, theirs in zip(written(tmp_path, "fitted"), written(tmp_path, "plain"), strict=True):
        assert ours == theirs


@pytest.mark.slow("a program is traced")
def test_a_budget_that_cannot_be_met_ends_it_before_the_first_step(tmp_path: Path) -> None:
    done = launched(tmp_path, "fitted", "--fit", "auto", "--device-memory", "2MB")
    assert done.returncode == 2
    assert not (tmp_path / "fitted.0").exists()
    assert "`--device-memory` must have room for a step of the program" in done.stderr
    assert "the nearest miss has" in done.stderr
    assert "FSDP2 over 2 ranks" in done.stderr
    assert "and lacks" in done.stderr
