"""How wide an interval is: the errors of predictions of published steps that the calibration had not seen.

``intervals.json`` is part of the package, since leaving out every family of every card takes a minute:
`python -m stoker.perf.prediction.compiling` makes it again, and has to after a change of a term or a table.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Literal

import msgspec

from stoker.perf.catalogue import Gpu, gpu
from stoker.perf.prediction.terms import CARDS, GENERATIONS, older

Distance = Literal["card", "generation", "specification"]
"""What of a GPU has been measured: itself, others of its generation, nothing."""
FILE = "intervals.json"
SHARES = (0.5, 0.8, 0.9, 0.95)


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
    for found in _table()[key(distance, anchored)]:
        if found.share == share:
            return found.below, found.above
    raise ValueError(f"`share` must be one of {', '.join(map(str, SHARES))}, got {share}")


def key(distance: Distance, anchored: bool) -> str:
    """Of the table."""
    return f"{distance}, anchored" if anchored else distance


@functools.cache
def _table() -> Table:
    return msgspec.json.decode((files("stoker.perf.prediction") / FILE).read_bytes(), type=Table)


def hidden(name: str, distance: Distance) -> frozenset[str]:
    """What a calibration must not have seen, to predict a GPU as one at that distance.

    A generation without measurements is a new one: it is predicted from older ones, as far as there are any.
    """
    if distance == "card":
        return frozenset()
    if distance == "generation":
        return frozenset({name})
    generation = gpu(name).generation
    return frozenset({generation}) if not older(generation) else frozenset(GENERATIONS) - older(generation)
