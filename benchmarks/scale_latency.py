"""Items that wait on a remote store: far more workers than cores, found by itself."""

from __future__ import annotations

import sys
import time
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.support.emulated import Dial, Waiting
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, ratios, run
from benchmarks.support.served import shut_down, stoker
from stoker.records.events import WorkersChanged

BAR = Bar(
    "scale_latency",
    "samples that wait 50 ms for a remote read (emulated), workers by `auto`",
    headline=("gain", "workers"),
)
READ_S = 0.05
BATCH_SIZE = 4
GOLDMINER = 12.1
"""GoldMiner's best job (SIGMOD 2023) over the declared workers' rate."""


def rate(iterator: Any, seconds: float) -> float:
    """Samples per second over a stretch of an endless epoch."""
    next(iterator)  # what was made while another loader ran
    begun, samples = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        samples += len(next(iterator))
    return samples / (time.perf_counter() - begun)


def drain(iterator: Any, feed: Any) -> None:
    """Takes the batches that were finished while nobody asked, so that they count for no rate."""
    for _ in range(feed.engine.capacity):
        next(iterator)


def measure(options: Options) -> Report:
    """Lets stoker find its number, then alternates with one worker of torch's loader."""
    report = Report()
    settle_s = options.pick(45.0, 20.0, 0.5)
    stretch_s = options.pick(4.0, 1.0, 0.5)
    dial = Dial(READ_S)
    data = Waiting(10**6, dial.path)
    one = DataLoader(data, BATCH_SIZE, num_workers=1, persistent_workers=True)
    many = DataLoader(data, BATCH_SIZE, num_workers=1)
    with stoker() as served:
        endless = served.iterate(many)
        rate(endless, settle_s)
        alone = iter(one)

        def ours() -> float:
            drain(endless, served.feed(many))
            return rate(endless, stretch_s)

        def theirs() -> float:
            for _ in range(3):
                next(alone)
            return rate(alone, stretch_s)

        rates = alternate(options.rounds, {"stoker, auto": ours, "torch, 1 worker": theirs})
        workers = len(served.feed(many).engine.crew.active())
        said = [(event.t_s, event.reason) for event in served.events if isinstance(event, WorkersChanged)]
        endless._shutdown_workers()
    shut_down(one)
    report.note(f"batches of {BATCH_SIZE}, read one after another; a loop that only loads; one worker declared")
    report.note(f"{workers} workers found in {settle_s:.0f} s")
    report.figure("workers", workers)
    report.table(["samples/s", "median", "lowest - highest"], [[n, *Spread.of(v).show(0)] for n, v in rates.items()])
    report.table(["decisions", "after s"], [[text, f"{at:.1f}"] for at, text in said])
    gain = ratios(rates["stoker, auto"], rates["torch, 1 worker"])
    report.at_least("gain", "stoker by `auto` / one worker of torch", gain, GOLDMINER, 1)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
