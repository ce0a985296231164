"""Runs the program to be measured as a child, waits for its ranks' files, and ends it on request.

It does not replace itself by the program as `stoker run` does, because the prediction and the report come after the
program's end, however it ends.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stoker.backends.process_tree import end_tree
from stoker.core.errors import RunFolderError
from stoker.records.profile import PROFILE_NAME, RankRecord, read_rank

_POLL_S = 0.05
_OTHERS_S = 10.0
"""How long a rank that is done waits for those that are not; ranks on other machines may write elsewhere."""


class Ended(NamedTuple):
    """How the program ended.

    Attributes:
        status: as of :class:`subprocess.Popen`: negative for a signal; 0 where it was ended on purpose.
        stopped: whether it was ended on purpose.
        process: the program, if it continues.
    """

    status: int
    stopped: bool
    process: subprocess.Popen[bytes] | None = None


def clear(folder: Path, rank: int | None) -> None:
    """Removes files of an earlier profile from the folder: of one rank, or of all."""
    names = (
        [f"profile.rank{rank}.json"] if rank is not None else [path.name for path in folder.glob("profile.rank*.json")]
    )
    for name in [*names, *([PROFILE_NAME] if not rank else [])]:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def run_program(command: Sequence[str], environ: Mapping[str, str], folder: Path, *, stop: bool) -> Ended:
    """Runs the program until its ranks are done, or until it ends.

    Signals of a terminal or a scheduler reach the program; what was measured before is still reported.

    Args:
        command: of the program.
        environ: of the program.
        folder: that its ranks write to.
        stop: whether to end it once they are done; otherwise it continues, and the caller waits for ``process``.
    """
    sys.stdout.flush()
    process = subprocess.Popen(command, env=dict(environ))
    with _passed_on(process):
        done_s: float | None = None
        while process.poll() is None:
            records = read_ranks(folder)
            if records and all(record.complete for record in records):
                done_s = done_s or time.monotonic()
                if len(records) >= records[0].world_size or time.monotonic() - done_s > _OTHERS_S:
                    if not stop:
                        return Ended(0, False, process)
                    end_tree(process)
                    return Ended(0, True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_POLL_S)
    return Ended(process.returncode, False)


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Waits for the end of a program that continues; returns its status."""
    with _passed_on(process):
        return process.wait()


def read_ranks(folder: Path) -> list[RankRecord]:
    """What the ranks have written so far, in their order."""
    found: list[RankRecord] = []
    for path in folder.glob("profile.rank*.json"):
        with contextlib.suppress(RunFolderError):
            found.append(read_rank(path))
    return sorted(found, key=lambda record: record.rank)


def _ignored(number: int, frame: object) -> None:
    pass


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Generator[None]:
    """A terminal interrupts the program too; other signals are forwarded. This process outlives both."""

    def pass_on(number: int, _: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    before: dict[int, Any] = {}
    try:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _ignored)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            before[number] = signal.signal(number, pass_on)
    except ValueError:  # not the main thread
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
