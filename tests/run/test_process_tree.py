"""Ending a process with all below it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.run.process_tree import descendants, end_tree

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
    deadline_s = time.monotonic() + 20
    while Path("/dev/shm", name).exists() or any(_runs(pid) for pid in below):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
