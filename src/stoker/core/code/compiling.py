"""The C++ compiler of this machine: found, and run with a limit of time."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stoker.core.processes.groups import in_group

COMPILERS = ("g++", "c++", "clang++")
BUILD_S = 120.0


def compiler(wanted: str) -> list[str]:
    """The command of a C++ compiler: ``CXX``, or the first that is there.

    Args:
        wanted: who needs it, for the message.

    Raises:
        RuntimeError: there is none.
    """
    chosen = os.environ.get("CXX")
    if chosen:
        return shlex.split(chosen)
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return [found]
    raise RuntimeError(f"`{wanted}` needs a C++ compiler, found none of {', '.join(COMPILERS)}; install g++ or set CXX")


def build_library(source: Path, path: Path, *, wanted: str, options: Sequence[str] = ("-O2",)) -> None:
    """Compiles a source file to a shared library.

    Args:
        source: of C++17.
        path: of the library.
        wanted: who needs it, for the message.
        options: besides those that make it a library.

    Raises:
        RuntimeError: no compiler is there, it fails, or takes longer than :data:`BUILD_S`.
    """
    found = compiler(wanted)
    command = [*found, "-std=c++17", *options, "-shared", "-fPIC", "-o", str(path), str(source), "-ldl"]
    try:
        with in_group(command) as process:
            said, _ = process.communicate(timeout=BUILD_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"`{shlex.join(command)}` must build {wanted}, and failed: {error}") from error
    if process.returncode:
        raise RuntimeError(f"`{shlex.join(command)}` must build {wanted}, and failed: {said.strip()[-2000:]}")
