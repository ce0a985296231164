"""A real run of `stoker run --training-workers`, and what it came to: read from its run folders."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import benchmarks.programs
from stoker.records.runlog import read_ranks
from stoker.run.elastic.reading import RankRecords, size_window

_PROGRAM = Path(benchmarks.programs.__file__).with_name("elastic_program.py")


@dataclass(frozen=True)
class LiveSearch:
    """The sizes at its end."""

    workers: int
    feeders: int
    batches_per_s: float
    """Of all training workers together, in the last window."""
    changes: int


def search_live(options: Sequence[str], item_s: float, steps_s: Sequence[float], length_s: float) -> LiveSearch:
    """Runs the emulated program for a time.

    Args:
        options: of `stoker run`.
        item_s: seconds of a batch in a data worker.
        steps_s: those of a step in each of one, two, three, four training workers.
        length_s: after which it is interrupted.

    Raises:
        RuntimeError: It ended by itself, or its last ranks show too little.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-elastic-") as folder:
        words = [str(_PROGRAM), str(item_s), *map(str, steps_s)]
        command = [sys.executable, "-m", "stoker", "run", "--quiet", *options, *words]
        with (Path(folder) / "err").open("w+") as err:
            process = subprocess.Popen(command, cwd=folder, stdout=err, stderr=err)
            try:
                process.wait(length_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                process.wait(60.0)
            else:
                err.seek(0)
                raise RuntimeError(f"the program ended by itself: {err.read()[-2000:]}")
        folders = [path for path in (Path(folder) / "stoker-runs").iterdir() if path.is_dir()]
        runs = sorted(folders, key=lambda run: (len(run.name), run.name))  # NAME, NAME-2, NAME-3
        headers = [run.header for run in read_ranks(runs[-1])]
        ranks = [RankRecords(runs[-1], header.rank, header.run_id) for header in headers]
        for rank in ranks:
            rank.read()
        window = size_window(ranks, may_change=True)
        if window is None:
            raise RuntimeError(f"{len(ranks)} training workers had too little time, {length_s:.0f} s in all")
        return LiveSearch(window.workers, window.feeders, window.batches_per_s, len(runs) - 1)
