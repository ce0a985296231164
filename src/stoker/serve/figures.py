"""Counts and times of one model, kept with a few additions a request; what shows them reads them now and then."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_PER_DECADE = 50
"""Buckets of times: neighbours differ by 5 %."""
_LEAST_S = 1e-5
_BUCKETS = 7 * _PER_DECADE
"""Up to 100 s."""


class LatencyHistogram:
    """A histogram of seconds with logarithmic buckets."""

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (_BUCKETS + 1)
        self.sum_s = 0.0
        self.number = 0

    def add(self, seconds: float) -> None:
        """Counts one."""
        place = int(math.log10(max(seconds, _LEAST_S) / _LEAST_S) * _PER_DECADE)
        self.counts[min(place, _BUCKETS)] += 1
        self.sum_s += seconds
        self.number += 1


def quantile_s(counts: npt.NDArray[np.int64], frac: float) -> float:
    """The time below which this share of a histogram lies, by the upper end of its bucket; NaN of an empty one."""
    total = int(counts.sum())
    if not total:
        return math.nan
    place = int(np.searchsorted(np.cumsum(counts), frac * total))
    return edge_s(min(place, _BUCKETS))


def edge_s(place: int) -> float:
    """The upper end of a bucket."""
    return _LEAST_S * 10 ** ((place + 1) / _PER_DECADE)


@dataclass
class ModelFigures:
    """What happened to one model's requests since the service began."""

    times: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From a request's arrival to its answer, of answered ones."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """Requests: ``answered``, ``refused`` on arrival, ``dropped`` at dispatch, ``malformed``, ``failed``,
    ``cancelled`` by the client."""
    batches: int = 0
    batched_samples: int = 0
    compute_s: float = 0.0
    handover_s: float = 0.0
    """Seconds of batches on the way to their engines and back."""
    retries: int = 0
    """Requests that lost their engine and ran again."""

    def answered(self, seconds: float) -> None:
        """A request has its answer."""
        self.outcomes["answered"] += 1
        self.times.add(seconds)

    def batch(self, samples: int, took_s: float, handover_s: float) -> None:
        """A batch was computed."""
        self.batches += 1
        self.batched_samples += samples
        self.compute_s += took_s
        self.handover_s += handover_s

    def retried(self, requests: int) -> None:
        """Requests lost their engine."""
        self.retries += requests


@dataclass(frozen=True)
class FiguresWindow:
    """What happened between two looks.

    Attributes:
        seconds: between them.
        outcomes: of requests.
        p50_s: of answered ones; NaN without any.
        p99_s: as above.
        batch: mean samples of a batch; NaN without any.
        latencies: upper ends of the buckets of times, and the answers in each that has any.
    """

    seconds: float
    outcomes: Counter[str]
    p50_s: float
    p99_s: float
    batch: float
    retries: int
    latencies: list[tuple[float, int]]


class FigureWindows:
    """Differences of figures from one look to the next."""

    def __init__(self, figures: ModelFigures, now_s: float) -> None:
        self._figures = figures
        self._last = self._taken(now_s)

    def next(self, now_s: float) -> FiguresWindow:
        """What happened since the last call."""
        before, self._last = self._last, self._taken(now_s)
        now = self._last
        counts = now.counts - before.counts
        made = now.batches - before.batches
        return FiguresWindow(
            now_s - before.at_s, now.outcomes - before.outcomes, quantile_s(counts, 0.5), quantile_s(counts, 0.99),
            (now.samples - before.samples) / made if made else math.nan, now.retries - before.retries,
            [(float(f"{edge_s(int(place)):.3g}"), int(counts[place])) for place in np.flatnonzero(counts)],
        )  # fmt: skip

    def _taken(self, now_s: float) -> _Taken:
        seen = self._figures
        counts = np.array(seen.times.counts, np.int64)
        return _Taken(now_s, counts, Counter(seen.outcomes), seen.batches, seen.batched_samples, seen.retries)


class _Taken(NamedTuple):
    at_s: float
    counts: npt.NDArray[np.int64]
    outcomes: Counter[str]
    batches: int
    samples: int
    retries: int
