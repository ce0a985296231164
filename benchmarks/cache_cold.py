# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""First reads, of what is not cached yet, beside s3fs; and the second epoch behind a slow store.

The store is emulated: a server on this machine with 20 ms before each answer and one bandwidth for all of them. Each
round begins with an empty cache.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from benchmarks.support.caching import MIB, cached, random_bytes, routed, scratch, seconds, write_objects
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, ratios, run
from benchmarks.support.stub_store import StubStore, stub_store

BAR = Bar(
    "cache_cold",
    "cold reads beside s3fs, from an emulated store with 20 ms and 100 MB/s; epoch 2 behind one with 50 MB/s",
    headline=("sequential", "columns", "fetched", "second_epoch"),
)
LATENCY_S = 0.02
BYTES_PER_S = 100e6
SLOW_BYTES_PER_S = 50e6
COLUMNS = 24
CHUNK_ROWS = 1 << 18
"""Of a column in a row group: 2 MiB."""
CHOSEN = ["c1", "c5", "c9"]
OBJECT_BYTES = 256 << 10


class Cold:
    """Filesystems of one store: s3fs itself, and a new and empty cache for each read.

    Attributes:
        store: that they read.
        direct: s3fs.
        aside: directory of the cache for what is not read here; only its routing of pyarrow is used.
    """

    def __init__(self, store: StubStore, folder: Path) -> None:
        import s3fs

        self.store = store
        self.direct: Any = s3fs.S3FileSystem(**store.options, skip_instance_cache=True, use_listings_cache=False)
        self.aside = folder / "aside"
        self._folders = (folder / f"cache-{number}" for number in itertools.count())

    def empty(self) -> Any:
        """A cache with nothing in it, to be used in ``with``."""
        return cached(next(self._folders), "s3", self.store.options)


def measure(options: Options) -> Report:
    """Whole objects, columns, epochs."""
    report = Report()
    report.note("the store is emulated: one process on this machine, 20 ms a request")
    with scratch() as folder, stub_store(folder, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as store:
        bucket = folder / "bucket"
        bucket.mkdir()
        size = options.pick(256, 64, 2) * MIB
        (bucket / "large").write_bytes(random_bytes(size, 0))
        write_table(bucket / "table", options.pick(384, 96, 2) * MIB)
        paths = write_objects(bucket / "train", options.pick(1024, 128, 8), OBJECT_BYTES)
        cold = Cold(store, folder)
        with no_collections():
            _sequential(options, report, cold, size)
            _columns(options, report, cold)
            _epochs(options, report, cold, paths)
    return report


def write_table(path: Path, size: int) -> None:
    """Random numbers in columns, in row groups of :data:`CHUNK_ROWS`."""
    rng = np.random.default_rng(0)
    rows = size // 8 // COLUMNS
    table = pa.table({f"c{number}": rng.random(rows) for number in range(COLUMNS)})
    pq.write_table(table, path, row_group_size=CHUNK_ROWS, compression="none", use_dictionary=False)


def read_all(filesystem: Any, path: str) -> int:
    """Reads a file from its begin to its end, a MiB at a time; its bytes."""
    with filesystem.open(path, "rb") as file:
        return sum(len(part) for part in _parts(file))


def _parts(file: Any) -> Iterator[bytes]:
    while part := file.read(MIB):
        yield part


def read_columns(filesystem: Any, path: str) -> int:
    """Reads some columns of a table; their bytes."""
    return int(pq.read_table(path, columns=CHOSEN, filesystem=filesystem).nbytes)


def _sequential(options: Options, report: Report, cold: Cold, size: int) -> None:
    fetched: list[float] = []

    def ours() -> float:
        cold.store.reset_counts()
        took = _cold_s(cold, lambda filesystem: read_all(filesystem, "bucket/large"))
        fetched.append(cold.store.sent_bytes / size)
        return took

    runs = {"s3fs": lambda: seconds(lambda: read_all(cold.direct, "bucket/large")), "cache, empty": ours}
    found = _alternate(options, report, runs, size, "MB/s, a large object in order")
    report.at_least("sequential", "in order: cache / s3fs", ratios(found["s3fs"], found["cache, empty"]), 0.9)
    report.at_most("fetched", "in order: bytes fetched / asked for", fetched, 1.1)


def _columns(options: Options, report: Report, cold: Cold) -> None:
    asked = read_columns(cold.direct, "bucket/table")
    runs = {
        "s3fs": lambda: seconds(lambda: read_columns(cold.direct, "bucket/table")),
        "cache, empty": lambda: _cold_s(cold, lambda filesystem: read_columns(filesystem, "bucket/table")),
    }
    title = f"MB/s, {len(CHOSEN)} of {COLUMNS} columns by pyarrow"
    found = _alternate(options, report, runs, asked, title)
    report.at_least("columns", "columns: cache / s3fs", ratios(found["s3fs"], found["cache, empty"]), 0.9)


def _alternate(
    options: Options, report: Report, runs: dict[str, Callable[[], float]], size: int, title: str
) -> dict[str, list[float]]:
    alternate(1, runs)
    found = alternate(options.rounds, runs)
    rates = {name: [size / 1e6 / value for value in values] for name, values in found.items()}
    report.table([title, "median", "lowest - highest"], [[n, *Spread.of(v).show(1)] for n, v in rates.items()])
    return found


def _cold_s(cold: Cold, read: Callable[[Any], object]) -> float:
    with cold.empty() as filesystem, routed(cold.aside):
        filesystem.target.exists("bucket")  # connected, as the other side is
        return seconds(lambda: read(filesystem))


def _epochs(options: Options, report: Report, cold: Cold, paths: list[str]) -> None:
    """Two epochs behind the slow store, one with the store itself, not limited and near, and one of local files."""
    keys = [f"bucket/train/{Path(path).name}" for path in paths]
    found: dict[str, list[float]] = {"epoch 1": [], "epoch 2": [], "unlimited": [], "local files": []}
    for _ in range(options.rounds):
        cold.store.set(latency_s=LATENCY_S, bytes_per_s=SLOW_BYTES_PER_S)
        with cold.empty() as filesystem:
            epoch = functools.partial(_epoch_s, filesystem, keys)
            found["epoch 1"].append(epoch())
            found["epoch 2"].append(epoch())
        cold.store.set(latency_s=0.0)
        found["unlimited"].append(_epoch_s(cold.direct, keys))
        found["local files"].append(_epoch_s(LocalFileSystem(), paths))
    rows = [[name, *Spread.of([1e3 * value for value in values]).show(0)] for name, values in found.items()]
    report.table([f"milliseconds, epochs of {len(paths)} objects of 256 KiB", "median", "lowest - highest"], rows)
    report.figure("second_epoch_of_local", Spread.of(ratios(found["local files"], found["epoch 2"])).median)
    gain = ratios(found["unlimited"], found["epoch 2"])
    report.at_least("second_epoch", "epoch 2 behind 50 MB/s / s3fs from a store without limit and latency", gain, 0.9)


def _epoch_s(filesystem: Any, paths: list[str]) -> float:
    """One after another; the bytes are summed up, as little as one can do with them."""
    order = np.random.default_rng(0).permutation(len(paths))

    def read() -> None:
        for place in order:
            data = filesystem.cat_file(paths[place])
            np.frombuffer(data, np.uint8).sum()

    return seconds(read)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
