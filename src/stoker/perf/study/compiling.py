"""Makes ``calibration.json`` and ``intervals.json``: `python -m stoker.perf.study.compiling`, a minute."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from stoker.perf.calibration.fitting import Array
from stoker.perf.catalogue import gpu
from stoker.perf.prediction import calibrated
from stoker.perf.prediction.intervals import FILE, SHARES, Distance, Interval, Table, key
from stoker.perf.prediction.terms import GENERATIONS, older
from stoker.perf.study.cross_validation import Judge
from stoker.perf.study.holdout import quantiles


def compiled(judge: Judge, distances: tuple[Distance, ...] = ("card", "generation", "specification")) -> Table:
    """The table: each family predicted without itself, and without the card or the generation in question.

    A generation without measurements is one draw among generations, however many rows each has: its interval reaches
    as far as the largest error, either way, of a generation that was predicted from older ones.
    """
    table: Table = {}
    rows, pairs = judge.rows(alone=True), judge.pairs()
    targets = {False: rows, True: [pair.target for pair in pairs]}
    for anchored in (False, True):
        nearer = [Interval(share, 1.0, 1.0) for share in SHARES]
        generations = np.array([gpu(judge.all[row].gpu).generation for row in targets[anchored]])
        for distance in distances:
            ratios = judge.anchored_ratios(pairs, distance) if anchored else judge.ratios(rows, distance)
            later = [name for name in GENERATIONS if older(name) and name in generations]
            groups = [ratios[generations == name] for name in later] if distance == "specification" else [ratios]
            for group in groups:
                nearer = [_wider(each, group) for each in nearer]
            table[key(distance, anchored)] = tuple(nearer)
    return table


def _wider(nearer: Interval, ratios: Array) -> Interval:
    """An interval at least as wide as a nearer GPU's: it would only be narrower by chance."""
    below, above = quantiles(ratios, nearer.share)
    return Interval(nearer.share, min(nearer.below, round(below, 4)), max(nearer.above, round(above, 4)))


if __name__ == "__main__":
    np.seterr(all="raise")
    folder, everything = Path(calibrated.__file__).parent, Judge()
    (folder / calibrated.FILE).write_bytes(calibrated.packed(everything.without()))
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(compiled(everything))) + b"\n")
