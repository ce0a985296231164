"""An unmodified program and a host on loopback: the same losses, with batches that the host has made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.records.events import Progress
from stoker.records.runlog import read_run
from stoker.wire.secrets import create_secret
from tests.backends.remote.hosts import opened
from tests.waiting import await_that
from tests.warm import programs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(110)]
DATA = """
import time
import torch


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return torch.rand(64) + index, index
"""
PROGRAM = """
import threading
import torch
from torch.utils.data import DataLoader
from images import Images

if __name__ == "__main__":
    torch.manual_seed(3)
    loader = DataLoader(Images(), batch_size=8, num_workers=1, shuffle=True)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for epoch in range(3):
        for x, y in loader:
            loss = (model(x).squeeze() - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex())
    import sys
    print(threading.active_count(), sorted({"ray", "cryptography", "cloudpickle"} & set(sys.modules)))
"""


@pytest.mark.slow("two runs of a program, one of which waits for a host to load it")
def test_the_same_losses_with_batches_of_another_machine(tmp_path: Path) -> None:
    (tmp_path / "images.py").write_text(DATA)
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(*options: str) -> list[str]:
        command = [sys.executable, "-m", "stoker", "run", "--quiet", "--run-dir", options[0], *options[1:], "train.py"]
        done = programs.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    with opened(tmp_path) as host:
        remote = ("--backend", f"static:{host.address}", "--remote-secret-file", str(host.secret))
        found = run("there", *remote, "--workers", "1", "--remote-workers", "2")
        await_that("nothing is left on the host", host.is_empty)
    assert found == run("here", "--workers", "1")
    assert found[-1] == "1 []", "no thread, and nothing imported that the gateway needs"
    records = [event for event in read_run(tmp_path / "there").events if isinstance(event, Progress)]
    assert records[-1].items_away >= 1
    assert max(record.away for record in records) == 2


def test_a_variable_that_is_not_set_is_refused(tmp_path: Path) -> None:
    create_secret(tmp_path / "secret")
    options = ["--backend", "static:a:7071", "--remote-secret-file", "secret", "--remote-env", "PATH,NOT_SET_AT_ALL"]
    command = [sys.executable, "-m", "stoker", "run", *options, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "`--remote-env` must name variables that are set, got NOT_SET_AT_ALL; export it first" in done.stderr


def test_without_a_secret_there_is_no_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stoker", "run", "--backend", "static:a:7071", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        "`--remote-secret-file` must be given with `--backend static:a:7071`, got nothing; `stoker cache" in done.stderr
    )
