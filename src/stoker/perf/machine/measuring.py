# pyright: reportUnknownMemberType=false
"""Times probes on this machine: in turns, so that what slows it for a while slows a little of each.

Only samples during which the system ran nothing else on our cores are believed (unless there are none).
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
"""Shorter calls are timed several at once."""
_VISIT_S = 3e-3
"""Of one probe, before it is the next one's turn."""
_EVICTED_S = 1e-3
"""Longer calls are timed after the caches were emptied; of shorter ones, so many run in turn that they empty them."""


@dataclass
class Times:
    """Samples of one quantity: seconds, and whether they were left alone."""

    alone: list[float] = field(default_factory=list[float])
    disturbed: list[float] = field(default_factory=list[float])

    def add(self, seconds: float, *, alone: bool) -> None:
        """Keeps a sample."""
        (self.alone if alone else self.disturbed).append(seconds)

    @property
    def seconds(self) -> float:
        """The middle of what is believed; of disturbed ones the quickest quarter's end."""
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
    """One probe over all rounds."""

    def __init__(self, probe: Probe, cache_bytes: int) -> None:
        self.probe, self.warm, self.cold = probe, Times(), Times()
        # Twice the cache, and what reads it in order can leave some of it there.
        self._ring = max(1, math.ceil(2.5 * cache_bytes / max(probe.footprint, 1.0)))

    def visit(self, operands: Operands) -> None:
        run = self.probe.make(operands)
        run()
        once = timed(Times(), run)
        count = max(1, int(_SAMPLE_S / max(once, 1e-7)))

        def several() -> None:
            for _ in range(count):
                run()

        end = time.perf_counter() + _VISIT_S
        for n in range(1000):
            timed(self.warm, several, count)
            if n >= 2 and time.perf_counter() > end:
                break
        if self._ring > 64:  # small: what it touches is not worth emptying caches for
            return
        if once > _EVICTED_S:
            for _ in range(2):
                operands.touch_all()
                timed(self.cold, run)
            return
        ring = [self.probe.make(operands) for _ in range(self._ring)]
        kept = [other() for other in ring]

        def around() -> None:
            for n, other in enumerate(ring):
                kept[n] = other()

        around()
        timed(self.cold, around, len(ring))

    def sample(self) -> Sample:
        warm = self.warm.seconds
        cold = max(warm, self.cold.seconds) if self.cold.alone or self.cold.disturbed else warm
        return Sample(work=self.probe.work, warm_s=warm, cold_s=cold)


def measured(
    probes: Sequence[Probe], operands: Operands, cache_bytes: int, until: float, tell: Callable[[float], None]
) -> tuple[list[Sample], float]:
    """All probes, in turns until the time is over, at least once; and the share of samples that were disturbed.

    Args:
        probes: what is measured.
        operands: for them.
        cache_bytes: of the last level of cache.
        until: on the clock of ``time.perf_counter``; the last turn ends about then.
        tell: is given the share that is done.
    """
    visits = [_Visits(probe, cache_bytes) for probe in probes]
    begun = time.perf_counter()
    turns, turn_s = 0, 0.0
    with torch.no_grad():
        while turns < 1 or time.perf_counter() + 0.7 * turn_s < until:
            turn_begun = time.perf_counter()
            # Forwards, then backwards: nothing is always measured after the same.
            for n, visit in enumerate(visits if turns % 2 == 0 else reversed(visits)):
                visit.visit(operands)
                if n % 20 == 0:
                    tell(min(1.0, (time.perf_counter() - begun) / max(until - begun, 1.0)))
            turn_s = time.perf_counter() - turn_begun
            turns += 1
    found = [times for visit in visits for times in (visit.warm, visit.cold)]
    disturbed = sum(len(times.disturbed) for times in found)
    return [visit.sample() for visit in visits], disturbed / sum(len(t.alone) + len(t.disturbed) for t in found)
