"""Batches of 20 to 80 MB that cost nothing to compute: the price of moving bytes between processes."""

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
    "feed_large_batches",
    "collated batches of 20 to 80 MB with trivial compute, 2 data workers, in MB/s",
    headline=("gain_20mb", "gain_40mb", "gain_80mb"),
)
BATCH_SIZE = 32
MEGABYTE = 10**6


class Blocks(Dataset[torch.Tensor]):
    """The same block of floats for every index: all that is left to do is to collate and to hand over."""

    def __init__(self, count: int, size_bytes: int) -> None:
        self._block = torch.randn(size_bytes // 4)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._block


def rate(iterate: Callable[[], Any]) -> float:
    """Megabytes per second over one epoch; one number of each batch is read."""
    with no_collections():
        begun, moved = time.perf_counter(), 0
        for batch in iterate():
            moved += batch.nbytes
            float(batch[-1, -1])
        return moved / MEGABYTE / (time.perf_counter() - begun)


def measure(options: Options) -> Report:
    """Runs both loaders on each size."""
    report = Report()
    rows: list[list[str]] = []
    moved = options.pick(6000, 1600, 240) * MEGABYTE
    for megabytes in options.pick((20, 40, 80), (20, 40, 80), (20,)):
        batches = moved // (megabytes * MEGABYTE)
        data = Blocks(batches * BATCH_SIZE, megabytes * MEGABYTE // BATCH_SIZE)
        ours, theirs = (DataLoader(data, BATCH_SIZE, num_workers=2, persistent_workers=True) for _ in "ab")
        with stoker(workers=2) as served:
            runs = {
                "stoker": lambda loader=ours, served=served: rate(lambda: served.iterate(loader)),
                "torch": lambda loader=theirs: rate(lambda: iter(loader)),
            }
            alternate(1, runs)  # both warm
            found = alternate(options.rounds, runs)
            for text in (f"tier {served.tiers()}, workers persistent", *served.notices()):
                report.note(text)
        shut_down(theirs)
        for name, values in found.items():
            rows.append([f"{name}, {batches} of {megabytes} MB", *Spread.of(values).show(0)])
            report.figure(f"{name}_{megabytes}mb_megabytes_per_s", Spread.of(values).median)
        gain = ratios(found["stoker"], found["torch"])
        report.at_least(f"gain_{megabytes}mb", f"stoker / torch DataLoader, {megabytes} MB", gain, 5.0, 1)
    report.table(["MB/s", "median", "lowest - highest"], rows)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
