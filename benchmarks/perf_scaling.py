"""From one GPU to several: published steps, each predicted from the same configuration on one GPU of the same box.

Arithmetic on published rows: the figures are the same on every machine. Bandwidths of boxes and the share of waiting
are fitted to the other families of models alone. Families whose rows say nothing about links are not among those
judged; they are listed with the reason and with their errors.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence

from benchmarks.harness import Bar, Options, Report, number, run
from stoker.perf.catalogue import gpu
from stoker.perf.communication.boxes import exposed_s
from stoker.perf.communication.fabric import fabric_of
from stoker.perf.communication.fitting import Predicted, held_out
from stoker.perf.communication.scaling import Scaling, peculiarity, scalings
from stoker.perf.communication.stragglers import slowest

BAR = Bar(
    "perf_scaling",
    "steps on 2 to 16 GPUs from the step on one, by models that the links were not fitted to",
    headline=("median", "mean", "covered", "width"),
)
_HEADER = ["", "steps", "median error", "mean", "free exchange: median", "mean", "covered"]


def measure(_: Options) -> Report:
    """Errors by family, GPU and count, beside those of an exchange that costs nothing."""
    report = Report()
    found = held_out(scalings())
    judged = [each for each in found if not peculiarity(each.scaling.family)]
    for key in (lambda row: row.family, lambda row: row.gpu, lambda row: f"{row.gpus} GPUs"):
        report.table(_HEADER, _by(judged, key))
    left_out = [each for each in found if peculiarity(each.scaling.family)]
    rows = _by(left_out, lambda row: row.family)
    report.table([*_HEADER, "why it is not judged"], [[*row, peculiarity(row[0])] for row in rows])
    report.table(["on specifications alone", "steps", "median error", "mean", "free: median", "mean"], _unfitted())

    report.at_most("median", "one family left out: median error", [_median(judged)], 0.04, 3)
    report.at_most("mean", "one family left out: mean error", [_mean(judged)], 0.08, 3)
    report.at_least("covered", "steps inside their interval", [_covered(judged)], 0.85)
    report.at_most("covered_most", "the same, at most", [_covered(judged)], 0.95)
    report.at_most("width", "upper / lower end, median", [statistics.median(p.high / p.low for p in judged)], 1.6)
    return report


def _by(found: Sequence[Predicted], key: Callable[[Scaling], str]) -> list[list[str]]:
    names = sorted({key(each.scaling) for each in found})
    return [_row(name, [each for each in found if key(each.scaling) == name]) for name in names]


def _row(name: str, found: Sequence[Predicted]) -> list[str]:
    free = [_free(each.scaling) for each in found]
    figures = (_median(found), _mean(found), statistics.median(free), statistics.fmean(free), _covered(found))
    return [name, str(len(found)), *(number(figure, 3) for figure in figures)]


def _free(row: Scaling) -> float:
    return abs(row.alone_s / row.step_s - 1)


def _median(found: Sequence[Predicted]) -> float:
    return statistics.median(each.error for each in found)


def _mean(found: Sequence[Predicted]) -> float:
    return statistics.fmean(each.error for each in found)


def _covered(found: Sequence[Predicted]) -> float:
    return statistics.fmean(each.is_covered for each in found)


_BOXES: dict[str, Callable[[Scaling], bool]] = {
    "servers with NVLink": lambda row: row.source == "nvidia-dle" or row.gpu == "H100-SXM",
    "PCIe cards": lambda row: not row.gpu.endswith("-SXM"),
    "virtual machines with A100 and V100, as if they had NVLink": lambda row: (
        row.source == "lambda-v1" and row.gpu in ("A100-80GB-SXM", "V100-16GB-SXM")
    ),
}


def _unfitted() -> list[list[str]]:
    """What a user gets who names the GPU alone."""
    rows: list[list[str]] = []
    for name, belongs in _BOXES.items():
        own = [row for row in scalings() if belongs(row) and not peculiarity(row.family)]
        errors = [abs(_on_specification(row) / row.step_s - 1) for row in own]
        free = [_free(row) for row in own]
        figures = [f(values) for values in (errors, free) for f in (statistics.median, statistics.fmean)]
        rows.append([name, str(len(own)), *(number(figure, 3) for figure in figures)])
    return rows


def _on_specification(row: Scaling) -> float:
    return row.alone_s * (1 + slowest(row.gpus)[0]) + exposed_s(row, fabric_of(gpu(row.gpu), gpus=row.gpus))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
