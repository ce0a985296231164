"""What a kept trace belongs to: another size of the program must not get it, and the same program must."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stoker.run.fitting.kept_traces import KeptTrace, fingerprint, stamps_of
from tests.warm import programs


class Found(msgspec.Struct, frozen=True):
    """A trace."""

    peak: int


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A program's command line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sizes")
    (tmp_path / "sizes.py").write_text("BATCH = 8")
    (tmp_path / "sizes.yaml").write_text("width: 8")
    return (str(tmp_path / "train.py"), "--epochs", "2", "--out", "losses.json", "--data=rows.parquet")


@pytest.mark.parametrize(
    "name", ["BATCH", "WINDOW_SIZE", "OMP_NUM_THREADS", "ACCELERATE_MIXED_PRECISION", "WORLD_SIZE"]
)
def test_a_variable_that_may_say_a_size_is_part_of_it(
    program: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    without = fingerprint(program)
    monkeypatch.setenv(name, "8")
    eight = fingerprint(program)
    monkeypatch.setenv(name, "16")
    assert len({without, eight, fingerprint(program)}) == 3


@pytest.mark.parametrize("name", ["MASTER_PORT", "TORCHELASTIC_RUN_ID", "STOKER_WORKERS", "SSH_CLIENT", "SHLVL", "_"])
def test_a_variable_of_a_launcher_or_a_shell_is_not(
    program: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "8")
    before = fingerprint(program)
    monkeypatch.setenv(name, "9")
    assert fingerprint(program) == before


def test_its_input_is_part_of_it(program: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "input.txt"
    kept = os.dup(0)
    found: list[str] = []
    try:
        for content in ("8", "16"):
            file.write_text(content)
            descriptor = os.open(file, os.O_RDONLY)
            os.dup2(descriptor, 0)
            os.close(descriptor)
            found.append(fingerprint(program))
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert len({*found, fingerprint(program)}) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "sizes.py").write_text("BATCH = 16"),
        lambda folder: (folder / "sizes.yaml").write_text("width: 16"),
        lambda folder: (folder / "more.py").write_text(""),
        lambda folder: (folder / "losses.json").write_text("[1.0]"),
        lambda folder: (folder / "rows.parquet").write_bytes(b"rows"),
    ],
)
def test_files_below_its_folder_and_those_that_arguments_name_are_part_of_it(
    program: tuple[str, ...], change: Callable[[Path], object], tmp_path: Path
) -> None:
    before = fingerprint(program)
    change(tmp_path)
    assert fingerprint(program) != before


def test_a_folder_of_any_size_is_read_in_part(program: tuple[str, ...], tmp_path: Path) -> None:
    for number in range(1100):
        (tmp_path / f"images{number:04}").mkdir()
    before = fingerprint(program)
    (tmp_path / "images1099" / "late.json").write_text("{}")
    assert fingerprint(program) == before
    (tmp_path / "images0000" / "early.json").write_text("{}")
    assert fingerprint(program) != before


def _kept(folder: Path, *reads: Path) -> KeptTrace:
    trace = KeptTrace(folder / "fits", "of-a-program")
    trace.write(Found(8), [str(each) for each in reads], time.time_ns())
    return trace


def _settings(folder: Path) -> Path:
    """A file that was written a minute ago."""
    file = folder / "sizes.yaml"
    file.write_text("width: 8")
    _touch(file, -60)
    return file


def _touch(file: Path, seconds: float) -> None:
    then = time.time_ns() + int(seconds * 1e9)
    os.utime(file, ns=(then, then))


def test_it_is_kept_while_files_hold_the_same_whenever_they_were_written(tmp_path: Path) -> None:
    file = _settings(tmp_path)
    trace = _kept(tmp_path, file)
    assert trace.read(Found) == Found(8)
    file.write_text("width: 8")
    assert trace.read(Found) == Found(8)
    assert trace.reads() == (str(file),)
    file.write_text("width: 9")
    assert trace.reads() is None, "a plan is not kept with what is true no more"


@pytest.mark.parametrize("change", [lambda file: file.write_text("width: 9"), Path.unlink])
def test_another_content_makes_it_untrue(change: Callable[[Path], object], tmp_path: Path) -> None:
    file = _settings(tmp_path)
    trace = _kept(tmp_path, file)
    change(file)
    assert trace.read(Found) is None


def test_a_file_that_appears_makes_it_untrue(tmp_path: Path) -> None:
    trace = _kept(tmp_path, tmp_path / "last.pt")
    assert trace.read(Found) == Found(8)
    (tmp_path / "last.pt").write_bytes(b"weights")
    assert trace.read(Found) is None


def test_a_large_file_is_told_by_size_and_time_and_not_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.npy"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    _touch(file, -60)
    trace = _kept(tmp_path, file)
    assert trace.read(Found) == Found(8)
    _touch(file, -30)
    assert trace.read(Found) is None


def test_a_file_that_was_written_during_the_trace_leaves_nothing_kept(tmp_path: Path) -> None:
    file = _settings(tmp_path)
    assert _kept(tmp_path).read(Found) == Found(8)
    _touch(file, 60)
    trace = _kept(tmp_path, file)
    assert trace.read(Found) is None
    assert trace.reads() is None, "nor is what was kept before"


@pytest.mark.parametrize("content", [b"", b"{", b'{"reads": {}, "found": {"peak": "much"}}', b'{"reads": 3}'])
def test_a_damaged_one_is_none(tmp_path: Path, content: bytes) -> None:
    trace = _kept(tmp_path)
    (tmp_path / "fits" / "of-a-program.json").write_bytes(content)
    assert trace.read(Found) is None


def test_what_is_no_file_has_no_stamp(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    names = [str(tmp_path / "fifo"), str(tmp_path), str(tmp_path / "none"), "/dev/null"]
    assert set(stamps_of(names).values()) == {""}


READS = """
import json, os, runpy, sys, tempfile
from stoker.run.fitting.looking.reading import ReadFiles

