"""What is said between who starts a program and who becomes it, and how ``subprocess`` is made to say it."""

from __future__ import annotations

import inspect
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

TORCHRUN = "torch.distributed.run"
TRACES = (
    "stoker.core.processes.prepared",
    "stoker.perf.features.child",
    "stoker.perf.features.definition_child",
    "stoker.run.fitting.child",
)
"""Modules that ignore Ctrl-C and end with the command that starts them: what is called before ``exec`` says so."""
HIGH = 1000
"""Descriptors from here on are out of the way of a program's own."""
NUMBERS = struct.Struct("qd")
"""A process id, and in the end the wait status with the seconds of processor time."""
_NAMES = list(inspect.signature(subprocess.Popen._execute_child).parameters)[2:]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Request:
    """A program to run."""

    argv: tuple[str, ...]
    """As ``exec`` would get it: python first, of whose options at most ``-u``."""
    env: dict[str, str]
    cwd: str
    new_session: bool
    is_trace: bool
    kept: tuple[int, ...]
    """Descriptors that it is told of by their numbers, all below ``HIGH``."""


def can_ask(args: Any, others: tuple[Any, ...], *, is_parent: bool) -> bool:
    """Whether a command is a python program, and asks for nothing that a :class:`Request` cannot say.

    Args:
        args: the command.
        others: of ``Popen._execute_child``.
        is_parent: whether the process will be a child of this one, as one with descriptors of this one must be.
    """
    named = dict(zip(_NAMES, others, strict=True))
    if (named["preexec_fn"] and not _is_trace(args)) or (named["pass_fds"] and not is_parent):
        return False
    if not isinstance(args, (list, tuple)) or len(args) < 2:
        return False
    return args[0] == sys.executable and (args[1] in ("-u", "-m", "-c") or not os.fspath(args[1]).startswith("-"))


def request_of(args: Any, others: tuple[Any, ...]) -> tuple[Request, list[int], list[int]]:
    """What the arguments of ``Popen._execute_child`` ask for, the three streams, and all ends of pipes to close.

    A private method, the same in Python 3.11 to 3.14: all else of ``Popen`` is used as it is.
    """
    named = dict(zip(_NAMES, others, strict=True))
    pipes = [named[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
    request = Request(
        argv=tuple(os.fspath(word) for word in args),
        env=dict(os.environ if named["env"] is None else named["env"]),
        cwd=os.path.abspath(named["cwd"] or "."),
        new_session=named["start_new_session"],
        is_trace=_is_trace(args),
        kept=tuple(named["pass_fds"]),
    )
    streams = [given if given >= 0 else number for number, given in enumerate((pipes[0], pipes[3], pipes[5]))]
    return request, streams, pipes


def _is_trace(args: Any) -> bool:
    return list(args[1:2]) == ["-m"] and args[2].startswith(TRACES)
