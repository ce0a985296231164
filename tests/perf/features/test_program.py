"""`stoker perf features` on programs, in real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.perf.features.records import StepFeatures

pytestmark = pytest.mark.integration

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler(device)
data = TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
for x, y in DataLoader(data, 16, num_workers=2, pin_memory=True):
    with torch.autocast(device, dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x.to(device, non_blocking=True)), y.cuda())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.item())
"""


def features(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "stoker", "perf", "features", "--json", "f.json", "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_an_unmodified_program_for_cuda(tmp_path: Path) -> None:
    ended = features(tmp_path, PROGRAM)
    assert ended.returncode == 0, ended.stderr
    assert "train.py: one training step of 16 samples, kernels of cuda" in ended.stdout
    found = StepFeatures.from_json((tmp_path / "f.json").read_bytes())
    assert found.weights.count == 8 * 16 + 16 + 16 * 4 + 4
    assert found.input_bytes == 16 * (8 * 4 + 8)
    assert {o.dtype for o in found.operations if o.kind == "matmul"} == {"float16"}
    assert found.matrix_flops("forward") == 2 * 16 * (8 * 16 + 16 * 4)
    assert found.weights.optimizer_bytes == 2 * found.weights.bytes
    assert not found.unknown


@pytest.mark.parametrize(
    ("program", "said"),
    [("import os; os.abort()", "was killed by signal 6"), ("pass", "ended without an optimizer step")],
)
def test_a_program_without_steps_does_not_take_the_command_with_it(tmp_path: Path, program: str, said: str) -> None:
    ended = features(tmp_path, program)
    assert ended.returncode == 2
    assert said in ended.stderr
