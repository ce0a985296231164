"""`stoker cluster host`: accepts gateways, and forks a process for each that has proven the secret."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import traceback
from types import FrameType
from typing import NoReturn

from stoker.backends.process import die_with, set_name
from stoker.backends.remote.host.session import HostSession
from stoker.backends.remote.messages import PURPOSE
from stoker.core.errors import StokerError
from stoker.core.saying import say
from stoker.wire.greeting import receive
from stoker.wire.secrets import Secrets
from stoker.wire.sockets import keep_watch
from stoker.wire.tls import OwnCertificate

MOST_SESSIONS = 64
"""Connections at a time, also of those that prove nothing."""
_GREETING_S = 5.0


class HostServer:
    """Accepts connections until SIGTERM or Ctrl-C.

    Args:
        listener: where.
        secrets: that callers must know one of.
        own: certificate of this process.
        cores: that are lent to each program.
    """

    def __init__(self, listener: socket.socket, secrets: Secrets, own: OwnCertificate, cores: float) -> None:
        self._listener = listener
        self._secrets = secrets
        self._own = own
        self._cores = cores
        self._sessions: set[int] = set()
        self._is_over = False

    def run(self) -> None:
        """Serves; all sessions have ended when it returns."""
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, self._end)
        self._listener.settimeout(1.0)
        while not self._is_over:
            with contextlib.suppress(TimeoutError, ConnectionError):
                sock, address = self._listener.accept()
                self._open(sock, f"{address[0]}:{address[1]}")
            self._reap()
        for pid in self._sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # its workers die with it
        for pid in self._sessions:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._is_over = True

    def _reap(self) -> None:
        for pid in list(self._sessions):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._sessions.discard(pid)

    def _open(self, sock: socket.socket, address: str) -> None:
        self._reap()
        with sock:
            if len(self._sessions) >= MOST_SESSIONS:
                say(f"{address} is refused: {MOST_SESSIONS} connections are open")
                return
            own_pid = os.getpid()
            pid = os.fork()
            if not pid:
                self._serve(sock, address, own_pid)
            self._sessions.add(pid)

    def _serve(self, sock: socket.socket, address: str, host_pid: int) -> NoReturn:
        """One connection, in a separate process."""
        try:
            die_with(host_pid)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            set_name(b"stoker_session")
            self._listener.close()
            sock.setblocking(True)
            keep_watch(sock)
            HostSession(receive(sock, self._secrets, self._own, PURPOSE, _GREETING_S), self._cores).run()
        except StokerError as error:
            say(f"{address} is refused: {error.args[0]}")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
