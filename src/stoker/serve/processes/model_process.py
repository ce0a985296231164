"""The process that has a model loaded and forks its engines: a new one costs milliseconds and shares the weights."""

from __future__ import annotations

import functools
import gc
import os
import socket
from collections.abc import Callable

from stoker.core.slots.ring import Mapping
from stoker.serve.engine import Model
from stoker.serve.processes.engine_process import EngineProcess, failed_by, told
from stoker.serve.processes.fork_loop import ForkLoop
from stoker.serve.processes.messages import Birth, EngineMessage, Failure, pack, unpack
from stoker.wire.framing import Frame


class ModelProcess:
    """Loads a model, and forks an engine whenever the service asks for one.

    Args:
        sock: connected to the service.
        tie: called in each engine with the id of this process: the engine must end when this one does.
    """

    def __init__(self, sock: socket.socket, tie: Callable[[int], object]) -> None:
        self._loop = ForkLoop(sock, tie)

    def run(self, load: Callable[[], tuple[Model, bytes]]) -> None:
        """Serves until the service is gone; raises ``OSError`` if it is so before the model is loaded.

        Args:
            load: loads the model; returns what it was loaded from as well.
        """
        channel = self._loop.channel
        _send_with_pidfd(self._loop, EngineMessage.BORN, b"", os.getpid())
        try:
            model, identity = load()
        except (Exception, SystemExit) as error:  # the user's model
            channel.send(failed_by(error), pack(Failure(told(error))))
            return
        # Collections in engines would write to the memory that they share.
        gc.freeze()
        channel.send(EngineMessage.LOADED, identity)
        self._loop.run(functools.partial(self._fork, model))

    def _fork(self, model: Model, frame: Frame[EngineMessage]) -> None:
        birth, (fd, ring_fd) = unpack(frame.body, Birth), frame.fds

        def engine() -> None:
            EngineProcess(socket.socket(fileno=fd), Mapping(ring_fd, birth.ring_bytes), birth).run(model)

        pid = self._loop.fork(engine)
        os.close(fd)
        os.close(ring_fd)
        if pid < 0:  # the service sees that it has none
            self._loop.channel.send(EngineMessage.FORKED, pack(birth))
        else:
            _send_with_pidfd(self._loop, EngineMessage.FORKED, pack(birth), pid)


def _send_with_pidfd(loop: ForkLoop, kind: EngineMessage, body: bytes, pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        loop.channel.send(kind, body, (pidfd,))
    finally:
        os.close(pidfd)
