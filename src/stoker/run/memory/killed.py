"""Says of a program's last run that the kernel killed it for lack of memory, which that run could not say itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from stoker.core.host import kills_for_memory
from stoker.core.texts import escaped
from stoker.records.events import WorkerLost
from stoker.records.memory import KilledRun
from stoker.records.runlog import Run, interrupted_run
from stoker.run.memory.ending import next_command
from stoker.ui.memory.ended_text import write_killed


def words_of_last_run(runs: Path, argv: Sequence[str], program: Sequence[str]) -> list[str]:
    """What is to be said when a program starts; nothing unless its last run was killed.

    Args:
        runs: folder of runs.
        argv: the program and its arguments, as its header will have them.
        program: what python is given.
    """
    if not runs.is_dir():
        return []
    last = interrupted_run(runs, [escaped(word) for word in argv], escaped(os.getcwd()))
    found = None if last is None else killed_run(last, kills_for_memory(), socket.gethostname())
    return [] if found is None else write_killed(found, next_command(program))


def killed_run(run: Run, kills_now: int, hostname: str) -> KilledRun | None:
    """What is known of a run that ended without a word; None unless the kernel has killed for lack of memory since.

    Data workers are killed for memory as well, and their program goes on: these kills are taken off.

    Args:
        run: that has no end.
        kills_now: of this cgroup or machine so far.
        hostname: of this machine.
    """
    header = run.header
    if header.kills_for_memory is None or header.hostname != hostname:
        return None
    workers = sum(isinstance(event, WorkerLost) and "memory" in event.cause for event in run.events)
    kills = kills_now - header.kills_for_memory - workers
    if kills <= 0:
        return None
    return KilledRun(
        folder=str(run.folder or ""), after_s=max((event.t_s for event in run.events), default=0.0), kills=kills,
        memory_bytes=header.memory_bytes,
    )  # fmt: skip
