"""MPT on A100s: published throughputs of model sizes, scales and lengths that the calibration has not seen.

Zero-shot: traced from the module and predicted by the calibration on other people's models, none of them a decoder,
none with fused attention; of the rows on one server what a GPU did by itself.

Arithmetic on published rows: the figures are the same on every machine. The terms of the step were chosen with the
whole table at hand; what is held out are the rows from which coefficients and intervals come.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.perf.study.cross_validation import Judge
from stoker.perf.study.scoreboard import Score, mpt_scores

BAR = Bar(
    "perf_mpt",
    "step times of MPT, by size, scale and length, from rows that are not among those predicted",
    headline=("size_out", "worst_size", "small_to_large", "one_to_many", "covered", "width"),
)


def measure(_: Options) -> Report:
    """All questions about MPT that the scoreboard answers."""
    report = Report()
    sizes, large, many = mpt_scores()
    report.table(
        ["left out of the calibration", "rows", "median", "mean", "covered", "width", "one efficiency"],
        [_row(score) for score in (sizes, large, many)],
    )
    report.table(["size left out", "median error"], [[name, number(error)] for name, error in sizes.groups.items()])
    report.at_most("size_out", "one size left out: median error", [sizes.median], 0.045, 3)
    report.at_most("size_out_mean", "one size left out: mean error", [sizes.mean], 0.045, 3)
    report.at_most("worst_size", "one size left out: median error of the worst size", list(_worst(sizes)), 0.12, 3)
    report.at_most("small_to_large", "up to 1b -> 3b and more: median error", [large.median], 0.06, 3)
    report.at_most("one_to_many", "one server -> many: median error", [many.median], 0.06, 3)
    zero = Judge().decoders()
    counts = Counter(zero.groups)
    rows = [[str(model), str(counts[model]), number(error, 3)] for model, error in zero.median_errors().items()]
    report.table(["zero-shot", "rows", "median error"], rows)
    report.at_most("zero_shot", "zero-shot: median error", [float(np.median(zero.errors))], 0.10, 3)
    report.at_least("covered", "rows inside their 90 % interval, one size left out", [sizes.covered or 0.0], 0.85)
    report.at_most("covered_most", "the same, at most", [sizes.covered or 0.0], 0.95)
    report.at_most("width", "upper / lower end of the interval, median", [sizes.width or 0.0], 1.3)
    return report


def _worst(score: Score) -> tuple[float]:
    return (max(score.groups.values()),)


def _row(score: Score) -> list[str]:
    figures = (score.median, score.mean, score.covered, score.width, score.constant)
    return [score.name, str(score.rows), *("-" if figure is None else number(figure, 3) for figure in figures)]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
