"""What a cache that is smaller than the data set keeps: shuffled epochs, and the epochs after a switch to another set.

Runs on real page stores, as a reader uses them: what is not there is stored, if the store takes it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support.caching import MIB, random_bytes, scratch
from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.cache.names import ObjectName
from stoker.cache.policies import Policy
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version

BAR = Bar(
    "cache_eviction",
    "hit ratio of shuffled epochs with a cache of 0.25, 0.5 and 0.75 of the data set, and after a switch of data sets",
    headline=("hits_25", "hits_50", "hits_75", "switched"),
)
PAGE_BYTES = 16 << 10
FRACTIONS = (0.25, 0.5, 0.75)
OTHERS: tuple[Policy, ...] = ("lru", "sieve", "s3fifo")
BEFORE = 5
"""Epochs of a data set before the switch: how it is read has to be seen before leaving it can be."""
EPOCHS = 4
"""Of each data set; the first fills the cache."""


class Trainer:
    """Reads data sets through a page store."""

    def __init__(self, folder: Path, limit_bytes: int, policy: Policy) -> None:
        settings = StoreSettings(limit_bytes=limit_bytes, eviction=policy, keep_free_frac=0.0)
        self._pages = PageStore(folder, settings)
        self._data = random_bytes(PAGE_BYTES, 0)
        self._version = Version(Strength.ETAG, '"emulated"', PAGE_BYTES)
        self._random = random.Random(0)

    def epoch(self, names: Sequence[ObjectName]) -> float:
        """Reads every object once in a new order; the part that was in the cache."""
        pages, data, buffer = self._pages, self._data, memoryview(bytearray(PAGE_BYTES))
        hits = 0
        for name in self._random.sample(names, len(names)):
            key = name.key(0)
            entry = pages.lookup(key)
            if entry is not None and pages.read_into(key, entry, 0, buffer):
                hits += 1
            else:
                pages.put(name, 0, self._version, data, checked_at=1.0)
        return hits / len(names)

    def close(self) -> None:
        """Closes the store."""
        self._pages.close()


def data_set(prefix: str, count: int) -> list[ObjectName]:
    """Names of its objects, a page each."""
    return [ObjectName("s3|emulated|", f"{prefix}/{number:06d}.jpg") for number in range(count)]


def measure(options: Options) -> Report:
    """Each size of cache, then each switch, then the other policies."""
    report = Report()
    total_bytes = options.pick(1024, 96, 4) * MIB
    first = data_set("photographs/one", total_bytes // PAGE_BYTES)
    report.note(f"{len(first):,} objects of 16 KiB; every object once an epoch, in another order each time")
    with scratch() as folder:
        rows = [_sized(report, folder / str(n), first, total_bytes, frac) for n, frac in enumerate(FRACTIONS)]
        rows += [_row(other, 0.5, _epochs(folder / other, other, first, total_bytes // 2)) for other in OTHERS]
        report.table(["policy", "cache / data set", *(f"epoch {n + 1}" for n in range(EPOCHS))], rows)
        half = total_bytes // 2
        rows = [
            _switch(report, folder / "near", first, data_set("photographs/two", len(first)), half, "switched"),
            _switch(report, folder / "far", first, data_set("others/two", len(first)), half, "switched_bucket"),
        ]
    report.table(["after a switch, cache of half a data set", *(f"epoch {n + 1}" for n in range(EPOCHS))], rows)
    return report


def _sized(report: Report, folder: Path, names: list[ObjectName], total_bytes: int, frac: float) -> list[str]:
    found = _epochs(folder, "epoch", names, int(frac * total_bytes))
    what = f"hit ratio / (cache / data set), cache of {frac:.2f}"
    report.at_least(f"hits_{100 * frac:.0f}", what, [ratio / frac for ratio in found[1:]], 0.95)
    return _row("epoch (the default)", frac, found)


def _epochs(folder: Path, policy: Policy, names: list[ObjectName], limit_bytes: int) -> list[float]:
    trainer = Trainer(folder, limit_bytes, policy)
    try:
        return [trainer.epoch(names) for _ in range(EPOCHS)]
    finally:
        trainer.close()


def _row(policy: str, frac: float, found: Sequence[float]) -> list[str]:
    return [policy, number(frac), *map(number, found)]


def _switch(
    report: Report, folder: Path, first: list[ObjectName], second: list[ObjectName], limit_bytes: int, key: str
) -> list[str]:
    """The hit ratio of each epoch of the second data set."""
    trainer = Trainer(folder, limit_bytes, "epoch")
    try:
        before = [trainer.epoch(first) for _ in range(BEFORE)]
        found = [trainer.epoch(second) for _ in range(EPOCHS)]
    finally:
        trainer.close()
    where = "in the same bucket" if key == "switched" else "in another bucket"
    report.at_least(key, f"second epoch after a switch {where} / last one before", [found[1] / before[-1]], 0.95)
    return [f"to a data set {where}", *map(number, found)]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
