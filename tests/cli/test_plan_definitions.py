"""`stoker plan` of a function, which is asked in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.cli.main import main

pytest.importorskip("torch")
pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    return main(["plan", *arguments])


DEFINED = """
import torch
from torch import nn

def step(batch_size=16):
    return nn.Linear(32, 32), torch.empty(batch_size, 32), torch.optim.AdamW

def fixed():
    return {"module_or_step": nn.Linear(8, 8), "inputs": torch.empty(4, 8)}

def number():
    return 3

def extra():
    return {"module_or_step": nn.Linear(8, 8), "inputs": torch.empty(4, 8), "input": 3}

def fails():
    raise RuntimeError("no data today")
"""


@pytest.mark.slow("starts python and torch twice, as `stoker plan` does")
def test_a_function_of_a_file_is_asked_for_two_batches(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "model.py").write_text(DEFINED, encoding="utf-8")
    assert run("model.py:step", "--samples", "1e9", "--json") == 0
    report = json.loads(capfd.readouterr().out)
    assert report["batch"].startswith("global batch of 16 samples")
    assert not any("scaled" in note for note in report["notes"])
    assert run("model:fixed", "--samples", "1e9", "--json") == 0
    assert any("scaled" in note for note in json.loads(capfd.readouterr().out)["notes"])


@pytest.mark.usefixtures("warm_pythons")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.py:nothing", "`nothing` must be a function of `model.py`, which has step, fixed, number, extra, fails"),
        ("model.py:number", "must return what stoker.perf.characterise takes"),
        ("model.py:extra", "`input` of what `model.py:extra` returns must be one of module_or_step, inputs"),
        ("model.py:fails", "no data today"),
        ("mode:step", "`mode` must be a module that can be imported from here"),
        ("model.py:a b", "must be module:function or file.py:function"),
    ],
)
@pytest.mark.slow("the first imports torch")
def test_definitions_that_are_none_are_named(
    name: str, said: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.py").write_text(DEFINED, encoding="utf-8")
    assert run(name, "--samples", "1") == 2
    assert said in capfd.readouterr().err


@pytest.mark.slow("a program is traced until it is interrupted")
@pytest.mark.usefixtures("warm_pythons")
def test_an_interrupt_ends_it_and_the_program_that_it_traces(folder: Path) -> None:
    (folder / "slow.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n", encoding="utf-8")
    command = [sys.executable, "-m", "stoker", "plan", "slow.py", "--samples", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)
    begun_s = time.monotonic()
    process.communicate(timeout=20)
    assert time.monotonic() - begun_s < 20
    assert process.returncode == 130
