"""Real programs in sessions of their own, and what the kernel knows about processes.

Every process of a trial inherits one environment variable, so that it is found however far it has been reparented.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stoker
from tests.waiting import await_that
from tests.warm.programs import Program

PROGRAMS = Path(__file__).parent / "programs"
MARK = "FAULTS_TRIAL"
END_S = 3.0
"""How long anything of a run may outlive its training process."""


def read(path: str) -> bytes:
    """A file of ``/proc``; empty when the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def name_of(pid: int) -> str:
    """What the kernel calls a process; empty when it is gone."""
    return read(f"/proc/{pid}/comm").decode().strip()


def state_of(pid: int) -> str:
    """The kernel's letter for a process's state (``T`` stopped, ``Z`` dead and not waited for); empty when gone."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


def is_alive(pid: int) -> bool:
    """Whether a process runs or could run again."""
    return state_of(pid) not in ("", "Z", "X")


def below(pid: int) -> list[int]:
    """Living processes below one, at any depth."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for task in tasks:
            children = [int(word) for word in read(f"/proc/{parent}/task/{task}/children").split()]
            waiting += children
            found += [child for child in children if is_alive(child)]
    return found


def named(name: str, pids: Sequence[int]) -> list[int]:
    """Those of a kind, oldest first."""
    return sorted(pid for pid in pids if name_of(pid) == name)


def workers_below(pid: int) -> list[int]:
    """Data workers of a training process, oldest first."""
    return named("stoker_worker", below(pid))


def template_below(pid: int) -> int:
    """The newest template of a training process; 0 for none."""
    return max(named("stoker_template", below(pid)), default=0)


def descriptors(pid: int) -> list[str]:
    """What the descriptors of a process refer to."""
    targets: list[str] = []
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []
    for name in names:
        try:
            targets.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
    return targets


class Trial:
    """One run of a program, with its output, its processes and its run folder.

    Args:
        folder: current directory of the program; gets ``run`` for the records.
        program: file in ``programs``.
        arguments: the program's own.
        options: of ``stoker run``.
        served: False for plain python.
    """

    def __init__(
        self, folder: Path, program: str, *arguments: object, options: Sequence[str] = (), served: bool = True
    ) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        # Short: torch's own loader binds Unix sockets in there, whose paths have at most 107 characters.
        self.temporary = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        self.mark = uuid.uuid4().hex
        before = ["-m", "stoker", "run", "--quiet", "--run-dir", str(self.run_dir), *options] if served else []
        command = [sys.executable, *before, str(PROGRAMS / program), *map(str, arguments)]
        self._stderr = (folder / "stderr").open("wb")
        self.process = Program(
            command,
            cwd=folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTHON"))}
        here = os.pathsep.join([str(Path(stoker.__file__).parents[1]), str(Path(__file__).parents[2])])
        return {**kept, "PYTHONPATH": here, "TMPDIR": str(self.temporary), MARK: self.mark, "OMP_NUM_THREADS": "1"}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.decode(errors="replace").rstrip("\n"))
        self._queue.put(None)

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self._reader.join(5.0)
        for stream in (self.process.stdin, self.process.stdout, self._stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass

    @property
    def pid(self) -> int:
        """The training process."""
        return self.process.pid

    def expect(self, start: str, timeout_s: float = 40.0) -> str:
        """Waits for a line that starts so."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"no line {start!r} within {timeout_s} s; got {self.lines}{self.errors()}"
                ) from None
            if line is None:
                raise AssertionError(f"ended without a line {start!r}; got {self.lines}\n{self.errors()}")
            self.lines.append(line)
            if line.startswith(start):
                return line

    def tell(self, line: str = "") -> None:
        """Sends a line to the program's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def finish(self, timeout_s: float = 40.0) -> int:
        """Waits for the end; the exit status, negative for a signal."""
        status = self.process.wait(timeout_s)
        self._reader.join(5.0)
        while not self._queue.empty():
            line = self._queue.get()
            if line is not None:
                self.lines.append(line)
        return status

    def errors(self) -> str:
        """What was written to standard error so far."""
        return (self.folder / "stderr").read_text(errors="replace")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Records of one type in the run folder."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.run_dir.rglob("events*.jsonl")):
            found += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        return [event for event in found if event["type"] == kind]

    def processes(self) -> list[int]:
        """Every living process that descends from the trial, whoever its parent is now."""
        mark = f"{MARK}={self.mark}".encode()
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if mark in read(f"/proc/{pid}/environ").split(b"\0") and is_alive(pid)]

    def workers(self) -> list[int]:
        """Data workers, oldest first."""
        return named("stoker_worker", self.processes())

    def templates(self) -> list[int]:
        """Templates, oldest first."""
        return named("stoker_template", self.processes())

    def check_nothing_named(self) -> None:
        """Nothing that the processes hold now could outlive them: no named shared memory, socket or lock."""
        for pid in self.processes():
            maps = read(f"/proc/{pid}/maps").decode(errors="replace")
            assert "/dev/shm/" not in maps
            held = descriptors(pid)
            assert not [name for name in held if name.startswith("/dev/shm/")]
            files = [n for n in held if n.startswith("/") and not n.startswith(("/dev/", "/proc/", "/memfd:"))]
            here = (str(self.run_dir), str(self.folder / "stderr"))
            assert not [name for name in files if not name.startswith(here)], files
        inodes = {n[8:-1] for pid in self.processes() for n in descriptors(pid) if n.startswith("socket:[")}
        for line in read("/proc/net/unix").decode().splitlines()[1:]:
            words = line.split()
            assert words[6] not in inodes or len(words) == 7, f"a socket with a name: {line}"

    def check_nothing_left(self) -> None:
        """Within :data:`END_S` all processes are gone, and no file is left beside the run folder."""
        await_that(f"no process left; {self.names()}", lambda: not self.processes(), END_S)
        assert sorted(self.temporary.iterdir()) == []
        assert {path.name for path in self.folder.iterdir()} <= {"run", "tmp", "stderr"}

    def names(self) -> dict[int, str]:
        """The trial's processes by id."""
        return {pid: name_of(pid) for pid in self.processes()}
