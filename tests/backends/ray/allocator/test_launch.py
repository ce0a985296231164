"""What a gang's processes are started with, and what their parent does with them: without Ray."""

from __future__ import annotations

import getpass
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from stoker.backends.ray.allocator.launch import JOB_ENV, Rendezvous, SubmittedProgram, command_of, environment_of
from stoker.backends.ray.allocator.supervisor import COULD_NOT_START
from stoker.backends.ray.broker import owner_of
from stoker.backends.ray.clusters import MARK_ENV
from stoker.scale.cluster.submissions import NodeSeat
from tests.waiting import await_that

PROGRAM = SubmittedProgram(
    python="/env/bin/python", words=("--cache", "train.py", "--lr", "1"), folder="/jobs",
    environ={"PATH": "/bin", "RAY_ADDRESS": "other:1", "CUDA_VISIBLE_DEVICES": "7"}, log_folder="/jobs/logs",
)  # fmt: skip
RUN = ["-m", "stoker", "run", "--backend=ray", "--cache", "train.py", "--lr", "1"]


def seats(*gpus: int) -> list[NodeSeat]:
    return [NodeSeat(node=f"n{number}", gpus=count, cpus=1.0) for number, count in enumerate(gpus)]


def test_one_gpu_is_plain_python() -> None:
    assert command_of(PROGRAM, seats(1), 0, None) == ["/env/bin/python", *RUN]


def test_several_gpus_are_ranks_of_torchrun() -> None:
    one_node = ["/env/bin/python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    assert command_of(PROGRAM, seats(4), 0, None) == [*one_node, *RUN]
    found = command_of(PROGRAM, seats(4, 2), 1, Rendezvous(host="10.0.0.7", port=5))
    assert found[2:8] == [
        "torch.distributed.run", "--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.7", "--master-port=5",
        "--nproc-per-node=2",
    ]  # fmt: skip


def test_the_environment_is_that_of_submission_and_the_cluster_that_of_the_node() -> None:
    node = {
        "RAY_AUTH_TOKEN_PATH": "/token",
        "CUDA_VISIBLE_DEVICES": "0",
        "RAY_RAYLET_PID": "1",
        "HOME": "/root",
        MARK_ENV: "x",
    }
    assert environment_of(PROGRAM, node, "head:6379") == {
        "PATH": "/bin", "RAY_ADDRESS": "head:6379", "RAY_AUTH_TOKEN_PATH": "/token", "CUDA_VISIBLE_DEVICES": "0",
        MARK_ENV: "x",
    }  # fmt: skip


@contextmanager
def supervised(folder: Path, source: str) -> Iterator[subprocess.Popen[bytes]]:
    launch = {
        "command": [sys.executable, "-c", source], "folder": str(folder), "environ": {}, "log": str(folder / "log"),
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "stoker.backends.ray.allocator.supervisor"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(launch).encode() + b"\n")
        process.stdin.flush()
        yield process
        process.kill()


def say(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()


def started(folder: Path) -> list[int]:
    deadline_s = time.monotonic() + 10.0
    while not (folder / "log").exists() or not (text := (folder / "log").read_text()).endswith("\n"):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return [int(word) for word in text.split()]


def is_alive(pid: int) -> bool:
    """Whether it runs: who has lost its parent may wait for a while until another takes its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


TREE = """
import os, signal, time
if {deaf}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child: print(os.getpid(), child, flush=True)
time.sleep(60)
"""


@pytest.mark.integration
class TestSupervisor:
    def test_the_status_is_the_programs(self, tmp_path: Path) -> None:
        with supervised(tmp_path, "print('said'); raise SystemExit(3)") as process:
            assert process.wait(10) == 3
        assert (tmp_path / "log").read_text() == "said\n"

    def test_a_program_that_obeys_ends_by_the_signal(self, tmp_path: Path) -> None:
        with supervised(tmp_path, "import time; print(1, flush=True); time.sleep(60)") as process:
            started(tmp_path)
            say(process, b"30\n")
            assert process.wait(10) == 128 + signal.SIGTERM

    @pytest.mark.parametrize("way", ["stopped", "left alone"])
    def test_one_that_does_not_is_killed_with_its_children(self, tmp_path: Path, way: str) -> None:
        with supervised(tmp_path, TREE.format(deaf=True)) as process:
            pids = started(tmp_path)
            if way == "stopped":
                say(process, b"0.1\n")
            else:
                assert process.stdin is not None
                process.stdin.close()
            assert process.wait(10) == 128 + signal.SIGKILL
            await_that("its children end with it", lambda: not any(is_alive(pid) for pid in pids))

    def test_a_folder_that_is_not_there_is_said(self, tmp_path: Path) -> None:
        with supervised(tmp_path, "") as process:
            process.wait(10)
        (tmp_path / "file").touch()
        with supervised(tmp_path / "file", "") as process:
            assert process.stdout is not None
            assert b"must be there and usable on this node" in process.stdout.readline()
            assert process.wait(10) == COULD_NOT_START


def test_a_brokers_job_is_whose_it_was_submitted_for() -> None:
    program = msgspec.structs.replace(PROGRAM, user="ann", priority=2)
    whose = owner_of(environment_of(program, {}, "head:6379"))
    assert (whose.user, whose.priority) == ("ann", 2)
    assert owner_of({JOB_ENV: "?"}).user == getpass.getuser()
