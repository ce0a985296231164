"""Runs the same program under plain python and under `stoker run`, side by side, and reads what the run recorded."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import stoker
from stoker.records.events import IterationStarted, LoaderOpened, Notice, RunEnded
from stoker.records.runlog import Run, read_ranks
from tests.warm import programs

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = str(Path(stoker.__file__).parents[1])
TIMEOUT_S = 150


@dataclass(frozen=True)
class Both:
    """What a program printed both ways, and the records of the run."""

    served: str
    served_err: str
    ranks: list[Run]

    def opened(self, rank: int = 0) -> dict[int, LoaderOpened]:
        """The last word on each loader."""
        return {event.loader: event for event in self.ranks[rank].events if isinstance(event, LoaderOpened)}

    def workers_started(self, rank: int = 0) -> dict[int, int]:
        """Most data workers that an iteration of each loader began with."""
        most: dict[int, int] = {}
        for event in self.ranks[rank].events:
            if isinstance(event, IterationStarted):
                most[event.loader] = max(most.get(event.loader, 0), event.workers)
        return most


def environment(cwd: Path) -> dict[str, str]:
    """Of both runs: stoker importable, one thread, no network, nothing of an outer run, nothing left elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(cwd / "hub")}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(cwd / "compiled")}
    return {**kept, **offline, **caches, "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def both(
    program: str,
    *arguments: str,
    cwd: Path,
    launcher: tuple[str, ...] = (),
    inner: bool = False,
    options: tuple[str, ...] = ("--quiet",),
    at_once: bool = True,
    ordered: bool = True,
) -> Both:
    """Runs ``programs/program`` both ways; requires that both succeed, print the same and warn of the same.

    Args:
        program: file name.
        arguments: the program's own.
        cwd: an empty folder.
        launcher: words between python and the program, such as torchrun's.
        inner: whether `stoker run` stands behind the launcher rather than before it.
        options: of `stoker run`.
        at_once: side by side; else one after the other, so that the second finds what the first has compiled.
        ordered: whether lines come in the same order both ways; the ranks of one program write when they end.
    """
    stoker_run = ("-m", "stoker", "run", "--run-dir", str(cwd / "records"), *options)
    words = (str(PROGRAMS / program), *arguments)
    before = (*launcher, *stoker_run) if inner else (*stoker_run, *launcher)
    commands = [(*launcher, *words), (*before, *words)]
    groups = [commands] if at_once else [[command] for command in commands]
    (plain_out, plain_err), (served, served_err) = [done for group in groups for done in _run(group, cwd)]
    assert "loss" in plain_out
    assert _lines(served, ordered) == _lines(plain_out, ordered)
    assert warnings_in(served_err) - warnings_in(plain_err) == set(), served_err
    assert "Traceback" not in served_err, served_err
    found = Both(served, served_err, read_ranks(cwd / "records"))
    for run in found.ranks:
        assert [event.outcome for event in run.events if isinstance(event, RunEnded)] == ["finished"]
        notices = [event.text for event in run.events if isinstance(event, Notice)]
        assert not [text for text in notices if "torch's own" in text or "anew" in text], notices
    return found


def _run(commands: list[tuple[str, ...]], cwd: Path) -> list[tuple[str, str]]:
    """What commands print to both streams, run side by side; fails where one fails."""
    processes = [
        programs.Program(
            [sys.executable, *words],
            env=environment(cwd),
            cwd=cwd,
            stdout=programs.PIPE,
            stderr=programs.PIPE,
            text=True,
        )
        for words in commands
    ]
    try:
        done = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, err) in zip(processes, done, strict=True):
        assert process.returncode == 0, err
    return done


def _lines(out: str, ordered: bool) -> list[str]:
    return out.splitlines() if ordered else sorted(out.splitlines())


def warnings_in(err: str) -> set[str]:
    """The warnings of a standard error, without the places and numbers that differ from run to run."""
    lines = [line for line in err.splitlines() if re.search(r"[Ww]arning", line)]
    return {re.sub(r"\d+", "N", line.rpartition("Warning: ")[2]) for line in lines}
