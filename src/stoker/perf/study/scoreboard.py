"""How far predictions are from published measurements: all figures are for rows that the calibration has not seen.

The terms of a model of the step were chosen by people who knew the whole table; only its coefficients are held out.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stoker.perf.calibration.fitting import Array, Term
from stoker.perf.study.baseline import Baseline
from stoker.perf.study.cross_validation import Judge, source
from stoker.perf.study.holdout import HoldoutPrediction, Mask, Study
from stoker.perf.study.published import LOOSE
from stoker.perf.study.tables.rows import Published, published
from stoker.perf.study.workloads import gpt, mpt
from stoker.perf.study.workloads.definitions import workload_of
from stoker.perf.study.workloads.workload import Excluded

SMALL = ("MPT-125m", "MPT-350m", "MPT-760m", "MPT-1b")
CONSTANT = (Term("all computation", 2.0, 1.0, "one efficiency for whatever is computed"),)


@dataclass(frozen=True, slots=True)
class Score:
    """One test of the predictor.

    Attributes:
        name: what was left out of the calibration.
        rows: predicted.
        median, mean: of |predicted / measured - 1|.
        groups: median error of each group.
        covered: share of rows inside their 90 % interval; None without intervals.
        width: median of the interval's upper end / lower end; None likewise.
        constant: median error of a baseline with FLOPs and a single efficiency, in the same test.
    """

    name: str
    rows: int
    median: float
    mean: float
    groups: dict[str, float]
    covered: float | None
    width: float | None
    constant: float

    @property
    def by_group(self) -> float:
        """Mean of the groups' median errors: each counts the same for any number of rows."""
        return float(np.mean(list(self.groups.values())))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Difference between two models of parallel training; not an accuracy, since neither was measured.

    Attributes:
        name: what was left out of the calibration.
        median: of |ours / theirs - 1|.
    """

    name: str
    rows: int
    median: float
    groups: dict[str, float]


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """All scores, and the rows that no predictor here covers."""

    scores: tuple[Score, ...]
    agreements: tuple[Agreement, ...]
    predicted: int
    left_out: dict[str, int]
    """Rows by the reason for which they are not predicted."""
    cards: dict[str, float]
    """Median error by card, each family left out, on any number of GPUs."""
    counts: dict[str, float]
    """The same by number of GPUs."""


@functools.cache
def scoreboard() -> Scoreboard:
    """Calibrates and predicts all that is possible; takes half a minute, needs nothing but the package."""
    judge = Judge()
    scores = (*definition_scores(judge), *anchored_scores(judge), *mpt_scores())
    every = judge.rows()
    errors = judge.left_out(every).errors
    return Scoreboard(
        scores,
        agreements(),
        len(mpt.study()[1]) + _predicted(judge),
        left_out(published()),
        cards=_medians([judge.all[row].gpu for row in every], errors),
        counts=_medians([f"{judge.all[row].gpus:>3}" for row in every], errors),
    )


def _medians(names: Sequence[str], errors: Array) -> dict[str, float]:
    found = np.array(names)
    return {name.strip(): float(np.median(errors[found == name])) for name in sorted(set(names))}


def definition_scores(judge: Judge) -> tuple[Score, ...]:
    """Published steps predicted from what they ran: one family, then one source, left out of the calibration."""
    alone, every = judge.rows(alone=True), judge.rows()
    flops = Baseline(judge)
    return (
        _score("one family left out, on one GPU", judge.left_out(alone), flops.left_out(alone)),
        _score("one family left out, on any number", judge.left_out(every), flops.left_out(every)),
        _score("one source left out, on one GPU", judge.left_out(alone, source), flops.left_out(alone, source)),
        _score("one source left out, on any number", judge.left_out(every, source), flops.left_out(every, source)),
    )


def anchored_scores(judge: Judge, *, nested: bool = False) -> tuple[Score, ...]:
    """Steps predicted from one measurement of the same program, its family left out.

    Either from a step on another card, or for one GPU from a step on several of the same card.

    Args:
        judge: the study whose pairs are predicted.
        nested: whether to make intervals, which takes a minute.
    """
    pairs, several, flops = judge.pairs(), judge.pairs_of_several(), Baseline(judge)
    return (
        _score("measured on another card", judge.anchored(pairs, nested=nested), flops.anchored(pairs)),
        _score("the same, on a card left out", judge.anchored(pairs, "generation"), flops.anchored(pairs)),
        _score("measured on several GPUs", judge.anchored(several), flops.anchored(several)),
    )


def _predicted(judge: Judge) -> int:
    return sum(judge.all[row].hosts for row in judge.rows(loose=True))


def mpt_scores() -> tuple[Score, ...]:
    """MPT by size, from small to large, and from one server to many."""
    study, rows = mpt.study()
    models = [row.model for row in rows]
    one_node = np.array([row.nodes == 1 for row in rows])
    small = np.array([model in SMALL for model in models])
    constant = _constant(study)
    return (
        _score("MPT, one size left out", study.held_out(models), constant.held_out(models)),
        _crossing("MPT, up to 1b -> 3b and more", study, constant, small, models),
        _crossing("MPT, one server -> many", study, constant, one_node, models),
    )


def agreements() -> tuple[Agreement, ...]:
    """Compares tensor, pipeline and data parallelism with vTrain's arithmetic."""
    study, rows = gpt.study()
    plans = [gpt.plan_of(row) for row in rows]
    return (
        _agreement("GPT, one sharding left out", study, [row.sharding for row in rows]),
        _agreement("GPT, one tensor-parallel degree left out", study, [f"TP{plan.tensor}" for plan in plans]),
        _agreement("GPT, one width left out", study, [f"h{plan.width}" for plan in plans]),
    )


def _agreement(name: str, study: Study, groups: Sequence[str]) -> Agreement:
    errors = np.abs(study.left_out(groups) / study.measured - 1.0)
    own = {group: np.array([g == group for g in groups]) for group in dict.fromkeys(groups)}
    medians = {group: float(np.median(errors[rows])) for group, rows in own.items()}
    return Agreement(name, len(groups), float(np.median(errors)), medians)


def left_out(rows: Sequence[Published]) -> dict[str, int]:
    """Rows that are not predicted, by source and reason."""
    reasons: Counter[str] = Counter()
    for row in rows:
        if not row.measured:
            reasons["vtrain-single: arithmetic, not measurements; see the agreement above"] += 1
        elif row.family != "mpt":
            found = workload_of(row)
            if isinstance(found, Excluded):
                reasons[f"{row.source}: {found.reason}"] += 1
            elif row.family in LOOSE:
                reasons[f"{row.source}: predicted, not judged: {row.family}: {LOOSE[row.family]}"] += 1
    return dict(reasons)


def _constant(study: Study) -> Study:
    """The same rows under one constant efficiency."""
    computed = [number for number, term in enumerate(study.terms) if term.name in ("matrix products", "attention")]
    return replace(study, terms=CONSTANT, at_spec=study.at_spec[:, computed].sum(axis=1, keepdims=True))


def _crossing(name: str, study: Study, constant: Study, train: Mask, groups: Sequence[Hashable]) -> Score:
    return _score(name, study.predicted(train, ~train, groups), constant.predicted(train, ~train, groups))


def _score(name: str, found: HoldoutPrediction, constant: HoldoutPrediction) -> Score:
    return Score(
        name,
        len(found.measured),
        float(np.median(found.errors)),
        float(found.errors.mean()),
        {str(group): error for group, error in found.median_errors().items()},
        found.covered if found.width > 1 else None,
        found.width if found.width > 1 else None,
        float(np.median(constant.errors)),
    )
