"""`stoker run --backend ray`: what is refused before the program starts."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.backends.ray import clusters
from stoker.core.errors import MissingExtraError
from stoker.records.events import Progress
from stoker.records.runlog import read_run
from stoker.run.launch import command_of
from stoker.run.settings import RunSettings
from tests.backends.ray.conftest import needs_ray
from tests.backends.remote.test_program import DATA, PROGRAM


def test_without_ray_one_line_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'^`ray` is needed here.*pip install "stoker\[ray\]" \[STOKER1002\]$'):
        command_of(RunSettings.of(backend="ray"), ["train.py"])


@pytest.mark.integration
def test_a_wrong_address(tmp_path: Path, joining_environ: dict[str, str]) -> None:
    needs_ray()
    (tmp_path / "train.py").write_text("print('ran')\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        for wrong, words in ((address, "must be a head of Ray that answers"), ("auto", "such as 10.0.0.7:6379")):
            done = subprocess.run(
                [sys.executable, "-m", "stoker", "run", "--backend", "ray", str(tmp_path / "train.py")],
                env=joining_environ | {"RAY_ADDRESS": wrong}, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (2, "")
            assert words in done.stderr
            assert len(done.stderr.splitlines()) == 1


@pytest.mark.integration
@pytest.mark.exhaustive
@pytest.mark.timeout(180)
@pytest.mark.slow("two runs of a program, one of which waits for a cluster's host to load it")
def test_the_same_losses_with_batches_of_a_clusters_nodes(
    cluster: clusters.ClusterRecord, joining_environ: dict[str, str], tmp_path: Path
) -> None:
    slow = re.sub(r"end = .*pass\n", "time.sleep(0.006)\n", DATA, flags=re.DOTALL)
    assert "sleep" in slow
    (tmp_path / "images.py").write_text(slow)
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(*options: str) -> list[str]:
        command = [sys.executable, "-m", "stoker", "run", "--quiet", "--run-dir", options[0], *options[1:], "train.py"]
        environ = joining_environ
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    found = run("there", "--backend", "ray", "--workers", "1", "--remote-workers", "2")
    assert found == run("here", "--workers", "8")
    assert found[-1] == "1 []", "the training process has one thread, and none of what the others need"
    progress = [event for event in read_run(tmp_path / "there").events if isinstance(event, Progress)]
    assert progress[-1].items_away > 0