reads = ReadFiles()
reads.install()
open("settings.json").read()
open("link/../elsewhere.json").read()
os.close(os.open("opened.db", os.O_RDWR | os.O_CREAT))
os.close(os.open(b"raw.bin", os.O_RDONLY))
with open("made.json", "w") as file:
    file.write("{}")
open("made.json").read()
with open("part", "w") as file:
    file.write("{}")
os.replace("part", "whole.json")
open("whole.json").read()
open("both.txt").read()
open("both.txt", "a").close()
open(os.open("raw.bin", os.O_RDONLY)).close()
open("/dev/null").read()
try:
    open("none.pt").read()
except FileNotFoundError:
    pass
import sizes
os.chdir("/")
found = reads.names()
open(sys.argv[1] + "/later.txt", "w").close()
print(json.dumps([os.path.relpath(os.path.realpath(each), sys.argv[1]) for each in found]))
"""


@pytest.mark.integration
@pytest.mark.slow("a python imports torch")
def test_files_that_python_reads_are_seen(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/inner")
    files = ["settings.json", "real/elsewhere.json", "opened.db", "raw.bin", "both.txt", "sizes.py"]
    for name in files:
        (tmp_path / name).write_text("")
    (tmp_path / "reads.py").write_text(READS)
    done = programs.run(
        [sys.executable, "reads.py", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [*files[:-1], "none.pt", "sizes.py"]


PROGRAM = """
import json, os, sys
import torch
from settings import WIDTH

with open("runs", "a") as file:
    file.write(sys.argv[0] + "\\n")
batch = json.load(open("../conf.json"))["batch"]
model = torch.nn.Linear(WIDTH, 4)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(batch, WIDTH)).sum().backward()
    optimizer.step()
open("out.txt", "w").write(str(os.urandom(8)))
"""


@pytest.mark.integration
@pytest.mark.slow("a program is traced three times and run five times")
def test_a_program_is_traced_again_if_a_file_that_it_read_has_changed_and_only_then(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "train.py").write_text(PROGRAM)
    (home / "settings.py").write_text("WIDTH = 64")
    (tmp_path / "conf.json").write_text('{"batch": 8}')
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def traced() -> int:
        runs = home / "runs"
        before = len(runs.read_text().splitlines()) if runs.exists() else 0
        command = ["stoker", "run", "--fit", "auto", "--device-memory", "1GB", "--run-dir", "own-run", "train.py"]
        done = programs.run(
            [sys.executable, "-m", *command], cwd=home, env=environ, check=True, capture_output=True, text=True
        )
        found = len(runs.read_text().splitlines()) - before - 1
        assert done.stderr.count("stoker: tracing `train.py`") == found, "what is not done is not said"
        return found

    assert [traced(), traced()] == [1, 0]
    (tmp_path / "conf.json").write_text('{"batch": 16}')
    assert [traced(), traced()] == [1, 0]
    (home / "settings.py").write_text("WIDTH = 128")
    assert traced() == 1
