"""Containers that hold more after each step: found with their line and what they keep; others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.perf.features.program import trace_program
from stoker.perf.features.tracing.sources import adding_line_in
from stoker.perf.memory.timeline import growing

PROGRAM = """
from collections import deque

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Log:
    def __init__(self):
        self.outputs, self.last = [], deque(maxlen=1)

    def add(self, out):
        self.outputs.append(out.detach())
        self.last.append(out.detach())


model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(1024, 64), torch.randn(1024, 32))
log, losses, sums, before = Log(), [], {}, None
for x, y in DataLoader(data, batch_size=128):
    out = model(x)
    loss = (out - y).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    before = out.detach().clone()
    sums["loss"] = loss.detach()
    losses += [loss]
    log.add(out)
"""


@pytest.mark.integration
@pytest.mark.usefixtures("warm_pythons")
def test_lists_that_grow_are_found_with_what_they_keep(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    _, timeline = trace_program([str(path)], target="cpu")
    losses, outputs = growing(timeline)
    line = {text.strip(): number for number, text in enumerate(PROGRAM.splitlines(), 1)}
    assert (losses.name, losses.line) == ("losses", f"train.py:{line['losses += [loss]']}")
    assert (outputs.name, outputs.line) == (
        "log.outputs", f"train.py:{line['self.outputs.append(out.detach())']}"
    )  # fmt: skip
    assert (losses.keeps_graph, outputs.keeps_graph) == (True, False)
    # Of each step: its inputs, the hidden layer, and the difference; targets are not saved.
    assert losses.bytes == pytest.approx(128 * (64 + 512 + 32) * 4, rel=0.01)
    assert outputs.bytes == 128 * 32 * 4


@pytest.mark.parametrize(
    ("source", "name", "line"),
    [
        ("kept = []\nkept.append(1)", "kept", 2),
        ("kept = []\nkept += [1]", "kept", 2),
        ("kept = {}\nkept['a'] = 1", "kept", 2),
        ("kept = {}\nkept['a'].append(1)", "kept", 2),
        ("other.append(1)\nself.kept.append(2)", "run.kept", 2),
        ("kept.pop()\nkept = [1]", "kept", 0),
        ("not python", "kept", 0),
    ],
)
def test_the_line_that_adds_to_a_container(source: str, name: str, line: int) -> None:
    assert adding_line_in(source, name) == line
