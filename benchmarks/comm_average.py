"""Model averaging against DDP at equal samples: accuracy, and emulated seconds, with one set of constants.

Eight ranks are simulated in one process, in lockstep, with the product's policy and averages; two real ranks over gloo
must equal two simulated ones. Digits are real, and so is the training; seconds are emulated: a step computes for one,
DDP's exchange of gradients takes eight, and an average as many more as it has bytes (momentum and running statistics
are averaged too, so that it sends twice what DDP sends).
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np

from benchmarks.programs.averaged_digits import MODELS, DigitsCase, Shards
from benchmarks.support.averaged_ranks import Outcome, real_ranks, simulate, simulate_ddp
from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.train.averaging.policy import AveragingRules

BAR = Bar(
    "comm_average",
    "accuracy >= DDP - 0.5 points at equal samples in every case; seconds <= 0.35 of DDP's IID, <= 0.75 sorted",
    headline=("worst_points", "iid_seconds", "sorted_seconds", "over_best_fixed", "real_apart"),
)
FIXED = (4, 8, 16)
"""Periods that are tried afterwards."""
_POINTS = -0.5
SHARDS: tuple[Shards, ...] = ("iid", "sorted")


@dataclass(frozen=True)
class _Job:
    case: DigitsCase
    period: int
    """0: chosen; -1: plain DDP."""


def measure(options: Options) -> Report:
    """All trainings, then what they come to."""
    report = Report()
    seeds = options.pick(3, 1, 1)
    steps = options.pick(800, 800, 40)
    periods = options.pick(FIXED, (4, 8), (4,))
    ranks = options.pick(8, 8, 2)
    cases = [
        DigitsCase(model, shards, seed, ranks, steps, looks=4)
        for model, shards, seed in itertools.product(MODELS, SHARDS, range(seeds))
    ]
    jobs = [_Job(case, period) for case in cases for period in (-1, 0, *periods)]
    found = dict(zip(jobs, _carried_out(jobs, options), strict=True))
    report.note(
        f"{ranks} ranks, {steps} steps of 16 samples a rank, 4 evaluations, {seeds} seeds, 599 samples held out; "
        f"fixed periods tried afterwards: {', '.join(map(str, periods))}"
    )
    _compare(report, found, cases, periods)
    _equal_ddp(report, replace(cases[0], steps=min(steps, 100), looks=1))
    _equal_real(report, DigitsCase("cnn", "sorted", 0, 2, min(steps, 200), 4))
    return report


def _compare(report: Report, found: dict[_Job, Outcome], cases: Sequence[DigitsCase], periods: Sequence[int]) -> None:
    groups = {key: [c for c in cases if (c.model, c.shards) == key] for key in itertools.product(MODELS, SHARDS)}
    points: dict[tuple[int, tuple[str, str]], float] = {}
    shares: dict[tuple[int, tuple[str, str]], float] = {}
    table: list[list[str]] = []
    for key, own in groups.items():
        plain = [found[_Job(case, -1)] for case in own]
        row = [*key, f"{100 * np.mean([each.accuracy for each in plain]):.1f}"]
        for period in (0, *periods):
            ends = [found[_Job(case, period)] for case in own]
            gains = [100 * (a.accuracy - b.accuracy) for a, b in zip(ends, plain, strict=True)]
            points[period, key] = float(np.mean(gains))
            shares[period, key] = float(np.mean([a.seconds / b.seconds for a, b in zip(ends, plain, strict=True)]))
            row.append(f"{points[period, key]:+.2f} at {number(shares[period, key])}")
        table.append(row)
    report.table(["model", "shards", "DDP, %", "chosen", *(f"every {period}" for period in periods)], table)
    report.note("points of accuracy against DDP, means of the seeds, at the share of DDP's emulated seconds")
    worst = min(points[0, key] for key in groups)
    label = f"points against DDP, mean of {len(cases) // len(groups)} seeds, the worst case"
    report.at_least("worst_points", label, [worst], _POINTS)
    for shards, bound in (("iid", 0.35), ("sorted", 0.75)):
        own = max(shares[0, key] for key in groups if key[1] == shards)
        report.at_most(f"{shards}_seconds", f"{shards}: seconds / DDP's, the slower model", [own], bound)
    keeping = [p for p in periods if all(points[p, key] >= _POINTS for key in groups)]
    sums = {period: sum(shares[period, key] for key in groups) for period in (0, *periods)}
    best = min(keeping, key=sums.__getitem__, default=0)
    report.note(
        f"the best fixed period that keeps the accuracy in every case, found afterwards: {best or 'none'}; "
        f"kept by: {', '.join(map(str, keeping)) or 'none'}"
    )
    report.at_most("over_best_fixed", "seconds in sum / those of that period", [sums[0] / sums[best]], 1.1)
    changes = [each.period for job, end in found.items() if job.period == 0 for each in end.rounds]
    report.figure("longest_period", max(changes, default=1))


def _equal_ddp(report: Report, case: DigitsCase) -> None:
    """SGD that is averaged in each step computes what DDP does, to rounding."""
    apart = np.abs(simulate(case, AveragingRules(max_period=1)).weights - simulate_ddp(case).weights).max()
    report.at_most("each_step_apart", f"{case.steps} steps, averaged each: largest difference", [float(apart)], 1e-5, 8)


def _equal_real(report: Report, case: DigitsCase) -> None:
    real, simulated = real_ranks(case, AveragingRules()), simulate(case, AveragingRules())
    apart = float(np.abs(real.weights - simulated.weights).max())
    report.at_most(
        "real_apart", f"{case.steps} steps of 2 real ranks: largest difference to simulated", [apart], 0.0, 8
    )
    differ = [a for a, b in zip(real.rounds, simulated.rounds, strict=True) if (a.step, a.period) != (b.step, b.period)]
    report.at_most("real_decisions", "averages that came at another step", [len(differ)], 0, 0)


def _carried_out(jobs: Sequence[_Job], options: Options) -> Iterable[Outcome]:
    if options.size == "tiny":
        return [_carry_out(job) for job in jobs]
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_carry_out, jobs))


def _carry_out(job: _Job) -> Outcome:
    if job.period < 0:
        return simulate_ddp(job.case)
    if job.period == 0:
        return simulate(job.case, AveragingRules())
    rules = AveragingRules(fixed_period=job.period, max_period=job.period, warm_up_steps=0, settling_steps=0)
    return simulate(job.case, rules)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
