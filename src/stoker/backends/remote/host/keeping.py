"""One copy of a program for all ranks that call a host: the process that has loaded it forks their sessions.

A connection names its program before it proves anything, so that it gets to that process before it is encrypted: by a
Unix socket without a file, whose name only the kernel keeps. Taking the name is the right to load the program.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable

from stoker.backends.remote.messages import CALL_BYTES, unpack_call
from stoker.core.processes.parents import set_name
from stoker.wire.sockets import user_of

KEEP_S = 3.0
"""A program that nobody uses is kept for so long: the other ranks of its run come soon, and so does its next loader."""
_CALL_S = 5.0
_HAND_OVER_S = 2.0
_TICK_S = 0.25
_TAKEN = b"t"


class ProgramClaim:
    """The name of a program on a host.

    Args:
        share: of the host, known to its processes.
        fingerprint: of the program.
    """

    def __init__(self, share: str, fingerprint: bytes) -> None:
        self._name = f"\0stoker-{share}-{fingerprint.hex()}"
        self._sock: socket.socket | None = None

    def take(self) -> bool:
        """Takes the name, unless a living process has it."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.bind(self._name)
        except OSError:
            sock.close()
            return False
        self._sock = sock
        return True

    def close(self) -> None:
        """Gives the name back."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def is_kept(self) -> bool:
        """Whether a process has loaded the program and serves it."""
        with contextlib.suppress(OSError), self._connected():
            return True
        return False

    def hand_over(self, sock: socket.socket) -> bool:
        """Gives a connection to the process that has the program; False if there is none."""
        try:
            with self._connected() as keeper:
                socket.send_fds(keeper, [_TAKEN], [sock.fileno()])
                return keeper.recv(1) == _TAKEN
        except OSError:
            return False

    def _connected(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(_HAND_OVER_S)
            sock.connect(self._name)
            if user_of(sock) != os.geteuid():
                raise PermissionError("its process is another user's")
        except BaseException:
            sock.close()
            raise
        return sock

    def open(self) -> socket.socket:
        """Listens for connections to the program, which is loaded; the name was taken."""
        assert self._sock is not None
        self._sock.listen(64)
        return self._sock


def called_program(sock: socket.socket) -> bytes:
    """The fingerprint with which a new connection begins; empty for one that begins otherwise.

    Nothing of what comes otherwise is taken.
    """
    sock.settimeout(_CALL_S)
    seen, end_s = b"", time.monotonic() + _CALL_S
    with contextlib.suppress(OSError):
        while time.monotonic() < end_s:
            seen = sock.recv(CALL_BYTES, socket.MSG_PEEK)
            if len(seen) in (0, CALL_BYTES) or not unpack_call(seen.ljust(CALL_BYTES, b"\0")):
                break
            time.sleep(0.01)
    fingerprint = unpack_call(seen) if len(seen) == CALL_BYTES else b""
    if fingerprint:
        sock.recv(CALL_BYTES)
    sock.settimeout(None)
    return fingerprint


class ProgramKeeper:
    """Forks a session for each connection to the program of this process, until nobody has used it for a while.

    Args:
        listener: of :meth:`ProgramClaim.open`.
        serve: has a session serve a connection; called in a separate process, and does not return.
        most: sessions at a time.
    """

    def __init__(self, listener: socket.socket, serve: Callable[[socket.socket, int], None], most: int) -> None:
        self._listener = listener
        self._serve = serve
        self._most = most
        self._sessions: set[int] = set()

    def run(self) -> None:
        """Serves."""
        set_name(b"stoker_program")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        used_s = time.monotonic()
        while time.monotonic() - used_s < KEEP_S:
            if poll.poll(_TICK_S * 1e3):
                self._accept()
            self._reap()
            if self._sessions:
                used_s = time.monotonic()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            asking, _ = self._listener.accept()
            with asking:
                if user_of(asking) != os.geteuid() or len(self._sessions) >= self._most:
                    return
                asking.settimeout(_HAND_OVER_S)
                _, fds, _, _ = socket.recv_fds(asking, 1, 1)
                for fd in fds:  # none, if it was only asked whether there is one
                    asking.send(_TAKEN)
                    self._fork(socket.socket(fileno=fd))

    def _fork(self, sock: socket.socket) -> None:
        own_pid = os.getpid()
        with sock:
            pid = os.fork()
            if not pid:
                self._listener.close()
                self._serve(sock, own_pid)
                os._exit(0)
            self._sessions.add(pid)

    def _reap(self) -> None:
        for pid in list(self._sessions):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._sessions.discard(pid)
