"""What it costs a training step to be watched by `stoker profile`: the marks around `next` and the optimizer.

A step that does next to nothing is run with and without marks, in alternation: the difference is what marks cost. Set
against a step of 5 ms. Steps that torch's profiler looks into are slower, and do not count in a profile's step time; by
how much is shown beside.
"""

from __future__ import annotations

import itertools
import sys
import time
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, run
from stoker.run.profiling.sampling import Sampler, mark_step
from stoker.run.profiling.step_marks import StepRecorder

BAR = Bar("perf_hooks", "cost of profile's always-on marks, as a share of a step", headline=("hooks_percent",))
STEP_S = 0.005
"""Short for a training step: longer ones make the share smaller."""
MICRO = 1e6
STRETCHES = 20


class Constant(Dataset[torch.Tensor]):
    """The same row over and over."""

    def __init__(self, count: int) -> None:
        self._row = torch.zeros(8)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._row


def measure(options: Options) -> Report:
    """Marks first, then sampling."""
    report = Report()
    count = options.pick(20_000, 5_000, 200)
    # Without a gradient an optimizer has nothing to do: what is left of its step is the call and the hooks.
    optimizer = torch.optim.SGD(nn.Linear(8, 8).parameters(), lr=0.1)

    def bare() -> float:
        return _step_us(count, optimizer)

    def watched() -> float:
        watch = StepRecorder(lambda end, by_optimizer: None)
        watch.install()
        try:
            return _step_us(count, optimizer)
        finally:
            watch.remove()

    alternate(1, {"with marks": watched, "without": bare})
    found = alternate(options.rounds, {"with marks": watched, "without": bare})
    cost = [a - b for a, b in zip(found["with marks"], found["without"], strict=True)]
    rows = [[f"a step that does nothing, {name}", *Spread.of(values).show(2)] for name, values in found.items()]
    report.note(f"{count:,} steps a round: one batch, one optimizer step")
    report.table(["µs a step", "median", "lowest - highest"], [*rows, ["marks", *Spread.of(cost).show(2)]])
    report.figure("hooks_us_a_step", median(cost))
    share = [100 * us / MICRO / STEP_S for us in cost]
    report.at_most("hooks_percent", f"marks, of a step of {1000 * STEP_S:.0f} ms", share, 0.5, 3, " %")
    slower = [_sampled_ratio(options.pick(20, 10, 3)) for _ in range(options.rounds)]
    report.figure("sampled_step_ratio", median(slower))
    report.note(f"a sampled step of a small perceptron takes {median(slower):.2f}x one that is not; it does not count")
    return report


def _step_us(count: int, optimizer: torch.optim.Optimizer) -> float:
    """Processor time of a step: median over stretches, since other processes disturb some of them."""
    batches = iter(DataLoader(Constant(count), batch_size=None))
    stretch = max(1, count // STRETCHES)
    spent: list[float] = []
    with no_collections():
        while True:
            begun = time.thread_time()
            for _ in itertools.islice(batches, stretch):
                optimizer.step()
            spent.append(MICRO * (time.thread_time() - begun) / stretch)
            if len(spent) == STRETCHES:
                return median(spent)


def _sampled_ratio(count: int) -> float:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(64, 256)

    def steps(sampled: bool) -> float:
        ends = [time.perf_counter()]
        for _ in range(count):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if sampled:
                mark_step()
            ends.append(time.perf_counter())
        return median(b - a for a, b in itertools.pairwise(ends))

    steps(False)
    plain_s = steps(False)
    sampler = Sampler()
    sampler.start()
    sampled_s = steps(True)
    sampler.drop()
    return sampled_s / plain_s


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
