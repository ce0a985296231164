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

from stoker.perf.calibration.fitting import Array, Calibration, fit, with_covariance
from stoker.perf.catalogue import gpu
from stoker.perf.prediction.anchoring import CARRIED, OWN, anchored
from stoker.perf.prediction.intervals import Distance, hidden, stretch
from stoker.perf.prediction.terms import TERMS, without
from stoker.perf.study.holdout import HoldoutPrediction, quantiles
from stoker.perf.study.published import (
    FOUNDRY,
    MPT,
    Configuration,
    configurations,
    decoder_study,
    decoders_on_one_server,
)

Grouping = Callable[[Configuration], str]


def family(found: Configuration) -> str:
    """Architecture."""
    return found.family


def source(found: Configuration) -> str:
    """Who published it."""
    return found.source


@dataclass(frozen=True, slots=True)
class CardPair:
    """One program measured on one GPU each of two cards: predicted on the second from the first."""

    anchor: int
    target: int


class Judge:
    """Published steps, and calibrations without some of them.

    Args:
        found: steps to calibrate on and to judge.
    """

    def __init__(self, found: Sequence[Configuration] | None = None) -> None:
        self.all = tuple(configurations() if found is None else found)
        self.at_spec: Array = np.array([each.at_spec() for each in self.all])
        self.measured: Array = np.array([each.step_s for each in self.all])
        self._decoders = decoders_on_one_server()
        self._of_decoders = decoder_study(self._decoders)
        self.without = functools.cache(self._without)
        self._moved = functools.cache(self._moved_by)
        self._alone_s = functools.cache(self._own_s)

    def _without(self, left_out: frozenset[str] = frozenset()) -> Calibration:
        """Calibration from steps on one GPU and decoders, without these families, sources, cards and generations."""
        rows = [
            row
            for row in self.rows(alone=True)
            if not left_out & {self.all[row].family, self.all[row].source, *_hardware(self.all[row])}
        ]
        start = self.without() if left_out else None
        more = [
            place
            for place, each in enumerate(self._decoders)
            if not left_out & {MPT, FOUNDRY, each.gpu, gpu(each.gpu).generation}
        ]
        at_spec = np.concatenate([self.at_spec[rows], self._of_decoders.at_spec[more]])
        measured = np.concatenate([self.measured[rows], self._of_decoders.measured[more]])
        return without(with_covariance(fit(TERMS, at_spec, measured, start), at_spec), left_out)

    def decoders(self) -> HoldoutPrediction:
        """MPT's steps on one server by a calibration without any of them; the time of their exchange is known."""
        found, models = self._of_decoders, tuple(each.model for each in self._decoders)
        times = self.without(frozenset({MPT})).seconds(found.at_spec)
        return HoldoutPrediction(models, found.measured, times, times, times)

    def _own_s(self, row: int) -> float:
        """Compute time of one GPU in a step that ran on several."""
        return self.all[row].alone(float(self.measured[row]))

    def _moved_by(self, anchor: int, left_out: frozenset[str], carried: float) -> Calibration:
        return anchored(self.without(left_out), self.at_spec[anchor], self._alone_s(anchor), carried)

    def predicted(self, calibration: Calibration, rows: Sequence[int]) -> Array:
        """Step times, of shape (rows, 3): likely, and as short and as long as exchange and waiting may make them."""
        alone = calibration.seconds(self.at_spec[list(rows)])
        return np.array([self.all[row].spread(seconds) for row, seconds in zip(rows, alone.tolist(), strict=True)])

    def rows(self, *, loose: bool = False, alone: bool = False) -> list[int]:
        """Rows of the configurations, also those of loose families, or only those on one GPU."""
        return [
            number
            for number, each in enumerate(self.all)
            if (loose or not each.is_loose) and (not alone or each.gpus == 1)
        ]

    def left_out(self, rows: Sequence[int], group: Grouping = family, share: float = 0.9) -> HoldoutPrediction:
        """Each group predicted by a calibration without it; with nested intervals where there are three or more.

        Intervals are made as in :func:`~stoker.perf.prediction.predictor.predict`: errors of other groups' steps on one
        GPU, times the interval of what further GPUs add.
        """
        names = [group(self.all[row]) for row in rows]
        times, lows, highs = (np.empty(len(rows)) for _ in range(3))
        places = _grouped(names)
        for name, own in places.items():
            targets, calibration = [rows[place] for place in own], self.without(frozenset({name}))
            predicted, wider = self.predicted(calibration, targets), self._stretches(calibration, targets)
            ratios = [
                self._ratios(frozenset({name, other}), self._alone(rows[place] for place in others))
                for other, others in places.items()
                if other != name and len(places) > 2
            ]
            _fill((times, lows, highs), own, predicted, wider, ratios, share)
        return HoldoutPrediction(tuple(names), self.measured[list(rows)], times, lows, highs)

    def _stretches(self, calibration: Calibration, rows: Sequence[int]) -> Array:
        """How much wider the interval of each row is than if every term were known."""
        doubts = calibration.doubts(self.at_spec[list(rows)]).tolist()
        return np.array([stretch(doubt, anchored=False) for doubt in doubts])

    def _alone(self, rows: Iterable[int]) -> list[int]:
        """Steps on one GPU."""
        return [row for row in rows if self.all[row].gpus == 1]

    def _ratios(self, left_out: frozenset[str], rows: Sequence[int]) -> Array:
        """log(measured / predicted) of configurations on one GPU, as if every term were known."""
        calibration = self.without(left_out)
        errors = np.log(self.measured[list(rows)] / calibration.seconds(self.at_spec[list(rows)]))
        return errors / self._stretches(calibration, rows)

    def ratios(self, rows: Sequence[int], distance: Distance = "card") -> Array:
        """log(measured / predicted) on one GPU, each row without its family and as if its GPU were at that distance.

        Divided by :func:`stretch`, which accounts for terms that the rest does not show.
        """
        found = [
            self._ratios(hidden(self.all[row].gpu, distance) | {self.all[row].family}, [row])
            for row in rows
        ]  # fmt: skip
        return np.concatenate(found)

    def pairs(self) -> list[CardPair]:
        """All pairs of cards of one program on one GPU: any batch, the same width of numbers."""
        rows = self.rows(alone=True)
        return [
            CardPair(rows[first], rows[second])
            for places in _grouped([_program(self.all[row]) for row in rows]).values()
            for first in places
            for second in places
            if self.all[rows[first]].gpu != self.all[rows[second]].gpu
        ]

    def pairs_of_several(self) -> list[CardPair]:
        """A program on several GPUs, most of whose step is compute, and on one of the same card."""
        rows = self.rows()
        return [
            CardPair(rows[first], rows[second])
            for places in _grouped([(*_program(self.all[row]), self.all[row].gpu) for row in rows]).values()
            for first in places
            for second in places
            if self.all[rows[first]].gpus > 1 == self.all[rows[second]].gpus
            and self._alone_s(rows[first]) > OWN * self.measured[rows[first]]
        ]

    def anchored(
        self, pairs: Sequence[CardPair], distance: Distance = "card", *, nested: bool = False, share: float = 0.9
    ) -> HoldoutPrediction:
        """The second of each pair, from a calibration without its family and from the first.

        Args:
            pairs: of :meth:`pairs`.
            distance: what of the second's GPU the calibration has seen.
            nested: whether to make intervals: those of each family from pairs of others, predicted without either.
            share: of the measurements that an interval should hold.
        """
        names = [self.all[pair.target].family for pair in pairs]
        measured = self.measured[[pair.target for pair in pairs]]
        times, lows, highs = (np.empty(len(pairs)) for _ in range(3))
        places = _grouped(names)
        for name, own in places.items():
            seconds, wider = self._from_anchors([pairs[place] for place in own], distance).T
            ratios = [
                self.anchored_ratios([pairs[place] for place in others], distance, name)
                for other, others in places.items()
                if nested and other != name
            ]
            _fill((times, lows, highs), own, np.stack([seconds] * 3, axis=1), wider, ratios, share)
        return HoldoutPrediction(tuple(names), measured, times, lows, highs)

    def anchored_ratios(self, pairs: Sequence[CardPair], distance: Distance = "card", *without: str) -> Array:
        """log(measured / predicted) of the second of each pair, divided by :func:`stretch`."""
        seconds, wider = self._from_anchors(pairs, distance, *without).T
        return np.log(self.measured[[pair.target for pair in pairs]] / seconds) / wider

    def _from_anchors(self, pairs: Sequence[CardPair], distance: Distance, *without: str) -> Array:
        """Predicted seconds of the second of each pair, and how much wider its interval is; shape (pairs, 2)."""
        found = np.empty((len(pairs), 2))
        for number, pair in enumerate(pairs):
            target, at_spec = self.all[pair.target], self.at_spec[pair.target][None]
            carried = CARRIED if target.gpu != self.all[pair.anchor].gpu else 1.0
            left_out = hidden(target.gpu, distance) | {target.family, *without}
            moved = self._moved(pair.anchor, left_out, carried)
            doubt = self.without(left_out).doubts(at_spec, beside=self.at_spec[pair.anchor][None])
            found[number] = float(moved.seconds(at_spec)[0]), stretch(float(doubt[0]), anchored=True)
        return found


def _fill(
    columns: tuple[Array, Array, Array],
    own: Sequence[int],
    predicted: Array,
    wider: Array,
    ratios: Sequence[Array],
    share: float,
) -> None:
    likely, low, high = predicted.T
    ends = likely, likely
    if ratios:
        below, above = quantiles(np.concatenate(ratios), share)
        ends = low * below**wider, high * above**wider
    for column, times in zip(columns, (likely, *ends), strict=True):
        column[list(own)] = times


def _hardware(found: Configuration) -> tuple[str, str]:
    return found.gpu, gpu(found.gpu).generation


def _program(found: Configuration) -> tuple[object, ...]:
    half = found.workload.precision in ("fp16", "bf16")
    return found.source, found.framework, found.workload.name, half, found.workload.accumulation > 1


def _grouped(names: Iterable[object]) -> dict[str, list[int]]:
    """Positions of each name."""
    groups: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        groups[str(name)].append(place)
    return dict(groups)
