"""What every predictor has to beat: FLOPs over the vendor's rate, and one efficiency for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stoker.perf.calibration.fitting import Array
from stoker.perf.catalogue import gpu
from stoker.perf.prediction.terms import precision_of
from stoker.perf.prediction.work_vector import AMOUNTS, WIDTHS
from stoker.perf.study.cross_validation import CardPair, Grouping, Judge, family
from stoker.perf.study.holdout import HoldoutPrediction
from stoker.perf.study.published import Configuration


class Baseline:
    """The same steps, questions and left-out groups as the study's, with FLOPs alone and a free exchange."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._at_spec = np.array([_seconds(each) for each in judge.all])

    def left_out(self, rows: Sequence[int], group: Grouping = family) -> HoldoutPrediction:
        """Each group predicted with the median efficiency of the others."""
        names = [group(self._judge.all[row]) for row in rows]
        others = {name: [other != name for other in names] for name in set(names)}
        measured, at_spec = self._judge.measured[list(rows)], self._at_spec[list(rows)]
        factors = {name: float(np.median((measured / at_spec)[rest])) for name, rest in others.items()}
        return _predicted(names, measured, at_spec * np.array([factors[name] for name in names]))

    def anchored(self, pairs: Sequence[CardPair]) -> HoldoutPrediction:
        """The second of each pair at the efficiency of the first."""
        first, second = [pair.anchor for pair in pairs], [pair.target for pair in pairs]
        measured, at_spec = self._judge.measured, self._at_spec
        names = [self._judge.all[row].family for row in second]
        return _predicted(names, measured[second], at_spec[second] * measured[first] / at_spec[first])


def _predicted(names: Sequence[str], measured: Array, times: Array) -> HoldoutPrediction:
    return HoldoutPrediction(tuple(names), measured, times, times, times)


def _seconds(found: Configuration) -> float:
    """Time of products at the vendor's rate."""
    card, precision = gpu(found.gpu), found.workload.precision
    amounts = dict(zip(AMOUNTS, found.traced.work, strict=True))
    total = 0.0
    for width in WIDTHS:
        rate = card.rates.get(precision_of(width, card, precision)) or card.rate("fp32")
        total += sum(amounts[f"{kind} {width}"] for kind in ("matmul", "conv", "rnn")) / rate
    return total * found.workload.accumulation
