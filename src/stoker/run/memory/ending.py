"""Says what held a program's memory when it ended because there was no more."""

from __future__ import annotations

import resource
import shlex
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from stoker.core.code.sources import file_shown
from stoker.core.host import memory_bytes
from stoker.core.saying import say
from stoker.records.memory import AskedMemory, OutOfMemory
from stoker.run.memory.counting import TensorCount, count_alive, program_frames
from stoker.ui.memory.ended_text import write_end


def explain(error: BaseException, asked: AskedMemory, program: Sequence[str]) -> None:
    """Writes at most ten lines to standard error.

    Args:
        error: of the allocator; its traceback still holds the variables of the functions that were running.
        asked: what it says.
        program: what python was given: a script or ``-m module``, and arguments.
    """
    if asked.device == "cpu":
        asked = replace(asked, capacity_bytes=memory_bytes()[0] or None)
    with _room():
        lines = [
            f"{file_shown(frame.f_code.co_filename)}:{line}" for frame, line in program_frames(error.__traceback__)
        ]
        categories, variables = count_alive(TensorCount(asked.device, asked.index), error.__traceback__)
        found = OutOfMemory(
            asked=asked, line=lines[-1] if lines else "", categories=categories, variables=variables,
            command=next_command(program, asked), fit_command=fit_command(program, asked),
        )  # fmt: skip
        for line in write_end(found):
            say(line)


@contextmanager
def _room() -> Generator[None]:
    """Lifts the soft limits of memory for the time of counting: what fails for lack of memory can say nothing."""
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    limits = [resource.getrlimit(kind) for kind in kinds]
    for kind, (_, hard) in zip(kinds, limits, strict=True):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (hard, hard))
    try:
        yield
    finally:
        for kind, limit in zip(kinds, limits, strict=True):
            with suppress(OSError, ValueError):
                resource.setrlimit(kind, limit)


def fit_command(program: Sequence[str], asked: AskedMemory) -> str:
    """The command that makes the program fit the device; empty for code that is no file or module."""
    if not program or (program[0].startswith("-") and program[0] != "-m"):
        return ""
    size = f"{asked.capacity_bytes / 1e6:.0f}MB" if asked.capacity_bytes else "SIZE"
    return shlex.join(["stoker", "run", "--fit", "auto", "--device-memory", size, *program])


def next_command(program: Sequence[str], asked: AskedMemory | None = None) -> str:
    """The command that predicts the program's memory by line; empty for code that is no file or module.

    Args:
        program: what python was given.
        asked: what the error of an allocator says; None if there is none.
    """
    if not program or (program[0].startswith("-") and program[0] != "-m"):
        return ""
    count = 2 if program[0] == "-m" else 1
    theirs = list(program[count:])
    size = asked.capacity_bytes if asked is not None and asked.device != "cpu" else None
    limit = ["--memory", f"{size / 1e9:.1f}GB"] if size else []
    return shlex.join(["stoker", "memory", *program[:count], *limit, *(["--", *theirs] if theirs else [])])
