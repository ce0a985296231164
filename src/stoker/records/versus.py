"""Torch's own loader compared with stoker's: a ratio with its spread, from rounds timed in alternation.

Pure. A pair is one round of each side, one after the other, on the same machine in the same run of the program; the
ratio of a pair is the time of a batch under torch's loader over that under ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

MIN_PAIRS = 5
"""Fewer say nothing about the spread."""
WARM_UP_PAIRS = 1
"""Before those that count: both sides start their processes, and ours is probed."""
LEAST_ROUND = 10
"""Batches of the shortest round."""
ROUNDS_OF_WORKERS = 3
"""Least batches per worker in a round: some to fill the queue, some to count, and some after which nothing is made."""
LEAST_BATCHES = 2 * (WARM_UP_PAIRS + MIN_PAIRS) * LEAST_ROUND
"""Fewest batches of a whole comparison."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted of one round of one side."""

    workers_from: int
    """Data workers when it began; 0 where batches were made in the training process."""
    workers_to: int
    """When it ended."""
    batches: int
    """Counted; 0 where the round was too short for its workers."""
    samples: int
    """Samples of the counted batches; 0 where unknown."""
    seconds: float
    """Seconds from the delivery before the first batch to that of the last, the program's own steps included."""

    @property
    def batch_s(self) -> float:
        """Time of a batch."""
        return self.seconds / self.batches


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One round of each side."""

    round_batches: int
    """Batches of each round, uncounted ones included."""
    ours: Round
    plain: Round

    @property
    def counts(self) -> bool:
        """Whether both rounds were long enough to be counted."""
        return min(self.ours.batches, self.plain.batches) > 0 and min(self.ours.seconds, self.plain.seconds) > 0.0

    @property
    def ratio(self) -> float:
        """How many times as fast as torch's loader ours was."""
        return self.plain.batch_s / self.ours.batch_s


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side over all pairs."""

    workers_from: int
    workers_to: int
    batches_per_s: float
    """Median of its rounds."""
    samples_per_s: float | None
    """None where batch sizes are unknown."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How a loader fared against torch's own."""

    ratio: float
    """Median over the pairs; above 1 where stoker was faster."""
    ratio_least: float
    ratio_most: float
    pairs: int
    round_batches: int
    ours: Side
    plain: Side
    rounds: list[Pair]
    """All of them in their order, those that do not count included."""


def compare(pairs: Sequence[Pair]) -> Comparison | None:
    """What the pairs show; None where fewer than ``MIN_PAIRS`` count."""
    counted = [pair for pair in pairs if pair.counts]
    if len(counted) < MIN_PAIRS:
        return None
    ratios = [pair.ratio for pair in counted]
    return Comparison(
        ratio=median(ratios),
        ratio_least=min(ratios),
        ratio_most=max(ratios),
        pairs=len(counted),
        round_batches=counted[-1].round_batches,
        ours=_side([pair.ours for pair in counted]),
        plain=_side([pair.plain for pair in counted]),
        rounds=list(pairs),
    )


def _side(rounds: Sequence[Round]) -> Side:
    known = all(part.samples for part in rounds)
    return Side(
        workers_from=rounds[0].workers_from,
        workers_to=rounds[-1].workers_to,
        batches_per_s=median(part.batches / part.seconds for part in rounds),
        samples_per_s=median(part.samples / part.seconds for part in rounds) if known else None,
    )


def least_batches(workers: int) -> int:
    """Batches that a comparison needs where a side has so many workers."""
    return 2 * (WARM_UP_PAIRS + MIN_PAIRS) * max(LEAST_ROUND, ROUNDS_OF_WORKERS * workers)


def shortfall(pairs: Sequence[Pair]) -> str:
    """Why ``pairs`` are too few for a ratio, as half a sentence."""
    counted = sum(pair.counts for pair in pairs)
    workers = max((part.workers_to for pair in pairs if not pair.counts for part in (pair.ours, pair.plain)), default=0)
    if counted + sum(not pair.counts for pair in pairs) >= MIN_PAIRS:
        return (
            f"rounds of {pairs[-1].round_batches} batches are too short for {workers} workers; "
            f"`--versus-plain {least_batches(workers)}` would be enough"
        )
    return f"it takes {MIN_PAIRS} pairs of rounds, and the program ended after {counted}"


def describe(comparison: Comparison) -> str:
    """The comparison in one sentence, in the same words for either result."""
    found = comparison
    spread = f"{found.ratio_least:.2f}x to {found.ratio_most:.2f}x"
    rounds = f"{found.pairs} pairs of rounds of {found.round_batches} batches"
    return (
        f"{found.ratio:.2f}x plain python ({spread}, {rounds}): {_rate(found.ours)} {_made_by(found.ours, '')}, "
        f"{_rate(found.plain)} {_made_by(found.plain, 'torch')}"
    )


def _rate(side: Side) -> str:
    rate, unit = (side.batches_per_s, "batches/s") if side.samples_per_s is None else (side.samples_per_s, "samples/s")
    return f"{rate:,.0f} {unit}" if rate >= 100 else f"{rate:.1f} {unit}" if rate >= 10 else f"{rate:.2f} {unit}"


def _made_by(side: Side, owner: str) -> str:
    if not side.workers_to:
        return "without workers"
    noun = "worker" if side.workers_to == 1 else "workers"
    number = (
        f"{side.workers_to}" if side.workers_from == side.workers_to else f"{side.workers_from} → {side.workers_to}"
    )
    return f"with {owner}'s {number} {noun}" if owner else f"with {number} {noun}"
