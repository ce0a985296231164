"""MPT on A100s: published throughputs of model sizes, scales and lengths that the calibration has not seen.

Zero-shot: traced from the module and predicted by the calibration on other people's models, none of them a decoder,
none on many servers, none with fused attention.

Arithmetic on published rows: the figures are the same on every machine. The terms of the step were chosen with the
whole table at hand; what is held out are the rows from which coefficients and intervals come.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.harness import Bar, Options, Report, number, run
from stoker.perf.catalogue import gpu
from stoker.perf.features.records import StepFeatures
from stoker.perf.prediction.predictor import predict
from stoker.perf.prediction.setting import Machines, Strategy
from stoker.perf.scoreboard import Score, mpt_scores
from stoker.perf.tables.rows import Published
from stoker.perf.workloads import mpt
from stoker.perf.workloads.tracing import mpt_features

BAR = Bar(
    "perf_mpt",
    "step times of MPT, by size, scale and length, from rows that are not among those predicted",
    headline=("size_out", "worst_size", "small_to_large", "one_to_many", "covered", "width"),
)


def measure(options: Options) -> Report:
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
    zero = zero_shot(options)
    report.table(["zero-shot", "rows", "median error"], _by_model(zero))
    report.at_most("zero_shot", "zero-shot: median error", [float(np.median([error for _, error in zero]))], 0.10, 3)
    report.at_least("covered", "rows inside their 90 % interval, one size left out", [sizes.covered or 0.0], 0.85)
    report.at_most("covered_most", "the same, at most", [sizes.covered or 0.0], 0.95)
    report.at_most("width", "upper / lower end of the interval, median", [sizes.width or 0.0], 1.3)
    return report


def zero_shot(options: Options) -> list[tuple[str, float]]:
    """Model and error of each row; quick: of each fifth shape."""
    rows = mpt.study()[1]
    shapes = sorted({(row.model, row.seq_len, row.batch_per_gpu) for row in rows})[:: options.pick(1, 5, 40)]
    found: list[tuple[str, float]] = []
    for shape in shapes:
        same = [row for row in rows if (row.model, row.seq_len, row.batch_per_gpu) == shape]
        features = mpt_features(same[0])
        found += [(row.model, _error(features, row)) for row in same]
    return found


def _error(features: StepFeatures, row: Published) -> float:
    machines = Machines(gpu=gpu(row.gpu), gpus=row.gpus, network=200e9)  # 1600 Gbit/s a server
    strategy = Strategy(data="fsdp", accumulation=row.accumulation, checkpointing=row.checkpointing)
    seconds = predict(features, machines, strategy, precision="bf16").seconds
    return abs(seconds * row.throughput / (row.gpus * row.batch_per_gpu * row.accumulation * row.seq_len) - 1.0)


def _by_model(found: list[tuple[str, float]]) -> list[list[str]]:
    models = dict.fromkeys(model for model, _ in found)
    errors = {model: [error for name, error in found if name == model] for model in models}
    return [[model, str(len(own)), number(float(np.median(own)), 3)] for model, own in errors.items()]


def _worst(score: Score) -> tuple[float]:
    return (max(score.groups.values()),)


def _row(score: Score) -> list[str]:
    figures = (score.median, score.mean, score.covered, score.width, score.constant)
    return [score.name, str(score.rows), *("-" if figure is None else number(figure, 3) for figure in figures)]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
