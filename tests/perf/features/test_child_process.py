"""What a traced program reads from its standard input and what is left for the program itself; how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from stoker.backends.process_tree import children
from stoker.core.saying import said_to
from stoker.perf.features.child_process import (
    children_are_forks,
    input_as_at,
    input_for_child,
    input_now,
    input_stamp,
    input_waits,
    run_child,
)  # fmt: skip
from tests.waiting import await_that


@pytest.fixture
def become_input() -> Generator[Callable[[int], None]]:
    """Makes a descriptor this process's standard input, to the end of the test."""
    kept = os.dup(0)

    def become(descriptor: int) -> None:
        os.dup2(descriptor, 0)
        os.close(descriptor)

    yield become
    os.dup2(kept, 0)
    os.close(kept)


def read_by_child() -> str:
    """What a child reads."""
    with input_for_child() as given:
        return subprocess.run(["cat"], stdin=given, capture_output=True, text=True, check=True).stdout


def test_a_file_is_read_twice_from_where_it_stands(tmp_path: Path, become_input: Callable[[int], None]) -> None:
    file = tmp_path / "input.txt"
    file.write_text("read, and still to be read")
    become_input(os.open(file, os.O_RDONLY))
    assert os.read(0, 6) == b"read, "
    before = input_stamp()
    assert [read_by_child(), read_by_child()] == ["and still to be read"] * 2
    assert input_stamp() == before
    assert os.read(0, 100) == b"and still to be read"
    assert input_stamp() != before
    assert not input_waits()


def test_a_file_that_is_deleted_is_read_as_well(tmp_path: Path, become_input: Callable[[int], None]) -> None:
    file = tmp_path / "input.txt"
    file.write_text("a here-document")
    become_input(os.open(file, os.O_RDONLY))
    file.unlink()
    assert read_by_child() == "a here-document"


def test_what_was_read_since_is_read_again(tmp_path: Path, become_input: Callable[[int], None]) -> None:
    file = tmp_path / "input.txt"
    file.write_text("asked, and answered")
    become_input(os.open(file, os.O_RDONLY))
    assert os.read(0, 7) == b"asked, "
    then = input_now()
    assert os.read(0, 4) == b"and "
    with input_as_at(then):
        assert read_by_child() == "and answered"
    assert os.read(0, 100) == b"answered", "who shares the file is where it was"
    with input_as_at(input_now()):
        assert read_by_child() == ""


def test_what_a_pipe_holds_is_left_to_the_program(become_input: Callable[[int], None]) -> None:
    reads, writes = os.pipe()
    become_input(reads)
    assert not input_waits(), "nothing was held back of an idle pipe"
    os.write(writes, b"for the program")
    assert read_by_child() == ""
    assert input_waits()
    with input_as_at(input_now()):
        assert read_by_child() == ""
    assert input_stamp() == ""
    os.close(writes)
    assert os.read(0, 100) == b"for the program"


def test_without_an_input_there_is_none(become_input: Callable[[int], None]) -> None:
    become_input(os.open(os.devnull, os.O_RDONLY))
    assert read_by_child() == ""
    os.close(0)
    assert (read_by_child(), input_waits(), input_stamp()) == ("", False, "")


SLEEPS = """
import time
def main():
    print("started", flush=True)
    time.sleep(60)
if __name__ == "__main__":
    main()
"""
RUNS = """
import contextlib, sys, tempfile
from stoker.perf.features.child_process import children_are_forks, run_child
with tempfile.TemporaryDirectory(prefix='traced-') as folder:
    with children_are_forks() if sys.argv[1] == "fork" else contextlib.nullcontext():
        run_child("sleeps", [])
"""


@pytest.mark.integration
@pytest.mark.parametrize("how", ["fork", "process"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_it_ends_with_its_parent_and_leaves_nothing(tmp_path: Path, number: int, how: str) -> None:
    modules, temporary = tmp_path / "modules", tmp_path / "temporary"
    modules.mkdir()
    temporary.mkdir()
    (modules / "sleeps.py").write_text(SLEEPS)
    parent = subprocess.Popen(
        [sys.executable, "-c", RUNS, how], stderr=subprocess.PIPE, cwd=modules,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert parent.stderr is not None
    assert parent.stderr.readline() == b"started\n"
    below = descendants(parent.pid)
    assert len(below) == (2 if how == "fork" else 1)
    parent.send_signal(number)
    parent.wait(10)
    await_that("their end", lambda: not any(Path(f"/proc/{child}").exists() for child in below))
    parent.stderr.close()
    if number != signal.SIGKILL:
        assert list(temporary.iterdir()) == []


def descendants(pid: int) -> list[int]:
    """Processes below one."""
    below = children(pid)
    return [*below, *(each for child in below for each in descendants(child))]


ANSWERS = """
import os, sys
state = []
def main():
    state.append(1)
    print(os.environ.get("SAID"), os.getcwd(), len(state), sys.argv[1:], sys.stdin.read(), flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), 9)
    sys.exit(int(sys.argv[1]))
if __name__ == "__main__":
    main()
"""


@pytest.mark.integration
def test_forks_answer_as_processes_do(
    tmp_path: Path, become_input: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answers.py").write_text(ANSWERS)
    (tmp_path / "input").write_text("given")
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    become_input(os.open(tmp_path / "input", os.O_RDONLY))

    def answers() -> list[object]:
        found: list[object] = []
        for said, folder, words in (
            ("one", tmp_path, ["0", "x y"]), ("one", tmp_path, ["3"]), ("one", tmp_path, ["kill"]),
            ("two", tmp_path, ["4"]), ("two", tmp_path / "other", ["5"]), ("two", tmp_path, ["6", *["x" * 1000] * 200]),
        ):  # fmt: skip
            monkeypatch.setenv("SAID", said)
            monkeypatch.chdir(folder)
            log = tmp_path / "log"
            with said_to(log):
                status = run_child("answers", words)
            found.append((status, log.read_text()))
        return found

    plain, others = answers(), children(os.getpid())
    with children_are_forks():
        assert answers() == plain
    assert [status for status, _ in plain] == [0, 3, -9, 4, 5, 6]  # type: ignore[misc]
    assert children(os.getpid()) == others


@pytest.mark.integration
def test_a_prepared_process_that_was_killed_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answers.py").write_text(ANSWERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    others = children(os.getpid())
    with children_are_forks():
        assert run_child("answers", ["3"]) == 3
        (prepared,) = set(children(os.getpid())) - set(others)
        os.kill(prepared, signal.SIGKILL)
        os.waitid(os.P_PID, prepared, os.WEXITED | os.WNOWAIT)
        assert run_child("answers", ["4"]) == 4


@pytest.mark.integration
def test_without_a_prepared_process_a_module_is_started_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answers.py").write_text(ANSWERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "said = os.environ.get('SAID')\n"
        "def fork(): raise OSError\n"
        "if 'prepared' in ' '.join(sys.orig_argv):\n"
        "    os.kill(os.getpid(), 9) if said == 'dies' else setattr(os, 'fork', fork)\n"
    )
    with children_are_forks():
        for said, status in (("dies", 3), ("no room", 4)):
            monkeypatch.setenv("SAID", said)
            assert run_child("answers", [str(status)]) == status
