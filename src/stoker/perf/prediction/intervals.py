"""How wide an interval is: the errors of predictions of published steps that the calibration had not seen.

``intervals.json`` is part of the package, since leaving out every family of every card takes a minute:
`python -m stoker.perf.prediction.intervals` makes it again, and has to after a change of a term or a table.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from stoker.perf.calibration.holdout import quantiles
from stoker.perf.catalogue import Gpu, gpu
from stoker.perf.prediction.terms import CARDS, GENERATIONS

if TYPE_CHECKING:
    from stoker.perf.calibration.fitting import Array
    from stoker.perf.prediction.judging import Judge

Distance = Literal["card", "generation", "specification"]
"""What of a GPU has been measured: itself, others of its generation, nothing."""
_FILE = "intervals.json"
_SHARES = (0.5, 0.8, 0.9, 0.95)


class Interval(msgspec.Struct, frozen=True):
    """Factors on a prediction between which a share of measurements lies."""

    share: float
    below: float
    above: float


Table = dict[str, tuple[Interval, ...]]


def distance_of(found: Gpu) -> Distance:
    """How far a GPU is from those that were measured."""
    if found.name in CARDS:
        return "card"
    return "generation" if found.generation in GENERATIONS else "specification"


def interval(distance: Distance, *, anchored: bool, share: float = 0.9) -> tuple[float, float]:
    """Factors on a prediction.

    Raises:
        ValueError: the share is not one of the table's.
    """
    for found in _table()[_key(distance, anchored)]:
        if found.share == share:
            return found.below, found.above
    raise ValueError(f"`share` must be one of {', '.join(map(str, _SHARES))}, got {share}")


def _key(distance: Distance, anchored: bool) -> str:
    return f"{distance}, anchored" if anchored else distance


@functools.cache
def _table() -> Table:
    return msgspec.json.decode((files("stoker.perf.prediction") / _FILE).read_bytes(), type=Table)


def compiled(judge: Judge, distances: tuple[Distance, ...] = ("card", "generation", "specification")) -> Table:
    """The table: each family predicted without itself, and without the card or the generation in question."""
    table: Table = {}
    rows, pairs = judge.rows(alone=True), judge.pairs()
    for anchored in (False, True):
        nearer = [Interval(share, 1.0, 1.0) for share in _SHARES]
        for distance in distances:
            ratios = judge.anchored_ratios(pairs, distance) if anchored else judge.ratios(rows, distance)
            nearer = [_wider(each, ratios) for each in nearer]
            table[_key(distance, anchored)] = tuple(nearer)
    return table


def _wider(nearer: Interval, ratios: Array) -> Interval:
    """Who knows less of a GPU is never surer: errors differ by chance."""
    below, above = quantiles(ratios, nearer.share)
    return Interval(nearer.share, min(nearer.below, round(below, 4)), max(nearer.above, round(above, 4)))


def hidden(name: str, distance: Distance) -> frozenset[str]:
    """What a calibration must not have seen, to predict a GPU as one at that distance."""
    generation = {"generation": name, "specification": gpu(name).generation}
    return frozenset({generation[distance]} if distance in generation else ())


if __name__ == "__main__":
    from stoker.perf.prediction.judging import Judge

    np.seterr(all="raise")
    (Path(__file__).parent / _FILE).write_bytes(msgspec.json.format(msgspec.json.encode(compiled(Judge()))) + b"\n")
