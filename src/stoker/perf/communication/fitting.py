"""Fits what the boxes of published steps exchange at: ``python -m stoker.perf.communication.fitting`` writes the table.

A step on several GPUs takes what it took on one, times 1 + a share that is spent waiting, plus the exchange that the
simulation of buckets leaves exposed. Fitted are the bandwidth of each box and count, and one waiting share for each
publisher; both by the least absolute error of the logarithm of the step, families of models counting alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.perf.catalogue import gpu
from stoker.perf.communication.boxes import FILE, Box, Fitted, exposed_s
from stoker.perf.communication.fabric import fabric_of
from stoker.perf.communication.scaling import Scaling, peculiarity, scalings

Place = tuple[Box, int]
_BANDWIDTHS: NDArray[np.float64] = np.geomspace(0.5e9, 600e9, 24)
_FINE: NDArray[np.float64] = np.geomspace(0.5e9, 600e9, 150)
_WAITING = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05)
_FAMILIES = 2
"""Families of models that a box and count must have been measured with, for its bandwidth to be fitted."""


def fit(rows: Iterable[Scaling]) -> Fitted:
    """To rows that say something about links."""
    useful = [(each, _Curve.of(each)) for each in rows if not peculiarity(each.family)]
    return _fit(useful)


def held_out(rows: Sequence[Scaling], group: Callable[[Scaling], Hashable]) -> list[float]:
    """Steps predicted from those of other groups: seconds, in the order of the rows."""
    curves = [(each, _Curve.of(each)) for each in rows]
    fits: dict[Hashable, Fitted] = {}
    for name in dict.fromkeys(map(group, rows)):
        fits[name] = _fit([pair for pair in curves if group(pair[0]) != name and not peculiarity(pair[0].family)])
    return [
        each.alone_s * (1 + found.waiting.get(each.source, 0.0)) + curve.at(found.bandwidths.get((each.box, each.gpus)))
        for each, curve in curves
        for found in (fits[group(each)],)
    ]


@dataclass(frozen=True, slots=True)
class _Curve:
    """Exposed seconds by bandwidth.

    Attributes:
        fine: at each of ``_FINE``.
        usual: on the fabric that the GPU's specification says.
    """

    fine: NDArray[np.float64]
    usual: float

    @staticmethod
    def of(scaling: Scaling) -> _Curve:
        usual = fabric_of(gpu(scaling.gpu), gpus=scaling.gpus)
        coarse = [exposed_s(scaling, replace(usual, bandwidth=float(b), sweep="")) for b in _BANDWIDTHS]
        fine = np.interp(np.log(_FINE), np.log(_BANDWIDTHS), np.log(np.maximum(coarse, 1e-9)))
        return _Curve(np.exp(fine), exposed_s(scaling, usual))

    def at(self, bandwidth: float | None) -> float:
        if bandwidth is None:
            return self.usual
        return float(np.interp(math.log(bandwidth), np.log(_FINE), self.fine))


def _fit(pairs: Sequence[tuple[Scaling, _Curve]]) -> Fitted:
    bandwidths: dict[Place, float] = {}
    waiting: dict[str, float] = {}
    for source in dict.fromkeys(each.source for each, _ in pairs):
        own = [pair for pair in pairs if pair[0].source == source]
        _, share, found = min((_boxes(own, share) for share in _WAITING), key=lambda tried: tried[0])
        waiting[source] = share
        bandwidths |= found
    return Fitted(bandwidths, waiting)


def _boxes(pairs: Sequence[tuple[Scaling, _Curve]], waiting: float) -> tuple[float, float, dict[Place, float]]:
    """Error, waiting share, and the best bandwidth of each place."""
    places: dict[Place, list[tuple[Scaling, _Curve]]] = defaultdict(list)
    for pair in pairs:
        places[pair[0].box, pair[0].gpus].append(pair)
    losses: list[float] = []
    found: dict[Place, float] = {}
    for place, rows in places.items():
        by_family: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
        is_fitted = len({each.family for each, _ in rows}) >= _FAMILIES
        for each, curve in rows:
            exposed = curve.fine if is_fitted else np.full(len(_FINE), curve.usual)
            by_family[each.family].append(np.abs(np.log((each.alone_s * (1 + waiting) + exposed) / each.step_s)))
        loss = np.mean([np.mean(family, axis=0) for family in by_family.values()], axis=0)
        best = int(np.argmin(loss))
        losses.append(float(loss[best]))
        if is_fitted:
            found[place] = float(_FINE[best])
    return float(np.mean(losses)), waiting, found


def packed(found: Fitted) -> bytes:
    """A fit as the package's table has it."""
    rows = [(*box, gpus, round(rate, -7)) for (box, gpus), rate in sorted(found.bandwidths.items())]
    return msgspec.json.format(msgspec.json.encode((rows, found.waiting))) + b"\n"


if __name__ == "__main__":
    (Path(__file__).parent / FILE).write_bytes(packed(fit(scalings())))
