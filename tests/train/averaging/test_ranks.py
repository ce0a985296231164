"""Real ranks over gloo: equal to simulated ones, equal to each other, and none needs another outside of training."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.programs.averaged_digits import DigitsCase
from benchmarks.support.averaged_ranks import simulate
from stoker.train.averaging import AveragingRules
from tests.warm import programs

pytestmark = pytest.mark.integration
PROGRAM = Path(__file__).parent / "programs" / "averaged_ranks.py"


def run(part: str, ranks: int, folder: Path) -> list[dict[str, Any]]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(programs.ROOT)}
    running = [
        programs.Program(
            [sys.executable, str(PROGRAM), part, str(rank), str(ranks), str(folder / f"rank{rank}")],
            env=env, cwd=folder, stdout=programs.PIPE, stderr=programs.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    ends = [process.communicate(timeout=100) for process in running]
    assert [process.returncode for process in running] == [0] * ranks, ends
    return [json.loads((folder / f"rank{rank}").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run("digits,each_step,alone,refused", 2, tmp_path_factory.mktemp("two"))


@pytest.mark.slow("two ranks load torch and train four times")
def test_real_ranks_equal_simulated_ones_bit_for_bit(two: list[dict[str, Any]]) -> None:
    simulated = simulate(DigitsCase("cnn", "sorted", 3, 2, 80, 2), AveragingRules())
    for found in (each["digits"] for each in two):
        assert found["weights"] == hashlib.sha256(simulated.weights.tobytes()).hexdigest()
        assert found["rounds"] == [[each.step, each.period, each.agreement] for each in simulated.rounds]
        assert found["seconds"] == simulated.seconds
    assert simulated.rounds[-1].period > 1


def test_sgd_averaged_in_each_step_is_ddp_to_rounding(two: list[dict[str, Any]]) -> None:
    assert max(each["each_step"]["apart"] for each in two) < 1e-6


def test_after_the_end_ddp_exchanges_gradients(two: list[dict[str, Any]]) -> None:
    assert len({each["each_step"]["gradients"] for each in two}) == 1


def test_rank_0_alone_evaluates_and_saves_the_last_mean(two: list[dict[str, Any]]) -> None:
    first, second = (each["alone"] for each in two)
    assert first["saved"] == first["mean"] == second["mean"]
    assert first["apart"] != second["apart"]
    assert first["after"] == second["after"]
    assert first["records"] == second["records"] == [8, 16]


def test_ranks_with_different_weights_are_refused_on_all_of_them(two: list[dict[str, Any]]) -> None:
    assert len({each["refused"]["started"] for each in two}) == 1
    for each in two:
        assert "rank 1 trains others than rank 0 at step 1" in each["refused"]["error"]


@pytest.mark.slow("four ranks load torch")
def test_islands_are_averaged_inside_more_often(tmp_path: Path) -> None:
    seen = [each["islands"]["seen"] for each in run("islands", 4, tmp_path)]
    for step, hashes in enumerate(zip(*seen, strict=True), 1):
        distinct = 1 if step % 8 == 0 else 2 if step % 2 == 0 else 4
        assert len(set(hashes)) == distinct, step
        assert (hashes[0] == hashes[1]) == (step % 2 == 0)
