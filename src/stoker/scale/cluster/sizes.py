"""How many training workers a job has, and with how many data workers each is fed: pure, nothing is measured here.

A job's rate is that of its slowest part: ``min(training workers' rate(n), data workers' rate(d), link)``. One window of
a running job tells most of it, because the queue splits a step into waiting and computing: the training workers' rate
at this number, whatever feeds them, and the seconds that a data worker takes for a batch. How a step grows with the
number of training workers is a prior until two numbers were measured (its communication, as ``perf`` has it), then the
measurements'. Data workers follow the queue at any time (``scale.job``); another number of training workers costs a
restart, and so needs a checkpoint, a gain and a horizon.

Source: GoldMiner (SIGMOD 2023), the search of both sizes by the state of the queue; the model, the horizon and what may
be proposed are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from stoker.core.units import format_count, format_seconds

Objective = Literal["rate", "price"]
ExposedSeconds = Callable[[int], float]
"""What communication adds to a step of so many training workers (s)."""

MARGIN = 0.03
"""A change must promise this share more: less is within what a window is wrong by."""
SAME = 0.01
"""Sizes that differ by less are the same: the smaller one is taken."""
MAX_CHANGES = 3
"""Changes of a job: two that try, and one back to what was measured better."""
_MOST_LOST = 0.3
"""A window that shows less than this share of its parts' rate was disturbed, and is not believed to that extent."""
LEAST_SHARE = 0.1
"""A step is never believed to become shorter than this share of the shortest measured one."""


@dataclass(frozen=True, kw_only=True)
class SizeConfig:
    """What a job may have, and what it is to be good at."""

    least: int
    """Training workers."""
    most: int
    objective: Objective = "rate"
    """Throughput, or throughput for the price."""
    worker_price: float = 1.0
    """Price of a training worker, for an hour in any currency."""
    cpu_price: float = 0.0
    """Price of a CPU, which a data worker counts as, likewise."""
    horizon_s: float = 3600.0
    """Within this time a change must have repaid its cost."""
    max_feeders: int = 64
    """Data workers of all training workers together."""
    cores: float = math.inf
    """CPU cores that these may keep busy together."""
    micro_batches: int = 0
    """Batches of all training workers that make a step of the optimizer, kept by accumulation; 0: not kept."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"`least` must be from 1 to `most` ({self.most}), got {self.least}")
        if self.micro_batches and not self.sizes:
            raise ValueError(f"`micro_batches` must be divisible by a size, got {self.micro_batches}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of training workers that may be chosen."""
        every = range(self.least, self.most + 1)
        return tuple(n for n in every if not self.micro_batches or self.micro_batches % n == 0)

    def accumulation(self, workers: int) -> int:
        """Batches that each of so many training workers adds up before a step; 1 where the program is not told."""
        return self.micro_batches // workers if self.micro_batches else 1

    def price(self, workers: int, feeders: int) -> float:
        """For an hour; 1 where prices do not count, so that the score is the rate."""
        if self.objective == "rate":
            return 1.0
        return workers * self.worker_price + feeders * self.cpu_price


@dataclass(frozen=True, kw_only=True)
class SizeWindow:
    """What a stretch of a job with constant sizes showed, long enough to be believed."""

    workers: int
    """Training workers."""
    feeders: int
    """Data workers of all of them; 0: they make their batches themselves."""
    batches_per_s: float
    """Rate of all training workers together."""
    step_s: float
    """A batch's step in a training worker, without waiting for input: the shortest of all, because it holds least of
    what they wait for each other."""
    item_s: float
    """That a data worker takes for a batch, or the training worker where it makes them; 0.0: not known."""
    item_cpu_s: float = 0.0
    """CPU time of it."""
    batch_samples: float = 1.0
    elastic: bool = True
    """Whether the number of data workers may change."""
    link_full: bool = False
    """Other machines' batches come as fast as their link carries them: more data workers would bring nothing."""


