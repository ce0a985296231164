# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
"""What each fast path of the cache is worth: the same reads with it and without it, in turns.

A path that saves less than a tenth, and that no fault needs, is not worth its lines. Workers are processes of this
machine. Two settings are emulated, and called so: a worker that its device limits (each read of its store waits 1 ms),
and one that stalls (SIGSTOP for 150 ms, twice a second).
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from benchmarks.cache_hit_remote import free_port
from benchmarks.support.caching import MIB, cached, scratch, seconds, write_objects
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, ratios, run
from stoker.cache.cluster.client.client import ClientSettings, PeerClient
from stoker.cache.cluster.client.hedging import Hedging
from stoker.cache.cluster.client.lanes import Lanes
from stoker.cache.cluster.membership.ring import HashRing
from stoker.cache.cluster.server.hits import Hits
from stoker.cache.cluster.server.server import Server, ServerSettings
from stoker.cache.cluster.server.worker import WorkerSettings, open_mounts, run_worker
from stoker.cache.names import ObjectName
from stoker.cache.sources.opening import SourceSpec, open_source
from stoker.cache.store.block_sum_cache import Pieces
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.wire.secrets import create_secret

WORTH = 1.1
BAR = Bar(
    "cache_fast_paths",
    "reads of the cache without one of its fast paths, beside the same reads with it",
    headline=("lanes", "hits", "same_host_large", "same_host_small", "pieces", "hot_chunks", "hedging"),
)
SMALL_BYTES = 4096
FILES = SourceSpec("file")
DEVICE_S = 0.001
STALL_S, STALL_EVERY_S = 0.15, 0.5
MICRO = 1e6
T = TypeVar("T")


def without_lanes() -> Any:
    """Every request is made from its parts."""
    return mock.patch.multiple(Lanes, find=_nothing, keep=_nothing)


def without_hits() -> Any:
    """A worker takes every request apart."""
    return mock.patch.multiple(Hits, small=_nothing, place=_nothing)


def without_pieces() -> Any:
    """Small reads are compared with the checksum of their whole block."""
    return mock.patch.multiple(Pieces, read=_nothing, note=_nothing)


def without_hedging() -> Any:
    """A slow request is waited for."""
    return mock.patch.object(Hedging, "take", _nothing)


def _nothing(*_: Any) -> None:
    """In place of a method."""


@contextlib.contextmanager
def limited_by_its_device() -> Iterator[None]:
    """Emulated: each read of a worker's store takes a millisecond, one after the other."""
    kept = PageStore.read_into

    def read_into(self: PageStore, *arguments: Any) -> bool:
        time.sleep(DEVICE_S)
        return kept(self, *arguments)

    with mock.patch.object(PageStore, "read_into", read_into):
        yield


