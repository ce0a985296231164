# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Beside fsspec's own file caches, ``simplecache`` and ``filecache``: warm, cold, and whether the bytes are right.

Warm reads are of local objects that all sides have cached. Cold reads are from an emulated store: a server on this
machine with 20 ms before each answer and 100 MB/s for all of them.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import s3fs  # noqa: F401 - imported once here and not in each reader
from xxhash import xxh3_64_digest

from benchmarks.cache_cold import BYTES_PER_S, LATENCY_S, read_columns, write_table
from benchmarks.support.caching import MIB, cached, random_bytes, routed, scratch, seconds, write_objects
from benchmarks.support.emulated import in_children
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, ratios, run
from benchmarks.support.stub_store import StubStore, stub_store
from stoker.cache.policies import Freshness, Rule

BAR = Bar(
    "cache_vs_fsspec",
    "beside simplecache and filecache: warm and cold reads, and right bytes where theirs are not",
    headline=("small", "large", "random_4", "random_64", "columns", "partial", "wrong"),
)
KINDS = ("simplecache", "filecache")
SMALL_BYTES = 4096
HEAD_BYTES = 64 << 10
ASKING = (Rule(freshness=Freshness.ALWAYS),)
MICRO = 1e6


def measure(options: Options) -> Report:
    """Warm, cold, right."""
    report = Report()
    with scratch() as folder, stub_store(folder / "store", latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as store:
        bucket = folder / "store" / "bucket"
        bucket.mkdir(parents=True)
        # First: it forks readers, which must not inherit connections of this process.
        _right(options, report, folder, store, bucket)
        _small(options, report, folder)
        _large(options, report, folder)
        _random(options, report, folder)
        _cold(options, report, folder, store, bucket)
    return report


def theirs(kind: str, directory: Path, protocol: str = "file", options: dict[str, Any] | None = None) -> Any:
    """One of fsspec's caches in a folder of its own."""
    return fsspec.filesystem(
        kind,
        target_protocol=protocol,
        target_options=options,
        cache_storage=str(directory / kind),
        skip_instance_cache=True,
    )


def _small(options: Options, report: Report, folder: Path) -> None:
    paths = write_objects(folder / "small", options.pick(20_000, 8000, 20), SMALL_BYTES)
    few = random.Random(0).sample(paths, min(len(paths), options.pick(20_000, 3000, 20)))
    with cached(folder / "small-cache") as ours:
        sides = {kind: theirs(kind, folder / "small-theirs") for kind in KINDS} | {"stoker": ours}
        runs = {name: functools.partial(_cat_s, side, few) for name, side in sides.items()}
        # All at once: with each file that filecache adds one by one, it writes its whole list of files anew.
        filled = {
            name: [MICRO * seconds(functools.partial(side.cat, paths)) / len(paths)] for name, side in sides.items()
        }
        alternate(1, runs)
        with no_collections():
            found = alternate(options.rounds, runs)
    costs = {name: [MICRO * value / len(few) for value in values] for name, values in found.items()}
    _table(report, f"microseconds an object, {len(paths):,} local objects of 4 KiB, cold by cat", filled)
    _table(report, f"microseconds, cat_file of {len(few):,} of them, warm", costs)
    _claim(report, "small", "small objects, warm", found, 1.2)


def _cat_s(filesystem: Any, paths: list[str]) -> float:
    return seconds(lambda: [filesystem.cat_file(path) for path in paths])


def _large(options: Options, report: Report, folder: Path) -> None:
    size = options.pick(512, 128, 5) * MIB
    (path,) = write_objects(folder / "large", 1, size)
    with cached(folder / "large-cache") as ours, cached(folder / "large-cache", verify="first-touch") as touched:
        sides = {kind: theirs(kind, folder / "large-theirs") for kind in KINDS}
        sides |= {"stoker": ours, "stoker, verified on first touch": touched}
        runs = {name: functools.partial(_read_s, side, path) for name, side in sides.items()}
        runs["bare sum and copy"] = functools.partial(_bare_s, path)
        alternate(1, runs)
        with no_collections():
            found = alternate(options.rounds, runs)
    rates = {name: [size / 1e9 / value for value in values] for name, values in found.items()}
    _table(report, "GB/s, a large object in order by readinto, warm", rates)
    _claim(report, "large", "large object, warm, every read verified", found, 0.9)
    best = [min(values) for values in zip(*(found[kind] for kind in KINDS), strict=True)]
    first_touch = ratios(best, found["stoker, verified on first touch"])
    report.figure("large_first_touch", Spread.of(first_touch).median)
    report.figure("large_bare", Spread.of(ratios(best, found["bare sum and copy"])).median)
    report.figure("large_of_bare", Spread.of(ratios(found["bare sum and copy"], found["stoker"])).median)


def _bare_s(path: str) -> float:
    """What nothing that compares every byte with a checksum in one thread can be faster than."""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
    ):
        buffer = memoryview(bytearray(MIB))

        def read() -> None:
            for at in range(0, len(view), MIB):
                part = view[at : at + MIB]
                xxh3_64_digest(part)
                buffer[: len(part)] = part

        return seconds(read)


