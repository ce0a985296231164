"""A job of several training workers on a virtual clock: its sizes are searched as in a real one.

Each attempt simulates one training worker's feed under the live policy (:mod:`stoker.sim.queue`): the ranks of a
data-parallel program are alike, and go at the pace of the slowest. Between attempts the live search decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from stoker.feed.scaling import ScalingPolicy
from stoker.scale.cluster.sizes import SizeChange, SizeConfig, SizeDecision, SizeSearch, SizeWindow
from stoker.scale.job import JobAutoscaler
from stoker.scale.limits import JobScalingConfig
from stoker.sim.queue import Costs, Job, Tick, simulate

_WINDOW = 0.5
"""Share of the time between checkpoints, its end, that a window is: data workers were found before."""


@dataclass(frozen=True, kw_only=True)
class ElasticJob:
    """What a job of so many training workers costs."""

    step_s: Callable[[int], float]
    """A batch's step in each of so many training workers, communication included."""
    item_s: float
    """What a data worker waits for a batch."""
    item_sigma: float = 0.0
    checkpoint_every_s: float = 30.0
    restart_s: float = 10.0
    checkpoints: int = 8
    """Until the end."""
    seed: int = 0


@dataclass
class SizesTimeline:
    """What became of a job."""

    decisions: list[SizeDecision] = field(default_factory=list[SizeDecision])
    windows: list[SizeWindow] = field(default_factory=list[SizeWindow])

    @property
    def changes(self) -> int:
        """How often the ranks were restarted."""
        return sum(decision.restart for decision in self.decisions)


def simulate_sizes(
    job: ElasticJob, config: SizeConfig, exposed: Callable[[int], float] = lambda workers: 0.0
) -> SizesTimeline:
    """Runs a job from the least training workers on, with a decision at each checkpoint.

    Args:
        job: its costs.
        config: of the search.
        exposed: the prior that the search has, which need not be true.
    """
    search, timeline = SizeSearch(config, exposed), SizesTimeline()
    workers, most, in_process = config.sizes[0], None, False
    for number in range(job.checkpoints):
        window = _attempt(replace(job, seed=job.seed + number), config, workers, most, in_process)
        search.observe(window)
        change = SizeChange(restart_s=job.restart_s, repeated_steps=1, step_s=window.step_s)
        decision = search.decide(change)
        timeline.windows.append(window)
        timeline.decisions.append(decision)
        most = decision.most_feeders_each
        if decision.restart:
            search.moved()
            workers, in_process = decision.sizes.workers, decision.sizes.feeders == 0
    return timeline


def _attempt(job: ElasticJob, config: SizeConfig, workers: int, most: int | None, in_process: bool) -> SizeWindow:
    """The job from one checkpoint to the next."""
    step_s = job.step_s(workers)
    if in_process:
        rate = workers / (step_s + job.item_s)
        return SizeWindow(workers=workers, feeders=0, batches_per_s=rate, step_s=step_s, item_s=job.item_s)
    until_s = job.checkpoint_every_s
    room = max(1, config.max_feeders // workers)
    timeline = simulate(
        Job(
            costs=(Costs(step_s=step_s, item_cpu_s=0.0, item_wait_s=job.item_s, item_sigma=job.item_sigma),),
            cores=1e6,
            duration_s=until_s,
            seed=job.seed,
        ),
        _policy(min(room, most or room)),
    )
    from_s = until_s * (1.0 - _WINDOW)
    ticks = [tick for tick in timeline.ticks if tick.now_s > from_s and tick.observation.steps]
    return SizeWindow(
        workers=workers,
        feeders=workers * ticks[-1].observation.workers,
        batches_per_s=workers * timeline.rate(from_s, until_s),
        step_s=_mean(ticks, lambda tick: tick.observation.step_s, lambda tick: tick.observation.steps),
        item_s=_mean(ticks, lambda tick: tick.observation.item_wall_s, lambda tick: tick.observation.items),
    )


def _policy(most: int) -> ScalingPolicy:
    return JobAutoscaler(JobScalingConfig(cpu_budget_cores=1e6, max_workers=most, hold_s=1.0))


def _mean(ticks: list[Tick], value: Callable[[Tick], float], weight: Callable[[Tick], int]) -> float:
    weights = sum(weight(tick) for tick in ticks)
    return sum(value(tick) * weight(tick) for tick in ticks) / max(1, weights)