class Cluster:
    """Cache workers in processes that know each other, and clients of them.

    Args:
        folder: for pages and the secret.
        count: of workers.
        patched: holds in their processes.
        unix: whether they listen on a Unix socket as well, which lets their pages be mapped.
        hot_per_s: requests a second from which on a chunk has copies.
    """

    def __init__(
        self, folder: Path, count: int = 1, patched: Callable[[], Any] = contextlib.nullcontext, *,
        unix: bool = False, hot_per_s: float = float("inf"),
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True)
        secret = folder / "secret"
        create_secret(secret)
        nodes = [f"{folder}/{number}.sock" if unix else f"127.0.0.1:{free_port()}" for number in range(count)]
        join = f"static:{','.join(nodes)}"
        self.client = functools.partial(ClientSettings, join=join, secret_file=secret, timeout_s=5.0)
        context = get_context("fork")
        self.processes: dict[str, Any] = {}
        for number, node in enumerate(nodes):
            address = f"unix://{node}" if unix else f"tcp://{node}"
            settings = WorkerSettings(
                server=ServerSettings(node=node, listen=(address,), hot_per_s=hot_per_s),
                join=join, mounts={"files": FILES}, secret_file=secret, drain_s=0.5,
            )  # fmt: skip
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(settings, folder / f"pages-{number}", patched, theirs), daemon=True
            )
            process.start()
            ours.recv()
            self.processes[node] = process

    def close(self) -> None:
        """Ends them."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join()


def _serve(settings: WorkerSettings, directory: Path, patched: Callable[[], Any], pipe: Any) -> None:
    def ready(server: Server) -> None:
        pipe.send(server.addresses)

    store = StoreSettings(limit_bytes=4 << 30, keep_free_frac=0.0)
    with patched(), PageStore(directory, store) as pages:
        run_worker(settings, pages, open_mounts(settings.mounts), ready)


class Fetching:
    """Reads of objects from workers."""

    def __init__(self, settings: ClientSettings, paths: Sequence[str]) -> None:
        self.client = PeerClient(settings)
        source = open_source(FILES)
        self.objects = [(ObjectName(FILES.namespace, path), source.info(path).version) for path in paths]

    def read(self, number: int, place: int, buffer: memoryview) -> None:
        """Fills the buffer from a place of an object."""
        name, version = self.objects[number]
        if self.client.fetch(name, version, [(place, place + len(buffer))], [buffer]) != [True]:
            raise AssertionError("the worker did not send a page")


def measure(options: Options) -> Report:
    """One fast path after the other."""
    report = Report()
    with scratch() as folder, no_collections():
        _requests(options, report, folder / "requests")
        _same_host(options, report, folder / "host")
        _pieces(options, report, folder / "pieces")
        _hot(options, report, folder / "hot")
        _stalls(options, report, folder / "stalls")
    return report


def _requests(options: Options, report: Report, folder: Path) -> None:
    """Small ranges of one object over TCP."""
    (large,) = write_objects(folder / "large", 1, options.pick(64, 32, 2) * MIB)
    count = options.pick(5000, 1500, 20)
    with _clusters(Cluster(folder / "with"), Cluster(folder / "without", patched=without_hits)) as clusters:
        side, slow = (Fetching(cluster.client(), [large]) for cluster in clusters)
        _fill(side)
        _fill(slow)
        read = functools.partial(_median_us, side, count)
        runs = {
            "as it is": read,
            "without lanes": _patched(without_lanes, read),
            "without hits": functools.partial(_median_us, slow, count),
        }
        found = _table(options, report, "microseconds, 4 KiB of one object over TCP, p50", runs, 1)
    _worth(report, "lanes", "4 KiB: without lanes / with", found, "without lanes", "as it is")
    _worth(report, "hits", "4 KiB: without hits / with", found, "without hits", "as it is")


def _same_host(options: Options, report: Report, folder: Path) -> None:
    """Reads of a worker's mapped files, beside its Unix socket."""
    (large,) = write_objects(folder / "large", 1, options.pick(64, 32, 2) * MIB)
    count = options.pick(5000, 1500, 20)
    with _clusters(Cluster(folder / "worker", unix=True)) as (worker,):
        mapped, asked = Fetching(worker.client(), [large]), Fetching(worker.client(mapped=False), [large])
        _fill(mapped)
        runs = {
            "1 MiB, mapped": functools.partial(_median_us, mapped, count // 10, MIB),
            "1 MiB, by socket": functools.partial(_median_us, asked, count // 10, MIB),
            "4 KiB, mapped": functools.partial(_median_us, mapped, count),
            "4 KiB, by socket": functools.partial(_median_us, asked, count),
        }
        found = _table(options, report, "microseconds, a worker of this machine, p50", runs, 1)
    _worth(report, "same_host_large", "1 MiB: by socket / mapped", found, "1 MiB, by socket", "1 MiB, mapped")
    _worth(report, "same_host_small", "4 KiB: by socket / mapped", found, "4 KiB, by socket", "4 KiB, mapped")


def _pieces(options: Options, report: Report, folder: Path) -> None:
    """Small reads of the local cache that come back."""
    size = options.pick(64, 16, 1) * MIB
    (large,) = write_objects(folder / "large", 1, size)
    rng = random.Random(0)
    starts = [rng.randrange(size // SMALL_BYTES) * SMALL_BYTES for _ in range(options.pick(20000, 5000, 50))]
    with cached(folder / "cache") as filesystem:

        def read() -> float:
            per_s = seconds(lambda: [filesystem.cat_file(large, at, at + SMALL_BYTES) for at in starts])
            return MICRO * per_s / len(starts)

        runs = {"pieces": read, "whole blocks": _patched(without_pieces, read)}
        found = _table(options, report, "microseconds, 4 KiB of a large object, local", runs, 1)
    _worth(report, "pieces", "4 KiB: whole blocks / pieces", found, "whole blocks", "pieces")


def _hot(options: Options, report: Report, folder: Path) -> None:
    """Many readers of one chunk that has four workers, each limited by an emulated device."""
    (path,) = write_objects(folder / "object", 1, 2 * MIB)
    clusters = {
        "copies": Cluster(folder / "with", 4, limited_by_its_device, hot_per_s=400.0),
        "one owner": Cluster(folder / "without", 4, limited_by_its_device),
    }
    with _clusters(*clusters.values()):
        sides = {name: Fetching(cluster.client(), [path]) for name, cluster in clusters.items()}
        for side in sides.values():
            _fill(side)
        runs = {name: functools.partial(_rate, side, options.pick(3.0, 2.0, 0.2)) for name, side in sides.items()}
        found = _table(options, report, "reads/s of one chunk, workers limited by an emulated device", runs, 0)
    _worth(report, "hot_chunks", "reads/s of one chunk: copies / one owner", found, "copies", "one owner")


def _stalls(options: Options, report: Report, folder: Path) -> None:
    """Paced reads of an object whose owner stalls again and again, while its replica does not."""
    (path,) = write_objects(folder / "object", 1, 2 * MIB)
    with _clusters(Cluster(folder / "pair", 2)) as (cluster,):
        side = Fetching(cluster.client(), [path])
        name, version = side.objects[0]
        record = side.client.record
        assert record is not None
        for member in record.members:
            side.client.hold(member, name, version, [0, 1])
        owner = HashRing(record).owners(name, 0)[0]
        lasting = options.pick(6.0, 4.0, 0.3)
        read = functools.partial(_stalled_ms, side, cluster.processes[owner].pid, lasting)
        runs = {"hedged": read, "waited for": _patched(without_hedging, read)}
        found = _table(options, report, "milliseconds, 4 KiB while the owner stalls (emulated), p99", runs, 1)
    _worth(report, "hedging", "p99 while the owner stalls: waited for / hedged", found, "waited for", "hedged")


def _table(
    options: Options, report: Report, title: str, runs: Mapping[str, Callable[[], float]], digits: int
) -> dict[str, list[float]]:
    alternate(1, dict(runs))
    found = alternate(options.rounds, dict(runs))
    report.table([title, "median", "lowest - highest"], [[n, *Spread.of(v).show(digits)] for n, v in found.items()])
    return found


def _worth(report: Report, key: str, what: str, found: dict[str, list[float]], slow: str, quick: str) -> None:
    report.at_least(key, what, ratios(found[slow], found[quick]), WORTH)


def _patched(patch: Callable[[], Any], action: Callable[[], T]) -> Callable[[], T]:
    def patched() -> T:
        with patch():
            return action()

    return patched


@contextlib.contextmanager
def _clusters(*clusters: Cluster) -> Iterator[tuple[Cluster, ...]]:
    try:
        yield clusters
    finally:
        for cluster in clusters:
            cluster.close()


def _fill(side: Fetching) -> None:
    """Has the workers store every page."""
    for number, (_, version) in enumerate(side.objects):
        for place in range(0, version.size, MIB):
            side.read(number, place, memoryview(bytearray(min(MIB, version.size - place))))


def _median_us(side: Fetching, count: int, size: int = SMALL_BYTES) -> float:
    rng, buffer, took = random.Random(0), memoryview(bytearray(size)), list[float]()
    places = [
        (number, rng.randrange(side.objects[number][1].size // size) * size)
        for number in (rng.randrange(len(side.objects)) for _ in range(count))
    ]
    for number, place in places:
        begun = time.perf_counter()
        side.read(number, place, buffer)
        took.append(time.perf_counter() - begun)
    return MICRO * float(np.median(took))


def _rate(side: Fetching, lasting_s: float, readers: int = 16) -> float:
    """Reads a second of all readers together, each a thread."""
    ends, counts = time.perf_counter() + lasting_s, list[int]()

    def read(seed: int) -> None:
        rng, buffer, count = random.Random(seed), memoryview(bytearray(SMALL_BYTES)), 0
        while time.perf_counter() < ends:
            side.read(0, rng.randrange(2 * MIB // SMALL_BYTES) * SMALL_BYTES, buffer)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / lasting_s


def _stalled_ms(side: Fetching, pid: int, lasting_s: float) -> float:
    """The p99 of paced reads while a process is stopped now and then."""
    ending, took = threading.Event(), list[float]()

    def stall() -> None:
        while not ending.wait(STALL_EVERY_S - STALL_S):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STALL_S)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stall)
    buffer, rng = memoryview(bytearray(SMALL_BYTES)), random.Random(0)
    for _ in range(64):  # so that it is known what is usual
        side.read(0, 0, buffer)
    thread.start()
    ends = time.perf_counter() + lasting_s
    while time.perf_counter() < ends:
        begun = time.perf_counter()
        side.read(0, rng.randrange(2 * MIB // SMALL_BYTES) * SMALL_BYTES, buffer)
        took.append(time.perf_counter() - begun)
        time.sleep(0.005)
    ending.set()
    thread.join()
    return 1e3 * float(np.quantile(took, 0.99))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
