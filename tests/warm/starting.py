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


def can_ask(args: Any, others: tuple[Any, ...]) -> bool:
    """Whether a command is a python program, and asks for nothing that a :class:`Request` cannot say."""
    named = dict(zip(_NAMES, others, strict=True))
    if named["preexec_fn"] or named["pass_fds"] or not isinstance(args, (list, tuple)) or len(args) < 2:
        return False
    if TORCHRUN in args:
        return False  # it starts pythons of its own, and its threads do not outlive the fork of a fork
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
    )
    streams = [given if given >= 0 else number for number, given in enumerate((pipes[0], pipes[3], pipes[5]))]
    return request, streams, pipes
