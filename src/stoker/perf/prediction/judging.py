"""How far predictions from a definition are off: for published steps of families, sources and cards left out.

A configuration is predicted on one GPU by a calibration that has not seen its family, and spread over its GPUs. An
anchored one may use one measurement of the same program on another card. Intervals are nested: those of a family come
from errors in other families, each predicted without either.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.perf.calibration.fitting import Array, Calibration, fit
from stoker.perf.calibration.holdout import Predicted, quantiles
from stoker.perf.catalogue import gpu
from stoker.perf.prediction.anchoring import anchored
from stoker.perf.prediction.published import Configuration, configurations
from stoker.perf.prediction.terms import TERMS

Grouping = Callable[[Configuration], str]


def family(found: Configuration) -> str:
    """Architecture."""
    return found.family


def source(found: Configuration) -> str:
    """Who published it."""
    return found.source


@dataclass(frozen=True, slots=True)
class Pair:
    """One program measured on one GPU of two cards: predicted on the second from the first."""

    anchor: int
    target: int


class Judge:
    """Published steps, and calibrations that have not seen some of them.

    Args:
        found: what is judged and calibrated on.
    """

    def __init__(self, found: Sequence[Configuration] | None = None) -> None:
        self.all = tuple(configurations() if found is None else found)
        self.at_spec: Array = np.array([each.at_spec() for each in self.all])
        self.measured: Array = np.array([each.step_s for each in self.all])
        self.calibrated = functools.cache(self._calibrated)

    def _calibrated(self, without: frozenset[str]) -> Calibration:
        rows = [
            number
            for number, each in enumerate(self.all)
            if each.gpus == 1
            and not each.is_loose
            and not without & {each.family, each.source, each.gpu, gpu(each.gpu).generation}
        ]
        return fit(TERMS, self.at_spec[rows], self.measured[rows])

    def without(self, *left_out: str) -> Calibration:
        """From configurations on one GPU of none of these families, sources, cards and generations."""
        return self.calibrated(frozenset(left_out))

    def predicted(self, calibration: Calibration, rows: Sequence[int]) -> Array:
        """Step times of some configurations."""
        alone = calibration.seconds(self.at_spec[list(rows)])
        return np.array([self.all[row].spread(seconds) for row, seconds in zip(rows, alone.tolist(), strict=True)])

    def rows(self, *, loose: bool = False, alone: bool = False) -> list[int]:
        """Which configurations: also those of loose families; only those on one GPU."""
        return [
            number
            for number, each in enumerate(self.all)
            if (loose or not each.is_loose) and (not alone or each.gpus == 1)
        ]

    def left_out(self, rows: Sequence[int], group: Grouping = family, share: float = 0.9) -> Predicted:
        """Each group predicted by a calibration without it, with nested intervals.

        Args:
            rows: of three groups or more, or of two, whose intervals are then of one another.
        """
        groups = _grouped(rows, lambda row: group(self.all[row]))
        predicted, low, high = (dict[int, float]() for _ in range(3))
        for name, own in groups.items():
            times = self.predicted(self.without(name), own)
            ratios = [
                np.log(self.measured[others] / self.predicted(self.without(name, other), others))
                for other, others in groups.items()
                if other != name and len(groups) > 2
            ]
            below, above = quantiles(np.concatenate(ratios), share) if ratios else (1.0, 1.0)
            for row, seconds in zip(own, times.tolist(), strict=True):
                predicted[row], low[row], high[row] = seconds, seconds * below, seconds * above
        return self._found(rows, [group(self.all[row]) for row in rows], predicted, low, high)

    def pairs(self) -> list[Pair]:
        """All pairs of cards of one program on one GPU: any batch, the same width of numbers."""
        same = _grouped(self.rows(alone=True), lambda row: _program(self.all[row]))
        return [
            Pair(first, second)
            for rows in same.values()
            for first in rows
            for second in rows
            if self.all[first].gpu != self.all[second].gpu
        ]

    def anchored(
        self, pairs: Sequence[Pair], *, unseen: bool = False, nested: bool = False, share: float = 0.9
    ) -> Predicted:
        """The second of each pair, from a calibration without its family and the first.

        Args:
            unseen: leave the second's card out of the calibration as well.
            nested: intervals of each family from pairs of others, predicted without either.
        """
        groups = _grouped(range(len(pairs)), lambda number: self.all[pairs[number].target].family)
        predicted, low, high = (dict[int, float]() for _ in range(3))
        for name, own in groups.items():
            below, above = 1.0, 1.0
            if nested:
                ratios = [
                    self._ratios([pairs[number] for number in numbers], name, unseen)
                    for other, numbers in groups.items()
                    if other != name
                ]
                below, above = quantiles(np.concatenate(ratios), share)
            times = self.measured[[pairs[number].target for number in own]] / np.exp(
                self._ratios([pairs[number] for number in own], name, unseen)
            )
            for number, seconds in zip(own, times.tolist(), strict=True):
                predicted[number], low[number], high[number] = seconds, seconds * below, seconds * above
        names = [self.all[pair.target].family for pair in pairs]
        found = self._found(range(len(pairs)), names, predicted, low, high)
        measured = self.measured[[pair.target for pair in pairs]]
        return Predicted(found.groups, measured, found.predicted, found.low, found.high)

    def _ratios(self, pairs: Sequence[Pair], without: str, unseen: bool) -> Array:
        """log(measured / predicted) of the second of each pair."""
        found = np.empty(len(pairs))
        moved: dict[tuple[int, frozenset[str]], Calibration] = {}
        for number, pair in enumerate(pairs):
            target = self.all[pair.target]
            left_out = frozenset({without, target.family} | ({target.gpu} if unseen else set()))
            key = pair.anchor, left_out
            if key not in moved:
                moved[key] = anchored(
                    self.calibrated(left_out), self.at_spec[pair.anchor], float(self.measured[pair.anchor])
                )
            seconds = float(moved[key].seconds(self.at_spec[pair.target][None])[0])
            found[number] = np.log(self.measured[pair.target] / seconds)
        return found

    def _found(
        self, rows: Iterable[int], groups: Sequence[str], predicted: dict[int, float], low: dict[int, float],
        high: dict[int, float],
    ) -> Predicted:  # fmt: skip
        order = list(rows)
        measured = self.measured[order] if len(order) <= len(self.measured) and max(order) < len(self.measured) else None
        times = [np.array([values[row] for row in order]) for values in (predicted, low, high)]
        return Predicted(tuple(groups), np.zeros(len(order)) if measured is None else measured, *times)


def _program(found: Configuration) -> tuple[object, ...]:
    half = found.workload.precision in ("fp16", "bf16")
    return found.source, found.framework, found.workload.name, half, found.workload.accumulation > 1


def _grouped(rows: Iterable[int], name: Callable[[int], object]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        groups[str(name(row))].append(row)
    return dict(groups)
