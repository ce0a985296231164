"""Programs under test, started by a fork of a process that has torch loaded: a tenth of what ``exec`` takes.

:class:`Program` and :func:`run` stand for ``subprocess.Popen`` and ``subprocess.run`` of a python program, plain or
under ``stoker run``. What is about the start itself is tested by ``exec``, in ``tests/run/test_launch.py`` and in one
test of each folder.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.warm.starting import NUMBERS, Request, can_ask, request_of

PIPE = subprocess.PIPE
ROOT = Path(__file__).parents[2]
ROOM = "x" * 16_000
"""Last argument of a server, and a variable in its environment: what the kernel tells of a program lies there."""
MODULES = ("torch", "torch.utils.data", "torch._dynamo")
"""What each program loads, the last of them at its first batch."""
AT_IMPORT = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHONWARNINGS")
"""Variables that are read when python starts or torch is imported: each set of values has a server."""

_Key = tuple[tuple[str, str | None], ...]
_servers: dict[_Key, Server] = {}
_starting = threading.Lock()
_used_s: list[float] = []


class Server:
    """The process that forks, and the socket by which it is asked to."""

    def __init__(self, variables: _Key) -> None:
        self.owner = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTHON"))}
        for name, value in variables:
            kept.pop(name, None)
            if value is not None:
                kept[name] = value
        command = [sys.executable, "-c", "from tests.warm import server; server.main()", str(theirs.fileno())]
        self._process = subprocess.Popen(
            [*command, ",".join(MODULES), ROOM],
            env={**kept, "PYTHONPATH": str(ROOT), "ROOM": ROOM},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a program's own streams are pipes or files as well: none is a terminal
        )
        self._control = ours
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def start(self, request: Request, streams: Sequence[int]) -> tuple[int, int]:
        """The process id of a program, and the pipe that gives its wait status in the end."""
        reader, writer = os.pipe()
        try:
            socket.send_fds(self._control, [pickle.dumps(request)], [*streams, writer])
        finally:
            os.close(writer)
        return NUMBERS.unpack(os.read(reader, NUMBERS.size))[0], reader

    def end(self) -> None:
        """Ends the process, not the programs."""
        self._control.close()
        if self.owner == os.getpid():
            self._process.wait()


def server_for(env: dict[str, str]) -> Server:
    """The server for an environment, started on first use."""
    variables = tuple((name, env.get(name)) for name in AT_IMPORT)
    with _starting:
        server = _servers.get(variables)
        if server is None or server.owner != os.getpid():
            server = _servers[variables] = Server(variables)
    return server


def servers() -> set[int]:
    """Process ids of what is kept running until the end of the tests."""
    return {server.pid for server in _servers.values()}


def used_s() -> float:
    """Processor time of the programs that have ended, in seconds."""
    return sum(_used_s)


@atexit.register
def _end_servers() -> None:
    for server in _servers.values():
        server.end()


class Program(subprocess.Popen[Any]):
    """``subprocess.Popen``; of ``[python, program…]`` the process is a child of the server, not of this one."""

    _ended: int = -1
    """Pipe that gives the wait status."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        if not can_ask(args, others, is_parent=False):
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        request, streams, pipes = request_of(args, others)
        request.env.setdefault(AT_IMPORT[0], "1")  # so that one server is enough, and tests at once have cores
        try:
            self.pid, self._ended = server_for(request.env).start(request, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._ended < 0:
            return super()._try_wait(wait_flags)  # type: ignore[misc]
        wait_s = 0 if wait_flags & os.WNOHANG else None
        if not select.select([self._ended], [], [], wait_s)[0]:
            return 0, 0
        told = os.read(self._ended, NUMBERS.size)
        os.close(self._ended)
        status, used_s = NUMBERS.unpack(told) if told else (signal.SIGKILL, 0.0)  # nothing: the server was killed
        _used_s.append(used_s)
        return self.pid, status

    def _internal_poll(self, *arguments: Any, **named: Any) -> int | None:
        if self._ended < 0:
            return super()._internal_poll(*arguments, **named)  # type: ignore[misc]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` of a program."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Program(command, **options) as program:
        try:
            out, err = program.communicate(timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess(command, program.returncode, out, err)
    if check:
        done.check_returncode()
    return done
