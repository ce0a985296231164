"""Photographs: JPEG decode and random resized crop, the usual load of an image model's data workers."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.programs.photographs import Photographs, find_photographs
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, ratios, run
from benchmarks.support.served import shut_down, stoker

BAR = Bar(
    "feed_images",
    "JPEG decode and random resized crop to 224 (OpenCV), batches of 64 float32, 2 data workers",
    headline=("of_ideal", "gain"),
)
BATCH_SIZE = 64
WORKERS = 2


class OnlyLoading:
    """The ideal: as many processes that make the same samples, one after another, and hand nothing to anybody."""

    def __init__(self, data: Photographs) -> None:
        context = multiprocessing.get_context("fork")
        self._count = len(data)
        self._pipes = [context.Pipe() for _ in range(WORKERS)]
        self._processes = [
            context.Process(target=_load, args=(data, range(n, self._count, WORKERS), theirs), daemon=True)
            for n, (_, theirs) in enumerate(self._pipes)
        ]
        for process in self._processes:
            process.start()

    def rate(self) -> float:
        """Samples per second, until the last process is done."""
        begun = time.perf_counter()
        for ours, _ in self._pipes:
            ours.send(True)
        for ours, _ in self._pipes:
            ours.recv()
        return self._count / (time.perf_counter() - begun)

    def close(self) -> None:
        """Ends the processes."""
        for ours, _ in self._pipes:
            ours.send(False)
        for process in self._processes:
            process.join()


def _load(data: Photographs, share: range, pipe: Any) -> None:
    torch.set_num_threads(1)
    gc.disable()  # as on the other sides, and not collected first: that would be part of the time
    generator = torch.Generator()
    while pipe.recv():
        for place in torch.randperm(len(share), generator=generator).tolist():
            data[share[place]]
        pipe.send(None)


def rate(iterate: Callable[[], Any]) -> float:
    """Samples per second over one epoch, from asking for the iterator to the last batch."""
    with no_collections():
        begun, samples = time.perf_counter(), 0
        for images, _ in iterate():
            samples += len(images)
        return samples / (time.perf_counter() - begun)


def measure(options: Options) -> Report:
    """Runs the ideal, stoker and torch."""
    report = Report()
    batches = options.pick(100, 20, 2)
    batch_size = options.pick(BATCH_SIZE, BATCH_SIZE, 8)
    paths, origin = find_photographs(options.data)
    data = Photographs(paths, batches * batch_size)
    report.note(f"{batches} batches of {batch_size} a round from {origin}; workers persistent")
    peers = _start_peers(options, report, paths, batches * batch_size, batch_size)
    ideal = OnlyLoading(data)
    ours, theirs = (
        DataLoader(data, batch_size, shuffle=True, num_workers=WORKERS, persistent_workers=True) for _ in "ab"
    )
    with stoker(workers=WORKERS) as served:
        runs: dict[str, Callable[[], float]] = {
            "only loading": ideal.rate,
            "stoker": lambda: rate(lambda: served.iterate(ours)),
            "torch": lambda: rate(lambda: iter(theirs)),
        }
        runs |= {name: peer.rate for name, peer in peers.items()}
        alternate(1, runs)  # all warm, the files in memory
        found = alternate(options.rounds, runs)
        report.note(f"stoker's tier: {served.tiers()}, a seed for each sample")
        for text in served.notices():
            report.note(text)
    shut_down(theirs)
    for side in (ideal, *peers.values()):
        side.close()
    rows = [[name, *Spread.of(values).show(0)] for name, values in found.items()]
    for name, values in found.items():
        report.figure(name.replace(" ", "_").lower() + "_images_per_s", Spread.of(values).median)
    report.figure("torch_of_ideal", Spread.of(ratios(found["torch"], found["only loading"])).median)
    report.table(["images/s", "median", "lowest - highest"], rows)
    report.at_least("of_ideal", "stoker / only loading", ratios(found["stoker"], found["only loading"]), 0.90)
    report.at_least("gain", "stoker / torch DataLoader", ratios(found["stoker"], found["torch"]), 1.3)
    return report


def _start_peers(options: Options, report: Report, paths: list[str], count: int, batch_size: int) -> dict[str, Any]:
    if not options.peers:
        return {}
    from benchmarks.support import peers

    return peers.start(report, paths, count, batch_size)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
