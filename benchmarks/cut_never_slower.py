"""No program gets slower by the automatic cut, whether it finds something to move or not, finding out included.

Each program runs under ``--cut exact`` and ``--cut off`` in two processes, in short stretches in turn. The first
stretches are those in which steps are recorded, compared and tried: they count like the others. A third process runs
without the cut as well: what it differs by from the second is what this machine cannot tell.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.programs.small_steps import PROGRAMS
from benchmarks.support.arms import Outcome, Program, arms
from benchmarks.support.harness import Bar, Options, Report, number, run

BAR = Bar(
    "cut_never_slower",
    "eight programs under `--cut exact`, by `--cut off`: throughput, and the same losses",
    headline=("lowest_bound", "lowest_whole", "differing_losses"),
)
FLOOR = 0.95
SIDES = {
    "exact": {"cut": "exact", "workers": 1},
    "off": {"cut": "off", "workers": 1},
    "again": {"cut": "off", "workers": 1},
}
_RESAMPLED = 2000


@dataclass(frozen=True)
class Pairs:
    """What one program did: seconds of its stretches, pair by pair, and its losses that differ."""

    name: str
    exact_s: list[float]
    off_s: list[float]
    again_s: list[float]
    differing: int
    outcome: Outcome

    @property
    def ratios(self) -> list[float]:
        """Throughput with the cut / without it."""
        return [off / exact for exact, off in zip(self.exact_s, self.off_s, strict=True)]

    @property
    def control(self) -> list[float]:
        """Throughput without the cut / without it, in another process."""
        return [off / again for again, off in zip(self.again_s, self.off_s, strict=True)]

    @property
    def whole(self) -> float:
        """The same for the whole run, with the stretches in which the cut was found and tried."""
        return sum(self.off_s) / sum(self.exact_s)


def bound(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float] = statistics.median, share: float = 0.025
) -> float:
    """The lower end of the 95 % interval of a statistic, by resampling (percentile bootstrap, seeded)."""
    draw = random.Random(0)
    found = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(_RESAMPLED))
    return found[int(share * _RESAMPLED)]


def pairs_of(program: Program, rounds: int, pairs: int, steps: int) -> Pairs:
    """Runs one program both ways, in each round in new processes: where their memory lies differs."""
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    losses: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(rounds):
        with arms(program, pairs * steps, SIDES) as found:
            names = list(SIDES)
            for turn in range(pairs):
                first = turn % len(names)
                for name in names[first:] + names[:first]:
                    stretch = found[name].run(steps)
                    seconds[name].append(stretch.seconds)
                    losses[name] += stretch.losses
            outcome = found["exact"].outcome()
    differing = sum(a != b for a, b in zip(losses["exact"], losses["off"], strict=True))
    return Pairs(program.name, seconds["exact"], seconds["off"], seconds["again"], differing, outcome)


def _row(result: Pairs, low: float, steps: int) -> list[str]:
    ms = 1e3 * statistics.median(result.off_s) / steps
    shares = (statistics.median(result.ratios), low, bound(result.control), result.whole)
    return [result.name, number(ms, 1), *map(number, shares), str(result.differing)]


def measure(options: Options) -> Report:
    """All programs, one after another."""
    report = Report()
    rounds, pairs, steps = options.pick(3, 2, 1), options.pick(40, 30, 3), options.pick(40, 18, 3)
    programs = options.pick(PROGRAMS, PROGRAMS, PROGRAMS[:2])
    report.note(
        f"{rounds} rounds of {pairs} pairs of {steps} steps each way, in processes of their own; one thread, one worker"
    )
    results = [pairs_of(program, rounds, pairs, steps) for program in programs]
    bounds = [bound(result.ratios) for result in results]
    report.table(
        ["program", "ms a step, off", "exact/off", "lower bound", "off/off's", "whole run", "losses differ"],
        [_row(result, low, steps) for result, low in zip(results, bounds, strict=True)],
    )
    for result in results:
        report.note(f"{result.name}: {result.outcome.words}")
    for result, low in zip(results, bounds, strict=True):
        report.figure(f"bound_{result.name}", low)
    report.figure("lowest_control", min(bound(result.control) for result in results))
    report.at_least("lowest_bound", "exact / off: lowest of the lower bounds (95 %)", [min(bounds)], FLOOR)
    whole = [result.whole for result in results]
    report.at_least("lowest_whole", "exact / off, whole runs with the search: lowest", [min(whole)], FLOOR)
    differing = sum(result.differing for result in results)
    report.at_most("differing_losses", "losses that differ in any bit", [differing], 0, 0)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
