"""The loop of a process that forks others at the word of the service: messages, forks, and those that have ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import traceback
import types
from collections.abc import Callable

from stoker.serve.processes.messages import FRAMING, EngineMessage
from stoker.wire.framing import Frame
from stoker.wire.polled import PolledChannel


class ForkLoop:
    """Acts on messages until the service is gone, and forks in between.

    Args:
        sock: connected to the service.
        tie: called in each fork with the id of this process: the fork must end when this one does.
    """

    def __init__(self, sock: socket.socket, tie: Callable[[int], object]) -> None:
        self.channel: PolledChannel[EngineMessage] = PolledChannel(sock, FRAMING, blocking=True)
        self._tie = tie
        self._wake: tuple[int, int] = (-1, -1)

    def run(self, act: Callable[[Frame[EngineMessage]], object]) -> None:
        """Gives each message to ``act`` until the service is gone."""
        self._wake = wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.channel.sock, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    os.read(wake, 4096)
                    _reap()
                elif (frames := self.channel.receive()) is None:
                    return
                else:
                    for frame in frames:
                        act(frame)

    def fork(self, child: Callable[[], object]) -> int:
        """Forks a process that calls ``child`` and ends; its id, or -1 where there is no room for one.

        It is not reaped before the caller returns to :meth:`run`: until then the id is its own.
        """
        own_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # too many processes, too little memory
            return -1
        if pid:
            return pid
        try:
            self._tie(own_pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in self._wake:
                os.close(fd)
            self.channel.abandon()
            child()
        except (OSError, EOFError):
            pass  # the service is gone
        except BaseException:
            traceback.print_exc()
        finally:
            # The kernel takes its memory apart for milliseconds: behind those that answer requests.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os._exit(0)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] > 0:
            pass


def _wake_up(_number: int, _frame: types.FrameType | None) -> None:
    """A handler, so that the signal is written to the pipe that is polled."""
