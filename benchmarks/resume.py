"""Going on in the middle of an epoch: how small the state is, and how fast the first missing batch is there.

The sampler's own time is that of torch's sampler to its first index: what starting the epoch afresh costs as well.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, ratios, run
from benchmarks.support.served import Stoker, stoker
from stoker.feed.order.sampling import Order

BAR = Bar(
    "resume",
    "state of a loader, and resuming an epoch of 10^7 samples at 90 %",
    headline=("state_bytes", "random_of_sampler", "sequential_ms"),
)
BATCH_SIZE = 10_000
DONE_FRAC = 0.9
MILLI = 1000.0


class Positions(Dataset[torch.Tensor]):
    """Gives back the indices it is asked for, and writes them down: who asked for what, in any process."""

    def __init__(self, count: int, path: Path) -> None:
        self._count = count
        self._path = str(path)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        with open(self._path, "ab", buffering=0) as file:  # one write: appended whole, whoever else writes
            file.write(struct.pack(f"<{len(indices)}q", *indices))
        return torch.tensor(indices)


def as_it_is(batch: torch.Tensor) -> torch.Tensor:
    """Samples come as a batch already."""
    return batch


def measure(options: Options) -> Report:
    """State sizes, then both kinds of order."""
    report = Report()
    count = options.pick(10**7, 10**7, 10**5)
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        data = Positions(count, Path(folder) / "calls")
        _state_sizes(report, data)
        rows: list[list[str]] = []
        _resume(options, report, rows, "random", data, RandomSampler(data), Path(folder))
        _resume(options, report, rows, "sequential", data, SequentialSampler(data), Path(folder))
    report.table([f"milliseconds, {count:,} samples", "median", "lowest - highest"], rows)
    return report


def _state_sizes(report: Report, data: Positions) -> None:
    few = range(1000)
    samplers: dict[str, tuple[Sampler[int], bool]] = {
        "SequentialSampler": (SequentialSampler(data), True),
        "RandomSampler": (RandomSampler(data), True),
        "DistributedSampler": (DistributedSampler(few, num_replicas=8, rank=3), True),  # type: ignore[arg-type]
        "RandomSampler with a generator": (RandomSampler(data, generator=torch.Generator()), False),
        "SubsetRandomSampler": (SubsetRandomSampler(few), False),
        "WeightedRandomSampler": (WeightedRandomSampler([1.0] * 1000, 1000), False),
    }
    rows: list[list[str]] = []
    known = 0
    with stoker(workers=1) as served:
        for name, (sampler, is_known) in samplers.items():
            loader = DataLoader(data, 10, sampler=sampler, num_workers=1, collate_fn=as_it_is)
            iterator = served.iterate(loader)
            next(iterator)
            size = len(msgspec.json.encode(iterator.bookmark.cursor()))
            rows.append([name, f"{size:,}"])
            known = max(known, size) if is_known else known
            del iterator
    report.table(["state after a batch, as JSON", "bytes"], rows)
    what = "state where a seed or a number is all the sampler draws from"
    report.at_most("state_bytes", what, [float(known)], 1024, 0, " bytes")


def _resume(
    options: Options, report: Report, rows: list[list[str]], kind: str, data: Positions, sampler: Sampler[int], at: Path
) -> None:
    loader = DataLoader(data, options.pick(BATCH_SIZE, BATCH_SIZE, 100), sampler=sampler, num_workers=2,
                        collate_fn=as_it_is)  # fmt: skip
    taken = int(DONE_FRAC * len(loader))
    seen = np.zeros(len(data), bool)
    with stoker(workers=2) as served:
        iterator = served.iterate(loader)
        for _ in range(taken):
            seen[next(iterator).numpy()] = True
        state = msgspec.json.encode(iterator.bookmark.cursor())
        expected = next(iterator).clone()
        cursor = msgspec.json.decode(state, type=type(iterator.bookmark.cursor()))
        del iterator
    calls = at / "calls"
    calls.unlink()
    with no_collections():
        found = alternate(
            options.rounds,
            {"order": lambda: _positioned_s(loader, cursor), "sampler": lambda: _first_index_s(sampler)},
        )
    before = calls.stat().st_size if calls.exists() else 0
    rows.append([f"{kind}: torch's sampler, to its first index", *Spread.of(found["sampler"]).show(1)])
    rows.append([f"{kind}: order resumed, to its next index", *Spread.of(found["order"]).show(1)])
    whole, repeated = _first_batches(options, loader, cursor, expected, seen, calls)
    rows.append([f"{kind}: resumed to its next batch, workers started", *Spread.of(whole).show(1)])
    early = before / 8 + repeated
    report.at_most(f"{kind}_needless_calls", f"{kind}: samples asked for that were done", [early], 0, 0)
    if kind == "sequential":
        report.at_most(f"{kind}_ms", f"{kind}: order resumed", found["order"], 10.0, 1, " ms")
    else:
        gain = ratios(found["order"], found["sampler"])
        report.at_most(f"{kind}_of_sampler", f"{kind}: order resumed / the sampler's own time", gain, 1.2)


def _positioned_s(loader: DataLoader[Any], cursor: Any) -> float:
    begun = time.perf_counter()
    sampler: Any = loader.batch_sampler
    order = Order(sampler, iter(sampler), auto_collation=True, cursor=cursor)
    assert order.draw() is not None
    return MILLI * (time.perf_counter() - begun)


def _first_index_s(sampler: Sampler[int]) -> float:
    begun = time.perf_counter()
    next(iter(sampler))
    return MILLI * (time.perf_counter() - begun)


def _first_batches(
    options: Options, loader: DataLoader[Any], cursor: Any, expected: torch.Tensor, seen: Any, calls: Path
) -> tuple[list[float], int]:
    """Times to the next batch, each in a run of its own; and how many samples were made a second time."""
    found: list[float] = []
    repeated = 0
    for _ in range(options.rounds):
        with stoker(workers=2) as served:
            seconds, batch = _next_batch_s(served, loader, cursor)
        if not torch.equal(batch, expected):
            raise AssertionError("the resumed run gave another batch than the uninterrupted one")
        found.append(MILLI * seconds)
        repeated += int(seen[np.fromfile(calls, np.int64)].sum())
        calls.unlink()
    return found, repeated


def _next_batch_s(served: Stoker, loader: DataLoader[Any], cursor: Any) -> tuple[float, torch.Tensor]:
    begun = time.perf_counter()
    iterator: Any = served.serving.iterate(loader, loader._get_iterator, cursor)  # pyright: ignore[reportPrivateUsage]
    batch = next(iterator)
    return time.perf_counter() - begun, batch.clone()


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
