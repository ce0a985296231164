"""Runs a tool as a child process: a limit of time, a line that shows it is at work, its own words when it fails."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.core.errors import ToolError
from stoker.core.units import format_seconds

_TAIL = 2000
_SHOWN_S = 2.0
_EACH_S = 1.0


def run_tool(
    command: Sequence[str], *, folder: Path, limit_s: float, doing: str, environ: Mapping[str, str] | None = None
) -> str:  # fmt: skip
    """What a tool printed, both streams together.

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
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", env={**os.environ, **(environ or {})}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ToolError(f"`{command[0]}` must run for {doing}, and cannot be started: {error}") from error
    try:
        output = _wait(process, begun, limit_s, doing)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise ToolError(
            f"`{shlex.join(command)}` must end with status 0 for {doing}, got {process.returncode}:\n"
            f"{output.strip()[-_TAIL:]}"
        )
    return output


def _wait(process: subprocess.Popen[str], begun: float, limit_s: float, doing: str) -> str:
    live = sys.stderr.isatty()
    shown = False
    while True:
        spent = time.monotonic() - begun
        if spent > limit_s:
            raise ToolError(f"{doing} must take at most {format_seconds(limit_s)}; allow more with `--limit`")
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
