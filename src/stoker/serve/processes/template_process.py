"""The process that those with models are forked from: it has imported what they need, and loads no model itself."""

from __future__ import annotations

import functools
import gc
import os
import socket
from collections.abc import Callable

from stoker.serve.processes.fork_loop import ForkLoop
from stoker.serve.processes.messages import EngineMessage
from stoker.wire.framing import Frame


class ModelTemplateProcess:
    """Forks a process for a model whenever the service asks for one.

    An interpreter and its imports take more processor time than a small model, and would take it from engines that
    answer requests.

    Args:
        sock: connected to the service.
        tie: called in each process with the id of this one: it must end when this one does.
        prepare: imports what an order needs; what has been imported before costs nothing.
        serve: loads the model of an order in the process for it, and serves it over the socket.
    """

    def __init__(
        self, sock: socket.socket, tie: Callable[[int], object], prepare: Callable[[bytes], object],
        serve: Callable[[bytes, socket.socket], object],
    ) -> None:  # fmt: skip
        self._loop = ForkLoop(sock, tie)
        self._prepare = prepare
        self._serve = serve

    def run(self) -> None:
        """Serves until the service is gone."""
        self._loop.run(self._start)

    def _start(self, frame: Frame[EngineMessage]) -> None:
        (fd,) = frame.fds
        self._prepare(frame.body)
        gc.freeze()
        self._loop.fork(functools.partial(self._begin, frame.body, fd))
        # Without a process there is no other end of the socket, which the service sees.
        os.close(fd)
        self._loop.channel.send(EngineMessage.STARTED)

    def _begin(self, order: bytes, fd: int) -> None:
        self._serve(order, socket.socket(fileno=fd))
