"""`stoker demo` as a person meets it: what it needs, what it shows, and what it leaves behind."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cli.demo import main as demo
from stoker.core.errors import ConfigError, MissingExtraError
from stoker.records.runlog import read_run

QUICK = ["--batches", "60", "--read-ms", "8", "--step-ms", "8"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder with a short name: torch's workers hand tensors over by sockets that have names below it."""
    with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as folder:
        yield Path(folder)


def start(folder: Path, temporary: Path, **environ: str) -> subprocess.Popen[str]:
    """The demonstration in a folder, with a temporary folder of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", "demo", *QUICK],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONIOENCODING": "utf-8", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow("two programs that import torch, one after the other: that is what is shown")
@pytest.mark.integration
def test_one_screen_and_the_report(tmp_path: Path, temporary: Path) -> None:
    # Some 15 s: two programs that import torch, one after the other; that is what is shown.
    process = start(tmp_path, temporary)
    screen, said = process.communicate()
    assert process.returncode == 0, said
    assert said == "1 of 2, python train.py …\n2 of 2, stoker run train.py …\n"
    assert "identical: all 60, to the last digit" in screen
    assert "Emulated    a read takes 8 ms, a training step 8 ms" in screen
    assert not re.search(r"^step \d", screen, re.MULTILINE)
    assert len(screen.splitlines()) <= 24
    found = re.search(r"^Report +(\S+)", screen, re.MULTILINE)
    assert found is not None
    report = tmp_path / found[1]
    assert report.read_text().startswith("<!doctype html>")
    assert read_run(report.parent).header.argv[0] == str(demo.PROGRAM)
    assert list(temporary.iterdir()) == []


@pytest.mark.integration
def test_an_interrupt_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    process = start(tmp_path, temporary)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("1 of 2")
    process.send_signal(signal.SIGINT)
    screen, said = process.communicate()
    assert (process.returncode, screen) == (128 + signal.SIGINT, "")
    assert said == "stoker: the demo was interrupted; its processes are ended and its records removed\n"
    assert list(tmp_path.rglob("*")) == list(temporary.iterdir()) == []


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_NEEDS", {"sys": "sys", "no_such_package": "pillow"})
    with pytest.raises(MissingExtraError, match=r"`stoker demo` needs `pillow`, .*pip install pillow \["):
        demo.check_packages()


def test_too_little_shared_memory_is_said_before_anything_starts() -> None:
    demo.check_shared_memory(2**30)
    with pytest.raises(ConfigError, match=r"`/dev/shm` must have 16.0 MiB free .* has 64.0 KiB; .*--shm-size=1g"):
        demo.check_shared_memory(2**16)


@pytest.mark.parametrize(("length", "error"), [(75, FileNotFoundError), (76, OSError)])
def test_a_temporary_folder_is_refused_where_sockets_below_it_have_too_long_a_name(length: int, error: type) -> None:
    folder = "/" + "d" * (length - 1)
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(error) as met:
        one.connect(f"{folder}/pymp-xxxxxxxx/listener-xxxxxxxx")
    if type(met.value) is FileNotFoundError:  # the name fits, so that the kernel looks for the file
        demo.check_temporary(folder)
    else:
        with pytest.raises(ConfigError, match=r"at most 75 bytes.* has 76; .*TMPDIR=/tmp stoker demo"):
            demo.check_temporary(folder)


def test_a_folder_that_takes_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stoker-runs").write_text("in the way")
    with pytest.raises(ConfigError, match=f"{os.strerror(errno.ENOTDIR)}.* cd && stoker demo"):
        demo.main([])


@pytest.mark.parametrize("words", [["--batches", "59"], ["--read-ms", "0"], ["--step-ms", "x"], ["train.py"]])
def test_wrong_options_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        demo.main(words)
