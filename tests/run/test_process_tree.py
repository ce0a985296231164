"""Ending a process with all below it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.backends.process_tree import descendants, end_tree
from tests.faults.harness import is_alive
from tests.waiting import await_that

PROGRAM = """
import subprocess, sys
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=64)
child = subprocess.Popen([sys.executable, "-c", '''
import subprocess, sys
subprocess.Popen(["sleep", "60"])
print("under way", flush=True)
sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(memory.name, flush=True)
child.wait()
print("goes on", flush=True)
"""


@pytest.mark.integration
def test_all_end_and_what_python_tracks_is_cleaned_up() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        name = process.stdout.readline().decode().strip()
        below = descendants(process.pid)
        end_tree(process)
        assert process.stdout.read() == b"", "a process that saw another's end went on"
    assert len(below) == 3, "a resource tracker, a child and a grandchild"
    await_that("shared memory was cleaned up", lambda: not Path("/dev/shm", name).exists())
    await_that("no process is left", lambda: not any(map(is_alive, below)))
