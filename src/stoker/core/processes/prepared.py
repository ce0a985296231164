"""A python process that has imported what a command's children need, and forks one of them at a time.

Importing torch takes a second or more, a fork some milliseconds; a command that traces a program traces it often.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence

from stoker.core.processes.parents import die_with

_MOST_BYTES = 1 << 17
"""Most that a request has; who has a longer one starts a python process for it alone."""


class PreparedPython:
    """Runs modules as ``python -m`` does, each in a fork of one process that has imported them.

    A module must have a function ``main`` without arguments, and importing it must start no thread. One
    thread uses it.

    Args:
        environ: of the process; it stays in today's working folder.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self._folder = dict(environ), os.getcwd()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._sock = ours
            # A signal of the terminal reaches all: who started this process ends it, and says so once.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())], stdin=subprocess.DEVNULL, stdout=2,
                env=self._environ, pass_fds=(theirs.fileno(),),
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
            )  # fmt: skip

    def suits(self, environ: Mapping[str, str]) -> bool:
        """Whether a process with this environment, started here and now, would be a fork of this one."""
        return self._process.poll() is None and self._environ == environ and self._folder == os.getcwd()

    def run(self, module: str, arguments: Sequence[str], given: int) -> int | None:
        """Runs a module and returns its status, which is negative for a signal. What it prints is an error.

        None if it was not begun: this process is gone, or there is no room for another one.

        Args:
            module: as behind ``python -m``.
            arguments: its command line.
            given: descriptor of its standard input.
        """
        request = json.dumps([module, *arguments]).encode()
        child = -1
        try:
            fds = self._asked(request, given)
            if not fds:
                return None
            child = fds[0]
            if answer := self._sock.recv(64):
                return os.waitstatus_to_exitcode(int(answer))
            return self._process.wait()  # the fork is gone with it
        except BaseException:
            self.close()
            if child >= 0:  # it writes into folders that are removed next
                select.select([child], [], [])
            raise
        finally:
            if child >= 0:
                os.close(child)

    def _asked(self, request: bytes, given: int) -> list[int]:
        """Sends a request; the fork's descriptor, if there is one."""
        try:
            socket.send_fds(self._sock, [request], [given, 2])
            return socket.recv_fds(self._sock, 64, 1)[1]
        except ConnectionError:
            return []

    def close(self) -> None:
        """Ends the process, and the fork that runs."""
        self._process.kill()
        self._process.wait()
        self._sock.close()


def fits(module: str, arguments: Sequence[str]) -> bool:
    """Whether a request is short enough."""
    return len(json.dumps([module, *arguments])) < _MOST_BYTES


def _serve(sock: socket.socket) -> list[str]:
    """Forks for each request until the command is gone; returns a request in its fork."""
    while True:
        content, fds, _, _ = socket.recv_fds(sock, _MOST_BYTES, 2)
        if not content:
            os._exit(0)
        words = json.loads(content)
        importlib.import_module(words[0])
        gc.freeze()  # a collection in a fork would copy what this process has
        own_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # too many processes, too little memory
            pid = -1
        if not pid:
            die_with(own_pid)
            sock.close()
            for place, fd in zip((0, 2), fds, strict=True):
                os.dup2(fd, place)
                os.close(fd)
            os.dup2(2, 1)
            sys.stdin = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)  # noqa: SIM115
            return words
        for fd in fds:
            os.close(fd)
        if pid < 0:
            sock.send(b"none")
            continue
        handle = os.pidfd_open(pid)
        socket.send_fds(sock, [str(pid).encode()], [handle])
        os.close(handle)
        sock.send(str(os.waitpid(pid, 0)[1]).encode())


def main() -> None:
    """Argument: the descriptor of a socket, which the command has made."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    made_by, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    die_with(made_by)
    module, *arguments = _serve(sock)
    sys.argv = [importlib.import_module(module).__file__ or module, *arguments]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main()
