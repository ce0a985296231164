"""Measures this machine once: kernels, the host's overhead, cold tensors, and sums over two processes."""

from __future__ import annotations

import datetime
import gc
import platform
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from stoker.perf.machine.allocator import fault_seconds_per_byte, keep_memory
from stoker.perf.machine.exchange import all_reduce_seconds
from stoker.perf.machine.matrix_probes import matrix_probes
from stoker.perf.machine.measuring import measured
from stoker.perf.machine.memory_probes import memory_probes
from stoker.perf.machine.operands import Operands, Probe
from stoker.perf.machine.rates import Rates
from stoker.perf.machine.speed import Speed
from stoker.perf.machine.steps import coldness, host_seconds

_NUMBERS = 32_000_000
"""Numbers in the block of operands: several times the caches."""
_EXCHANGED = (4_000, 36_000, 340_000, 620_000, 1_300_000, 2_400_000, 5_000_000, 13_000_000, 48_000_000)
"""Bytes that are summed over two processes; no powers of two, whose parts map to the same cache lines."""
_CACHE_BYTES = 32 << 20
"""Assumed if the system does not report the size of its caches."""
_REST = {"host": 0.06, "cold": 0.1, "exchange": 0.15}
"""Shares of the time that are reserved for what follows single operations."""


def calibrate(
    tell: Callable[[str, float], None] = lambda _what, _share: None,
    *,
    seconds: float = 52.0,
    exchange: bool = True,
    thin: int = 1,
) -> Rates:
    """The rates of this machine with torch's present number of threads.

    Args:
        tell: called with the current measurement, and the completed fraction.
        seconds: to spend, about.
        thin: measure one in so many operations, for a rough result.
        exchange: whether to start two processes to measure sums over them.
    """
    begun = time.perf_counter()
    cache_bytes = last_cache_bytes()
    probes = _thinned([*matrix_probes(), *memory_probes()], thin)
    operands = Operands(_NUMBERS)
    keep_memory()
    rest = seconds * sum(part for name, part in _REST.items() if exchange or name != "exchange")
    gc.collect()
    gc.disable()
    try:
        fault_s = fault_seconds_per_byte()
        samples, disturbed = measured(
            probes, operands, cache_bytes, begun + seconds - rest, lambda share: tell("operations", share)
        )
        rates = Rates(
            machine=processor(), threads=torch.get_num_threads(), torch=str(torch.__version__),
            measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), took_s=0.0,
            cache_bytes=cache_bytes, samples=tuple(samples), host_s={}, disturbed_share=disturbed,
            fault_s_per_byte=fault_s,
        )  # fmt: skip
        del operands
        speed = Speed(rates)
        tell("steps", 0.0)
        host_s = host_seconds(speed, seconds * _REST["host"])
        tell("steps", 0.4)
        cold = coldness(speed, host_s, cache_bytes, seconds * _REST["cold"])
    finally:
        gc.enable()
    sums: tuple[tuple[float, float], ...] = ()
    if exchange:
        tell("sums over two processes", 0.0)
        sums = tuple(all_reduce_seconds(_EXCHANGED, seconds * _REST["exchange"]).items())
    return msgspec.structs.replace(
        rates, host_s=host_s, coldness=cold, all_reduce=sums, took_s=time.perf_counter() - begun
    )


def _thinned(probes: list[Probe], thin: int) -> list[Probe]:
    """One in ``thin`` probes of each curve, including the first."""
    seen: Counter[str] = Counter()
    kept: list[Probe] = []
    for probe in probes:
        if seen[probe.work.curve] % thin == 0:
            kept.append(probe)
        seen[probe.work.curve] += 1
    return kept


def last_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the last level of cache, as the system reports it."""
    found: list[tuple[int, int]] = []
    for folder in root.glob("index*"):
        try:
            level, size = ((folder / name).read_text().strip() for name in ("level", "size"))
            found.append((int(level), int(size.removesuffix("K")) << 10))
        except (OSError, ValueError):
            continue
    return max(found)[1] if found else _CACHE_BYTES


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as the system reports it."""
    try:
        lines = info.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
