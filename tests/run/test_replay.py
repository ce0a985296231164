"""A sample that ends its data workers: the error's command makes exactly this sample again, in one process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from tests.warm import programs

PROGRAM = Path(__file__).parent / "programs" / "poisoned.py"
SOURCE = str(Path(stoker.__file__).parents[1])

pytestmark = pytest.mark.integration


def run_stoker(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_module("stoker", *words, cwd=cwd)


def run_module(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    return programs.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the error message of a run tells to type."""
    folder = tmp_path_factory.mktemp("poisoned")
    done = run_stoker("run", "--quiet", str(PROGRAM), "--poison", "--label", "it's this", cwd=folder)
    assert done.returncode == 1
    found = re.search(
        r"sample 13 \(photo 13\.jpg\) ended its data worker twice.*`(stoker run --replay [^`]*)`", done.stderr
    )
    assert found, done.stderr
    return shlex.split(found.group(1))[1:]


def test_the_command_names_sample_program_and_arguments(command: list[str]) -> None:
    assert command[:2] == ["run", "--replay"]
    assert re.fullmatch(r"1:13:\d+", command[2])
    assert command[3:] == [str(PROGRAM), "--poison", "--label", "it's this"]


def test_the_sample_ends_the_one_process_and_says_where(command: list[str], tmp_path: Path) -> None:
    done = run_stoker(*command, cwd=tmp_path)
    assert done.returncode == -signal.SIGSEGV
    assert "sample 13 (photo 13.jpg) of loader 1" in done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert re.search(r'poisoned\.py", line \d+ in __getitem__', done.stderr)
    assert done.stdout == ""


def test_a_healthy_sample_is_the_one_of_the_run(command: list[str], tmp_path: Path) -> None:
    served = run_stoker("run", "--quiet", str(PROGRAM), cwd=tmp_path)
    (values,) = re.findall(r"^13 (.*)$", served.stdout, re.MULTILINE)
    done = run_stoker(*[word for word in command if word != "--poison"], cwd=tmp_path)
    assert done.returncode == 0
    assert f"sample['crop']: tensor torch.float32 [3, 4], 48 B, {values}" in done.stderr
    assert "sample['index']: int 13" in done.stderr
    assert re.search(r"^  digest [0-9a-f]{32}$", done.stderr, re.MULTILINE)
    assert done.stdout == ""


def test_an_exception_is_shown_and_is_the_status(tmp_path: Path) -> None:
    done = run_stoker("run", "--replay", "1:'x':5", str(PROGRAM), cwd=tmp_path)
    assert done.returncode == 0, "the index is only handed through"
    done = run_stoker("run", "--replay", "0:99:5", str(PROGRAM), cwd=tmp_path)
    assert done.returncode == 1
    assert "IndexError" in done.stderr
    assert done.stdout == ""


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node")


@pytest.mark.slow("two ranks each start python and torch")
@pytest.mark.parametrize(
    "words",
    [(*TORCHRUN, "2", "-m", "stoker", "run", "--quiet"), ("stoker", "run", "--quiet", "-m", *TORCHRUN, "2")],
    ids=["torchrun outside", "torchrun inside"],
)
def test_a_rank_of_torchrun(words: tuple[str, ...], tmp_path: Path) -> None:
    """The program joins the other ranks before it comes to the sample; the command works as it was printed."""
    done = run_module(*words, str(PROGRAM), "--poison", "--ranks", cwd=tmp_path)
    found = re.search(r"sample 13 .* ended its data worker twice.*`([^`]* --replay [^`]*)`", done.stderr)
    assert found, done.stderr
    command = shlex.split(found.group(1))
    command[0] = {"torchrun": TORCHRUN[0]}.get(command[0], command[0])
    again = run_module(*command, cwd=tmp_path)
    assert again.returncode != 0
    assert again.stderr.count("sample 13 (photo 13.jpg) of loader 1") == 1
    assert "Fatal Python error: Segmentation fault" in again.stderr
    healthy = run_module(*[word for word in command if word != "--poison"], cwd=tmp_path)
    assert healthy.returncode == 0
    assert "sample['index']: int 13" in healthy.stderr
    assert "nothing made" not in healthy.stderr


def test_a_loader_that_never_comes(tmp_path: Path) -> None:
    done = run_stoker("run", "--replay", "2:0:5", str(PROGRAM), cwd=tmp_path)
    assert "`--replay` names loader 2, but the program used 2 (from 0); nothing made" in done.stderr
    assert len(done.stdout.splitlines()) == 40


def test_no_other_name_is_taken(tmp_path: Path) -> None:
    done = run_stoker("run", "--replay", "13", str(PROGRAM), cwd=tmp_path)
    assert done.returncode == 2
    assert "`replay` must be `LOADER:INDEX:SEED`" in done.stderr
