"""How much of stoker's own code one batch walks through in the training process: calls, and changes of file.

Counted, not timed, so that it is the same on a busy machine: by a profile hook around each ``next`` over tiny batches.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import stoker
from benchmarks.support.harness import Bar, Options, Report, Spread, number, run
from benchmarks.support.served import Stoker
from benchmarks.support.served import stoker as serving

BAR = Bar(
    "feed_walk", "calls of Python and changes of file for one batch of an elastic loader", headline=("calls", "changes")
)
BATCH_SIZE = 4
WARM_UP = 200
"""Batches before those that count: the tier is settled, and slots have their size."""
PAUSE_S = 0.004
"""Between two batches, so that each is made when it is asked for."""
_OURS = str(Path(stoker.__file__).parent)
_GENERATED = "<string>"
"""File of methods that Python generates for a class."""


class Numbers(Dataset[torch.Tensor]):
    """One number a sample."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


def walk(iterator: Any) -> tuple[int, int]:
    """Calls of stoker's functions during one ``next``, and how often the next call is of another file."""
    files: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and (name.startswith(_OURS) or name == _GENERATED):
            files.append(name)

    sys.setprofile(look)
    try:
        next(iterator)
    finally:
        sys.setprofile(None)
    return len(files), sum(before != after for before, after in itertools.pairwise(files))


def measure(options: Options) -> Report:
    """Looks at every batch of a stretch; what is due a few times a second is outside of most of them."""
    report = Report()
    batches, warm_up = options.pick(100, 100, 10), options.pick(WARM_UP, WARM_UP, 20)
    with serving(workers=2, cut="off") as served:
        rounds = [_round(served, warm_up, batches) for _ in range(options.pick(options.rounds, 3, 1))]
        report.note(f"tier {served.tiers()}, medians over {batches} batches of {BATCH_SIZE} samples")
    calls, changes = ([counts[k] for counts in rounds] for k in (0, 1))
    report.at_most("calls", "calls of stoker's functions in one next", calls, 110, digits=0)
    report.at_most("changes", "changes of file among them", changes, 30, digits=0)
    rows = [["calls", *Spread.of(calls).show(0)], ["changes of file", *Spread.of(changes).show(0)]]
    report.table(["one batch", "median", "lowest - highest"], rows)
    report.note(f"a step of the program's own of {number(PAUSE_S * 1e3, 0)} ms in between")
    return report


def _round(served: Stoker, warm_up: int, batches: int) -> tuple[float, float]:
    """Medians over one iteration of a loader."""
    loader = DataLoader(Numbers((warm_up + batches + 20) * BATCH_SIZE), BATCH_SIZE, num_workers=2)
    iterator = served.iterate(loader)
    for _ in range(warm_up):
        next(iterator)
    found: list[tuple[int, int]] = []
    for _ in range(batches):
        time.sleep(PAUSE_S)
        found.append(walk(iterator))
    calls, changes = zip(*found, strict=True)
    return Spread.of(calls).median, Spread.of(changes).median


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
