"""The parent of a submitted program: writes its log, ends it on a word or when Ray's process is gone.

Run as a module by :mod:`stoker.backends.ray.allocator.runner`, which holds the other end of its standard input: the
program ends with Ray's process however that ends, and that of Ray may have threads. The first line there is a
:class:`Launch`; a later one is a grace in seconds: the program gets SIGTERM, and what is left of it after the grace
SIGKILL. The end of the input means the same with no grace. Imports no Ray.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from stoker.backends.process_tree import end_tree
from stoker.core.processes.parents import die_with

COULD_NOT_START = 126
_POLL_S = 0.05


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run."""

    command: list[str]
    folder: str
    environ: dict[str, str]
    log: str


def main() -> int:
    """Runs a program; exits with its status, as a shell would for a signal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Unbuffered: what follows the first line is waited for by poll.
    lines = os.fdopen(0, "rb", buffering=0, closefd=False)
    launch = msgspec.json.decode(lines.readline(), type=Launch)
    try:
        Path(launch.log).parent.mkdir(parents=True, exist_ok=True)
        with open(launch.log, "ab") as log:
            process = _started(launch, log.fileno())
    except OSError as error:
        _answer(f"`{error.filename}` must be there and usable on this node, got {error.strerror}")
        return COULD_NOT_START
    _answer("")
    return _until_end(process)


def _answer(refusal: str) -> None:
    sys.stdout.write(refusal + "\n")
    sys.stdout.flush()


def _started(launch: Launch, log: int) -> subprocess.Popen[bytes]:
    if not os.path.isdir(launch.folder):
        raise NotADirectoryError(20, "no such folder", launch.folder)
    own = os.getpid()
    return subprocess.Popen(
        launch.command, cwd=launch.folder, env=launch.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        preexec_fn=lambda: die_with(own),
    )  # fmt: skip


def _until_end(process: subprocess.Popen[bytes]) -> int:
    kill_s = float("inf")
    words = select.poll()
    words.register(0, select.POLLIN)
    watching = True
    while (status := process.poll()) is None:
        if watching and words.poll(1000.0 * _POLL_S):
            line = os.read(0, 100)
            watching = bool(line)
            grace_s = float(line.split()[0]) if line.strip() else 0.0
            process.terminate()
            kill_s = min(kill_s, time.monotonic() + grace_s)
        elif not watching:
            time.sleep(_POLL_S)
        if time.monotonic() >= kill_s:
            end_tree(process)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
