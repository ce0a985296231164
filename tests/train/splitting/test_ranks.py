"""Split layers on real ranks over gloo, against plain DDP; and programs in which rank 0 alone saves at the end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.answers import answers_of
from tests.warm import programs

pytestmark = pytest.mark.integration
FOLDER = Path(__file__).parent / "programs"
TABLE, IN, WIDTH, OUT, ROWS = 23, 6, 10, 7, 5 * 3
CASES = ("column", "row", "pair", "apart", "table", "clipped", "largest", "uneven", "accumulated")


def answers(ranks: int) -> list[dict[str, Any]]:
    return answers_of("splitting.programs.split_ranks", ranks)


@pytest.fixture(scope="module", params=[2, 3])
def found(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return answers(request.param)


@pytest.mark.slow("ranks train each case twice")
def test_losses_norms_weights_and_moments_are_those_of_ddp(found: list[dict[str, Any]]) -> None:
    for name in CASES:
        for rank in found:
            assert rank[name]["losses"] < 1e-5, (name, rank[name])
            assert rank[name]["weights"] < 1e-4, (name, rank[name])
            assert rank[name]["moments"] < 1e-4, (name, rank[name])


def test_any_net_and_plan_and_numbers_of_rows_train_as_under_ddp(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert len(rank["drawn"]) > 10
        assert max(rank["drawn"]) < 1e-4, rank["drawn"]


def test_in_half_precision_losses_are_ddps_to_its_rounding(found: list[dict[str, Any]]) -> None:
    assert all(rank["autocast"]["losses"] < 2e-2 for rank in found), [rank["autocast"] for rank in found]


def test_every_rank_reads_the_same_whole_state_under_the_names_of_plain_torch(found: list[dict[str, Any]]) -> None:
    for name in CASES:
        assert all(rank[name]["names"] for rank in found)
        assert len({rank[name]["state"] for rank in found}) == 1, name


def test_a_rank_holds_its_part(found: list[dict[str, Any]]) -> None:
    ranks = len(found)
    cut = TABLE * IN + IN * WIDTH + WIDTH + WIDTH * OUT
    held = [rank["clipped"]["held"] for rank in found]
    whole = found[0]["clipped"]["whole"]
    assert sum(held) == ranks * (whole - cut) + cut
    assert max(held) - min(held) <= IN + (IN + 1 + OUT)  # a row of the table, a column of the pair


def test_bytes_of_a_step_are_those_of_the_closed_forms(found: list[dict[str, Any]]) -> None:
    ranks = len(found)
    for rank, each in enumerate(found):
        wide = WIDTH * (rank + 1) // ranks - WIDTH * rank // ranks
        sent = {name: values[0] for name, values in each["sent"].items()}
        # Inputs gathered and their gradients back; columns of others' samples to them, own samples' columns back.
        inside = 4 * 2 * (ranks - 1) * ROWS
        assert sent["column"] == inside * IN + 4 * ROWS * ((ranks - 1) * wide + (WIDTH - wide))
        assert sent["row"] == inside * OUT + 4 * ROWS * ((ranks - 1) * wide + (WIDTH - wide))
        assert sent["pair"] == inside * (IN + OUT)
    away = [each["sent"]["table"][1] for each in found]
    assert sum(each["sent"]["table"][0] for each in found) == sum(away) * (8 + 2 * 4 * IN)


def test_rank_0_alone_evaluates_and_saves_and_plain_torch_loads_it(found: list[dict[str, Any]]) -> None:
    assert found[0]["alone"]["apart"] < 1e-5
    assert found[0]["alone"]["equal"]
    assert all(rank["alone"]["after"] for rank in found)


def test_a_resumed_training_is_the_uninterrupted_one_to_the_last_bit(found: list[dict[str, Any]]) -> None:
    assert all(all(rank["resumed"]) for rank in found), [rank["resumed"] for rank in found]


def test_a_step_that_one_rank_makes_alone_is_an_error_on_all(found: list[dict[str, Any]]) -> None:
    assert all("`rank 1` must have changed its weights as often as rank 0" in rank["different"] for rank in found)


def test_what_cannot_be_is_refused_with_the_reason(found: list[dict[str, Any]]) -> None:
    for rank in found:
        optimizer, join, averages = rank["refused"]
        assert "`Whole` must work by element" in optimizer
        assert "`join` must not be used" in join
        assert "`Net` must hold whole weights on each rank to be averaged, got split layers" in averages


def run(way: str, folder: Path, ranks: int = 2) -> list[tuple[int, str]]:
    """How each rank ended, and its last words."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(programs.ROOT)}
    running = [
        programs.Program(
            [sys.executable, str(FOLDER / "end.py"), str(rank), str(ranks), str(folder), way],
            env=env, cwd=folder, stdout=programs.PIPE, stderr=programs.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    errors = [process.communicate(timeout=100)[1] for process in running]
    return [(process.returncode, error) for process, error in zip(running, errors, strict=True)]


@pytest.mark.slow("two programs import torch")
def test_ranks_that_are_through_serve_rank_0_until_it_has_saved(tmp_path: Path) -> None:
    ends = run("saves", tmp_path)
    assert [code for code, _ in ends] == [0, 0], ends
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    plain = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3), nn.Linear(3, 2))
    plain.load_state_dict(saved["model"])
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    optimizer.load_state_dict(saved["optimizer"])
    assert optimizer.state[plain[0].weight]["exp_avg"].shape == plain[0].weight.shape


@pytest.mark.slow("two processes import torch")
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_ranks_of_multiprocessing_serve_to_the_end_as_well(way: str, tmp_path: Path) -> None:
    done = programs.run(
        [sys.executable, str(FOLDER / "end.py"), way, "2", str(tmp_path), "saves"], cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(programs.ROOT)},
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(torch.load(tmp_path / "saved.pt", weights_only=True)["optimizer"]["state"]) == 6


@pytest.mark.slow("two programs import torch")
def test_a_rank_that_is_gone_is_named(tmp_path: Path) -> None:
    ends = run("killed", tmp_path)
    assert [code for code, _ in ends] == [0, 0], ends
    assert "`rank 1` must serve its part of `0.weight`, and does not" in (tmp_path / "error").read_text()


@pytest.mark.slow("two programs import torch")
def test_a_rank_that_raises_lets_no_other_wait(tmp_path: Path) -> None:
    ends = run("raises", tmp_path)
    assert [code for code, _ in ends] == [1, 1], ends
    assert "planted" in ends[0][1]
