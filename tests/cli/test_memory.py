"""`stoker memory` on the command line."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest

from stoker.cli.main import main
from stoker.records.memory import MemoryReport, SnapshotReport
from stoker.ui.memory.html import render_memory_page
from tests.perf.memory.snapshots import Recorder

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
                                     for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def step(batch=4096):
    return Net(), (torch.empty(batch, 512),), torch.optim.AdamW
"""
PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 40_000))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(2048, 64), torch.randint(40_000, (2048,)))
for step, (x, y) in enumerate(DataLoader(data, batch_size=256)):
    out = model(x)
    loss = nn.functional.cross_entropy(out, y) / 2
    loss.backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(MODULE)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "`PROGRAM` or `-m MODULE` must be given"),
        (("train.py", "--gpu", "RTX-9999"), "`--gpu`"),
        (("train.py", "--memory", "20"), "must be a positive size with its unit"),
        (("train.py", "--memory", "20G"), "is ambiguous"),
        (("train.py", "--ranks", "0"), "`--ranks` must be a whole number of at least 1, got '0'"),
        (("none.py",), "`none.py` must be a Python program"),
    ],
)
def test_wrong_words_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    del folder
    assert main(["memory", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.slow("traces several sizes of a batch, a process each")
@pytest.mark.timeout(300)
def test_a_definition_that_fits_once_blocks_are_recomputed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert main(["memory", "nets.py:step", "--json"]) == 0
    plain = msgspec.json.decode(capsys.readouterr().out, type=MemoryReport)
    assert plain.fits is None
    assert sum(share.bytes for share in plain.categories) == plain.peak_bytes
    tensors = sum(share.bytes for share in plain.categories if share.name not in ("allocator", "context"))
    assert sum(share.bytes for share in plain.modules) == sum(share.bytes for share in plain.lines) == tensors
    least = next(each for each in plain.remedies if each.name.startswith("recompute"))
    size = (least.peak_bytes + plain.peak_bytes) // 2 // 1000
    assert main(["memory", "nets.py:step", "--memory", f"{size}kB", "--ranks", "2"]) == 1
    text = capsys.readouterr().out
    assert "DOES NOT FIT" in text
    assert "Largest batch" in text
    assert "FSDP2 over 2 ranks" in text


@pytest.mark.integration
def test_a_program_holds_no_batch_that_it_dropped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert main(["memory", "train.py", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=MemoryReport)
    sums = {share.name: share.bytes for share in found.categories}
    batch = 256 * 64 * 4 + 256 * 8
    assert sums["inputs"] == batch, "one micro-batch of two is alive, since the program dropped the other"
    assert [held.variable for held in found.held] == ["out"]
    assert (found.held[0].assigned, found.held[0].last_used) == ("train.py:10", "train.py:11")
    assert found.line == "train.py:12"
    page = render_memory_page(found)
    assert " · train.py:12<" in page
    assert [name in page for name in (">forward pass<", ">backward pass<", ">activations<")] == [True] * 3


def test_a_snapshot_of_torch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(expandable=False)
    for size in (24 << 20, 30 << 20, 36 << 20):
        recorder.free(recorder.allocate(size, 7))
    (folder / "dump.pickle").write_bytes(pickle.dumps(recorder.snapshot()))
    assert main(["memory", "dump.pickle"]) == 0
    text = capsys.readouterr().out
    assert "peak 37.7 MB requested, 94.4 reserved: train.py:7" in text
    assert "41.9  -55.6 %  expandable segments, replayed" in text
    assert "Next  export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
    assert main(["memory", "dump.pickle", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=SnapshotReport)
    assert [share.name for share in found.lines] == ["train.py:7"]
    assert main(["memory", "dump.pickle", "--html", "dump.html"]) == 0
    assert "peak · train.py:7" in (folder / "dump.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.pickle",), "`none.pickle` must be a file that can be read: No such file or directory"),
        (("bad.pickle",), "`bad.pickle` must be a pickle of plain data"),
        (("bad.pickle", "--gpu", "T4"), "`--gpu` must go with a program, got a snapshot"),
        (("bad.pickle", "--", "5"), "`--` must go with a program, got a snapshot"),
    ],
)
def test_wrong_snapshots_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    (folder / "bad.pickle").write_bytes(b"\x80\x04bad")
    assert main(["memory", *words]) == 2
    assert said in capsys.readouterr().err
