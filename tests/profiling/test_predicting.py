"""The prediction beside a measurement, on a GPU of the catalogue: made without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from stoker.perf import characterise
from stoker.perf.diagnosis.rules import Context, judge
from stoker.perf.features.child_process import InputState
from stoker.perf.features.records import StepFeatures
from stoker.records.profile import FEATURES_NAME, Profile
from stoker.run.profiling.merge_ranks import assemble
from stoker.run.profiling.predicting import add_prediction, prophesy, trace, traceable
from tests.profiling.records import record

UNREAD = InputState(place=None, waits=False)


@pytest.fixture(scope="module")
def features() -> StepFeatures:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    return characterise(model, torch.empty(512, 1024), optimizer=torch.optim.AdamW)


def on_gpu(name: str, **seconds: float) -> Profile:
    measured = record(**seconds)
    measured.device, measured.device_name, measured.precision = "cuda", name, "tf32"
    found = assemble([measured], run_id="r", program=["train.py"], cwd="/", started_unix_s=0.0)
    assert found is not None
    return found


def test_a_known_gpu_is_predicted_and_half_precision_beside_it(features: StepFeatures, tmp_path: Path) -> None:
    profile = on_gpu("NVIDIA A100-SXM4-80GB", compute=0.003, memory=0.0005, optimizer=0.0002)
    prophecy = prophesy(profile, features, "")
    assert prophecy.predicted is not None, prophecy.why_not
    assert prophecy.predicted.low <= prophecy.predicted.seconds <= prophecy.predicted.high
    add_prediction(profile, prophecy, tmp_path)
    assert StepFeatures.from_json((tmp_path / FEATURES_NAME).read_bytes()) == features
    assert profile.residual is not None
    verdict = judge(profile, Context(alternatives=prophecy.alternatives, features=features))
    assert verdict.kind == "COMPUTE-BOUND"
    assert "bf16" in prophecy.alternatives
    if verdict.action.gain is not None:
        assert verdict.action.gain.seconds < profile.seconds


def test_what_fusing_would_leave_is_a_gain(features: StepFeatures) -> None:
    profile = on_gpu("NVIDIA A100-SXM4-80GB", compute=0.001, memory=0.004)
    gain = judge(profile, Context(features=features)).action.gain
    assert gain is not None
    assert 0.001 < gain.low < gain.seconds < gain.high == profile.seconds


def test_an_unknown_gpu_is_named(features: StepFeatures) -> None:
    prophecy = prophesy(on_gpu("Voodoo 2", compute=0.1), features, "")
    assert prophecy.predicted is None
    assert "Voodoo 2" in prophecy.why_not


def test_a_cpu_that_was_not_measured(features: StepFeatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    profile = assemble([record(compute=0.1)], run_id="r", program=["a.py"], cwd="/", started_unix_s=0.0)
    assert profile is not None
    assert "stoker perf calibrate" in prophesy(profile, features, "").why_not


def test_without_features_there_is_none() -> None:
    profile = on_gpu("NVIDIA L4", compute=0.1)
    assert prophesy(profile, None, "it fell over").why_not == "it fell over"


def test_the_script_behind_a_launcher() -> None:
    assert traceable(["train.py", "--lr", "1"]) == ["train.py", "--lr", "1"]
    assert traceable(["-m", "torch.distributed.run", "--nproc-per-node", "2", "t.py", "x"]) == ["t.py", "x"]
    assert traceable(["-m", "torch.distributed.run", "-m", "package", "x"]) == ["-m", "package", "x"]
    assert traceable(["/bin/torchrun", "--nproc-per-node=2", "--module", "package"]) == ["-m", "package"]
    assert traceable(["torchrun", "--standalone", "train"]) == []
    assert traceable(["-m", "package", "--lr", "1"]) == ["-m", "package", "--lr", "1"]
    assert traceable(["-mpackage", "x"]) == ["-m", "package", "x"]
    assert traceable(["-c", "pass"]) == traceable(["-"]) == []


def test_what_fails_leaves_its_words_in_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("raise SystemError('no such luck')")
    log = tmp_path / "tracing.log"
    found, why_not = trace([str(tmp_path / "train.py")], "cpu", 2, log, UNREAD)
    assert found is None
    assert str(log) in why_not
    assert "no such luck" in log.read_text()
    assert "no such luck" not in capfd.readouterr().err
    assert "WORLD_SIZE" not in os.environ


def test_a_module_is_traced_as_it_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.py").write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(4, int(sys.argv[1]))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(2):\n"
        "    model(torch.ones(3, 4)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    found, why_not = trace(["-m", "own.train", "5"], "cpu", 1, tmp_path / "tracing.log", UNREAD)
    assert found is not None, why_not
    assert (found.name, found.target, found.weights.count) == ("own.train", "cpu", 25)
