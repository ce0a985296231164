"""A recommender that makes its features in the model: what finding and moving that work is worth, loader moved or not.

Both sides are served by stoker with workers by ``auto``. The accelerator's step is emulated: it sleeps.
"""

from __future__ import annotations

import sys

from benchmarks.programs.recommender import recommender
from benchmarks.support.arms import Arm, Stretch, arms
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, ratios, run

BAR = Bar(
    "cut_recommender",
    "features made in the model (hash, bucketize, log, cross, normalise): moved or left, step emulated",
    headline=("gain", "differing_losses"),
)
GOLDMINER = 1.6
"""What moving such work gave GoldMiner beyond moving the loader (SIGMOD 2023)."""
ACCELERATOR_S = 5.3e-3
"""A step of DLRM on an A100, as SmartStage's authors report it (188 steps a second)."""
SIDES = {"cut": {"cut": "exact"}, "loader alone": {"cut": "off"}}


class Side:
    """One side: settles, then runs measured stretches, each after the batches that were made ahead are used up."""

    def __init__(self, arm: Arm, batch_size: int, steps: int, ahead: int) -> None:
        self._arm, self._batch_size, self._steps, self._ahead = arm, batch_size, steps, ahead
        self.losses: list[float] = []

    def advance(self, steps: int) -> Stretch:
        """Some steps; their losses are kept."""
        stretch = self._arm.run(steps)
        self.losses += stretch.losses
        return stretch

    def measured(self) -> float:
        """Samples a second over a stretch."""
        self.advance(self._ahead)
        return self._steps * self._batch_size / self.advance(self._steps).seconds


def measure(options: Options) -> Report:
    """Lets both sides settle, then alternates."""
    report = Report()
    batch_size = options.pick(8192, 8192, 256)
    settle = options.pick(1200, 700, 30)
    steps, ahead = options.pick(200, 60, 4), options.pick(40, 20, 2)
    program = recommender(batch_size, ACCELERATOR_S)
    with arms(program, settle + options.rounds * (steps + ahead), SIDES) as found:
        sides = {name: Side(arm, batch_size, steps, ahead) for name, arm in found.items()}
        for name in ("loader alone", "cut"):
            sides[name].advance(settle)
        rates = alternate(options.rounds, {name: side.measured for name, side in sides.items()})
        outcomes = {name: arm.outcome() for name, arm in found.items()}
    report.note(
        f"batches of {batch_size}, step of {1e3 * ACCELERATOR_S:.1f} ms (emulated), one thread as under torchrun"
    )
    report.note(f"{settle} steps of each side to record, try and find the workers; the cut: {outcomes['cut'].words}")
    report.table(
        ["samples/s", "median", "lowest - highest", "workers"],
        [[name, *Spread.of(values).show(0), str(outcomes[name].workers)] for name, values in rates.items()],
    )
    report.figure("workers", outcomes["cut"].workers)
    gain = ratios(rates["cut"], rates["loader alone"])
    report.at_least("gain", "features moved / loader alone", gain, GOLDMINER)
    differing = sum(a != b for a, b in zip(*(side.losses for side in sides.values()), strict=True))
    report.at_most("differing_losses", "losses that differ in any bit", [differing], 0, 0)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
