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
from stoker.perf.features.child_process import input_as_at, input_for_child, input_now, input_stamp, input_waits
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


SLEEPS = "import time; print('started', flush=True); time.sleep(60)"
RUNS = f"""
import os, tempfile
from stoker.backends.process_tree import children
from stoker.perf.features.child_process import run_child
with tempfile.TemporaryDirectory(prefix='traced-') as folder:
    run_child(['-c', {SLEEPS!r}])
"""


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_it_ends_with_its_parent_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", RUNS], stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert parent.stderr is not None
    assert parent.stderr.readline() == b"started\n"
    (child,) = children(parent.pid)
    parent.send_signal(number)
    parent.wait(10)
    await_that("the child's end", lambda: not Path(f"/proc/{child}").exists())
    parent.stderr.close()
    if number != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []
