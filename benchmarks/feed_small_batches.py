"""Batches of 1 to 10 kB: what remains is the price of handing over one batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, ratios, run
from benchmarks.support.served import shut_down, stoker

BAR = Bar(
    "feed_small_batches", "batches of 1 and 10 kB from 2 data workers, in batches/s", headline=("gain_1kb", "gain_10kb")
)
BATCH_SIZE = 16
SIZES = {"1 kB": 16, "10 kB": 160}
"""Floats of a sample."""


class Rows(Dataset[torch.Tensor]):
    """Rows of a matrix in memory."""

    def __init__(self, count: int, width: int) -> None:
        self._rows = torch.randn(4096, width)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index % 4096]


def rate(iterate: Callable[[], Any]) -> float:
    """Batches per second over one epoch, from asking for the iterator to the last batch."""
    with no_collections():
        begun = time.perf_counter()
        count = sum(1 for _ in iterate())
        return count / (time.perf_counter() - begun)


def measure(options: Options) -> Report:
    """Runs both loaders on both sizes."""
    report = Report()
    batches = options.pick(10_000, 2_500, 40)
    rows: list[list[str]] = []
    for label, width in SIZES.items():
        data = Rows(batches * BATCH_SIZE, width)
        ours, theirs = (DataLoader(data, BATCH_SIZE, num_workers=2, persistent_workers=True) for _ in "ab")
        with stoker(workers=2) as served:
            runs = {
                "stoker": lambda loader=ours, served=served: rate(lambda: served.iterate(loader)),
                "torch": lambda loader=theirs: rate(lambda: iter(loader)),
            }
            alternate(1, runs)  # both warm
            found = alternate(options.rounds, runs)
            report.note(f"tier {served.tiers()}, {batches:,} batches of {BATCH_SIZE} a round, workers persistent")
        shut_down(theirs)
        gain = ratios(found["stoker"], found["torch"])
        key = label.replace(" ", "").lower()
        for name, values in found.items():
            rows.append([f"{name}, {label}", *Spread.of(values).show(0)])
            report.figure(f"{name}_{key}_batches_per_s", Spread.of(values).median)
        report.at_least(f"gain_{key}", f"stoker / torch DataLoader, {label}", gain, 1.5)
    report.table(["batches/s", "median", "lowest - highest"], rows)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
