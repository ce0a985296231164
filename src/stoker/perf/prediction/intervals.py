"""How wide an interval is: the errors of predictions of published steps that the calibration had not seen.

``intervals.json`` is part of the package, since leaving out every family of every card takes a minute:
`python -m stoker.perf.study.compiling` makes it; run it again after a change of a term or a table.
"""

from __future__ import annotations

import functools
import math
from importlib.resources import files
from typing import Literal

import msgspec

from stoker.perf.catalogue import Gpu, gpu
from stoker.perf.prediction.terms import CARDS, GENERATIONS, older

Distance = Literal["card", "generation", "specification"]
"""What has been measured about a GPU: itself, others of its generation, nothing."""
FILE = "intervals.json"
SHARES = (0.5, 0.8, 0.9, 0.95)
_ERROR, _ERROR_ANCHORED = 0.15, 0.05
"""Standard deviation of a prediction's logarithm that remains with known terms: about the error of families left out;
next to a measured step, the differences of repetitions on several hosts. Of 0.05 to 0.2 and 0.05 to 0.15, those with
which every family of 20 rows has 70 % of them inside at the least width."""


class Interval(msgspec.Struct, frozen=True):
    """Factors on a prediction between which a share of measurements lies, if every term is known."""

    share: float
    below: float
    above: float


Table = dict[str, tuple[Interval, ...]]


def distance_of(found: Gpu) -> Distance:
    """How far a GPU is from the measured ones."""
    if found.name in CARDS:
        return "card"
    return "generation" if found.generation in GENERATIONS else "specification"


def stretch(doubt: float, *, anchored: bool) -> float:
    """How much wider, on a logarithmic scale, the interval of a prediction is than of one whose terms are all known.

    Args:
        doubt: of its terms, from :meth:`~stoker.perf.calibration.fitting.Calibration.doubts`.
        anchored: whether it rests on a measured step of the program.
    """
    return math.hypot(1.0, doubt / (_ERROR_ANCHORED if anchored else _ERROR))


def interval(distance: Distance, *, anchored: bool, share: float = 0.9, doubt: float = 0.0) -> tuple[float, float]:
    """Factors on a prediction, the further apart the more its terms are in doubt.

    Raises:
        ValueError: the share is not one of the table's.
    """
    for found in _table()[key(distance, anchored)]:
        if found.share == share:
            wider = stretch(doubt, anchored=anchored)
            return found.below**wider, found.above**wider
    raise ValueError(f"`share` must be one of {', '.join(map(str, SHARES))}, got {share}")


def key(distance: Distance, anchored: bool) -> str:
    """Key in the table."""
    return f"{distance}, anchored" if anchored else distance


@functools.cache
def _table() -> Table:
    return msgspec.json.decode((files("stoker.perf.prediction") / FILE).read_bytes(), type=Table)


def hidden(name: str, distance: Distance) -> frozenset[str]:
    """What a calibration must not have seen, to predict a GPU as if at that distance.

    A generation without measurements is a new one: it is predicted from older ones, if there are any.
    """
    if distance == "card":
        return frozenset()
    if distance == "generation":
        return frozenset({name})
    generation = gpu(name).generation
    return frozenset({generation}) if not older(generation) else frozenset(GENERATIONS) - older(generation)
