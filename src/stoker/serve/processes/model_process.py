"""The process that has a model loaded and forks its engines: a new one costs milliseconds and shares the weights."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import traceback
import types
from collections.abc import Callable

from stoker.core.slots.ring import Mapping
from stoker.serve.engine import Model
from stoker.serve.processes.engine_process import EngineProcess, told
from stoker.serve.processes.messages import FRAMING, Birth, EngineMessage, Failure, pack, unpack
from stoker.wire.framing import Frame
from stoker.wire.polled import PolledChannel


class ModelProcess:
    """Loads a model, and forks an engine whenever the service asks for one.

    Args:
        sock: connected to the service.
        tie: called in each engine with the id of this process: the engine must end when this one does.
    """

    def __init__(self, sock: socket.socket, tie: Callable[[int], object]) -> None:
        self._channel: PolledChannel[EngineMessage] = PolledChannel(sock, FRAMING, blocking=True)
        self._tie = tie
        self._wake, self._wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self, load: Callable[[], Model]) -> None:
        """Serves until the service is gone."""
        try:
            model = load()
        except Exception as error:  # the user's model
            self._channel.send(EngineMessage.FAILED, pack(Failure(told(error))))
            return
        signal.signal(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        self._channel.send(EngineMessage.LOADED)
        poll = select.poll()
        poll.register(self._channel.sock, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                elif (frames := self._channel.receive()) is None:
                    return
                else:
                    for frame in frames:
                        self._fork(model, frame)

    def _fork(self, model: Model, frame: Frame[EngineMessage]) -> None:
        birth, (fd, ring_fd) = unpack(frame.body, Birth), frame.fds
        own_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # too many processes, too little memory: the service sees that it has none
            pid = -1
        if pid:
            os.close(fd)
            os.close(ring_fd)
            self._report(birth, pid)
            return
        try:
            self._tie(own_pid)
            signal.set_wakeup_fd(-1)
            self._channel.abandon()
            ring = Mapping(ring_fd, birth.ring_bytes)
            EngineProcess(socket.socket(fileno=fd), ring, birth).run(model)
        except (OSError, EOFError):
            pass  # the service is gone
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def _report(self, birth: Birth, pid: int) -> None:
        if pid < 0:
            self._channel.send(EngineMessage.FORKED, pack(birth))
            return
        # Not reaped before this: the number is still the engine's.
        pidfd = os.pidfd_open(pid)
        try:
            self._channel.send(EngineMessage.FORKED, pack(birth), (pidfd,))
        finally:
            os.close(pidfd)

    @staticmethod
    def _reap() -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] > 0:
                pass


def _wake_up(_number: int, _frame: types.FrameType | None) -> None:
    """A handler, so that the signal is written to the pipe that is polled."""
