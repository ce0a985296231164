# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (multiprocessing contexts and ctypes functions are untyped)
"""Data workers as local processes, forked from a template process.

The template holds the dataset as the program sees it when it asks for an iterator; new workers start from it in
milliseconds at any later time and share its memory copy-on-write. It is started with the program's own start method
(so nothing is forked where torch would not fork); what it forks afterwards descends from a process without threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from multiprocessing import reduction
from typing import Any

from stoker.core.errors import WireError, WorkerStartError
from stoker.feed.board import Board
from stoker.feed.crew import Template
from stoker.feed.descriptors import spare_descriptors
from stoker.feed.forks import abandon_in_children
from stoker.feed.program import Program, WorkerIdentity
from stoker.feed.slots import create_memory
from stoker.feed.tiers import reuse_fingerprint
from stoker.feed.wire import Channel, Kind
from stoker.feed.worker import Worker

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_FINISH_S = 1.0
"""How long a worker may go on with its batch when nobody waits for it any more."""
_LEAST_DESCRIPTORS = 16
"""For a template, one worker, the throwaway one, a ring, and what starting a process takes for a moment."""
_DUMP_SIGNAL = signal.SIGRTMIN + 7


class LocalBackend:
    """Starts templates on this machine."""

    def start(self, program: Program, context: Any, num_rows: int) -> Template:
        """A template for ``program``.

        Args:
            program: what its workers will run.
            context: a ``multiprocessing`` context, the loader's own or the default.
            num_rows: rows of the board (most workers at a time).

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
                with theirs:
                    board = Board(num_rows)
                    undo.callback(board.close)
                    stacks = create_memory("stoker-stacks", 0)
                    undo.callback(os.close, stacks)
                    channel = Channel(ours, blocking=False)
                    abandon_in_children(channel)
                    process = context.Process(
                        target=_template_main,
                        args=(theirs, _Descriptor(board.fd), _Descriptor(stacks), program),
                        daemon=True,
                        name="stoker-template",
                    )
                    process.start()
            except Exception as error:
                raise WorkerStartError(f"the template process could not be started: {error}") from error
            undo.pop_all()
        return LocalTemplate(process, channel, board, stacks)


