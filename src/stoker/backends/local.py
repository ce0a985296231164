"""Data workers as local processes: the first forked from the training process, the others from a template process.

The template holds the dataset as the program sees it when it asks for an iterator; new workers start from it in
milliseconds at any later time and share its memory copy-on-write. It is started with the program's own start method
(so nothing is forked where torch would not fork); what it forks afterwards descends from a process without threads.

Where that method is fork, the training process forks the first worker itself, and the template while that worker makes
the first batch: otherwise the program would wait for two forks in a row. The template reports the exits of the workers
that it forks. The training process detects the first worker's exit itself, through a pidfd, which becomes readable even
if other code takes the exit status.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from stoker.backends.process import DUMP_SIGNAL, FINISH_S, die_after, is_readable, serve, settle
from stoker.backends.template import template_main
from stoker.core.errors import WorkerStartError
from stoker.core.processes.forking import at_fork
from stoker.core.processes.interrupts import interrupts_deferred
from stoker.core.slots.ring import create_memory
from stoker.feed.program import Program, WorkerIdentity
from stoker.feed.shell.backend import Template
from stoker.feed.shell.gateway import Gateway
from stoker.feed.transport.board import Board
from stoker.feed.transport.descriptors import spare_descriptors
from stoker.feed.transport.messages import Channel, MessageKind

_LEAST_DESCRIPTORS = 16
"""Enough for a template, one worker, a throwaway worker, a ring, and those that starting a process needs briefly."""
_DESCRIPTORS_OF_A_CHILD = 6
"""Additional descriptors for a worker that is a child of the training process."""
_MOST_WAITING = 8
"""Workers that may be requested before the template starts: its socket must hold the requests."""


class _Context(Protocol):
    """The part of a ``multiprocessing`` context that is used here; the module ``torch.multiprocessing`` has it too."""

    def get_start_method(self) -> str: ...

    def Process(
        self, *, target: Callable[..., None], args: tuple[object, ...], daemon: bool, name: str
    ) -> BaseProcess: ...


class LocalBackend:
    """Starts templates on this machine."""

    def start(self, program: Program, context: _Context, num_rows: int) -> Template:
        """Returns a template for ``program``; its process may be started later, by ``complete``.

        Args:
            program: what its workers will run.
            context: a ``multiprocessing`` context, the loader's own or the default.
            num_rows: rows of the board (maximum number of workers at a time).

        Raises:
            WorkerStartError: the process could not be started; the cause says why.
        """
        spare = spare_descriptors()
        if spare < _LEAST_DESCRIPTORS:
            raise WorkerStartError(
                f"data workers need at least {_LEAST_DESCRIPTORS} more descriptors, {spare} are left (`ulimit -n`)"
            )
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                undo.callback(theirs.close)
                board = Board(num_rows)
                undo.callback(board.close)
                stacks = create_memory("stoker-stacks", 0)
                undo.callback(os.close, stacks)
                # All processes append to one open file.
                fcntl.fcntl(stacks, fcntl.F_SETFL, fcntl.fcntl(stacks, fcntl.F_GETFL) | os.O_APPEND)
                channel = Channel(ours, blocking=False)
                at_fork(channel.abandon)
            except Exception as error:
                raise WorkerStartError(f"the template process could not be started: {error}") from error
            template = LocalTemplate(program, context, channel, theirs, board, stacks)
            if spare < _LEAST_DESCRIPTORS + _DESCRIPTORS_OF_A_CHILD or not _may_fork_from_here(context):
                template.complete()
            undo.pop_all()
        return template

    def reach(self, program: Program) -> Gateway | None:
        """Nothing: all workers are on this machine."""
        return None


def _may_fork_from_here(context: _Context) -> bool:
    """Whether this thread may fork a worker: the worker dies with that thread, so it must be the main thread."""
    return threading.get_native_id() == os.getpid() and context.get_start_method() == "fork" and _has_pidfd()


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))  # since Linux 5.3, unless a sandbox forbids it
    except OSError:
        return False
    return True


class _Descriptor:
    """A descriptor that a forked process inherits and a spawned one receives."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> Any:
        return _receive_descriptor, (reduction.DupFd(self.fd),)


def _receive_descriptor(duplicate: Any) -> _Descriptor:
    return _Descriptor(duplicate.detach())


def _begin_template(
    sock: socket.socket, board: _Descriptor, stacks: _Descriptor, program: Program, eldest: int
) -> None:
    template_main(sock, board.fd, stacks.fd, program, eldest)


def _pid_of(process: BaseProcess) -> int:
    assert process.pid is not None  # it was started
    return process.pid


class LocalChild:
    """A worker that the training process itself forked.

    Raises:
        OSError: the kernel provides no pidfd; the process was killed.
    """

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        self.pid = _pid_of(process)
        try:
            self._fd = os.pidfd_open(self.pid)
        except OSError:
            process.kill()
            process.join()
            process.close()
            raise
        at_fork(self.abandon)

    def fileno(self) -> int:
        """Descriptor that is readable once the process has ended; -1 after :meth:`reap`."""
        return self._fd

    def abandon(self) -> None:
        """Closes the descriptor in a forked child."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def kill(self) -> None:
        """Kills the process; does nothing if it has ended."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def reap(self) -> int | None:
        """Waits for the process to end; returns its wait status, or None if the program has taken that."""
        if self._fd < 0:
            return None
        is_readable(self._fd, -1.0)
        os.close(self._fd)
        self._fd = -1
        code = self._process.exitcode
        if code is None:
            return None
        self._process.close()
        return -code if code < 0 else code << 8


