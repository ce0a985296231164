"""The template of a service, from its side: started once, and asked for a process for each model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from time import monotonic

import msgspec

from stoker.run.serving.sources import ModelForm
from stoker.serve.processes.messages import FRAMING, EngineMessage
from stoker.wire.polled import PolledChannel

_HANGS_S = 20.0
"""A template that has not forked for so long is left to itself: another one forks what comes."""


class ModelOrder(msgspec.Struct, frozen=True):
    """What a template is asked for.

    Attributes:
        form: of the model to load.
        behind: whether what answers requests meanwhile goes first.
        known: what the first process for it was loaded from, as it said; empty for the first one.
    """

    form: ModelForm
    behind: bool
    known: bytes = b""


class ModelTemplate:
    """Has processes for models forked, from a process that is started when the first is asked for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: PolledChannel[EngineMessage] | None = None
        self._asked_s: deque[float] = deque()
        """When processes were asked for that are not forked yet."""
        self._left: list[subprocess.Popen[bytes]] = []
        """Templates that hang: models that they have forked live as long as they do."""

    def start(self, form: ModelForm, sock: socket.socket, behind: bool, known: bytes) -> None:
        """Has a process forked for a model.

        Args:
            form: of the model to load.
            sock: its end of a connection to the service; closed where there is no such process.
            behind: whether what answers requests meanwhile goes first.
            known: what the first process for it was loaded from, as it said; empty for the first one.
        """
        order = msgspec.json.encode(ModelOrder(form, behind, known))
        try:
            self._usable().send(EngineMessage.START, order, (sock.fileno(),))
        except OSError:  # it has just ended
            self._renewed().send(EngineMessage.START, order, (sock.fileno(),))
        self._asked_s.append(monotonic())

    def close(self) -> None:
        """Ends the template, and with it what it has forked."""
        self._leave()
        for process in self._left:
            process.kill()
            process.wait()
        self._left.clear()

    def _usable(self) -> PolledChannel[EngineMessage]:
        frames = self._channel.receive() if self._channel is not None else None
        if self._channel is None or frames is None:
            return self._renewed()
        for _ in frames:
            self._asked_s.popleft()
        hangs = bool(self._asked_s) and monotonic() - self._asked_s[0] > _HANGS_S
        return self._renewed() if hangs else self._channel

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None and self._process.poll() is None:
            self._left.append(self._process)
        self._process = self._channel = None
        self._asked_s.clear()

    def _renewed(self) -> PolledChannel[EngineMessage]:
        """The connection to a fresh one."""
        self._leave()
        ours, theirs = socket.socketpair()
        environ = os.environ | {
            # Its libraries must not start threads before the engines are forked; these set their own number.
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-m", "stoker.run.serving.template_main", str(fd), str(os.getpid())]
            self._process = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL, env=environ)
        self._channel = PolledChannel(ours, FRAMING, blocking=False)
        return self._channel