class _Descriptor:
    """A descriptor that a forked process inherits and a spawned one is sent."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> Any:
        return _receive_descriptor, (reduction.DupFd(self.fd),)


def _receive_descriptor(duplicate: Any) -> _Descriptor:
    return _Descriptor(duplicate.detach())


class LocalTemplate:
    """The training process's side of a template."""

    def __init__(self, process: Any, channel: Channel, board: Board, stacks: int) -> None:
        self.channel = channel
        self.board = board
        self._process = process
        self._stacks = stacks
        self._stacks_read = 0

    @property
    def pid(self) -> int:
        """Process id."""
        return int(self._process.pid)

    def spawn(self, identity: WorkerIdentity) -> Channel:
        """Asks for a worker and returns our end of its socket, on which leases can be sent at once."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.board.reset(identity.board_slot)
            # Blocking, so that the descriptor is gone before it is closed here; the template only ever waits for us.
            self.channel.sock.setblocking(True)
            try:
                self.channel.send(Kind.SPAWN, pickle.dumps(identity), (theirs.fileno(),))
            except OSError:
                ours.close()
                raise
            finally:
                self.channel.sock.setblocking(False)
        return Channel(ours, blocking=False)

    def dump_stack(self, pid: int) -> str:
        """Where a worker is, as a traceback; empty when it does not answer within half a second.

        The worker must be about to be killed: one that was stopped is continued for the answer.
        """
        os.kill(pid, _DUMP_SIGNAL)
        os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 0.5
        while os.fstat(self._stacks).st_size == self._stacks_read and time.monotonic() < deadline:
            time.sleep(0.01)  # nothing to wait on: the answer is written by the worker's signal handler
        text = os.pread(self._stacks, 1 << 16, self._stacks_read).decode(errors="replace")
        self._stacks_read += len(text.encode())
        return text.strip()

    def close(self) -> None:
        """Ends the template and, through it, all its workers; returns when they are gone."""
        self.channel.close()
        self._process.join(timeout=2.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self.board.close()
        os.close(self._stacks)


def _template_main(sock: socket.socket, board_fd: _Descriptor, stacks: _Descriptor, program: Program) -> None:
    """Entry of the template process: forks workers on request, reports their ends, dies with the training process."""
    quiet_signals()
    _set_name(b"stoker_template")
    import torch

    torch.set_num_threads(1)
    channel = Channel(sock, blocking=True)
    board = Board.inherit(board_fd.fd)
    fcntl.fcntl(stacks.fd, fcntl.F_SETFL, fcntl.fcntl(stacks.fd, fcntl.F_GETFL) | os.O_APPEND)
    faulthandler.register(_DUMP_SIGNAL, file=stacks.fd, all_threads=True)
    gc.freeze()  # a worker's collections then leave the shared pages alone; collecting first would cost 0.1 s
    children: dict[int, int] = {}
    wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(wake, select.POLLIN)
    try:
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    os.read(wake, 4096)
            _reap(children, channel)
            sock.setblocking(False)
            frames = channel.receive()
            sock.setblocking(True)
            if frames is None:
                return
            for frame in frames:
                if frame.kind is Kind.SURVEY:
                    channel.send(Kind.SURVEYED, reuse_fingerprint(program) or b"")
                    continue
                identity: WorkerIdentity = pickle.loads(frame.body)
                try:
                    pid = _fork_worker(frame.fds[0], (wake, wake_end), sock, board, program, identity)
                except OSError as error:  # too many processes, too little memory: the others go on
                    os.close(frame.fds[0])
                    channel.send(Kind.EXITED, pickle.dumps((identity.number, str(error))))
                    continue
                children[pid] = identity.number
                channel.send(Kind.SPAWNED, pickle.dumps((identity.number, pid)))
    except (OSError, WireError):
        return  # the training process is gone, or there are no descriptors left
    finally:
        _end(children, wake)
        os._exit(0)


def _end(children: dict[int, int], wake: int) -> None:
    """Ends the workers; their sockets are closed, and one that is at a batch may finish it within a second.

    The user's code may be in the middle of writing a file of a cache, and torch's loader waits for it as well.
    """
    deadline = time.monotonic() + _FINISH_S
    with contextlib.suppress(ChildProcessError):
        while children and (left := deadline - time.monotonic()) > 0:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            children.pop(pid, None)
            if not pid and select.select([wake], [], [], left)[0]:
                os.read(wake, 4096)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _reap(children: dict[int, int], channel: Channel) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        number = children.pop(pid, None)
        if number is not None:
            channel.send(Kind.EXITED, pickle.dumps((number, status)))


def _fork_worker(
    fd: int,
    wake: tuple[int, int],
    template_sock: socket.socket,
    board: Board,
    program: Program,
    identity: WorkerIdentity,
) -> int:
    template_pid = os.getpid()
    pid = os.fork()
    if pid:
        os.close(fd)
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The template forks from its only thread, so this fires exactly when the template dies.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != template_pid:
            os._exit(0)
        template_sock.close()
        for end in wake:
            os.close(end)
        _set_name(b"stoker_worker")
        _keep_freed_memory()
        Worker(
            program, identity, Channel(socket.socket(fileno=fd), blocking=True), board.writer(identity.board_slot)
        ).run()
        status = 0
    except (ConnectionError, BrokenPipeError):
        status = 0  # the training process is gone
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def quiet_signals() -> None:
    """Makes a helper process ignore Ctrl-C and the program's own handlers; SIGTERM ends it.

    A terminal sends Ctrl-C to every process; what follows from it is the training process's to decide. Handlers that
    the program installed (checkpoint on SIGUSR1, say) must not run a second time in here. A function that does
    nothing is used instead of SIG_IGN, which children of the user's code would inherit.
    """
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if number == signal.SIGINT or (callable(handler) and number != signal.SIGCHLD):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, _do_nothing)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _do_nothing(*_: object) -> None:
    pass


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    _libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _set_name(name: bytes) -> None:
    _libc().prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)


def _keep_freed_memory() -> None:
    """Lets malloc keep what is freed: giving pages back after every sample costs a fifth of the decode time."""
    mallopt = getattr(_libc(), "mallopt", None)  # glibc only
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 25)  # the largest value that glibc takes
        mallopt(_M_TRIM_THRESHOLD, 1 << 29)
