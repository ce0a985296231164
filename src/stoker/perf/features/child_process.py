"""A process that runs a program to look at it, besides the one that runs it in earnest.

Both are to read the same standard input. A file can be opened twice; what comes through a pipe is there once, for the
program. The process ends with the one that started it, and leaves nothing.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import termios
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from stoker.core.processes.interrupts import cleaned_up
from stoker.core.processes.parents import die_with
from stoker.core.processes.prepared import PreparedPython, fits

_INPUT = 0
LEFT_IN_PIPE = "; it was traced without what the pipe holds, which can be read only once: use `< FILE`"
"""Behind the reason why a program could not be traced whose input waited in a pipe."""


_prepared: list[PreparedPython | None] = []
"""What children of this process are forks of, while :func:`children_are_forks`."""


def run_child(module: str, arguments: Sequence[str]) -> int:
    """Runs a module and returns its status, which is negative for a signal. What it prints is an error.

    Args:
        module: as behind ``python -m``.
        arguments: its command line.
    """
    # Warnings about the CPU (no accelerator found and the like) say nothing about the program.
    environ = {**os.environ, "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore")}

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process gets it as well, ends the child, and says so once
        die_with(os.getppid())

    with cleaned_up(), input_for_child() as given:
        if _prepared and fits(module, arguments):
            status = _forked_from(environ).run(module, arguments, given)
            if status is not None:
                return status
        return subprocess.run(
            [sys.executable, "-m", module, *arguments], check=False, stdin=given, stdout=2, env=environ,
            preexec_fn=begin,
        ).returncode  # fmt: skip


@contextlib.contextmanager
def children_are_forks() -> Generator[None]:
    """Has the children of this process forked from one that has imported torch, which ends with the block.

    For who runs several: one costs what it costs without.
    """
    if _prepared:
        yield
        return
    _prepared.append(None)
    try:
        yield
    finally:
        last = _prepared.pop()
        if last is not None:
            last.close()


def _forked_from(environ: Mapping[str, str]) -> PreparedPython:
    """A process that a child with this environment can be a fork of."""
    found = _prepared[0]
    if found is None or not found.suits(environ):
        if found is not None:
            found.close()
        _prepared[0] = None
        found = _prepared[0] = PreparedPython(environ)
    return found


@contextlib.contextmanager
def input_for_child() -> Generator[int]:
    """A descriptor as a child's standard input, so that nothing of this process's own one is used up.

    That is a file from where it stands now, and nothing in the place of a pipe. A terminal and other devices are handed
    over as they are, but for a terminal on which a question would not be seen.
    """
    mode = _mode()
    if mode is None or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (os.isatty(_INPUT) and not os.isatty(2)):
        again = None
    elif not stat.S_ISREG(mode):
        yield _INPUT
        return
    else:
        again = _opened_again()
    if again is None:
        again = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield again
    finally:
        os.close(again)


def input_waits() -> bool:
    """Whether this process's standard input is a pipe with something in it, which a child did not get."""
    mode = _mode()
    if mode is None or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    waiting = array.array("i", [0])
    fcntl.ioctl(_INPUT, termios.FIONREAD, waiting)
    return waiting[0] > 0


@dataclass(frozen=True, slots=True)
class InputState:
    """This process's standard input at one time.

    Attributes:
        place: where it stands, if it is a file.
        waits: as :func:`input_waits`.
    """

    place: int | None
    waits: bool


def input_now() -> InputState:
    """The standard input as it is, before a program that shares it reads from it."""
    mode = _mode()
    is_file = mode is not None and stat.S_ISREG(mode)
    return InputState(os.lseek(_INPUT, 0, os.SEEK_CUR) if is_file else None, input_waits())


@contextlib.contextmanager
def input_as_at(then: InputState) -> Generator[None]:
    """Gives this process its standard input as it was at a time, if that is a file; who shares it notices nothing.

    Args:
        then: the time.
    """
    again = None if then.place is None else _opened_again(then.place)
    if again is None:
        yield
        return
    kept = os.dup(_INPUT)
    os.dup2(again, _INPUT)
    os.close(again)
    try:
        yield
    finally:
        os.dup2(kept, _INPUT)
        os.close(kept)


def input_stamp() -> str:
    """What tells one file as standard input from another one, or from a changed one; empty for all that is no file."""
    mode = _mode()
    if mode is None or not stat.S_ISREG(mode):
        return ""
    found = os.fstat(_INPUT)
    place = os.lseek(_INPUT, 0, os.SEEK_CUR)
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {place}"


def _mode() -> int | None:
    """What kind of file it is; None if it is closed."""
    try:
        return os.fstat(_INPUT).st_mode
    except OSError:
        return None


def _opened_again(place: int | None = None) -> int | None:
    """The file with a separate position, unlike a duplicate's; None if this user may not open it.

    Args:
        place: where it stands; None for where this process's own one does.
    """
    try:
        again = os.open(f"/proc/self/fd/{_INPUT}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    os.lseek(again, os.lseek(_INPUT, 0, os.SEEK_CUR) if place is None else place, os.SEEK_SET)
    return again
