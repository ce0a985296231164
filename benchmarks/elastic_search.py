"""The sizes of a job are found: 1 to 4 training workers, 0 to 16 data workers, steps of many kinds.

Many random jobs on the virtual clock, where steps and items are durations: search, scaling policy and the feed's state
machine are those of a real run (`stoker.sim.sizes`), which sees nothing of the costs but what a queue shows. In full
size one job also really runs, by torchrun over gloo, with items and steps that sleep. Ranks go in step, each with its
data workers: what one has more than the others brings nothing.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.support.elastic import search_live
from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.scale.cluster.sizes import Objective, SizeConfig
from stoker.sim.sizes import ElasticJob, simulate_sizes

BAR = Bar(
    "elastic_search",
    "training workers 1-4 and data workers 0-16 (emulated): 0.95 of the best pair, by rate and by price, in 3 changes",
    headline=("rate_worst", "price_worst", "changes_most"),
)
_MOST_WORKERS, _MOST_FEEDERS = 4, 16
_ENOUGH = 0.95
_LIVE_S = 150.0
"""How long a real job runs: most of it is the start of python and torch, for each number of ranks."""
_GROWTH: dict[str, Callable[[int], float]] = {
    "not at all": lambda n: 0.0,
    "by each": lambda n: n - 1.0,
    "as a ring": lambda n: 2.0 * (n - 1) / n,
    "by squares": lambda n: (n - 1.0) ** 2 / 3.0,
    "by doublings": math.log2,
}
"""How communication grows with the number of training workers."""


@dataclass(frozen=True)
class Case:
    """A job and what it is to be good at."""

    growth: str
    step_s: float
    share: float
    """Communication in a step's computation, where it has grown by 1."""
    item: float
    """Seconds of an item in those of a step."""
    objective: Objective
    cpu_price: float
    prior: float
    """Of communication that grows as a ring, what is believed beforehand; of others nothing."""
    seed: int

    def exposed_s(self, workers: int) -> float:
        """Communication of a step."""
        return self.step_s * self.share * _GROWTH[self.growth](workers)

    @property
    def job(self) -> ElasticJob:
        """What is simulated."""
        return ElasticJob(
            step_s=lambda n: self.step_s + self.exposed_s(n),
            item_s=self.item * self.step_s,
            item_sigma=0.1,
            checkpoint_every_s=200.0 * self.step_s,
            restart_s=10.0,
            checkpoints=6,
            seed=self.seed,
        )

    @property
    def config(self) -> SizeConfig:
        """What the search may choose."""
        return SizeConfig(
            least=1,
            most=_MOST_WORKERS,
            objective=self.objective,
            worker_price=1.0,
            cpu_price=self.cpu_price,
            max_feeders=_MOST_FEEDERS,
        )

    def score(self, workers: int, feeders: int) -> float:
        """What a pair is worth in truth."""
        step_s, item_s = self.job.step_s(workers), self.job.item_s
        each = feeders // workers
        rate = workers * (min(1.0 / step_s, each / item_s) if each else 1.0 / (step_s + item_s))
        return rate / self.config.price(workers, feeders)


@dataclass(frozen=True)
class Outcome:
    """What the search came to."""

    case: Case
    share: float
    """Of the best pair's score."""
    changes: int
    workers: int
    feeders: int


def measure(options: Options) -> Report:
    """Random jobs, each by rate and by price."""
    report = Report()
    drawn = random.Random(15)
    outcomes = [search(case) for _ in range(options.pick(60, 20, 1)) for case in _cases(drawn)]
    for objective in ("rate", "price"):
        found = [outcome for outcome in outcomes if outcome.case.objective == objective]
        shares = sorted(outcome.share for outcome in found)
        report.at_least(
            f"{objective}_worst", f"by {objective}: share of the best pair, worst job", shares[:1], _ENOUGH, 3
        )
        report.figure(f"{objective}_mean", sum(shares) / len(shares))
        report.figure(f"{objective}_within", sum(share >= _ENOUGH for share in shares) / len(shares))
    changes = [outcome.changes for outcome in outcomes]
    if options.size == "full":
        changes += _live(report)
    most = float(max(changes))
    report.at_most("changes_most", "changes of the training workers, most of any job", [most], 3.0, 0)
    report.note(f"{len(outcomes)} searches on a virtual clock, emulated: steps and items are durations")
    rows = [
        [
            outcome.case.objective,
            outcome.case.growth,
            number(outcome.case.share, 2),
            number(outcome.case.item, 2),
            f"{outcome.workers} with {outcome.feeders}",
            str(outcome.changes),
            number(outcome.share, 3),
        ]
        for outcome in sorted(outcomes, key=lambda each: each.share)[:6]
    ]
    head = ["worst", "communication grows", "share of a step", "item / step", "ends at", "changes", "of the best"]
    report.table(head, rows)
    return report


def _live(report: Report) -> list[int]:
    """A real job, best with three training workers by rate and with one by price; returns its changes."""
    changes: list[int] = []
    for objective in ("rate", "price"):
        case = Case("by squares", 0.5, 0.5, 1.3, objective, 0.1, 0.0, 0)
        steps_s = [case.job.step_s(n) for n in range(1, _MOST_WORKERS + 1)]
        options = ["--training-workers", "1:4", "--max-workers", str(_MOST_FEEDERS), "--cpu-budget", "16"]
        if objective == "price":
            options += ["--objective", "price", "--worker-price", "1", "--cpu-price", str(case.cpu_price)]
        found = search_live(options, case.job.item_s, steps_s, _LIVE_S)
        score = found.batches_per_s / case.config.price(found.workers, found.feeders)
        share = score / best_of(case)
        what = f"real ranks, by {objective}: measured, share of the best pair"
        report.at_least(f"live_{objective}", what, [share], _ENOUGH, 3)
        report.note(
            f"real ranks by {objective}: {found.workers} with {found.feeders} data workers, {found.changes} changes"
        )
        changes.append(found.changes)
    return changes


def best_of(case: Case) -> float:
    """The score of the best pair."""
    pairs = itertools.product(range(1, _MOST_WORKERS + 1), range(_MOST_FEEDERS + 1))
    return max(case.score(n, d) for n, d in pairs)


def search(case: Case) -> Outcome:
    """One job to its last checkpoint."""
    believed: Callable[[int], float] = lambda n: case.prior * case.exposed_s(n)  # noqa: E731
    timeline = simulate_sizes(case.job, case.config, believed)
    last = timeline.windows[-1]
    share = case.score(last.workers, last.feeders) / best_of(case)
    return Outcome(case, share, timeline.changes, last.workers, last.feeders)


def _cases(drawn: random.Random) -> list[Case]:
    growth = drawn.choice(list(_GROWTH))
    step_s, seed = drawn.uniform(0.05, 0.5), drawn.randrange(10**6)
    share, item = drawn.uniform(0.0, 1.5), drawn.choice([0.05, 0.3, 1.0, 2.3, 4.0, 7.0, 12.0])
    cpu_price, prior = drawn.choice([0.02, 0.1, 0.3]), drawn.uniform(0.3, 1.0) if growth == "as a ring" else 0.0
    objectives: tuple[Objective, ...] = ("rate", "price")
    return [Case(growth, step_s, share, item, objective, cpu_price, prior, seed) for objective in objectives]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
