"""`--random sample`: random calls on the batch draw from streams of their work item, wherever they are made."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from stoker.records.events import CutChosen
from stoker.records.runlog import read_run
from tests.warm import programs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(100),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="these programs need torch"),
]

PROGRAM = """
import torch
from torch.nn import Dropout, Linear, ReLU, Sequential, functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows, wanted = torch.rand(16 * 50, 24), torch.rand(16 * 50)
model = Sequential(Linear(24, 8), ReLU(), Dropout(0.1), Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in DataLoader(TensorDataset(rows, wanted), 16, shuffle=True, num_workers=2):
    x = x + 0.1 * torch.randn_like(x)
    order = torch.randperm(len(x))
    x = F.dropout(0.7 * x + 0.3 * x[order], 0.2)
    loss = F.mse_loss(model(x)[:, 0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
print(torch.rand(3).tolist())
"""


@pytest.fixture(name="program")
def write_program(tmp_path: Path) -> Path:
    path = tmp_path / "noisy.py"
    path.write_text(PROGRAM)
    return path


def run(program: Path, *options: str) -> str:
    command = [sys.executable, "-m", "stoker", "run", "--quiet", *options, str(program)]
    done = programs.run(command, capture_output=True, text=True, cwd=program.parent, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kept_streams_are_the_programs(program: Path) -> None:
    plain = programs.run([sys.executable, str(program)], capture_output=True, text=True, check=True).stdout
    assert run(program, "--cut", "always") == plain


def test_the_same_for_any_workers_and_any_cut(program: Path, tmp_path: Path) -> None:
    sample = ("--random", "sample")
    first = run(program, *sample, "--cut", "always", "--workers", "1", "--run-dir", str(tmp_path / "run"))
    assert first == run(program, *sample, "--cut", "always", "--workers", "3")
    assert first == run(program, *sample, "--cut", "exact", "--workers", "2")
    cut = [event for event in read_run(str(tmp_path / "run")).events if isinstance(event, CutChosen)][-1]
    moved = {node.function.rpartition(".")[2] for node in cut.nodes if node.place == "moved"}
    assert cut.outcome == "moved"
    assert {"randn_like", "randperm", "dropout"} <= moved
