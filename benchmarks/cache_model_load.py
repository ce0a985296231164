# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Four processes of one host load the same model: through the cache, and each for itself as one does without it.

The store is emulated: a server on this machine with 20 ms before each answer and 200 MB/s for all of them together.
"""

from __future__ import annotations

import functools
import http.client
import itertools
import json
import mmap
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import s3fs
import safetensors.torch
import torch

from benchmarks.support.caching import MIB, ROOMY_BYTES, scratch
from benchmarks.support.harness import Bar, Options, Report, Spread, ratios, run
from benchmarks.support.stub_store import stub_store
from stoker.cache.models.loading import load_safetensors
from stoker.cache.settings import CacheSettings

BAR = Bar(
    "cache_model_load",
    "safetensors from an emulated store with 20 ms and 200 MB/s, by 4 processes at once",
    headline=("gain", "store_reads"),
)
LATENCY_S = 0.02
BYTES_PER_S = 200e6
PROCESSES = 4
KEY = "bucket/model.safetensors"


def measure(options: Options) -> Report:
    """Naive and cached loads, in turns, each by new processes and the cached ones with an empty cache."""
    report = Report()
    found: dict[str, list[float]] = {
        "each for itself": [],
        "through the cache": [],
        "bare sockets and shared memory": [],
    }
    reads: list[float] = []
    with scratch() as folder, stub_store(folder, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as store:
        (folder / "bucket").mkdir()
        size, total = write_model(folder / KEY, options.pick(1024, 96, 4) * MIB)
        caches = (folder / f"cache-{number}" for number in itertools.count())
        processes = options.pick(PROCESSES, PROCESSES, 2)
        report.note(f"a model of {size / 1e6:.0f} MB; the store is emulated, one process on this machine")

        def naive() -> None:
            found["each for itself"].append(_slowest_s(functools.partial(_naive, store.options), total, processes))

        def cached() -> None:
            store.reset_counts()
            load = functools.partial(_cached, store.options, next(caches))
            found["through the cache"].append(_slowest_s(load, total, processes))
            reads.append(store.sent_bytes / size)

        def bare() -> None:
            load = Bare(store.url, size)
            found["bare sockets and shared memory"].append(_slowest_s(load, total, processes))

        for turn in range(options.rounds):
            for side in (naive, cached, bare)[:: 1 if turn % 2 else -1]:
                side()
    _tell(report, found, reads, size)
    return report


def _tell(report: Report, found: dict[str, list[float]], reads: list[float], size: int) -> None:
    rows = [[name, *Spread.of(values).show(2)] for name, values in found.items()]
    rows.append(["one read of the store, at its bandwidth", f"{size / BYTES_PER_S:.2f}", ""])
    report.table([f"seconds until the slowest of {PROCESSES} has its tensors", "median", "lowest - highest"], rows)
    gain = ratios(found["each for itself"], found["through the cache"])
    report.at_least("gain", "slowest process: each for itself / through the cache", gain, 3.0)
    bare = found["bare sockets and shared memory"]
    report.figure("bare_gain", Spread.of(ratios(found["each for itself"], bare)).median)
    report.figure("of_bare", Spread.of(ratios(bare, found["through the cache"])).median)
    report.at_most("store_reads", "bytes read from the store / bytes of the model", reads, 1.02)


def write_model(path: Path, size: int) -> tuple[int, float]:
    """A file of random tensors; its bytes, and the sum of the tensors' first elements."""
    torch.manual_seed(0)
    count = 16
    tensors = {f"layer.{n}.weight": torch.rand(size // count // 4 // 256, 256) for n in range(count)}
    safetensors.torch.save_file(tensors, path)
    return path.stat().st_size, _sample(tensors)


def _sample(tensors: dict[str, torch.Tensor]) -> float:
    """Something that is wrong when a tensor is; touches every page of memory."""
    return sum(float(tensors[name].view(-1)[::1024].sum()) for name in sorted(tensors))


def _naive(options: dict[str, Any]) -> dict[str, torch.Tensor]:
    store: Any = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    return safetensors.torch.load(store.cat_file(KEY))


def _cached(options: dict[str, Any], directory: Path) -> dict[str, torch.Tensor]:
    settings = CacheSettings(directory=directory, limit_bytes=ROOMY_BYTES)
    return load_safetensors(f"s3://{KEY}", progress=False, settings=settings, options=options)


class Bare:
    """One process reads the model into memory that all share; nothing is checked, kept, or asked for twice.

    What loads a model once for all processes of a host cannot be faster by much, whatever it does.
    """

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size = url, size
        self._memory = mmap.mmap(-1, size)
        self._lock = get_context("fork").Lock()
        self._is_here = mmap.mmap(-1, 1)

    def __call__(self) -> dict[str, torch.Tensor]:
        """The tensors."""
        with self._lock:
            if not self._is_here[0]:
                self._fetch()
                self._is_here[0] = 1
        length = int.from_bytes(self._memory[:8], "little")
        header = json.loads(self._memory[8 : 8 + length])
        view = memoryview(self._memory)[8 + length :]
        return {
            name: torch.frombuffer(view[slice(*entry["data_offsets"])], dtype=torch.float32).view(entry["shape"])
            for name, entry in header.items()
            if name != "__metadata__"
        }

    def _fetch(self) -> None:
        connection = http.client.HTTPConnection(self._url.removeprefix("http://"))
        connection.request("GET", f"/{KEY}")
        answer, view, done = connection.getresponse(), memoryview(self._memory), 0
        while done < self._size:
            done += answer.readinto(view[done:])
        connection.close()


def _slowest_s(load: Callable[[], dict[str, torch.Tensor]], total: float, processes: int) -> float:
    """Time from a common begin until the last process has all tensors and looked at them."""
    context = get_context("fork")
    pipes = [context.Pipe() for _ in range(processes)]
    jobs = [context.Process(target=_load_at, args=(load, theirs), daemon=True) for _, theirs in pipes]
    for job in jobs:
        job.start()
    begin = time.perf_counter() + 0.1  # the clock is that of the machine, the same in all processes
    for ours, _ in pipes:
        ours.send(begin)
    ends = [ours.recv() for ours, _ in pipes]
    for job in jobs:
        job.join()
    if any(found != total for _, found in ends):
        raise AssertionError("a process loaded other tensors than were saved")
    return max(end for end, _ in ends) - begin


def _load_at(load: Callable[[], dict[str, torch.Tensor]], pipe: Any) -> None:
    torch.set_num_threads(1)  # torch's threads are not inherited
    time.sleep(max(0.0, pipe.recv() - time.perf_counter()))
    tensors = load()
    found = _sample(tensors)
    pipe.send((time.perf_counter(), found))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
