"""Times probes on this machine in rotation, so that a temporary slowdown affects a little of each.

Only samples during which the system ran nothing else on the cores count (unless there are none).
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from stoker.perf.machine.operands import Operands, Probe
from stoker.perf.machine.rates import Sample

_SAMPLE_S = 150e-6
"""Shorter calls are timed in groups."""
_VISIT_S = 3e-3
"""Time of one probe per rotation."""
_EVICTED_S = 1e-3
"""Longer calls are timed after flushing the caches; shorter ones rotate over enough operands to flush them."""
_WARM, _COLD, _RING = 0.25, 2.5, 64
"""Operands that warm and cold calls rotate over: as shares of the last cache, and the largest number of sets."""
_LEAST = 3
"""Fewest sizes of a curve to measure, even if the time is over."""
_SLOW_MEMORY, _MATTERS = 10e9, 0.05
"""Bytes per second at least, and the share of an operation's time that reading its tensors must be able to take."""


@dataclass
class Times:
    """Samples of one quantity: seconds, and whether they were undisturbed."""

    alone: list[float] = field(default_factory=list[float])
    disturbed: list[float] = field(default_factory=list[float])

    def add(self, seconds: float, *, alone: bool) -> None:
        """Adds a sample."""
        (self.alone if alone else self.disturbed).append(seconds)

    @property
    def seconds(self) -> float:
        """Median of the undisturbed samples; with fewer than 3, the lower quartile of all."""
        if len(self.alone) >= 3 or not self.disturbed:
            return statistics.median(self.alone)
        found = sorted(self.alone + self.disturbed)
        return found[len(found) // 4]


def timed(times: Times, calls: Callable[[], object], count: int = 1) -> float:
    """Runs ``calls``, which makes ``count`` calls, and keeps the seconds of one."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    begun = time.perf_counter()
    calls()
    took = time.perf_counter() - begun
    times.add(took / count, alone=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == before)
    return took


class _Visits:
    """One probe over all rounds.

    Warm calls take turns over a few sets of operands that fit into the last cache together: between two operations of a
    step many others run, so that nothing is found where a core would keep it. Cold ones take turns over more than it
    holds.
    """

    def __init__(self, probe: Probe, cache_bytes: int) -> None:
        self.probe, self.warm, self.cold = probe, Times(), Times()
        self._few = max(1, min(_RING, int(_WARM * cache_bytes / max(probe.footprint, 1.0))))
        self._evicting = _COLD * cache_bytes
        self._many = math.ceil(self._evicting / max(probe.footprint, 1.0))

    def visit(self, operands: Operands) -> None:
        run = self.probe.make(operands)
        run()
        once = timed(Times(), run)
        few = max(1, min(self._few, int(_VISIT_S / once)))
        ring = [run, *(self.probe.make(operands) for _ in range(few - 1))]
        count = max(1, int(_SAMPLE_S / max(once * few, 1e-7)))
        around, calls = _turns(ring, count)
        end = time.perf_counter() + _VISIT_S
        for n in range(1000):
            timed(self.warm, around, calls)
            if n >= 2 and time.perf_counter() > end:
                break
        # Small, or long for what it touches: it hardly matters whether that is in a cache.
        if self._many > _RING or self.probe.footprint < _MATTERS * once * _SLOW_MEMORY:
            return
        if once > _EVICTED_S:
            for _ in range(2):
                operands.touch(self._evicting)
                timed(self.cold, run)
            return
        around, calls = _turns([self.probe.make(operands) for _ in range(self._many)], 1)
        timed(self.cold, around, calls)

    def sample(self) -> Sample:
        warm = self.warm.seconds
        cold = max(warm, self.cold.seconds) if self.cold.alone or self.cold.disturbed else warm
        return Sample(work=self.probe.work, warm_s=warm, cold_s=cold)


def _turns(ring: Sequence[Callable[[], object]], times: int) -> tuple[Callable[[], None], int]:
    """A function that makes all calls of the ring, keeping each result until its next turn; and its number of calls."""
    kept = [run() for run in ring]

    def around() -> None:
        for _ in range(times):
            for n, run in enumerate(ring):
                kept[n] = run()

    return around, times * len(ring)


def measured(
    probes: Sequence[Probe], operands: Operands, cache_bytes: int, until: float, tell: Callable[[float], None]
) -> tuple[list[Sample], float]:
    """Times all probes in rotation until the time is over; also returns the share of disturbed samples.

    If the time is over within the first rotation, fewer sizes are measured, at least a few of each curve.

    Args:
        probes: to measure.
        operands: for them.
        cache_bytes: of the last level of cache.
        until: on the clock of ``time.perf_counter``; the last rotation ends about then.
        tell: called with the completed fraction.
    """
    covering, least = covering_order([probe.work.curve for probe in probes])
    visits = [_Visits(probes[place], cache_bytes) for place in covering]
    begun = time.perf_counter()
    turns, turn_s = 0, 0.0
    with torch.no_grad():
        while turns < 1 or time.perf_counter() + 0.9 * turn_s < until:
            turn_begun = time.perf_counter()
            # Forwards, then backwards: no probe always follows the same one.
            for n, visit in enumerate(visits if turns % 2 == 0 else reversed(visits)):
                if (turns or n >= least) and time.perf_counter() > until:
                    break
                visit.visit(operands)
                if n % 20 == 0:
                    tell(min(1.0, (time.perf_counter() - begun) / max(until - begun, 1.0)))
            turn_s = time.perf_counter() - turn_begun
            turns += 1
    visits = [visit for visit in visits if visit.warm.alone or visit.warm.disturbed]
    found = [times for visit in visits for times in (visit.warm, visit.cold)]
    disturbed = sum(len(times.disturbed) for times in found)
    return [visit.sample() for visit in visits], disturbed / sum(len(t.alone) + len(t.disturbed) for t in found)


def covering_order(curves: Sequence[str]) -> tuple[list[int], int]:
    """Places of all probes, ordered so that any prefix covers each curve evenly; and how many must be measured.

    Curves take turns; the sizes of each come in van der Corput's order: the first, the middle, the quarters.

    Args:
        curves: of each probe; probes of one curve are in order of size.
    """
    members: dict[str, list[int]] = {}
    for place, curve in enumerate(curves):
        members.setdefault(curve, []).append(place)
    ranked = [
        (rank, place)
        for places in members.values()
        for rank, (_, place) in enumerate(sorted((_reversed_bits(n), place) for n, place in enumerate(places)))
    ]
    return [place for _, place in sorted(ranked)], sum(rank < _LEAST for rank, _ in ranked)


def _reversed_bits(number: int) -> float:
    """The binary digits of a number, mirrored at the point: in [0, 1)."""
    digits = f"{number:b}"[::-1]
    return int(digits, 2) / 2 ** len(digits)


def use_threads(count: int) -> None:
    """Sets the number of threads of torch's operations."""
    torch.set_num_threads(count)
