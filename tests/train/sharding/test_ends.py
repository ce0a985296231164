"""How programs with shares end: rank 0 saves last, or a rank that serves is killed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.warm import programs

pytestmark = pytest.mark.integration
PROGRAM = Path(__file__).parent / "programs" / "served.py"


def run(what: str, folder: Path, ranks: int = 2) -> list[tuple[int, str]]:
    """How each rank ended, and its last words."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(programs.ROOT)}
    running = [
        programs.Program(
            [sys.executable, str(PROGRAM), str(rank), str(ranks), str(folder), what],
            env=env, cwd=folder, stdout=programs.PIPE, stderr=programs.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    errors = [process.communicate(timeout=100)[1] for process in running]
    return [(process.returncode, error) for process, error in zip(running, errors, strict=True)]


@pytest.mark.slow("two programs import torch")
@pytest.mark.parametrize("what", ["states", "weights", "layers"])
def test_ranks_that_are_through_serve_rank_0_until_it_has_saved(what: str, tmp_path: Path) -> None:
    ends = run(what, tmp_path)
    assert [code for code, _ in ends] == [0, 0], ends
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    plain = nn.Sequential(nn.Linear(5, 80), nn.ReLU(), nn.Linear(80, 3))
    plain.load_state_dict(saved["model"])
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    optimizer.load_state_dict(saved["optimizer"])
    assert optimizer.state[plain[0].weight]["exp_avg"].shape == plain[0].weight.shape


@pytest.mark.slow("two programs import torch")
@pytest.mark.parametrize("what", ["states", "weights", "layers"])
def test_where_a_rank_that_serves_is_killed_the_others_end_within_ten_seconds(what: str, tmp_path: Path) -> None:
    begun_s = time.monotonic()
    ends = run(f"{what}_killed", tmp_path)
    asked_s = (tmp_path / "asking").stat().st_mtime
    assert ends[1][0] == -9
    assert ends[0][0] == 1, ends[0]
    assert "`rank 1` must serve its part of" in ends[0][1]
    assert time.time() - asked_s < 10, f"started {time.monotonic() - begun_s:.0f} s ago"
