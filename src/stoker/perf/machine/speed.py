"""How long single operations take on a measured machine: one surface for each curve, over a roofline."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stoker.perf.machine.curves import logs
from stoker.perf.machine.rates import Rates, Sample, Work
from stoker.perf.machine.surface import Surface, fitted

_CLOCK_S = 1e-6
"""Uncertainty of short times."""
ANY = "add"
"""The curve of operations that were not measured: their bytes are charged as an addition's."""


@dataclass(frozen=True)
class Roofline:
    """Approximate least time of an operation: to start, to compute, and to move its bytes.

    The three are summed: it does not matter which is the largest, as surfaces correct for the rest.
    """

    start_s: float
    flops_per_s: float
    bytes_per_s: float

    def seconds(self, work: Work) -> float:
        """Time of one call."""
        return self.start_s + work.flops / self.flops_per_s + work.bytes / self.bytes_per_s

    @staticmethod
    def of(samples: tuple[Sample, ...]) -> Roofline:
        """The quickest start, and the most FLOPs and bytes per second that were measured."""
        return Roofline(
            start_s=min(sample.warm_s for sample in samples),
            flops_per_s=max(sample.work.flops / sample.warm_s for sample in samples),
            bytes_per_s=max(s.work.bytes / s.warm_s for s in samples if s.work.curve == ANY),
        )


@dataclass(frozen=True)
class CallTime:
    """Seconds of one call, and how they were found."""

    warm_s: float
    cold_s: float
    curve: str
    distance: float
    """Distance to the next measurement, in units of the logarithm of sizes."""


class Speed:
    """Times of operations on one machine."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.roofline = Roofline.of(rates.samples)
        by_curve: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in rates.samples:
            by_curve[sample.work.curve].append(sample)
        self._row_s = {curve: self._row_seconds(found) for curve, found in by_curve.items()}
        self.surfaces: Mapping[str, Surface] = {curve: self._fitted(found) for curve, found in by_curve.items()}

    def _row_seconds(self, samples: list[Sample]) -> float:
        """Median time of a row's lookup over a curve's samples."""
        looked_up = [s for s in samples if s.work.rows]
        rest = [max(0.0, s.warm_s - self.roofline.seconds(s.work)) / s.work.rows for s in looked_up]
        return statistics.median(rest) if rest else 0.0

    def _least(self, work: Work) -> float:
        return self.roofline.seconds(work) + self._row_s.get(work.curve, 0.0) * work.rows

    def _fitted(self, samples: list[Sample]) -> Surface:
        points = np.array([logs(sample.work.dims) for sample in samples])
        at_most = np.array([self._least(sample.work) for sample in samples])
        times = np.array([(sample.warm_s, sample.cold_s) for sample in samples])
        return fitted(points, np.log(times / at_most[:, None]), _CLOCK_S / times[:, 0])

    def of(self, work: Work) -> CallTime:
        """One call of an operation; an unmeasured one is charged for its bytes."""
        curve, at = work.curve, logs(work.dims)
        surface = self.surfaces.get(curve)
        if surface is None or surface.points.shape[1] != len(at):
            curve, surface = ANY, self.surfaces[ANY]
            at = logs((max(1.0, work.bytes / 12.0), 3.0))
        where = np.array(at)
        warm, cold = surface.ratios(where) * self._least(work)
        return CallTime(float(warm), float(cold), curve, surface.distance(where))
