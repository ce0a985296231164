"""The choice of units to repeat: its time, and against every choice. Pure arithmetic on drawn units."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.support.harness import Bar, Options, Report, run
from stoker.perf.memory.choice.tree_choice import Repeat, StepPart, choose_parts
from stoker.records.fitting import Keeps

BAR = Bar(
    "fit_choice",
    "200 uneven units are chosen from in at most 0.5 s; of 12, the choice takes at most 1 % more than the best of all",
    headline=("seconds", "above"),
)


def units(count: int, seed: int) -> tuple[StepPart, ...]:
    """Uneven units, each with both ways to repeat it."""
    draw = np.random.default_rng(seed)
    parts: list[StepPart] = []
    alive = 0
    for place in range(count):
        kept, seconds = int(draw.integers(10**6, 10**8)), float(draw.uniform(0.5, 5.0))
        alive += kept
        need = alive + int(draw.integers(10**6, 3 * 10**7))
        share = float(draw.uniform(0.05, 0.5))
        ways = Repeat("nothing", kept, seconds, need), Repeat("products", kept // 2, seconds * share, need)
        parts.append(StepPart(f"u{place}", need, ways))
    return (*parts, StepPart("", alive + 10**7))


def seconds_of(parts: Sequence[StepPart], choice: dict[str, Keeps]) -> float:
    """Seconds of a choice."""
    ways = {(part.name, way.keeps): way.seconds for part in parts for way in part.repeats}
    return sum(ways[item] for item in choice.items())


def best_of_all(parts: Sequence[StepPart], budget: int) -> float | None:
    """Least seconds of all choices that fit; all of them at once, as rows of an array."""
    named = [part for part in parts if part.repeats]
    grid = np.array(list(itertools.product(range(3), repeat=len(named))), dtype=np.int8)
    saves = np.array([[0, *(way.saves for way in part.repeats)] for part in named])
    costs = np.array([[0.0, *(way.seconds for way in part.repeats)] for part in named])
    saved, seconds = np.zeros(len(grid), dtype=np.int64), np.zeros(len(grid))
    fits = np.ones(len(grid), dtype=np.bool_)
    at = 0
    for part in parts:
        fits &= part.need - saved <= budget
        if part.repeats:
            saved += saves[at][grid[:, at]]
            seconds += costs[at][grid[:, at]]
            at += 1
    return float(seconds[fits].min()) if fits.any() else None


def measure(options: Options) -> Report:
    """Both claims."""
    report = Report()
    took: list[float] = []
    for seed in range(options.pick(9, 3, 1)):
        parts = units(200, seed)
        for share in (0.8, 0.5, 0.3):
            begun = time.process_time()
            choose_parts(parts, int(share * max(part.need for part in parts)))
            took.append(time.process_time() - begun)
    above: list[float] = []
    for seed in range(options.pick(12, 4, 1)):
        parts = units(12, seed)
        for share in (0.9, 0.6, 0.3):
            budget = int(share * max(part.need for part in parts))
            found, best = choose_parts(parts, budget), best_of_all(parts, budget)
            if (found is None) != (best is None):
                above.append(float("inf"))
            elif found is not None and best:
                above.append(100 * (seconds_of(parts, found) / best - 1))
    report.at_most("seconds", "longest choice of 200 units, of one processor", [max(took)], 0.5, unit=" s")
    report.at_most("above", "worst choice of 12 units above the best of all", [max(above)], 1.0, unit=" %")
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