@dataclass(frozen=True, kw_only=True)
class SizeChange:
    """What a change of the training workers would cost now."""

    restart_s: float
    """From the end of the ranks to the first batch of the new ones."""
    repeated_steps: int = 0
    """Steps since the checkpoint."""
    step_s: float = 0.0
    """Duration of each."""

    @property
    def seconds(self) -> float:
        """Time without progress."""
        return self.restart_s + self.repeated_steps * self.step_s

    def __str__(self) -> str:
        again = format_count(self.repeated_steps, "step")
        return f"restart {format_seconds(self.restart_s)}, {again} again"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A pair of sizes and what it is worth."""

    workers: int
    feeders_each: int
    """Data workers of each training worker."""
    batches_per_s: float
    score: float
    """Batches a second, or for the price of it."""

    @property
    def feeders(self) -> int:
        """Data workers of all."""
        return self.workers * self.feeders_each


@dataclass(frozen=True, kw_only=True)
class SizeDecision:
    """The sizes from now on."""

    sizes: Sizes
    restart: bool
    """Whether the ranks must be restarted for it."""
    most_feeders_each: int | None
    """Most data workers of a training worker, where they have a price; None leaves them to the queue."""
    reason: str
    """One line for people."""


class SizeModel:
    """The rate of each pair of sizes, fitted to what was measured.

    Args:
        windows: the last one of each number of training workers, at least one.
        config: of the job.
        exposed: the prior of communication.
    """

    def __init__(self, windows: Mapping[int, SizeWindow], config: SizeConfig, exposed: ExposedSeconds) -> None:
        self._config = config
        newest = [window for window in windows.values() if window.item_s > 0.0]
        self._item_s = max((window.item_s for window in newest[-1:]), default=0.0)
        self._item_cpu_s = max((window.item_cpu_s for window in newest[-1:]), default=0.0)
        self._link = max((each.batches_per_s for each in windows.values() if each.link_full), default=math.inf)
        # A step of the optimizer exchanges once, whatever it adds up before.
        self._prior = {n: exposed(n) / config.accumulation(n) for n in config.sizes}
        self._steps = sorted((n, window.step_s) for n, window in windows.items())
        self._losses = {n: self._loss(window) for n, window in windows.items()}
        self._newest_loss = list(self._losses.values())[-1]

    def step_s(self, workers: int) -> float:
        """A batch's step in a training worker of so many.

        By the prior, until two numbers were measured. Then steps are believed to grow less than straight, by the square
        between two measurements and by the logarithm beyond them, so that what was not measured is tried, and known.
        """
        found = self._steps
        if len(found) == 1:
            [(at, step_s)] = found
            return max(step_s + self._prior[workers] - self._prior[at], LEAST_SHARE * step_s)
        after = next((n for n in range(1, len(found) - 1) if workers <= found[n][0]), len(found) - 1)
        (left, low), (right, high) = found[after - 1], found[after]
        if left <= workers <= right:
            return low + (high - low) * ((workers - left) / (right - left)) ** 2
        # More workers make no step shorter.
        share = math.log(workers / left) / math.log(right / left)
        return max(low + share * max(0.0, high - low), LEAST_SHARE * low)

    def batches_per_s(self, workers: int, feeders_each: int) -> float:
        """The rate of a pair: that of its slowest part, less what such rates lost when they were measured."""
        return self._losses.get(workers, self._newest_loss) * self._by_parts(workers, feeders_each)

    def _loss(self, window: SizeWindow) -> float:
        """The share of the parts' rate that came about: ranks wait for each other, stores falter."""
        parts = self._by_parts(window.workers, window.feeders // window.workers)
        return min(1.0, max(_MOST_LOST, window.batches_per_s / parts))

    def _by_parts(self, workers: int, feeders_each: int) -> float:
        step_s, item_s = self.step_s(workers), self._item_s
        if not feeders_each:
            return min(workers / (step_s + item_s), self._link)
        fed = feeders_each / item_s if item_s else math.inf
        by_cpu = self._config.cores / self._item_cpu_s if self._item_cpu_s else math.inf
        return min(workers * min(1.0 / step_s, fed), by_cpu, self._link)

    def enough(self, workers: int) -> int:
        """Data workers of each training worker beyond which none gains."""
        return max(1, math.ceil(self._item_s / self.step_s(workers) - SAME))


@dataclass
class SizeSearch:
    """The search over a job's life: windows in, decisions out. Deterministic, not thread-safe."""

    config: SizeConfig
    exposed: ExposedSeconds = lambda workers: 0.0
    changes: int = 0
    """Made so far."""
    _windows: dict[int, SizeWindow] = field(default_factory=dict[int, SizeWindow])
    _scores: dict[tuple[int, bool], float] = field(default_factory=dict[tuple[int, bool], float])

    def observe(self, window: SizeWindow) -> None:
        """Takes in a window; the last one of its size counts, and of its score the best."""
        self._windows.pop(window.workers, None)
        self._windows[window.workers] = window
        key = window.workers, window.feeders > 0
        score = window.batches_per_s / self.config.price(window.workers, window.feeders)
        self._scores[key] = max(score, self._scores.get(key, 0.0))

    def moved(self) -> None:
        """The ranks were restarted, as decided."""
        self.changes += 1

    def decide(self, change: SizeChange | None) -> SizeDecision:
        """What to do now; the window observed last is that of the present sizes.

        Args:
            change: what another number of training workers would cost now, just after a checkpoint; None without one:
                then only the most data workers may change.

        Raises:
            ValueError: nothing was observed.
        """
        if not self._windows:
            raise ValueError("`decide` needs a window, and nothing was observed")
        now = list(self._windows.values())[-1]
        model = SizeModel(self._windows, self.config, self.exposed)
        pairs = list(self._pairs(model, now))
        here = _best([pair for pair in pairs if pair.workers == now.workers and _is_fed(pair) == (now.feeders > 0)])
        best = _best([pair for pair in pairs if self._may_try(pair, now)])
        if best is None or here is None or best.score <= here.score * (1.0 + MARGIN):
            return self._stay(here, now, self._why_stay(here, now))
        if change is None:
            return self._stay(here, now, f"{_words(here)}: their number changes only after a checkpoint")
        return self._weigh(here, best, now, change)

    def _pairs(self, model: SizeModel, now: SizeWindow) -> Iterator[Sizes]:
        """All pairs that may be chosen, each with its worth."""
        for workers in self.config.sizes:
            for each in self._feeders(model, now, workers):
                rate = model.batches_per_s(workers, each)
                score = rate / self.config.price(workers, workers * each)
                yield Sizes(workers=workers, feeders_each=each, batches_per_s=rate, score=score)

    def _feeders(self, model: SizeModel, now: SizeWindow, workers: int) -> range:
        """Numbers of data workers of each training worker."""
        if not now.elastic:
            fixed = now.feeders // now.workers
            return range(fixed, fixed + 1)
        most = min(model.enough(workers), self.config.max_feeders // workers)
        # Without prices a data worker that brings anything is worth it; that none does is for the queue to find.
        return range(0 if self.config.objective == "price" or most < 1 else 1, most + 1)

    def _may_try(self, pair: Sizes, now: SizeWindow) -> bool:
        """Whether a pair may be proposed: never what was measured worse, and last only what is known."""
        measured = self._scores.get((pair.workers, _is_fed(pair)))
        mine = self._scores[now.workers, now.feeders > 0]
        if measured is not None and measured <= mine * (1.0 + MARGIN) and pair.workers != now.workers:
            return False
        left = MAX_CHANGES - self.changes
        return left > 1 or (left == 1 and measured is not None)

    def _weigh(self, here: Sizes, best: Sizes, now: SizeWindow, change: SizeChange) -> SizeDecision:
        """A change that gains is made if it repays itself within the horizon."""
        repaid_s = change.seconds * best.score / (best.score - here.score)
        of = "the rate" if self.config.objective == "rate" else "the rate for the price"
        samples = now.batch_samples
        words = (
            f"{_words(best)} promise {best.score / here.score:.2f}x {of} of {here.workers} with {here.feeders} "
            f"({best.batches_per_s * samples:.0f} against {here.batches_per_s * samples:.0f} samples/s); "
            f"{change}: repaid after {format_seconds(repaid_s)}"
        )
        if repaid_s > self.config.horizon_s:
            return self._stay(here, now, f"{words}, beyond `--horizon` {format_seconds(self.config.horizon_s)}")
        reason = f"{words}, within `--horizon` {format_seconds(self.config.horizon_s)}"
        return SizeDecision(sizes=best, restart=True, most_feeders_each=self._most(best, now), reason=reason)

    def _stay(self, here: Sizes | None, now: SizeWindow, reason: str) -> SizeDecision:
        each = now.feeders // now.workers
        score = self._scores[now.workers, now.feeders > 0]
        sizes = here or Sizes(
            workers=now.workers, feeders_each=each, batches_per_s=now.batches_per_s, score=score
        )  # fmt: skip
        return SizeDecision(sizes=sizes, restart=False, most_feeders_each=self._most(sizes, now), reason=reason)

    def _most(self, sizes: Sizes, now: SizeWindow) -> int | None:
        return sizes.feeders_each if self.config.objective == "price" and now.elastic else None

    def _why_stay(self, here: Sizes | None, now: SizeWindow) -> str:
        stays = _words(here) if here else format_count(now.workers, "training worker")
        if len(self.config.sizes) == 1:
            return f"{stays}: no other number may be chosen"
        if self.changes >= MAX_CHANGES:
            return f"{stays}: changed {MAX_CHANGES} times, which is the most"
        of = "rate" if self.config.objective == "rate" else "rate for the price"
        return f"{stays}: no other size promises {100 * MARGIN:.0f} % more {of}"


def on_global_batch(config: SizeConfig, before: int, after: int, batch_samples: float) -> str:
    """What a change does to the samples of an optimizer's step, in words that come before it."""
    if config.micro_batches:
        samples = config.micro_batches * batch_samples
        each = f"accumulation {config.accumulation(before)} -> {config.accumulation(after)}"
        return f"the global batch stays {samples:.0f} samples ({each})"
    return (
        f"the global batch becomes {after * batch_samples:.0f} samples, from {before * batch_samples:.0f}; "
        "`--accumulation-env NAME` keeps it where the program takes its accumulation from NAME"
    )


def _best(pairs: list[Sizes]) -> Sizes | None:
    """The best pair; of those that are the same, the smallest."""
    most = max((pair.score for pair in pairs), default=0.0)
    near = [pair for pair in pairs if pair.score >= most * (1.0 - SAME)]
    return min(near, key=lambda pair: (pair.workers, pair.feeders_each), default=None)


def _is_fed(pair: Sizes) -> bool:
    return pair.feeders_each > 0


def _words(pair: Sizes) -> str:
    return f"{format_count(pair.workers, 'training worker')} with {format_count(pair.feeders, 'data worker')}"
