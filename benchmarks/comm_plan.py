"""Plans of exchanges against all plans that there are, under the model that prices both."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterator
from random import Random

from benchmarks.programs.drawn_exchanges import drawn
from benchmarks.support.harness import Bar, Options, Report, run
from stoker.perf.communication.methods import METHODS
from stoker.perf.communication.planner import Planner

_MOST_PLANS = 4**7
BAR = Bar(
    "comm_plan",
    "drawn models x links x ranks: no single method is better, the best of all plans within 2 %; 1,000 layers in 1 s",
    headline=("worst_of_all", "thousand_s"),
)


def measure(options: Options) -> Report:
    """Ratios of whole steps, as predicted; processor time of the planning."""
    report = Report()
    wanted = options.pick(40, 20, 2)
    singles: list[float] = []
    ratios: list[float] = []
    gains: list[float] = []
    for model in itertools.islice(_small(), wanted):
        best = _step_s(model, model.best())
        singles.append(best / min(_step_s(model, model.single(method)) for method in METHODS))
        ratios.append(best / min(_step_s(model, choice) for choice in model.choices()))
        gains.append(_step_s(model, model.plain) / best)
    report.note(f"{wanted} models of 2 to 7 layers, each with at most {_MOST_PLANS:,} plans, all of them tried")
    report.figure("median_gain", sorted(gains)[len(gains) // 2])
    report.figure("largest_gain", max(gains))
    report.at_most("worst_of_singles", "the worst plan / the best single method", [max(singles)], 1.0 + 1e-6, 6)
    report.at_most("worst_of_all", "the worst plan / the best of all plans", [max(ratios)], 1.02, 4)
    layers = options.pick(1000, 1000, 50)
    times = [_planning_s(seed, layers) for seed in range(max(5, options.rounds))]
    report.note(f"{layers:,} layers: " + ", ".join(f"{each:.2f}" for each in times) + " s of processor time")
    report.at_most("thousand_s", f"{layers:,} layers planned, s of processor time", times, 1.0)
    report.figure("slowest_thousand_s", max(times))
    return report


def _small() -> Iterator[Planner]:
    """Models of which all plans can be tried."""
    for seed in itertools.count():
        chance = Random(seed)
        model = Planner(*drawn(chance, chance.randint(2, 7)))
        if math.prod(model.num_options) <= _MOST_PLANS:
            yield model


def _step_s(model: Planner, choice: tuple[int, ...]) -> float:
    return sum(model.shard.backward_s) + model.added_s(choice)


def _planning_s(seed: int, layers: int) -> float:
    step = drawn(Random(seed), layers)
    begun = time.process_time()
    Planner(*step).plan()
    return time.process_time() - begun


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
