"""Fits the bandwidths at which the boxes of published steps exchange.

``python -m stoker.perf.study.communication.fitting`` writes the table.

A step on several GPUs takes what it took on one, times 1 + a share that is spent waiting, plus the exchange that the
simulation of buckets leaves exposed. It fits the bandwidth of each box and count, and one waiting share for each
publisher; both by the least absolute error of the logarithm of the step, families of models counting alike.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.perf.catalogue import gpu
from stoker.perf.communication.links import fabric_of
from stoker.perf.study.communication.fitted_fabrics import FILE, Box, Fitted, exposed_s
from stoker.perf.study.communication.scaling import Scaling, peculiarity, scalings
from stoker.perf.study.holdout import quantiles

Place = tuple[Box, int]
_BANDWIDTHS: NDArray[np.float64] = np.geomspace(0.5e9, 600e9, 24)
_FINE: NDArray[np.float64] = np.geomspace(0.5e9, 600e9, 150)
_WAITING = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05)
_SHARE, _POINTS = 0.95, 21
"""Share of the other families' steps that an interval holds, per family: more than the 90 % promised for a new family,
since families differ more from each other than their rows do."""
_FAMILIES = 2
"""Families of models that a box and count must have been measured with, for its bandwidth to be fitted."""


def fit(rows: Iterable[Scaling]) -> Fitted:
    """The fit to rows that show something about links."""
    useful = [each for each in rows if not peculiarity(each.family)]
    waiting: dict[str, float] = {}
    bandwidths: dict[Place, float] = {}
    for source in dict.fromkeys(each.source for each in useful):
        own = [each for each in useful if each.source == source]
        _, waiting[source], found = min((_boxes(own, share) for share in _WAITING), key=lambda tried: tried[0])
        bandwidths |= found
    return Fitted(bandwidths, waiting)


@functools.cache
def without(family: str) -> Fitted:
    """The fit to all published rows except those of a family, for predictions of that family."""
    return fit(each for each in scalings() if each.family != family)


@dataclass(frozen=True, slots=True)
class FabricPrediction:
    """A step on several GPUs, from its time on one and from other families' steps on the same box.

    Attributes:
        seconds, low, high: the ends hold 95 % of the steps of the other families.
    """

    scaling: Scaling
    seconds: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """|predicted / measured - 1|."""
        return abs(self.seconds / self.scaling.step_s - 1)

    @property
    def is_covered(self) -> bool:
        """Whether the measured step lies in the interval."""
        return self.low <= self.scaling.step_s <= self.high


def held_out(rows: Sequence[Scaling]) -> list[FabricPrediction]:
    """Predicts each family of models from the others.

    Intervals come from the errors of the other families, each of which was predicted without itself and has equal
    weight for any number of rows: quantiles as in split-conformal prediction (Vovk et al. 2005), of ``_SHARE``.
    """
    seconds = [without(each.family).step_s(each) for each in rows]
    ratios: dict[str, list[float]] = defaultdict(list)
    for each, predicted in zip(rows, seconds, strict=True):
        if not peculiarity(each.family):
            ratios[each.family].append(math.log(each.step_s / predicted))
    alike = {family: np.quantile(own, np.linspace(0, 1, _POINTS)) for family, own in ratios.items()}
    ends: dict[str, tuple[float, float]] = {}
    for family in dict.fromkeys(each.family for each in rows):
        others = [points for name, points in alike.items() if name != family]
        ends[family] = quantiles(np.concatenate(others), _SHARE)
    return [
        FabricPrediction(each, predicted, predicted * ends[each.family][0], predicted * ends[each.family][1])
        for each, predicted in zip(rows, seconds, strict=True)
    ]


@functools.cache
def _exposed(scaling: Scaling) -> NDArray[np.float64]:
    """Seconds of exposed exchange at each of ``_FINE``."""
    usual = fabric_of(gpu(scaling.gpu), gpus=scaling.gpus)
    coarse = [exposed_s(scaling, replace(usual, bandwidth=float(rate), sweep="")) for rate in _BANDWIDTHS]
    return np.exp(np.interp(np.log(_FINE), np.log(_BANDWIDTHS), np.log(np.maximum(coarse, 1e-9))))


@functools.cache
def _usual(scaling: Scaling) -> float:
    """Seconds of exposed exchange on the fabric of the GPU's specification."""
    return exposed_s(scaling, fabric_of(gpu(scaling.gpu), gpus=scaling.gpus))


def _boxes(rows: Sequence[Scaling], waiting: float) -> tuple[float, float, dict[Place, float]]:
    """Error, waiting share, and the best bandwidth of each place."""
    places: dict[Place, list[Scaling]] = defaultdict(list)
    for each in rows:
        places[each.box, each.gpus].append(each)
    losses: list[float] = []
    found: dict[Place, float] = {}
    for place, own in places.items():
        by_family: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
        is_fitted = len({each.family for each in own}) >= _FAMILIES
        for each in own:
            exposed = _exposed(each) if is_fitted else np.full(len(_FINE), _usual(each))
            by_family[each.family].append(np.abs(np.log((each.alone_s * (1 + waiting) + exposed) / each.step_s)))
        loss = np.mean([np.mean(family, axis=0) for family in by_family.values()], axis=0)
        best = int(np.argmin(loss))
        losses.append(float(loss[best]))
        if is_fitted:
            found[place] = float(_FINE[best])
    return float(np.mean(losses)), waiting, found


def packed(found: Fitted) -> bytes:
    """A fit in the form of the package's table."""
    rows = [(*box, gpus, round(rate, -7)) for (box, gpus), rate in sorted(found.bandwidths.items())]
    return msgspec.json.format(msgspec.json.encode((rows, found.waiting))) + b"\n"


if __name__ == "__main__":
    (Path(__file__).parent / FILE).write_bytes(packed(fit(scalings())))
