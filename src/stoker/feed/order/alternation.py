"""Which batches of a loader torch's own workers make, and which stoker's, when the two are compared; pure.

Rounds of equal length alternate, stoker's first, torch's second: a pair. A side draws nothing beyond its own round, so
that the other side's workers are idle, and its round begins with an empty queue. In a round with W workers, the first W
batches fill the queue, and the last W are made while nothing is drawn after them: neither counts. The number that
counts is a multiple of W, since workers that began together keep delivering W batches at a time.

The rounds depend on the number of batches alone, not on measurements: with the same command, each batch is made by the
same side.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from stoker.records.versus import (
    LEAST_ROUND,
    MIN_PAIRS,
    ROUNDS_OF_WORKERS,
    WARM_UP_PAIRS,
    Pair,
    Round,
    least_batches,
)

_ROUND = 40
"""Batches of a round; with more batches there are more pairs, not longer rounds, up to ``MAX_PAIRS``."""
MAX_PAIRS = 12
"""Pairs beyond which more batches make longer rounds."""


class BatchSource(enum.Enum):
    """Who makes a batch."""

    OURS = "stoker"
    PLAIN = "torch"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The rounds of a comparison."""

    round_batches: int
    batches: int
    """Most batches of all rounds together."""


def plan(batches: int, *, length: int | None, reserve: int, workers: int) -> Plan | str:
    """The rounds for a loader, or why it cannot be compared, as half a sentence.

    Args:
        batches: to be compared, over as many iterations as it takes.
        length: batches of an iteration; None if unknown.
        reserve: the last batches of an iteration, which belong to no round.
        workers: workers that the loader declares.
    """
    least = max(LEAST_ROUND, ROUNDS_OF_WORKERS * workers)
    longest = batches // (2 * (WARM_UP_PAIRS + MIN_PAIRS))
    wanted = min(longest, max(_ROUND, least, batches // (2 * (WARM_UP_PAIRS + MAX_PAIRS))))
    fitting = wanted if length is None else min(wanted, (length - reserve) // 2)
    if fitting >= least:
        return Plan(round_batches=fitting, batches=batches)
    if wanted < least:
        return f"{workers} declared workers need longer rounds; `--versus-plain {least_batches(workers)}` would do"
    return f"an iteration of {length} batches is too short for two rounds of {least}"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A round to be made: ``side`` makes the work items below ``end``."""

    side: BatchSource
    end: int


def counted_part(round_batches: int, first: int, last: int) -> tuple[int, int]:
    """Deliveries of a round before those that count, and how many count; 0 if it is too short.

    At least one comes before: it starts the clock.

    Args:
        round_batches: batches of the round.
        first: workers when it began.
        last: workers when it ended.
    """
    first, last = max(1, first), max(1, last)
    room = round_batches - first - last
    if room < last:
        return first, 0
    return first, room if first != last else room // last * last


@dataclass
class Stopwatch:
    """Times the deliveries of one round."""

    times_s: list[float] = field(default_factory=list[float])
    samples: list[int] = field(default_factory=list[int])
    workers: list[int] = field(default_factory=list[int])

    def delivered(self, now_s: float, samples: int, workers: int) -> None:
        """Records that the program got a batch."""
        self.times_s.append(now_s)
        self.samples.append(samples)
        self.workers.append(workers)

    def is_steady(self, round_batches: int) -> bool:
        """Whether the next delivery counts, if the number of workers stays."""
        done = len(self.times_s)
        if not done:
            return False
        lead, count = counted_part(round_batches, self.workers[0], self.workers[-1])
        return lead <= done < lead + count

    def stop(self, round_batches: int) -> Round:
        """The counted part of the round; empty if a delivery failed or there were too many workers."""
        first, last = (self.workers[0], self.workers[-1]) if self.workers else (0, 0)
        lead, count = counted_part(round_batches, first, last)
        if len(self.times_s) != round_batches:
            count = 0
        return Round(
            workers_from=first,
            workers_to=last,
            batches=count,
            samples=sum(self.samples[lead : lead + count]),
            seconds=self.times_s[lead + count - 1] - self.times_s[lead - 1] if count else 0.0,
        )


class Alternation:
    """The comparison of one loader over all its iterations."""

    def __init__(self, rounds: Plan) -> None:
        self.plan = rounds
        self.pairs: list[Pair] = []
        """Finished pairs that count."""
        self.spent = 0
        """Batches made in rounds."""
        self.stopped = ""
        """Why it cannot continue, as half a sentence."""
        self._warm_ups = WARM_UP_PAIRS

    @property
    def over(self) -> bool:
        """Whether no further pair will be begun."""
        left = self.plan.batches - self.spent
        return bool(self.stopped) or left < 2 * self.plan.round_batches

    def add(self, pair: Pair, *, cold: bool) -> bool:
        """Records a finished pair; returns whether it counts.

        Args:
            pair: what was measured.
            cold: processes were still being started, by other means than a fork.
        """
        if self._warm_ups or cold:
            self._warm_ups = max(0, self._warm_ups - 1)
            return False
        self.pairs.append(pair)
        return True


class Walk:
    """The rounds of one iteration; a pair that it leaves unfinished is dropped.

    Args:
        alternation: of the loader.
        last: number of work items that may belong to rounds; None for any.
        cold: the first pair meets processes that are still starting.
    """

    def __init__(self, alternation: Alternation, *, last: int | None, cold: bool) -> None:
        self.alternation = alternation
        self._last = last
        self._cold = cold
        self._ours: Round | None = None
        self._watch = Stopwatch()
        self.turn: Turn | None = None
        """The current round; None if stoker makes the rest of the iteration, without a comparison."""

    def next_turn(self, first: int, num_open: int = 0) -> Pair | None:
        """Ends the current round, if any, and begins the next one; returns a finished pair if it counts.

        Args:
            first: the work item that is delivered next.
            num_open: items from there on that stoker had drawn before there were rounds.
        """
        done = self._finish() if self.turn is not None else None
        size = self.alternation.plan.round_batches
        if self.turn is not None and self.turn.side is BatchSource.OURS:
            side = BatchSource.PLAIN
        elif self.alternation.over or (self._last is not None and first + 2 * size > self._last):
            self.turn = None
            return done
        else:
            side = BatchSource.OURS
        self._watch = Stopwatch()
        self.turn = Turn(side=side, end=first + max(size, num_open))
        return done

    def _finish(self) -> Pair | None:
        assert self.turn is not None
        size = self.alternation.plan.round_batches
        measured = self._watch.stop(size)
        if self.turn.side is BatchSource.OURS:
            self._ours = measured
            return None
        assert self._ours is not None
        pair = Pair(round_batches=size, ours=self._ours, plain=measured)
        cold, self._cold = self._cold, False
        return pair if self.alternation.add(pair, cold=cold) else None

    def delivered(self, now_s: float, samples: int, workers: int) -> None:
        """Records a batch from the side whose turn it is."""
        if self.turn is not None:
            self.alternation.spent += 1
            self._watch.delivered(now_s, samples, workers)

    @property
    def steady(self) -> bool:
        """Whether the next batch shows the throughput of its side, not that of a queue that fills or drains."""
        return self.turn is None or self._watch.is_steady(self.alternation.plan.round_batches)
