"""What a traced program does after its step: its first evaluation is seen, and nothing is written."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.perf.features.evaluating import EvaluationFollower
from stoker.perf.features.program import trace_whole
from stoker.perf.memory.timeline import by_category, by_line, peak_before, step_peak

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4000))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(2048, 64), torch.randint(4000, (2048,)))
train, test = DataLoader(data, 64, shuffle=True), DataLoader(data, 512)
with torch.no_grad():
    model(data.tensors[0][:32])  # a look before the first step, as trainers take
for epoch in range(3):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = 0
    with torch.no_grad():
        for x, y in test:
            right += (model(x).argmax(1) == y).sum().item()
    with open("accuracy.txt", "a") as file:
        file.write(str(right))
"""


@pytest.mark.integration
@pytest.mark.usefixtures("warm_pythons")
@pytest.mark.slow("a program is traced twice, a process each")
@pytest.mark.timeout(300)
def test_the_first_evaluation_is_traced_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    found = trace_whole(["train.py"], evaluates=True)
    assert not (tmp_path / "accuracy.txt").exists()
    evaluation = found.evaluation
    assert evaluation is not None
    assert (found.timeline.batch_size, evaluation.batch_size) == (64, 512)
    peak = step_peak(evaluation)
    assert peak.last is not None
    assert peak.last.line == "train.py:20"
    sums = by_category(evaluation, peak)
    weights = 4 * (64 * 512 + 512 + 512 * 4000 + 4000)
    assert (sums["parameters"], sums["gradients"], sums["optimizer"]) == (weights, weights, 2 * weights)
    assert sums["inputs"] == 512 * (64 * 4 + 8)
    assert sum(by_line(evaluation, peak).values()) == peak.bytes
    assert peak_before(found.timeline).bytes < step_peak(found.timeline).bytes
    # More samples than the data set has, and no whole multiple of the batch.
    larger = trace_whole(["train.py"], batch_times=4500 / 64)
    assert larger.evaluation is None
    assert larger.features.batch_size == 4500


class Ended(Exception):
    """Stands for the end of the process."""


def followed() -> EvaluationFollower:
    def end() -> None:
        raise Ended

    return EvaluationFollower(lambda: None, end)


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("open", ("metrics.json", "w", os.O_WRONLY | os.O_CREAT)), ("open", ("log", None, os.O_RDWR)),
        ("open", (b"log", "ab", os.O_APPEND | os.O_WRONLY)), ("os.remove", ("old.pt", -1)),
        ("subprocess.Popen", ("sync", [], None, None)), ("socket.connect", (None, ("localhost", 80))),
    ],
)  # fmt: skip
def test_what_leaves_traces_ends_it(event: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(Ended):
        followed()._audit(event, arguments)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("open", ("data.bin", "rb", os.O_RDONLY)), ("open", ("/dev/null", "w", os.O_WRONLY)), ("open", (3, "wb", 1)),
        ("import", ("torch",)),
    ],
)  # fmt: skip
def test_what_reads_does_not(event: str, arguments: tuple[Any, ...]) -> None:
    followed()._audit(event, arguments)  # pyright: ignore[reportPrivateUsage]


def test_loaders_of_the_step_end_and_others_give_two_batches() -> None:
    found, old, new = followed(), SimpleNamespace(), SimpleNamespace()
    found.known(old)
    assert not found.may_load(old)
    assert [found.may_load(new) for _ in range(3)] == [True, True, False]
