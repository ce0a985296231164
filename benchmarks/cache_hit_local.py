"""Hits of the local cache: beside copying from a mapped file of the same disk, and beside fsspec's local filesystem.

A read of 1 MiB is ``file.readinto(buffer)`` of an open file, at random places of more bytes than the processor's caches
hold. A read of 4 KiB is ``cat_file`` of a small object, and of a range of a large one, where 64 KiB are verified.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from benchmarks.support.caching import MIB, cached, scratch, seconds, write_objects
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, ratios, run

BAR = Bar(
    "cache_hit_local",
    "hits of 1 MiB beside copies from a mapped file, and of 4 KiB beside LocalFileSystem",
    headline=("always", "first_touch", "small", "range"),
)
SMALL_BYTES = 4096
MICRO = 1e6


def measure(options: Options) -> Report:
    """Large reads, small reads, and both beside a thread that computes."""
    report = Report()
    with scratch() as folder:
        (large,) = write_objects(folder / "large", 1, options.pick(1024, 256, 4) * MIB)
        small = write_objects(folder / "small", options.pick(20_000, 4000, 20), SMALL_BYTES)
        places = [number * MIB for number in range(Path(large).stat().st_size // MIB)]
        random.Random(0).shuffle(places)
        with cached(folder / "cache") as always, cached(folder / "cache", verify="first-touch") as first:
            _large(options, report, large, places, always, first)
            _small(options, report, small, always)
            _ranges(options, report, large, places, always)
    return report


def _large(options: Options, report: Report, path: str, places: list[int], always: Any, first: Any) -> None:
    with mapped(path) as data, always.open(path) as verified, first.open(path) as touched, open(path, "rb", 0) as plain:
        runs: dict[str, Callable[[], float]] = {
            "copied from a mapped file": functools.partial(_copy_s, data, places),
            "read(2)": functools.partial(_read_s, plain, places),
            "cache, every read verified": functools.partial(_read_s, verified, places),
            "cache, verified on first touch": functools.partial(_read_s, touched, places),
        }
        alternate(1, runs)  # fills the cache, then the first touch
        alternate(1, runs)
        with no_collections():
            found = alternate(options.rounds, runs)
            with busy_thread():
                busy = alternate(options.pick(3, 2, 1), runs)
    for title, times in (("GB/s, reads of 1 MiB", found), ("the same beside a thread that computes", busy)):
        rates = {name: [len(places) * MIB / 1e9 / value for value in values] for name, values in times.items()}
        report.table([title, "median", "lowest - highest"], [[n, *Spread.of(v).show(2)] for n, v in rates.items()])
    copied, _, verified_s, touched_s = found.values()
    report.at_least(
        "always", "1 MiB, every read verified / copied from a mapped file", ratios(copied, verified_s), 0.65
    )
    report.at_least("first_touch", "1 MiB, verified on first touch / the same", ratios(copied, touched_s), 0.85)
    copied, read, verified_s, touched_s = busy.values()
    report.figure("busy_always", Spread.of(ratios(copied, verified_s)).median)
    report.figure("busy_always_of_read", Spread.of(ratios(read, verified_s)).median)
    report.figure("busy_first_touch", Spread.of(ratios(copied, touched_s)).median)


def _small(options: Options, report: Report, paths: list[str], cache: Any) -> None:
    local = LocalFileSystem()
    names = paths * options.pick(1, 2, 1)
    runs = {
        "LocalFileSystem": lambda: seconds(lambda: [local.cat_file(path) for path in names]),
        "cache": lambda: seconds(lambda: [cache.cat_file(path) for path in names]),
    }
    _compare(options, report, "small", "objects of 4 KiB", runs, len(names))


def _ranges(options: Options, report: Report, path: str, places: list[int], cache: Any) -> None:
    local = LocalFileSystem()
    starts = places * options.pick(8, 16, 2)
    runs = {
        "LocalFileSystem": lambda: seconds(lambda: [local.cat_file(path, at, at + SMALL_BYTES) for at in starts]),
        "cache": lambda: seconds(lambda: [cache.cat_file(path, at, at + SMALL_BYTES) for at in starts]),
    }
    _compare(options, report, "range", "4 KiB of a large object", runs, len(starts))


def _compare(
    options: Options, report: Report, key: str, what: str, runs: dict[str, Callable[[], float]], count: int
) -> None:
    alternate(1, runs)
    with no_collections():
        found = alternate(options.rounds, runs)
        with busy_thread():
            busy = alternate(1, runs)
    rows = [[name, *Spread.of([MICRO * value / count for value in values]).show(1)] for name, values in found.items()]
    rows += [[f"{name}, beside a thread that computes", *_once(busy[name][0] / count)] for name in runs]
    report.table([f"microseconds, cat_file: {what}", "median", "lowest - highest"], rows)
    local, ours = found.values()
    report.at_most(key, f"cat_file, {what}: cache / LocalFileSystem", ratios(ours, local), 1.5)
    report.figure(f"busy_{key}", busy["cache"][0] / busy["LocalFileSystem"][0])


def _once(value: float) -> tuple[str, str]:
    return Spread.of([MICRO * value]).show(1)[0], ""


def _copy_s(data: memoryview, places: list[int]) -> float:
    buffer = memoryview(bytearray(MIB))

    def copy() -> None:
        for place in places:
            buffer[:] = data[place : place + MIB]

    return seconds(copy)


def _read_s(file: Any, places: list[int]) -> float:
    buffer = memoryview(bytearray(MIB))

    def read() -> None:
        for place in places:
            file.seek(place)
            if file.readinto(buffer) != MIB:
                raise AssertionError("a read was short")

    return seconds(read)


@contextlib.contextmanager
def mapped(path: str) -> Iterator[memoryview]:
    """A file's bytes in place."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data, memoryview(data) as view:
        yield view


@contextlib.contextmanager
def busy_thread() -> Iterator[None]:
    """A thread of this process that computes in Python all the time."""
    ending = threading.Event()

    def compute() -> None:
        total = 0
        while not ending.is_set():
            for number in range(10_000):
                total += number

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
