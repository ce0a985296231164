"""A process with all that it starts, which end together: with the block that they are for, and with this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

# Its pipe ends with this process, also with one that is killed; the kernel's signal at a parent's death would reach the
# program alone, not the compilers that a compiler's driver starts.
_WATCH = ("/bin/sh", "-c", "read -r _; kill -9 0")


@contextlib.contextmanager
def in_group(
    command: Sequence[str], *, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> Generator[subprocess.Popen[str]]:
    """Starts a program in a process group, which is killed at the end of the block, or when this process ends.

    Args:
        command: program and arguments.
        folder: in which it runs; this process's by default.
        environ: added to this process's.

    Yields:
        The program, with one pipe for what it prints, both streams together.

    Raises:
        OSError: it cannot be started.
    """
    with subprocess.Popen(
        _WATCH, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    ) as watch:
        try:
            # The watch comes first, and leads the group: there is no moment in which nothing ends the program.
            with subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", env={**os.environ, **(environ or {})}, process_group=watch.pid,
            ) as process:  # fmt: skip
                try:
                    yield process
                finally:
                    os.killpg(watch.pid, signal.SIGKILL)
        finally:
            watch.kill()
