"""Makes ``intervals.json``: `python -m stoker.perf.prediction.compiling`, a minute."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from stoker.perf.calibration.fitting import Array
from stoker.perf.calibration.holdout import quantiles
from stoker.perf.prediction.intervals import FILE, SHARES, Distance, Interval, Table, key
from stoker.perf.prediction.judging import Judge


def compiled(judge: Judge, distances: tuple[Distance, ...] = ("card", "generation", "specification")) -> Table:
    """The table: each family predicted without itself, and without the card or the generation in question."""
    table: Table = {}
    rows, pairs = judge.rows(alone=True), judge.pairs()
    for anchored in (False, True):
        nearer = [Interval(share, 1.0, 1.0) for share in SHARES]
        for distance in distances:
            ratios = judge.anchored_ratios(pairs, distance) if anchored else judge.ratios(rows, distance)
            nearer = [_wider(each, ratios) for each in nearer]
            table[key(distance, anchored)] = tuple(nearer)
    return table


def _wider(nearer: Interval, ratios: Array) -> Interval:
    """Who knows less of a GPU is never surer: errors differ by chance."""
    below, above = quantiles(ratios, nearer.share)
    return Interval(nearer.share, min(nearer.below, round(below, 4)), max(nearer.above, round(above, 4)))


if __name__ == "__main__":
    np.seterr(all="raise")
    (Path(__file__).parent / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(compiled(Judge()))) + b"\n")
