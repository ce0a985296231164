"""The number of workers is found by itself, and again when the costs change in mid-run.

The accelerator's step and the items' cost are emulated by sleeping. Several jobs run at once, each in a process of
its own with its own workers: they hardly use the CPU, and a bar about half a minute each need not take five times that.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.support.emulated import Dial, Step, Waiting, in_children
from benchmarks.support.harness import Bar, Options, Report, Spread, number, run
from benchmarks.support.served import stoker
from stoker.records.events import WorkersChanged

BAR = Bar(
    "scale_converge",
    "workers found for an emulated step, input-bound by 6x; costs change in mid-run",
    headline=("reached_0_s", "reached_1_s", "share_0", "workers_0", "workers_1", "workers_2"),
)
STEP_S = 0.025
ENOUGH = 0.95
"""Share of the best possible rate that has to be reached."""
WINDOW_S = 2.0
"""The rate counts over this long."""


@dataclass(frozen=True)
class Phase:
    """A stretch of the run with constant costs."""

    name: str
    step_s: float
    item_s: float
    length_s: float

    @property
    def smallest(self) -> int:
        """The smallest number of workers that can give the required rate."""
        return math.ceil(ENOUGH * self.item_s / self.step_s - 1e-9)


@dataclass(frozen=True)
class Outcome:
    """What one job did in one phase."""

    reached_s: float
    """Time to the first window with the required rate; infinite if never."""
    share: float
    """Rate over the last quarter of the phase, as a share of the best possible."""
    workers: int
    """Workers at the end."""


def phases(options: Options) -> list[Phase]:
    """The stretches of a run."""
    length = options.pick((30.0, 30.0, 30.0), (9.0, 17.0, 16.0), (1.0, 0.5, 0.5))
    item = 6 * STEP_S
    return [
        Phase("input-bound by 6x", STEP_S, item, length[0]),
        Phase("items cost 3x as much", STEP_S, 3 * item, length[1]),
        Phase("steps take 3x as long", 3 * STEP_S, 3 * item, length[2]),
    ]


def measure(options: Options) -> Report:
    """All jobs at once."""
    report = Report()
    plan = phases(options)
    jobs = in_children(options.rounds, lambda: job(plan))
    report.note(f"{options.rounds} jobs at once, each with its own process and workers, one worker declared")
    report.note(f"emulated step of {1000 * STEP_S:.0f} ms; workers by `auto`; rates over {WINDOW_S:.0f} s")
    rows: list[list[str]] = []
    for n, phase in enumerate(plan):
        outcomes = [outcome[n] for outcome, _ in jobs]
        reached = [min(outcome.reached_s, 999.0) for outcome in outcomes]
        workers = [float(outcome.workers) for outcome in outcomes]
        shares = [outcome.share for outcome in outcomes]
        rows.append(
            [phase.name, str(phase.smallest), Spread.of(workers).show(0)[1], number(100 * Spread.of(shares).median, 1)]
        )
        report.at_most(f"reached_{n}_s", f"{phase.name}: {ENOUGH:.0%} of the best rate after", reached, 30.0, 1, " s")
        report.at_least(f"share_{n}", f"{phase.name}: share of the best rate at the end", shares, ENOUGH, 3)
        most = float(phase.smallest + 1)
        report.at_most(f"workers_{n}", f"{phase.name}: workers at the end", workers, most, 0)
    report.table(["phase", "smallest sufficient", "workers at the end", "% of best rate at the end"], rows)
    report.table(["a job's decisions", "after s"], [[text, number(at, 1)] for at, text in jobs[0][1]])
    return report


def job(plan: list[Phase]) -> tuple[list[Outcome], list[tuple[float, str]]]:
    """One training job through all phases."""
    dial = Dial(plan[0].item_s)
    loader = DataLoader(Waiting(10**6, dial.path), batch_size=1, num_workers=1)
    outcomes: list[Outcome] = []
    with stoker() as served:
        iterator = served.iterate(loader)
        for phase in plan:
            dial.set(phase.item_s)
            steps = _drive(iterator, phase, lambda: len(served.feed(loader).engine.crew.active()))
            outcomes.append(_judge(steps))
        said = [(event.t_s, event.reason) for event in served.events if isinstance(event, WorkersChanged)]
        del iterator
    return outcomes, said


def _drive(iterator: Any, phase: Phase, workers: Callable[[], int]) -> list[Step]:
    """The steps of a phase."""
    steps: list[Step] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < phase.length_s:
        next(iterator)
        came = time.perf_counter()
        time.sleep(phase.step_s)
        steps.append(Step(came - begun, time.perf_counter() - came, workers()))
    return steps


def _judge(steps: list[Step]) -> Outcome:
    """Shares of windows that begin at each step: how much of them the emulated accelerator was busy."""
    reached, share, end, busy_s = math.inf, 0.0, 0, 0.0
    for begin, step in enumerate(steps):
        while end < len(steps) and steps[end].at_s - step.at_s < WINDOW_S:
            busy_s += steps[end].busy_s
            end += 1
        if end == len(steps):
            break
        share = busy_s / (steps[end].at_s - step.at_s)
        if share >= ENOUGH and reached == math.inf:
            reached = steps[end].at_s
        busy_s -= steps[begin].busy_s
    tail = steps[-len(steps) // 4 :]
    span_s = tail[-1].at_s - tail[0].at_s
    if span_s > 0.0:
        share = sum(step.busy_s for step in tail[:-1]) / span_s
    return Outcome(reached, share, tail[-1].workers)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
