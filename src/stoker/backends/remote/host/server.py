"""The host's process: accepts gateways, and forks a process for each that has proven what it must."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from stoker.backends.remote.host.keeping import ProgramClaim, ProgramKeeper, called_program
from stoker.backends.remote.host.loading import LoadedProgram
from stoker.backends.remote.host.session import HostSession
from stoker.core.errors import StokerError
from stoker.core.processes.parents import die_with, set_name
from stoker.core.saying import say
from stoker.wire.sockets import keep_watch
from stoker.wire.tls import TlsSocket

MOST_SESSIONS = 64
"""Connections at a time, also of those that prove nothing."""


class HostServer:
    """Accepts connections until SIGTERM or Ctrl-C.

    Args:
        listener: where.
        admit: makes an encrypted connection of one that was accepted, to a gateway that has shown who it is.
        cores: that are lent to each program.
        is_over: whether to end, from the time and the number of connections; never on its own by default.
    """

    def __init__(
        self,
        listener: socket.socket,
        admit: Callable[[socket.socket], TlsSocket],
        cores: float,
        is_over: Callable[[float, int], bool] = lambda now_s, num_connections: False,
    ) -> None:
        self._listener = listener
        self._admit = admit
        self._cores = cores
        self._may_end = is_over
        self._sessions: set[int] = set()
        self._share = secrets.token_hex(8)
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
            self._is_over = self._is_over or self._may_end(time.monotonic(), len(self._sessions))
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
        """One connection, in a separate process, which may become the one that keeps a program."""
        try:
            self._listener.close()
            keep_watch(sock)
            self._settle(host_pid)
            called = called_program(sock)
            if called and ProgramClaim(self._share, called).hand_over(sock):
                os._exit(0)
            session = HostSession(self._admit(sock), self._cores, self._share)
            session.run()
            if session.loaded is not None and session.claim is not None:
                self._keep(session.claim, session.loaded)
        except StokerError as error:
            say(f"{address} is refused: {error.args[0]}")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def _settle(self, parent_pid: int) -> None:
        die_with(parent_pid)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        set_name(b"stoker_session")

    def _keep(self, claim: ProgramClaim, loaded: LoadedProgram) -> None:
        """Forks sessions with a program that this process has loaded."""

        def serve(sock: socket.socket, keeper_pid: int) -> None:
            try:
                self._settle(keeper_pid)
                sock.setblocking(True)
                HostSession(self._admit(sock), self._cores, self._share, loaded).run()
            except StokerError as error:
                say(f"a gateway is refused: {error.args[0]}")
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)

        ProgramKeeper(claim.open(), serve, MOST_SESSIONS).run()
