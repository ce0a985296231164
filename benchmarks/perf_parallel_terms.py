"""Terms of tensor, pipeline and data parallelism, beside those of another model (vTrain's table for one A100 server).

Arithmetic beside arithmetic: the bar shows agreement, not accuracy, and its figures are the same on every machine.
"""

from __future__ import annotations

import sys

from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.perf.study.scoreboard import agreements

BAR = Bar(
    "perf_parallel_terms",
    "agreement with vTrain on shardings, degrees and widths that the calibration has not seen",
    headline=("sharding_out", "degree_out", "width_out"),
)
BOUNDS = {"sharding_out": 0.05, "degree_out": 0.08, "width_out": 0.10}


def measure(_: Options) -> Report:
    """The three questions."""
    report = Report()
    for agreement, (name, bound) in zip(agreements(), BOUNDS.items(), strict=True):
        report.table(["left out", "median difference"], [[k, number(v, 3)] for k, v in agreement.groups.items()])
        report.at_most(name, f"{agreement.name}: median difference", [agreement.median], bound, 3)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
