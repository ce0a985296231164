"""Sets up stoker's processes (signals, name, death along with the parent) and turns them into data workers.

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

from stoker.core.processes.parents import set_name, signal_when_orphaned
from stoker.feed.program import Program, WorkerIdentity
from stoker.feed.transport.board import Board
from stoker.feed.transport.messages import Channel
from stoker.feed.worker.loop import DataWorker

DUMP_SIGNAL = signal.SIGRTMIN + 7
"""Makes a worker write its traceback."""
FINISH_S = 1.0
"""Time that a worker gets to finish its batch once nobody waits for the batch any more."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Looked up before the fork: in each worker it would delay the first batch by a fraction of a millisecond.
_libc = ctypes.CDLL(None, use_errno=True)
_mallopt: Callable[[int, int], int] | None = getattr(_libc, "mallopt", None)  # glibc only


def settle(name: bytes, stacks: int) -> None:
    """Sets up a process that was just forked from the training process (or spawned).

    Args:
        name: the kernel's name for it.
        stacks: descriptor to which it writes its traceback on ``DUMP_SIGNAL``.
    """
    quiet_signals()
    set_name(name)
    import torch

    torch.set_num_threads(1)
    faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True)
    gc.freeze()  # a worker's collections then leave the shared pages alone; collecting first would cost 0.1 s


def serve(program: Program, identity: WorkerIdentity, fd: int, board: Board, prepare: Callable[[], None]) -> NoReturn:
    """Turns this process, which was just forked, into a data worker on the socket ``fd``.

    Args:
        program: what the worker runs.
        identity: the worker's numbers.
        fd: its end of a socket to the training process.
        board: where it writes its current sample.
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


def die_after(parent_pid: int) -> None:
    """Like :func:`stoker.core.processes.parents.die_with`, but the process gets a second to finish its batch.

    A kernel timer then ends the process, whatever it is doing. Only code that lets no Python run delays the start of
    the timer; the template, which runs no such code, kills the worker as well.
    """
    signal.signal(_ORPHANED_SIGNAL, _hurry)
    signal_when_orphaned(_ORPHANED_SIGNAL, parent_pid)


_ORPHANED_SIGNAL = signal.SIGRTMIN + 6


def _hurry(*_: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, FINISH_S)


def is_readable(fd: int, timeout_s: float) -> bool:
    """Whether ``fd`` becomes readable (a pidfd: its process ends) within ``timeout_s``; waits for ever if negative."""
    poll = select.poll()  # `select` takes no descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000.0 * timeout_s))


def quiet_signals() -> None:
    """Makes a helper process ignore Ctrl-C and the program's own handlers; SIGTERM ends it.

    A terminal sends Ctrl-C to every process; the training process decides what follows. Handlers that the program
    installed (checkpoint on SIGUSR1, say) must not run a second time here. A function that does nothing is used
    instead of SIG_IGN, which children of the user's code would inherit.
    """
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if number == signal.SIGINT or (callable(handler) and number != signal.SIGCHLD):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, do_nothing)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def do_nothing(*_: object) -> None:
    """Handles a signal by ignoring it; unlike SIG_IGN, children of the user's code do not inherit this."""


def _go_first() -> None:
    """Makes the kernel kill a data worker, which costs a batch, and not the program when memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")


def _keep_freed_memory() -> None:
    """Makes malloc keep freed memory: returning pages after every sample costs a fifth of the decode time.

    It keeps no more than it does by default once it has adapted to blocks of its largest size, so workers need no
    more memory than torch's.
    """
    if _mallopt is not None:
        _mallopt(_M_MMAP_THRESHOLD, 1 << 25)  # the largest value that glibc takes
        _mallopt(_M_TRIM_THRESHOLD, 1 << 26)
