"""Runs the demonstration's program once: timestamps its output, and ends it on every path."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from stoker.backends.process_tree import end_tree
from stoker.core.errors import StokerError
from stoker.ui.demo_text import Course

_GRACE_S = 5.0
"""How long an interrupted program may take to end."""
_SHOWN_BYTES = 2000
"""Most bytes read back from a failed program's standard error."""


def run_program(command: Sequence[str], environ: Mapping[str, str], follow: Callable[[Course], None]) -> Course:
    """Runs the program to its end and returns what it printed; if interrupted, ends the program too.

    Args:
        command: the program's command line.
        environ: the program's environment.
        follow: called after each line.

    Raises:
        StokerError: The program failed, or made too few steps.
    """
    course = Course()
    # In memory: leaves nothing in the temporary folder, and a program that writes a lot never blocks on a full pipe.
    with os.fdopen(os.memfd_create("stoker-demo"), "w+b") as errors:
        process = subprocess.Popen(
            command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    course.add(line.decode(errors="replace").rstrip("\n"), time.monotonic())
                    follow(course)
            status = process.wait()
        finally:
            _end(process)
        if status or len(course.losses) < 2:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _SHOWN_BYTES))
            raise StokerError(_failure(status, errors.read().decode(errors="replace")))
    return course


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts the program as Ctrl-C does, so that it removes its temporary files; kills it if that takes long."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
    end_tree(process)


def _failure(status: int, said: str) -> str:
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
    words = f", its last words: {last}" if last else ""
    return f"the demo's program must run to its end, but {ended}{words}; `stoker doctor` checks this machine"
