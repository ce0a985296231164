"""How long collectives within a server take, as measured.

A flat share of a link's bandwidth is 6.5 times too low for large messages on an A100 server and 1.6 times too high for
small ones, so that within a server the measured sweep of sizes is used, count by count: V100 servers are a mesh, whose
times are no function of the count. ``allreduce.csv.gz`` holds published times of NCCL's all-reduce.
"""

from __future__ import annotations

import bisect
import csv
import functools
import gzip
import math
from dataclasses import dataclass
from importlib.resources import files

FILE = "allreduce.csv.gz"


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One measured all-reduce among the GPUs of a server.

    Attributes:
        seconds: of one call, out of place.
        bus_bandwidth: ``2 (n - 1) / n x size_bytes / seconds``, in bytes a second.
    """

    gpu: str
    gpus: int
    size_bytes: int
    seconds: float
    bus_bandwidth: float
    url: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """All-reduces of several sizes among a fixed number of GPUs.

    Attributes:
        sizes_bytes: ascending.
        seconds: of each.
    """

    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, size_bytes: float) -> float:
        """Seconds for a size.

        Between measured ones along a line of logarithms; below the least its latency; above the largest its bandwidth.
        """
        if size_bytes <= 0:
            return 0.0
        if size_bytes >= self.sizes_bytes[-1]:
            return self.seconds[-1] * size_bytes / self.sizes_bytes[-1]
        above = bisect.bisect_right(self.sizes_bytes, size_bytes)
        if above == 0:
            return self.seconds[0]
        (low, high), (fast, slow) = self.sizes_bytes[above - 1 : above + 1], self.seconds[above - 1 : above + 1]
        return fast * (slow / fast) ** (math.log(size_bytes / low) / math.log(high / low))


@functools.cache
def all_reduces() -> tuple[AllReduce, ...]:
    """The sweep of sizes and counts on A100 and V100 servers."""
    packed = (files("stoker.perf.communication") / FILE).read_bytes()
    return tuple(
        AllReduce(
            row["gpu"],
            int(row["gpus"]),
            int(row["size_bytes"]),
            float(row["seconds"]),
            float(row["bus_bandwidth"]),
            row["url"],
        )
        for row in csv.DictReader(gzip.decompress(packed).decode().splitlines())
    )


@functools.cache
def sweep(family: str, gpus: int) -> Sweep:
    """The measured sweep on one server.

    Args:
        family: ``A100`` or ``V100``.
        gpus: that take part, 2 to 8.

    Raises:
        ValueError: there is none.
    """
    rows = sorted((row.size_bytes, row.seconds) for row in all_reduces() if (row.gpu, row.gpus) == (family, gpus))
    if not rows:
        known = ", ".join(f"{name} x{count}" for name, count in sorted({(r.gpu, r.gpus) for r in all_reduces()}))
        raise ValueError(f"`family` and `gpus` must be among the measured ones ({known}), got {family} x{gpus}")
    sizes, seconds = zip(*rows, strict=True)
    return Sweep(sizes, seconds)


@functools.cache
def counts(family: str) -> frozenset[int]:
    """Counts of GPUs for which a family has a sweep."""
    return frozenset(row.gpus for row in all_reduces() if row.gpu == family)


def all_reduce(family: str, gpus: int, size_bytes: float) -> float:
    """Seconds of an all-reduce within a server; 0 for one GPU."""
    return sweep(family, gpus)(size_bytes) if gpus > 1 else 0.0
