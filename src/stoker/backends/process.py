"""How a process of stoker's begins: its signals, its name, whom it dies with, and the data worker that it becomes.

Runs in the template, in the workers forked from it, and in a worker forked from the training process.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from stoker.feed.program import Program, WorkerIdentity
from stoker.feed.transport.board import Board
from stoker.feed.transport.messages import Channel
from stoker.feed.worker.loop import DataWorker

DUMP_SIGNAL = signal.SIGRTMIN + 7
"""Has a worker write where it is."""
FINISH_S = 1.0
"""How long a worker may go on with its batch when nobody waits for it any more."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Found before the fork: in each worker it would take a part of a millisecond before the first batch.
_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_mallopt: Callable[[int, int], int] | None = getattr(_libc, "mallopt", None)  # glibc only


def settle(name: bytes, stacks: int) -> None:
    """What a process does first after it was forked from the training process (or started anew).

    Args:
        name: what the kernel calls it.
        stacks: descriptor to which it writes where it is, when asked by ``DUMP_SIGNAL``.
    """
    quiet_signals()
    set_name(name)
    import torch

    torch.set_num_threads(1)
    faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True)
    gc.freeze()  # a worker's collections then leave the shared pages alone; collecting first would cost 0.1 s


def serve(program: Program, identity: WorkerIdentity, fd: int, board: Board, prepare: Callable[[], None]) -> NoReturn:
    """Makes this process, which was just forked, a data worker on the socket ``fd``.

    Args:
        program: what it runs.
        identity: who it is.
        fd: its end of a socket to the training process.
        board: where it writes what it is at.
        prepare: called first.
    """
    status = 1
    try:
        prepare()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        set_name(b"stoker_worker")
        _go_first()
        _keep_freed_memory()
        channel = Channel(socket.socket(fileno=fd), blocking=True)
        DataWorker(program, identity, channel, board.writer(identity.board_slot)).run()
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


def die_with(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent's thread that forked it ends; exits if it has ended."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


def die_after(parent_pid: int) -> None:
    """As :func:`die_with`, but the batch in work may be finished within a second.

    The kernel's timer ends the process, whatever it does then. Only code that lets no Python run holds up the start of
    the timer; the template, which has no such code, kills the worker as well.
    """
    signal.signal(_ORPHANED_SIGNAL, _hurry)
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_ORPHANED_SIGNAL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


_ORPHANED_SIGNAL = signal.SIGRTMIN + 6


def _hurry(*_: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, FINISH_S)


def is_readable(fd: int, timeout_s: float) -> bool:
    """Whether there is something to read, or (of a process's descriptor) the process has ended, within that time."""
    poll = select.poll()  # `select` takes no numbers above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000.0 * timeout_s))


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
                signal.signal(number, do_nothing)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def do_nothing(*_: object) -> None:
    """Handler of a signal that is to have no effect here; children of the user's code do not inherit it."""


def set_name(name: bytes) -> None:
    """What the kernel calls this process."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)


def _go_first() -> None:
    """Where memory runs out the kernel shall kill a data worker, which costs a batch, and not the program."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")


def _keep_freed_memory() -> None:
    """Lets malloc keep what is freed: giving pages back after every sample costs a fifth of the decode time.

    No more than it keeps by itself once it has seen blocks of the largest size that it adapts to: workers need no
    more memory than torch's.
    """
    if _mallopt is not None:
        _mallopt(_M_MMAP_THRESHOLD, 1 << 25)  # the largest value that glibc takes
        _mallopt(_M_TRIM_THRESHOLD, 1 << 26)
