"""The template process: forks workers on request, reports their exits, dies with the training process."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import time
import traceback
from typing import NoReturn

from stoker.backends.process import FINISH_S, do_nothing, is_readable, serve, settle
from stoker.core.errors import WireError
from stoker.core.processes.parents import die_with
from stoker.feed.program import Program, WorkerIdentity
from stoker.feed.purity.tiers import reuse_fingerprint
from stoker.feed.transport.board import Board
from stoker.feed.transport.messages import Channel, MessageKind

_NOBODY = -1
"""Number of a child that is no data worker."""


class TemplateProcess:
    """Answers the training process's requests, in the template process.

    Args:
        sock: connected to the training process.
        board: where workers write their current sample.
        program: what the workers run.
        eldest: pidfd of the worker that the training process forked itself; -1 for none. The template is not its
            parent, but outlives the training process for long enough to end it.
    """

    def __init__(self, sock: socket.socket, board: Board, program: Program, eldest: int) -> None:
        self._channel = Channel(sock, blocking=True)
        self._board = board
        self._program = program
        self._eldest = eldest
        self._children: dict[int, int] = {}
        self._wake, self._wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, do_nothing)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serves until the training process is gone."""
        sock = self._channel.sock
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    os.read(self._wake, 4096)
            self._reap()
            sock.setblocking(False)
            frames = self._channel.receive()
            sock.setblocking(True)
            if frames is None:
                return
            for frame in frames:
                if frame.kind is MessageKind.SURVEY:
                    self._channel.send(MessageKind.SURVEYED, self._fingerprint())
                elif frame.kind is MessageKind.SHIP:
                    self._ship(frame.body, frame.fds[0])
                else:
                    self._give_birth(pickle.loads(frame.body), frame.fds[0])

    def _fingerprint(self) -> bytes:
        """Fingerprint of this process's copy of the program; empty if there is none, so its workers are not reused."""
        try:
            return reuse_fingerprint(self._program) or b""
        except Exception:  # the training process's own fingerprint fails too, and is reported
            return b""

    def _give_birth(self, identity: WorkerIdentity, fd: int) -> None:
        own_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, too little memory: the other workers continue
            os.close(fd)
            self._channel.send(MessageKind.EXITED, pickle.dumps((identity.number, str(error))))
            return
        if not pid:
            serve(self._program, identity, fd, self._board, lambda: self._leave_behind(own_pid))
        os.close(fd)
        self._children[pid] = identity.number
        self._channel.send(MessageKind.SPAWNED, pickle.dumps((identity.number, pid)))

    def _ship(self, sample: bytes, fd: int) -> None:
        """Sends the program from a child: what pickling does to the user's objects is done to its copy of them."""
        own_pid = os.getpid()
        with contextlib.suppress(OSError):  # too many processes: the socket closes, and the loader stays here
            pid = os.fork()
            if not pid:
                self._be_shipper(sample, fd, own_pid)
            self._children[pid] = _NOBODY
        os.close(fd)

    def _be_shipper(self, sample: bytes, fd: int, own_pid: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            self._leave_behind(own_pid)
            from stoker.backends.shipping import ship  # needs the extra `cluster`

            ship(self._program, sample, fd)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _leave_behind(self, parent_pid: int) -> None:
        """Ties a forked worker's life to the template's, and closes the descriptors that only the template uses."""
        # The template forks from its only thread, so this kills exactly when the template dies.
        die_with(parent_pid)
        self._channel.sock.close()
        for fd in (self._wake, self._wake_end, self._eldest):
            if fd >= 0:
                os.close(fd)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._children.pop(pid, None)
            if number not in (None, _NOBODY):
                self._channel.send(MessageKind.EXITED, pickle.dumps((number, status)))

    def end(self) -> None:
        """Ends the workers, whose sockets are closed; one that is making a batch gets a second to finish it.

        The user's code may be in the middle of writing a cache file, and torch's loader waits for it as well.
        """
        children, deadline = self._children, time.monotonic() + FINISH_S
        with contextlib.suppress(ChildProcessError):
            while children and (left := deadline - time.monotonic()) > 0:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                children.pop(pid, None)
                if not pid and is_readable(self._wake, left):
                    os.read(self._wake, 4096)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self._eldest >= 0:
            is_readable(self._eldest, max(0.0, deadline - time.monotonic()))  # usually ends in time
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._eldest, signal.SIGKILL)


def template_main(sock: socket.socket, board_fd: int, stacks: int, program: Program, eldest: int) -> None:
    """Entry point of the template process; does not return."""
    settle(b"stoker_template", stacks)
    template = TemplateProcess(sock, Board.inherit(board_fd), program, eldest)
    try:
        template.run()
    except (OSError, WireError):
        pass  # the training process is gone, or no descriptors are left
    finally:
        template.end()
        os._exit(0)