def _random(options: Options, report: Report, folder: Path) -> None:
    """Reads anywhere in an open file that is warm: what a read costs beyond copy and checksum."""
    size, count = options.pick(64, 64, 5) * MIB, options.pick(20_000, 5000, 20)
    (path,) = write_objects(folder / "random", 1, size)
    with cached(folder / "random-cache") as ours, cached(folder / "random-cache", verify="first-touch") as touched:
        sides = {"filecache": theirs("filecache", folder / "random-theirs"), "stoker": ours, "first touch": touched}
        files = {name: side.open(path, "rb") for name, side in sides.items()}
        for length in (4 << 10, 64 << 10):
            choose = random.Random(length)
            offsets = [choose.randrange(size - length) for _ in range(count)]
            runs = {name: functools.partial(_at_random_s, file, offsets, length) for name, file in files.items()}
            alternate(2, runs)
            with no_collections():
                found = alternate(options.rounds, runs)
            costs = {name: [MICRO * value / count for value in values] for name, values in found.items()}
            _table(report, f"microseconds, {length >> 10} KiB anywhere in an open file, warm", costs)
            key = f"random_{length >> 10}"
            for name, more, bound in (("stoker", "", 0.4), ("first touch", "_first_touch", 0.7)):
                what = (
                    f"{length >> 10} KiB anywhere, {'every read verified' if not more else 'verified on first touch'}"
                )
                report.at_least(f"{key}{more}", what, ratios(found["filecache"], found[name]), bound)
        for file in files.values():
            file.close()


def _at_random_s(file: Any, offsets: list[int], length: int) -> float:
    def read() -> None:
        for offset in offsets:
            file.seek(offset)
            file.read(length)

    return seconds(read)


def _read_s(filesystem: Any, path: str) -> float:
    buffer = bytearray(MIB)

    def read() -> None:
        with filesystem.open(path, "rb") as file:
            while file.readinto(buffer):
                pass

    return seconds(read)


def _cold(options: Options, report: Report, folder: Path, store: StubStore, bucket: Path) -> None:
    write_table(bucket / "table", options.pick(384, 96, 2) * MIB)
    heads = [f"bucket/heads/{n}" for n in range(options.pick(16, 4, 1))]
    write_objects(bucket / "heads", len(heads), options.pick(32, 16, 2) * MIB)
    for number, path in enumerate(heads):
        (bucket / "heads" / f"{number:06d}").rename(bucket / "heads" / Path(path).name)
    folders = (folder / f"cold-{number}" for number in itertools.count())

    def cold(read: Callable[[Any], object]) -> dict[str, Callable[[], float]]:
        def of_kind(kind: str) -> float:
            side = theirs(kind, next(folders), "s3", store.options)
            side.exists("bucket")  # connected
            return seconds(lambda: read(side))

        def of_ours() -> float:
            with cached(next(folders), "s3", store.options) as side, routed(folder / "aside"):
                side.target.exists("bucket")
                return seconds(lambda: read(side))

        return {kind: functools.partial(of_kind, kind) for kind in KINDS} | {"stoker": of_ours}

    def read_heads(filesystem: Any) -> None:
        for path in heads:
            if len(filesystem.cat_file(path, 0, HEAD_BYTES)) != HEAD_BYTES:
                raise AssertionError("a read was short")

    found = alternate(options.rounds, cold(lambda filesystem: read_columns(filesystem, "bucket/table")))
    _table(report, "milliseconds, 3 of 24 columns by pyarrow, cold", _millis(found))
    _claim(report, "columns", "columns, cold", found, 2.0)
    found = alternate(options.rounds, cold(read_heads))
    _table(report, f"milliseconds, first 64 KiB of {len(heads)} large objects, cold", _millis(found))
    _claim(report, "partial", "parts of objects, cold", found, 2.0)


def _right(options: Options, report: Report, folder: Path, store: StubStore, bucket: Path) -> None:
    """Reads by several processes that fill one cache together, and after the object was replaced."""
    wrong: dict[str, list[int]] = {name: [0, 0] for name in (*KINDS, "stoker")}
    path = "bucket/shared"
    turns, readers = options.pick(5, 2, 1), options.pick(4, 4, 2)
    for turn in range(turns):
        for kind in wrong:
            contents = [random_bytes(options.pick(16, 4, 2) * MIB, 10 * turn + n) for n in range(2)]
            directory = folder / f"right-{turn}"
            _replace(bucket / "shared", contents[0])
            for content, place in zip(contents, (0, 1), strict=True):
                _replace(bucket / "shared", content)
                job = functools.partial(_is_wrong, kind, directory, store.options, path, content)
                wrong[kind][place] += sum(in_children(readers, job))
    rows = [[name, *map(str, found)] for name, found in wrong.items()]
    what = f"wrong or failed of {readers * turns} reads by {readers} processes with one cache"
    report.table([what, "filling it", "after a replacement"], rows)
    report.at_most("wrong", "stoker: wrong or failed reads of those", [sum(wrong["stoker"])], 0, 0)
    report.figure("wrong_simplecache", sum(wrong["simplecache"]))
    report.figure("wrong_filecache", sum(wrong["filecache"]))


def _is_wrong(kind: str, directory: Path, options: dict[str, Any], path: str, content: bytes) -> bool:
    try:
        if kind == "stoker":
            with cached(directory / kind, "s3", options, rules=ASKING) as side:
                return side.cat_file(path) != content
        return theirs(kind, directory, "s3", options).cat_file(path) != content
    except Exception:  # a read that fails is counted like a wrong one
        return True


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.rename(path)


def _millis(found: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [1e3 * value for value in values] for name, values in found.items()}


def _table(report: Report, title: str, found: dict[str, list[float]]) -> None:
    rows = [[name, *Spread.of(values).show(1)] for name, values in found.items()]
    report.table([title, "median", "lowest - highest"], rows)


def _claim(report: Report, key: str, what: str, found: dict[str, list[float]], bound: float) -> None:
    """Beside the better of the two in each round."""
    best = [min(values) for values in zip(*(found[kind] for kind in KINDS), strict=True)]
    report.at_least(key, f"{what}: stoker / the faster of the two", ratios(best, found["stoker"]), bound)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
