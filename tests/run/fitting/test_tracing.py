"""What a kept trace belongs to: another size of the program must not get it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.run.fitting.tracing import contents_of, fingerprint


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A program with a module and settings beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sizes")
    (tmp_path / "sizes.py").write_text("BATCH = 8")
    (tmp_path / "sizes.yaml").write_text("width: 8")
    return (str(tmp_path / "train.py"), "--epochs", "2")


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


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "sizes.py").write_text("BATCH = 16"),
        lambda folder: (folder / "sizes.yaml").write_text("width: 16"),
        lambda folder: (folder / "more.py").write_text(""),
    ],
)
def test_files_beside_it_are_part_of_it(
    program: tuple[str, ...], change: Callable[[Path], object], tmp_path: Path
) -> None:
    before = fingerprint(program)
    change(tmp_path)
    assert fingerprint(program) != before


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


def test_files_elsewhere_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.py"
    file.write_text("WIDTH = 8")
    then = contents_of([str(file)])
    assert contents_of(then) == then
    file.write_text("WIDTH = 16")
    assert contents_of(then) != then
    file.unlink()
    assert contents_of(then) != then, "a file that is gone is another one"
