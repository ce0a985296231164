"""What is said of a program that raises while it is traced: its own traceback, and nothing of who traces it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from stoker.cli.main import main
from stoker.core.patching import Patches
from stoker.perf.features.raised import print_raised
from stoker.perf.features.torch_private import FakeTensorMode

RAISES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.mm(self.inner(x), torch.ones(3, 3))  # the mistake

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8):
    model(x).sum().backward()
    optimizer.step()
"""


def test_frames_of_stand_ins_are_left_out_and_causes_stay(capsys: pytest.CaptureFixture[str]) -> None:
    def caused() -> None:
        try:
            with FakeTensorMode():
                torch.mm(torch.ones(8, 8), torch.ones(3, 3))
        except RuntimeError as error:
            raise ValueError("wrong sizes") from error

    with pytest.raises(ValueError, match="wrong sizes") as caught:
        caused()
    print_raised(caught.value)
    said = capsys.readouterr().err
    assert "torch.mm(" in said
    assert "The above exception was the direct cause" in said
    assert said.endswith("ValueError: wrong sizes\n")
    assert "_subclasses" not in said


def test_frames_of_stoker_are_left_out_and_public_ones_of_torch_stay(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AttributeError) as ours, Patches("test") as patches:
        patches.set(torch, "no_such_name", 1)
    with pytest.raises(TypeError) as torchs:
        pad_sequence([1])  # pyright: ignore[reportArgumentType]
    print_raised(ours.value)
    print_raised(torchs.value)
    said = capsys.readouterr().err
    assert "patching.py" not in said
    assert "rnn.py" in said


@pytest.mark.integration
def test_a_program_that_raises_shows_its_own_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "train.py"
    program.write_text(RAISES)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["memory", "--cpu", "--memory", "8MB", str(program)]) == 2
    said = capfd.readouterr().err
    begun = said[said.index("Traceback") :].splitlines()
    assert said.startswith("Traceback"), "nothing above it"
    assert begun[1].startswith(f'  File "{program}", line 17, in <module>')
    assert "# the mistake" in said
    assert "must hold stoker's replacement" not in said
    assert str(Path(sys.modules["stoker"].__path__[0])) not in said
