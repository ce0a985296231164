"""Run folders: two runs in one place at one time, places that can't be written, full disks."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker
from stoker.records.events import RunEnded
from stoker.records.runlog import read_run
from tests.faults.harness import PROGRAMS
from tests.warm.programs import Program

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

_MS_RDONLY = 1


def start(
    cwd: Path, *options: str, served: bool = True, program: tuple[str, ...] = (str(PROGRAMS / "plainly.py"),)
) -> Program:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTHON"))}
    environ = {**kept, "PYTHONPATH": str(Path(stoker.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    before = ["-m", "stoker", "run", *options] if served else []
    command = [sys.executable, *before, *program]
    return Program(
        command,
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the program prints under plain python."""
    done = start(tmp_path_factory.mktemp("plain"), served=False)
    out, _ = done.communicate(timeout=40)
    assert done.returncode == 0
    return out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for 64 KiB, without room now."""
    if os.geteuid():
        pytest.skip("mounting a file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(place).encode(), b"tmpfs", 0, b"size=64k"):
        pytest.skip(f"a file system can't be mounted here: {os.strerror(ctypes.get_errno())}")
    yield place
    libc.umount2(str(place).encode(), 2)


@pytest.mark.slow("two programs import torch")
def test_two_runs_in_one_place(tmp_path: Path, expected: str) -> None:
    runs = [start(tmp_path, "--quiet") for _ in range(2)]
    for run in runs:
        out, err = run.communicate(timeout=40)
        assert (run.returncode, out) == (0, expected), err
    folders = [path for path in (tmp_path / "stoker-runs").iterdir() if path.is_dir() and not path.is_symlink()]
    assert len(folders) == 2
    for folder in folders:
        read_run(folder)


def test_two_runs_into_one_folder(tmp_path: Path, expected: str) -> None:
    runs = [start(tmp_path, "--quiet", "--run-dir", "same") for _ in range(2)]
    for run in runs:
        out, err = run.communicate(timeout=40)
        assert (run.returncode, out) == (0, expected), err
        assert "Traceback" not in err


def test_one_folder_for_two_runs_in_turn(tmp_path: Path, expected: str) -> None:
    for _ in range(2):
        out, err = start(tmp_path, "--quiet", "--run-dir", "same").communicate(timeout=40)
        assert out == expected, err
    assert len(list((tmp_path / "same").glob("earlier-*-events.jsonl"))) == 1
    assert len([event for event in read_run(tmp_path / "same").events if isinstance(event, RunEnded)]) == 1


@pytest.mark.slow("programs that start python and torch")
def test_program_that_starts_programs(tmp_path: Path, expected: str) -> None:
    """Each has records and a report of its own, with its own command."""
    child = f"subprocess.run([sys.executable, {str(PROGRAMS / 'plainly.py')!r}], check=True)"
    (tmp_path / "sweep.py").write_text(f"import subprocess, sys\nfor _ in range(2): {child}\n")
    out, err = start(tmp_path, "--run-dir", "runs", program=("sweep.py",)).communicate(timeout=50)
    assert out == 2 * expected, err
    assert err.count("Loaders ") == 2, err
    for name in ("runs", "runs-2"):
        run = read_run(tmp_path / name)
        assert len([event for event in run.events if isinstance(event, RunEnded)]) == 1
        assert run.header.argv == [str(PROGRAMS / "plainly.py")]


def test_module_is_named_as_it_was_typed(tmp_path: Path, expected: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text((PROGRAMS / "plainly.py").read_text())
    out, err = start(tmp_path, program=("-m", "package")).communicate(timeout=40)
    assert out == expected, err
    assert "stoker · -m package · finished" in err
    assert read_run(next((tmp_path / "stoker-runs").glob("*-package-*"))).header.argv == ["-m", "package"]


def test_folder_that_is_a_file(tmp_path: Path, expected: str) -> None:
    (tmp_path / "stoker-runs").write_text("in the way")
    run = start(tmp_path)
    out, err = run.communicate(timeout=40)
    assert (run.returncode, out) == (0, expected)
    assert "Traceback" not in err
    assert err.count("stoker: ") <= 2, err


def test_read_only_place(small_disk: Path, expected: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.mount(b"none", str(small_disk).encode(), b"tmpfs", 32 | _MS_RDONLY, b"")  # 32: remount
    run = start(small_disk)
    out, err = run.communicate(timeout=40)
    assert (run.returncode, out) == (0, expected)
    assert "Traceback" not in err
    assert "Read-only" in err
    assert "Loaders " in err, "the report needs no folder"
    assert "stoker report" not in err


@pytest.mark.parametrize("room", [0, 6_000])
def test_full_disk(room: int, small_disk: Path, expected: str) -> None:
    with (small_disk / "filler").open("wb") as file:
        for _ in range(16):
            try:
                file.write(bytes(4096))
                file.flush()
            except OSError:
                break
        if room:
            file.truncate(max(0, file.tell() - room))
    run = start(small_disk)
    out, err = run.communicate(timeout=40)
    assert (run.returncode, out) == (0, expected)
    assert "Traceback" not in err


def test_standard_error_that_is_closed(tmp_path: Path, expected: str) -> None:
    run = start(tmp_path)
    assert run.stderr is not None
    run.stderr.close()
    assert run.stdout is not None
    out = run.stdout.read()
    assert run.wait(40) == 0
    run.stdout.close()
    assert out == expected
