"""`stoker exchange` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from stoker.cli.main import main
from stoker.perf import characterise
from stoker.perf.machine.rates import default_path, save
from stoker.records.exchange import ExchangeReport
from tests.perf.machine.rates_of_old import made_rates

LINK = ("--ranks", "4", "--link", "200Mbit,50us")
PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 64), torch.randint(10, (64,)))
for x, y in DataLoader(data, batch_size=16):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the features of a head, for GPUs and for CPUs, and a calibration of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    head = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    for target in ("cuda", "cpu"):
        features = characterise(head, (torch.randn(32, 512),), optimizer=torch.optim.SGD, target=target, name="head")
        (tmp_path / f"{target}.json").write_bytes(features.to_json())
    save(made_rates(), default_path())
    return tmp_path


def run(*words: str) -> int:
    return main(["exchange", *words])


def report(capsys: pytest.CaptureFixture[str], *words: str) -> ExchangeReport:
    assert run(*words, "--json") == 0
    return msgspec.json.decode(capsys.readouterr().out, type=ExchangeReport)


def test_a_head_on_a_slow_link_multiplies_late(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    found = report(capsys, "cuda.json", *LINK)
    assert [layer.method for layer in found.layers] == ["late", "late", "all_reduce"]
    assert [layer.shape for layer in found.layers] == [(512, 1024), (1024, 1024), (1024, 10)]
    # 4 (P - 1) K (M + N) and the bias by a ring.
    assert found.layers[1].bytes == 4 * 3 * 32 * 2048 + 1.5 * 4 * 1024
    assert found.before.bytes == 1.5 * sum(layer.gradient_bytes for layer in found.layers)
    assert 3 * found.after.step_s.likely < found.before.step_s.likely
    assert found.memory_bytes == sum(layer.memory_bytes for layer in found.layers)
    for step in (found.before, found.after):
        assert step.step_s.low <= step.step_s.likely <= step.step_s.high
    assert report(capsys, "cuda.json", *LINK) == found


def test_every_method_of_a_layer_is_shown_with_its_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    found = report(capsys, "cuda.json", *LINK)
    first = found.layers[0]
    assert {first.method, *(each.method for each in first.rejected)} == {
        "all_reduce", "ring", "islands", "half", "late", "power", "column", "row",
    }  # fmt: skip
    assert all(each.reason and each.bytes > 0 and each.seconds.likely > 0 for each in first.rejected)
    reasons = {each.method: each.reason for each in first.rejected}
    assert reasons["all_reduce"] == "more bytes"
    assert reasons["column"] == "not allowed (--comm-allow split)"


def test_leave_is_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    exact, split = (report(capsys, "cuda.json", *LINK, *words) for words in ((), ("--comm-allow", "split,compress")))
    assert split.after.step_s.likely < exact.after.step_s.likely
    assert split.digest != exact.digest
    assert split.allowed == ["compress", "split"]


def test_ranks_on_cpus_as_this_machine_was_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    found = report(capsys, "cpu.json", "--ranks", "8", "--hosts", "2", "--link", "200Mbit,50us", "--cpu")
    assert (found.backend, found.hosts, found.device) == ("gloo", 2, "made, 2 threads")
    assert {layer.method for layer in found.layers} & {"islands", "late"}
    assert run("cuda.json", *LINK, "--cpu") == 2
    assert "trace the program with target cpu" in capsys.readouterr().err


def test_the_text_has_layers_steps_and_reasons(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert run("cuda.json", *LINK) == 0
    text = capsys.readouterr().out
    for said in (
        "stoker exchange · head",
        "4 ranks on 4 hosts · 200 Mbit/s and 50.0 us between them · nccl on A100-80GB-SXM · exact",
        "2 layers of 3 leave the backend's all-reduce",
        "512 x 1024   late-multiply  0",
        "nccl alone",
        "as planned",
        "16 bits: not allowed (--comm-allow compress)",
        "PowerSGD",
    ):
        assert said in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_one_rank_is_told_that_nothing_is_exchanged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert run("cuda.json", "--ranks", "1", "--link", "1Gbit,50us") == 0
    assert "Leave the exchange to nccl: nothing is exchanged" in capsys.readouterr().out


def test_without_a_calibration_the_next_command_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "none"))
    assert run("cpu.json", *LINK, "--cpu") == 2
    assert "`--cpu` needs this machine's calibration" in (said := capsys.readouterr().err)
    assert "stoker perf calibrate" in said


@pytest.mark.integration
def test_a_script_is_traced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    assert run("train.py", *LINK, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [layer["rows"] for layer in found["layers"]] == [16, 16, 16]
    assert found["layers"][1]["method"] == "late"