class LocalTemplate:
    """The training process's side of a template."""

    def __init__(
        self, program: Program, context: _Context, channel: Channel, theirs: socket.socket, board: Board, stacks: int
    ) -> None:
        self.channel = channel
        self.board = board
        self._program = program
        self._context = context
        self._theirs = theirs
        self._stacks = stacks
        self._stacks_read = 0
        self._process: BaseProcess | None = None
        self._eldest: LocalChild | None = None
        self._num_waiting = 0

    @property
    def pid(self) -> int:
        """Process id; starts the process if it has not been started."""
        self.complete()
        assert self._process is not None
        return _pid_of(self._process)

    @property
    def is_started(self) -> bool:
        """Whether the process has been started."""
        return self._process is not None

    def complete(self) -> None:
        """Starts the process if it has not been started; raises ``WorkerStartError``."""
        if self._process is None:
            with interrupts_deferred():
                self._start()

    def _start(self) -> None:
        eldest = self._eldest.fileno() if self._eldest is not None else -1
        watched = os.dup(eldest) if eldest >= 0 else -1
        try:
            arguments = (self._theirs, _Descriptor(self.board.fd), _Descriptor(self._stacks), self._program, watched)
            process = self._context.Process(target=_begin_template, args=arguments, daemon=True, name="stoker-template")
            process.start()
        except Exception as error:
            raise WorkerStartError(f"the template process could not be started: {error}") from error
        finally:
            if watched >= 0:
                os.close(watched)
        self._process = process
        self._theirs.close()

    def spawn(self, identity: WorkerIdentity) -> tuple[Channel, LocalChild | None]:
        """Starts a worker; returns our end of its socket, on which leases can be sent at once, and its process.

        The process is None if the template starts it and waits for it.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.board.reset(identity.board_slot)
                if self._process is None and self._eldest is None:
                    with interrupts_deferred():
                        child = self._eldest = self._fork(identity, ours, theirs)
                else:
                    child = self._request(identity, theirs)
            except BaseException:
                ours.close()
                raise
        return Channel(ours, blocking=False), child

    def _fork(self, identity: WorkerIdentity, ours: socket.socket, theirs: socket.socket) -> LocalChild:
        arguments = (
            os.getpid(), self._program, identity, theirs, self.board, self._stacks, (ours, self._theirs),
        )  # fmt: skip
        try:
            process = self._context.Process(target=_begin_child, args=arguments, daemon=True, name="stoker-worker")
            process.start()
            return LocalChild(process)
        except OSError:
            raise  # too many processes, too little memory: reported as if the template's fork had failed
        except Exception as error:  # daemonic processes may not have children
            raise WorkerStartError(f"the first data worker could not be started: {error}") from error

    def _request(self, identity: WorkerIdentity, theirs: socket.socket) -> None:
        if self._process is None:
            self._num_waiting += 1
            if self._num_waiting > _MOST_WAITING:
                self.complete()
        self._ask(MessageKind.SPAWN, pickle.dumps(identity), theirs.fileno())

    def _ask(self, kind: MessageKind, body: bytes, fd: int) -> None:
        # Blocking, so that the descriptor is sent before it is closed here; no deadlock: the template waits for us.
        self.channel.sock.setblocking(True)
        try:
            self.channel.send(kind, body, (fd,))
        finally:
            self.channel.sock.setblocking(False)

    def ship(self, fd: int, sample: bytes) -> None:
        """Has the process send its copy of the program through ``fd``, with what it makes of a pickled sample item."""
        self.complete()
        self._ask(MessageKind.SHIP, sample, fd)

    def dump_stack(self, pid: int) -> str:
        """Returns a worker's current traceback; empty if the worker does not answer within half a second.

        Only for workers that are about to be killed: one that is stopped is continued so that it can answer.
        """
        os.kill(pid, DUMP_SIGNAL)
        os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 0.5
        while os.fstat(self._stacks).st_size == self._stacks_read and time.monotonic() < deadline:
            time.sleep(0.01)  # nothing to wait on: the worker's signal handler writes the answer
        text = os.pread(self._stacks, 1 << 16, self._stacks_read).decode(errors="replace")
        self._stacks_read += len(text.encode())
        return text.strip()

    def close(self) -> None:
        """Ends the template and all workers; returns when they are gone."""
        self.channel.close()
        self._theirs.close()
        if self._eldest is not None and self._eldest.fileno() >= 0:
            is_readable(self._eldest.fileno(), FINISH_S)
            self._eldest.kill()
            self._eldest.reap()
        if self._process is not None:
            self._process.join(timeout=2.0)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            with contextlib.suppress(ValueError):  # the program took its exit status
                self._process.close()
        self.board.close()
        os.close(self._stacks)


def _begin_child(
    training_pid: int,
    program: Program,
    identity: WorkerIdentity,
    sock: socket.socket,
    board: Board,
    stacks: int,
    foreign: tuple[socket.socket, ...],
) -> None:
    """Entry point of the worker that the training process forks itself."""

    def prepare() -> None:
        for other in foreign:  # left open here, they would hide their owner's exit from its peers
            other.close()
        settle(b"stoker_worker", stacks)
        die_after(training_pid)

    serve(program, identity, sock.detach(), board, prepare)
