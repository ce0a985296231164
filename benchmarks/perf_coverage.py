"""Intervals of predictions: how many measurements lie inside, and how wide they are.

Arithmetic on published rows: the figures are the same on every machine. Intervals are nested: that of a family comes
from the errors of other families, each predicted without either.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.perf.study.cross_validation import Judge
from stoker.perf.study.holdout import HoldoutPrediction
from stoker.perf.study.workloads import mpt

BAR = Bar(
    "perf_coverage",
    "90 % intervals of predictions of published steps: what lies inside, and how wide they are",
    headline=("covered", "worst_family", "width", "anchored_width", "mpt_width"),
)
_MANY = 20


def measure(_: Options) -> Report:
    """From a definition on one GPU and on any number, anchored, and MPT."""
    report = Report()
    judge = Judge()
    alone, every = judge.left_out(judge.rows(alone=True)), judge.left_out(judge.rows())
    anchored = judge.anchored(judge.pairs(), nested=True)
    study, rows = mpt.study()
    by_size = study.held_out([row.model for row in rows])
    found = {"on one GPU": alone, "on any number": every, "anchored": anchored}
    report.table(
        ["", "steps", "inside", "upper / lower"],
        [[name, str(len(p.measured)), number(p.covered), number(p.width)] for name, p in found.items()],
    )
    for name, predicted in found.items():
        rows = [[family, str(count), number(share)] for family, (count, share) in by_family(predicted).items()]
        report.table([name, "steps", "inside"], rows)
    for name, predicted, width in (("", every, 2.2), ("alone_", alone, 2.2), ("anchored_", anchored, 1.6)):
        worst = min(share for count, share in by_family(predicted).values() if count >= _MANY)
        report.at_least(f"{name}covered", f"{name} measurements inside", [predicted.covered], 0.85)
        report.at_most(f"{name}covered_most", f"{name} the same, at most", [predicted.covered], 0.95)
        report.at_least(f"{name}worst_family", f"{name} the same, worst family of {_MANY} or more", [worst], 0.70)
        report.at_most(f"{name}width", f"{name} upper / lower end, median", [predicted.width], width)
    report.at_least("mpt_covered", "MPT, one size left out: inside", [by_size.covered], 0.85)
    report.at_most("mpt_width", "MPT: upper / lower end, median", [by_size.width], 1.3)
    return report


def by_family(predicted: HoldoutPrediction) -> dict[str, tuple[int, float]]:
    """Count, and share inside the interval."""
    inside = (predicted.low <= predicted.measured) & (predicted.measured <= predicted.high)
    names = np.array(predicted.groups)
    return {
        name: (int((names == name).sum()), float(inside[names == name].mean())) for name in predicted.median_errors()
    }


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
