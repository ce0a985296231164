"""How long a program waits for its first batch, at the start and at each later epoch, and for one more worker."""

from __future__ import annotations

import pickle
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, number, ratios, run
from benchmarks.support.served import Stoker, shut_down, stoker
from stoker.backends.local import LocalBackend
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.feed.program import Iteration, Tier, WorkItem
from stoker.feed.shell.crew import Crew, Message
from stoker.feed.state import instructions as do
from stoker.feed.transport.messages import MessageKind

BAR = Bar(
    "feed_start",
    "time to the first batch (fork, 2 workers), at later epochs, and to one more worker",
    headline=("first_of_stock", "later_persistent", "later_unchanged", "later_changed_of_stock", "worker_added"),
)
BATCH_SIZE = 32
MILLI = 1000.0


class Pictures(Dataset[torch.Tensor]):
    """Small pictures in memory, normalised: a few tenths of a millisecond a batch."""

    def __init__(self, count: int) -> None:
        self._pixels = np.random.default_rng(0).integers(0, 255, (count, 3, 32, 32), dtype=np.uint8)
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._pixels[index].astype(np.float32) / 255.0) + self.epoch


def first_batch_s(iterate: Any) -> tuple[float, Any]:
    """Seconds from asking for an iterator to its first batch; and the iterator."""
    with no_collections():
        begun = time.perf_counter()
        iterator = iterate()
        next(iterator)
        return time.perf_counter() - begun, iterator


def finish(iterator: Any) -> None:
    """Takes what is left of an epoch."""
    for _ in iterator:
        pass


def measure(options: Options) -> Report:
    """Each kind of start, ours and torch's in alternation."""
    report = Report()
    rounds = options.pick(4 * options.rounds, 2 * options.rounds, 1)
    report.note(f"{rounds} starts each; the time from asking for the iterator to its first batch")
    data = Pictures(options.pick(20, 20, 8) * BATCH_SIZE)
    rows: list[list[str]] = []
    with stoker(workers=2) as served:
        _first(served, data, rounds, report, rows)
        _later(served, data, rounds, report, rows)
        for text in served.notices():
            report.note(text)
    _more_workers(options, report, rows)
    report.table(["milliseconds", "median", "lowest - highest"], rows)
    return report


def _first(served: Stoker, data: Pictures, rounds: int, report: Report, rows: list[list[str]]) -> None:
    def ours() -> float:
        loader = _loader(data)
        seconds, iterator = first_batch_s(lambda: served.iterate(loader))
        finish(iterator)
        return MILLI * seconds

    def theirs() -> float:
        loader = _loader(data)
        seconds, iterator = first_batch_s(lambda: iter(loader))
        finish(iterator)
        return MILLI * seconds

    runs = {"stoker": ours, "torch": theirs}
    alternate(1, runs)  # imports and first-time costs of both
    found = alternate(rounds, runs)
    _add(rows, "first batch", found)
    report.at_most("first_of_stock", "first batch, stoker / torch", ratios(found["stoker"], found["torch"]), 1.1)


def _later(served: Stoker, data: Pictures, rounds: int, report: Report, rows: list[list[str]]) -> None:
    plain, kept = (_loader(data), _loader(data)), (_loader(data, True), _loader(data, True))

    def ours(loader: DataLoader[Any]) -> float:
        seconds, iterator = first_batch_s(lambda: served.iterate(loader))
        finish(iterator)
        return MILLI * seconds

    def theirs(loader: DataLoader[Any]) -> float:
        seconds, iterator = first_batch_s(lambda: iter(loader))
        finish(iterator)
        return MILLI * seconds

    def changed(run_one: Any, loader: DataLoader[Any]) -> float:
        data.epoch += 1
        return run_one(loader)

    alternate(
        1, {"stoker": lambda: ours(plain[0]) + ours(kept[0]), "torch": lambda: theirs(plain[1]) + theirs(kept[1])}
    )
    persistent = alternate(rounds, {"stoker": lambda: ours(kept[0]), "torch": lambda: theirs(kept[1])})
    same = alternate(rounds, {"stoker": lambda: ours(plain[0]), "torch": lambda: theirs(plain[1])})
    other = alternate(rounds, {"stoker": lambda: changed(ours, plain[0]), "torch": lambda: changed(theirs, plain[1])})
    shut_down(kept[1])
    _add(rows, "later epoch, persistent workers", persistent)
    _add(rows, "later epoch, dataset unchanged", same)
    _add(rows, "later epoch, dataset changed", other)
    report.at_most("later_persistent", "later epoch, persistent workers", persistent["stoker"], 5.0, 1, " ms")
    report.at_most("later_unchanged", "later epoch, dataset unchanged", same["stoker"], 5.0, 1, " ms")
    gain = ratios(other["stoker"], other["torch"])
    report.at_most("later_changed_of_stock", "later epoch, dataset changed, stoker / torch", gain, 0.7)


def _more_workers(options: Options, report: Report, rows: list[list[str]]) -> None:
    """A worker added to a running template, with nearly 1 GB of memory in the training process."""
    size = options.pick(900, 900, 10) * 10**6
    ballast = np.ones(size, np.uint8)  # touched, so that forking has its page tables to copy
    data = Pictures(BATCH_SIZE)
    iteration = Iteration(ordinal=0, base_seed=1, tier=Tier.ELASTIC)
    crew = Crew(LocalBackend(), LoaderFeed.program_of(_loader(data)), torch.multiprocessing, iteration)
    try:
        _added_s(crew, 1)  # the template has to be there
        found = [MILLI * _added_s(crew, n + 2) for n in range(options.pick(20, 10, 2))]
    finally:
        crew.close()
    del ballast
    rows.append([f"one more worker, {number(size / 10**6, 0)} MB in the parent", *Spread.of(found).show(1)])
    report.at_most("worker_added", "one more worker, to its first batch", found, 50.0, 1, " ms")


def _added_s(crew: Crew, seq: int) -> float:
    """Seconds from asking for a worker to the first batch that it made."""
    begun = time.perf_counter()
    member = crew.spawn(0)
    assert member is not None
    crew.lease(do.Lease(member.identity.number, seq, seq, -1, -1, WorkItem(indices=[0], start=0)))
    deadline = begun + 30.0
    while time.perf_counter() < deadline:
        for arrival in crew.poll(1.0):
            if isinstance(arrival, Message) and arrival.frame.kind is MessageKind.READY:
                return time.perf_counter() - begun
            if isinstance(arrival, Message) and arrival.frame.kind is MessageKind.FAILED:
                pickle.loads(arrival.frame.body)[0].reraise()
    raise TimeoutError("the added worker made nothing within 30 s")


def _loader(data: Pictures, persistent: bool = False) -> DataLoader[Any]:
    return DataLoader(data, BATCH_SIZE, shuffle=True, num_workers=2, persistent_workers=persistent)


def _add(rows: list[list[str]], label: str, found: dict[str, list[float]]) -> None:
    rows.extend([f"{label}, {name}", *Spread.of(values).show(1)] for name, values in found.items())


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
