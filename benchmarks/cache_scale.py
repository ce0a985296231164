"""A page store with very many pages: how fast it fills, what its index takes, how it restarts, reads amid eviction.

Pages hold eight bytes each, since what is looked at grows with their number and not with their size. Two processes fill
the store at the same time, as data workers do, with several pages in each call.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.caching import MIB, scratch
from benchmarks.support.harness import Bar, Options, Report, Spread, no_collections, number, run
from stoker.cache.names import ObjectName
from stoker.cache.store.layout import Layout, StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version

BAR = Bar(
    "cache_scale",
    "a page store with very many pages: fill, index, lookups, restart after kill -9, reads amid eviction",
    headline=("lookup_p99_us", "index_bytes", "restart_s"),
)
WRITERS = 2
LEVELS = 32
"""Of the fill at which the index is looked at; every fourth is shown."""
TOGETHER = 64
"""Pages that are stored in one call."""
OVERWRITE = 5
PAGE_BYTES = 16 << 10
"""Of the store that is written over and over."""
MICRO = 1e6
_RESTART = "import sys; from benchmarks.cache_scale import restarted; restarted(*sys.argv[1:])"


def measure(options: Options) -> Report:
    """One store that is filled, another one that is written over."""
    report = Report()
    count = options.pick(5_000_000, 1_000_000, 1600)
    with scratch() as folder:
        count = _fill(report, folder / "full", count, options.pick(1200.0, 30.0, 10.0))
        _look_up(options, report, folder / "full", count)
        _restart(options, report, folder / "full", count)
        _evict(options, report, folder / "turning", options.pick(512, 96, 4) * MIB)
    return report


def name_of(place: int) -> ObjectName:
    """Of an object that holds one page."""
    return ObjectName("s3|emulated|", f"bucket/train/{place // 1000:06d}/{place:09d}.jpg")


def content_of(place: int, size: int = 8) -> bytes:
    """Of that page."""
    return place.to_bytes(8, "little") * (size // 8)


def version_of(place: int, size: int = 8) -> Version:
    """Of that object."""
    return Version(Strength.ETAG, f'"{place:032x}"', size)


def settings(limit_bytes: int = 16 << 30, **changes: Any) -> StoreSettings:
    """As the benchmark opens its stores."""
    return StoreSettings(limit_bytes=limit_bytes, keep_free_frac=0.0, **changes)


def put(pages: PageStore, places: Iterable[int], size: int = 8) -> int:
    """Stores pages; how many of them were kept."""
    kept, waiting = 0, iter(places)
    while together := list(itertools.islice(waiting, TOGETHER)):
        new = [(name_of(place), 0, version_of(place, size), content_of(place, size)) for place in together]
        kept += sum(pages.put_many(new, checked_at=1.0))
    return kept


def _fill(report: Report, directory: Path, wanted: int, most_s: float) -> int:
    """Fills from several processes, looks at the index after each level; how many pages it came to in the time."""
    with PageStore(directory, settings()):
        pass
    context = get_context("fork")
    pipes = [context.Pipe() for _ in range(WRITERS)]
    writers = [context.Process(target=_write, args=(directory, n, theirs)) for n, (_, theirs) in enumerate(pipes)]
    for writer in writers:
        writer.start()
    rows: list[list[str]] = []
    rates: list[float] = []
    sizes: list[float] = []
    count, until = 0, time.perf_counter() + most_s
    for level in range(LEVELS):
        if time.perf_counter() > until:
            report.note(f"filling ended after {most_s:.0f} s, before all pages were stored")
            break
        first, last = wanted * level // LEVELS, wanted * (level + 1) // LEVELS
        begun = time.perf_counter()
        for ours, _ in pipes:
            ours.send((first, last))
        kept = sum(ours.recv() for ours, _ in pipes)
        rates.append((last - first) / (time.perf_counter() - begun))
        if kept != last - first:
            raise AssertionError(f"{last - first - kept} pages were not kept")
        taken = Layout(directory).index.stat().st_blocks * 512
        sizes.append(taken / last)
        count = last
        if level % 4 == 3:
            rows.append([f"{last:,}", number(Spread.of(rates[-4:]).median, 0), number(sizes[-1], 1)])
    for ours, _ in pipes:
        ours.send(None)
    for writer in writers:
        writer.join()
    rate = f"stored/s by {WRITERS} processes, {TOGETHER} together"
    report.table(["pages", rate, "index: bytes on disk a page"], rows)
    report.figure("stored_per_s", Spread.of(rates).median)
    report.at_most("index_bytes", "index: bytes a page, the worst fill level", [max(sizes)], 64, 1)
    report.at_least("pages", f"pages stored within {most_s:.0f} s", [count], wanted, 0)
    report.note(f"a node with 50 million pages: an index of {50e6 * sizes[-1] / 1e9:.1f} GB (extrapolated)")
    return count


def _write(directory: Path, writer: int, pipe: Any) -> None:
    with PageStore(directory, settings()) as pages:
        while (span := pipe.recv()) is not None:
            pipe.send(put(pages, range(span[0] + writer, span[1], WRITERS)))


def _look_up(options: Options, report: Report, directory: Path, count: int) -> None:
    rng = random.Random(0)
    tails: list[float] = []
    medians: list[float] = []
    with PageStore(directory, settings()) as pages, no_collections():
        for _ in range(options.rounds):
            keys = [name_of(rng.randrange(count)).key(0) for _ in range(options.pick(200_000, 50_000, 200))]
            took = _timed(lambda key: pages.lookup(key) is not None, keys)
            tails.append(float(np.quantile(took, 0.99)))
            medians.append(float(np.quantile(took, 0.5)))
    report.figure("lookup_p50_us", Spread.of(medians).median)
    report.at_most("lookup_p99_us", "lookup of a page that is there, p99", tails, 50, 1, " µs")


def _timed(action: Callable[[Any], bool], items: Iterable[Any]) -> list[float]:
    """Microseconds of each call; every one must be true."""
    clock, found = time.perf_counter, []
    for item in items:
        begun = clock()
        done = action(item)
        found.append(MICRO * (clock() - begun))
        if not done:
            raise AssertionError("a page that was stored is gone")
    return found


def _restart(options: Options, report: Report, directory: Path, count: int) -> None:
    """Kills a process in the middle of its writes, then times a new one up to its first reads."""
    took: list[float] = []
    context = get_context("fork")
    for turn in range(min(options.rounds, 3)):
        ours, theirs = context.Pipe()
        writer = context.Process(target=_write_on, args=(directory, (turn + 2) * count, theirs))
        writer.start()
        ours.recv()
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        command = [sys.executable, "-c", _RESTART, str(directory), str(count), str(turn)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took.append(float(done.stdout))
    what = f"restart after kill -9 with {count:,} pages: to open it and to read 1000 of them"
    report.at_most("restart_s", what, took, 5, 2, " s")


def _write_on(directory: Path, first: int, pipe: Any) -> None:
    with PageStore(directory, settings()) as pages:
        for place in itertools.count(first):
            put(pages, (place,))
            if place == first + 100:
                pipe.send(None)


def restarted(directory: str, count: str, seed: str) -> None:
    """Opens a store and reads pages of it; prints how long it took (seconds)."""
    begun = time.perf_counter()
    rng = random.Random(int(seed))
    with PageStore(Path(directory), settings()) as pages:
        for place in [rng.randrange(int(count)) for _ in range(1000)]:
            if not is_whole(pages, place, 8):
                raise AssertionError(f"page {place} is gone after the restart")
        print(time.perf_counter() - begun)


def is_whole(pages: PageStore, place: int, size: int) -> bool:
    """Whether a page is there; its bytes must be right then."""
    key = name_of(place).key(0)
    entry = pages.lookup(key)
    buffer = bytearray(size)
    if entry is None or not pages.read_into(key, entry, 0, memoryview(buffer)):
        return False
    if buffer != content_of(place, size):
        raise AssertionError(f"page {place} has wrong bytes")
    return True


def _evict(options: Options, report: Report, directory: Path, limit_bytes: int) -> None:
    """Reads what is there while another process writes several times what fits."""
    total = OVERWRITE * limit_bytes // PAGE_BYTES
    context = get_context("fork")
    ours, theirs = context.Pipe()
    written: Any = RawValue("q", 0)
    writer = context.Process(target=_overwrite, args=(directory, limit_bytes, total, theirs, written))
    writer.start()
    ours.recv()
    rng, clock, fits = random.Random(0), time.perf_counter, limit_bytes // PAGE_BYTES
    took: list[float] = []
    with PageStore(directory, settings(limit_bytes, eviction="lru")) as pages:
        read = functools.partial(is_whole, pages, size=PAGE_BYTES)
        while not ours.poll():
            newest: int = written.value
            for place in [rng.randrange(max(0, newest - fits), newest) for _ in range(32)]:
                begun = clock()
                if read(place):
                    took.append(MICRO * (clock() - begun))
            time.sleep(0.002)  # a reader that computes, too
    rate = ours.recv()
    writer.join()
    taken = sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
    report.figure("evicting_read_p99_us", float(np.quantile(took, 0.99)))
    report.figure("evicting_read_p50_us", float(np.quantile(took, 0.5)))
    report.figure("evicting_stored_per_s", rate)
    report.note(
        f"while {OVERWRITE} x {limit_bytes / MIB:.0f} MiB in pages of 16 KiB went through: {len(took):,} hits, p50 "
        f"{np.quantile(took, 0.5):.0f} µs, p99 {np.quantile(took, 0.99):.0f} µs; {rate:,.0f} pages stored/s"
    )
    report.at_most("disk_of_limit", "bytes on disk afterwards / the limit", [taken / limit_bytes], 1.0)


def _overwrite(directory: Path, limit_bytes: int, total: int, pipe: Any, written: Any) -> None:
    with PageStore(directory, settings(limit_bytes, eviction="lru")) as pages:
        begun = time.perf_counter()
        for place in range(total):
            put(pages, (place,), PAGE_BYTES)
            written.value = place + 1
            if place == 63:
                pipe.send(None)
        pipe.send(total / (time.perf_counter() - begun))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
