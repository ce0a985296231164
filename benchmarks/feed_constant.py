"""Memory and descriptors over a long epoch, and a dataset that grows every process that reads it.

Reading a Python object writes its reference count, so a forked worker copies each page of a list of dicts that it
reads; torch's workers grow until the epoch ends. Stoker recycles a worker at its budget.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.support import memory
from benchmarks.support.harness import Bar, Options, Report, Spread, number, run
from benchmarks.support.memory import MIB
from benchmarks.support.served import Stoker, stoker
from stoker.records import events

BAR = Bar(
    "feed_constant",
    "memory and descriptors over a long epoch; a dataset of dicts under a memory budget",
    headline=("worker_private_growth", "records_worker_private", "samples_lost"),
)
POINTS = 9
"""Readings, the first after a tenth of the batches."""
SLACK_BYTES = 3 * MIB
SLACK_FRAC = 0.02
"""Flat: the last third of the readings lies at most this much (the larger) above the first third."""
PERIOD_S = 0.02
"""How often a worker's own memory is looked at from outside."""


class Numbers(Dataset[torch.Tensor]):
    """Small samples from a matrix."""

    def __init__(self, count: int) -> None:
        self._rows = torch.randn(1024, 8)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index % 1024]


class Records(Dataset[int]):
    """A list of dicts, as annotation files are often kept."""

    def __init__(self, count: int) -> None:
        self._records = [{"id": n, "name": f"image-{n:09d}.jpg", "box": (n, n + 1)} for n in range(count)]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> int:
        return self._records[index]["id"]


def measure(options: Options) -> Report:
    """The long epoch, then the dataset of dicts."""
    report = Report()
    _long_epoch(options, report)
    _records(options, report)
    return report


def _long_epoch(options: Options, report: Report) -> None:
    batches = options.pick(100_000, 12_000, 100)
    loader = DataLoader(Numbers(batches * 8), 8, num_workers=2)
    readings: list[dict[str, float]] = []
    with stoker(workers=2) as served:
        for number_, _ in enumerate(served.iterate(loader), 1):
            if number_ % (batches // 10) == 0 and len(readings) < POINTS:
                readings.append(_reading(served, loader))
    report.note(f"{batches:,} batches of 256 bytes; read {len(readings)} times, from the first tenth on")
    rows: list[list[str]] = []
    for name in readings[0]:
        values = [reading[name] for reading in readings]
        spread = Spread.of(values)
        growth = Spread.of(values[-3:]).median - Spread.of(values[:3]).median
        kib = name != "descriptors"
        shown = [number(v / MIB, 1) if kib else number(v, 0) for v in (values[0], values[-1], spread.low, spread.high)]
        rows.append([f"{name}{', MiB' if kib else ''}", shown[0], shown[1], f"{shown[2]} - {shown[3]}"])
        slack = max(SLACK_BYTES, SLACK_FRAC * spread.median) if kib else 0.0
        key = name.replace(" ", "_")
        report.figure(f"{key}_last", values[-1])
        unit, scale = (" MiB", MIB) if kib else ("", 1)
        report.at_most(f"{key}_growth", f"growth of {name}", [growth / scale], slack / scale, 1 if kib else 0, unit)
    report.table([f"over {batches:,} batches", "first", "last", "lowest - highest"], rows)


def _reading(served: Stoker, loader: DataLoader[Any]) -> dict[str, float]:
    crew = served.feed(loader).engine.crew
    mine, pids = os.getpid(), [member.pid for member in crew.active() if member.pid]
    return {
        "training process resident": memory.resident_bytes(mine),
        "training process private": memory.private_bytes(mine),
        "worker resident": max(memory.resident_bytes(pid) for pid in pids),
        "worker private": max(memory.private_bytes(pid) for pid in pids),
        "slots": memory.slot_bytes(mine),
        "descriptors": memory.descriptors(mine) + sum(memory.descriptors(pid) for pid in pids),
    }


def _records(options: Options, report: Report) -> None:
    count = options.pick(1_500_000, 300_000, 3_000)
    budget = options.pick(128, 40, 512) * MIB
    data = Records(count)
    stock, _ = _pass_over(iter(DataLoader(data, 256, shuffle=True, num_workers=2)), _workers_of_torch)
    with stoker(workers=2, worker_memory_bytes=budget) as served:
        loader = DataLoader(data, 256, shuffle=True, num_workers=2)
        ours, seen = _pass_over(served.iterate(loader), lambda _: _workers_of(served, loader))
        recycled = sum("replaced" in e.text for e in served.events if isinstance(e, events.Notice))
        recycled += sum(isinstance(e, events.WorkerLost) for e in served.events)
    report.figure("recycled_workers", recycled)
    rows = [
        ["torch", number(stock[0] / MIB, 0), number(stock[1] / MIB, 0), "-"],
        ["stoker", number(ours[0] / MIB, 0), number(ours[1] / MIB, 0), str(recycled)],
    ]
    report.figure("torch_worker_private_bytes", stock[1])
    head = [f"{count:,} dicts: a worker's private MiB", "at first", "at most", "recycled"]
    report.table(head, rows)
    report.at_most("records_worker_private", "a worker's private memory", [ours[1] / MIB], budget / MIB, 1, " MiB")
    lost = count - len(seen)
    report.at_most("samples_lost", "samples lost or repeated", [float(lost)], 0, 0)


def _pass_over(iterator: Any, workers: Any) -> tuple[tuple[int, int], set[int]]:
    """First and largest private memory of a worker over an epoch, and the samples that came exactly once."""
    first, most, due_s = 0, 0, 0.0
    once: set[int] = set()
    repeated: set[int] = set()
    for batch in iterator:
        for value in batch.tolist():
            (repeated if value in once else once).add(value)
        now = time.monotonic()
        if now >= due_s:
            due_s = now + PERIOD_S
            found = [memory.private_bytes(pid) for pid in workers(iterator)]
            first = first or max(found, default=0)
            most = max(most, *found, 0)
    return (first, most), once - repeated


def _workers_of_torch(iterator: Any) -> list[int]:
    return [process.pid for process in iterator._workers]


def _workers_of(served: Stoker, loader: DataLoader[Any]) -> list[int]:
    engine = served.feed(loader).engine
    return [member.pid for member in engine.crew.members.values() if member.pid and not member.gone]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
