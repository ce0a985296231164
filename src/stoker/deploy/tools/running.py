"""Runs a tool as a child process: a limit of time, a line that shows it is at work, its own words when it fails."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from stoker.core.errors import ToolError
from stoker.core.processes.groups import in_group
from stoker.core.processes.temporary import temporary_folder
from stoker.core.units import format_seconds

_TAIL = 2000
_SHOWN_S = 2.0
_EACH_S = 1.0
_FAMILY = "stoker-deploy-"
_own = threading.local()
"""Has, in a thread of :func:`tools_at_once`, the event that its tools are no longer wanted."""


def run_tool(
    command: Sequence[str], *, folder: Path, limit_s: float, doing: str, environ: Mapping[str, str] | None = None
) -> str:  # fmt: skip
    """What a tool printed, both streams together.

    It ends with this process, whatever ends that, and so do its children; its temporary files go.

    Args:
        command: program and arguments.
        folder: in which it runs.
        limit_s: after which it is ended, with all that it started.
        doing: what is shown on a terminal while it runs, such as ``placing``.
        environ: added to this process's.

    Raises:
        ToolError: it cannot be started, fails, or takes longer.
    """
    begun = time.monotonic()
    with work_folder("tool") as own:
        try:
            with in_group(command, folder=folder, environ={**(environ or {}), "TMPDIR": str(own)}) as process:
                output = _wait(process, begun, limit_s, doing)
        except OSError as error:
            raise ToolError(f"`{command[0]}` must run for {doing}, and cannot be started: {error}") from error
    if process.returncode:
        raise ToolError(
            f"`{shlex.join(command)}` must end with status 0 for {doing}, got {process.returncode}:\n"
            f"{output.strip()[-_TAIL:]}"
        )
    return output


def work_folder(kind: str) -> AbstractContextManager[Path]:
    """An empty temporary folder for a block; those of commands that were killed go first.

    Args:
        kind: a word of its name.
    """
    return temporary_folder(f"{_FAMILY}{kind}-", family=_FAMILY)


@contextlib.contextmanager
def tools_at_once(count: int) -> Generator[ThreadPoolExecutor]:
    """Threads that run tools. If the block fails or is interrupted, they end their tools within a second or so.

    Args:
        count: of threads.
    """
    unwanted = threading.Event()
    with ThreadPoolExecutor(count, initializer=setattr, initargs=(_own, "unwanted", unwanted)) as pool:
        try:
            yield pool
        except BaseException:
            unwanted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _wait(process: subprocess.Popen[str], begun: float, limit_s: float, doing: str) -> str:
    live = sys.stderr.isatty()
    unwanted: threading.Event | None = getattr(_own, "unwanted", None)
    shown = False
    while True:
        spent = time.monotonic() - begun
        if spent > limit_s:
            raise ToolError(f"{doing} must take at most {format_seconds(limit_s)}; allow more with `--limit`")
        if unwanted is not None and unwanted.is_set():
            raise ToolError(f"{doing} is not wanted any more: what it is part of has failed, or was interrupted")
        try:
            output, _ = process.communicate(timeout=min(_EACH_S, limit_s - spent + 0.01))
        except subprocess.TimeoutExpired:
            if live and spent > _SHOWN_S:
                sys.stderr.write(f"\r\x1b[K{doing}: {format_seconds(spent)}")
                sys.stderr.flush()
                shown = True
            continue
        if shown:
            sys.stderr.write("\r\x1b[K")
        return output
