"""Builds steps from marks that cost nanoseconds: batch requested, batch delivered, optimizer begun, optimizer done.

A step ends with a step of the optimizer that stepped first (a program that trains two models in turn has one step for
both), or, without an optimizer, with the request for the next batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from stoker.records.profile import StepTimes


class MarkKind(IntEnum):
    """What happened."""

    ASKED = 0
    DELIVERED = 1
    STEPPING = 2
    """An optimizer begins, or continues after the program computed the loss for it."""
    STEPPED = 3


class Mark(NamedTuple):
    """One event of the training process.

    Attributes:
        t_s: seconds of a monotonic clock.
        thread: that it happened in.
        owner: which optimizer, for optimizer marks.
        cpu_s: processor time of the thread, for loader marks.
    """

    kind: MarkKind
    t_s: float
    thread: int
    owner: int = 0
    cpu_s: float = 0.0


@dataclass(slots=True)
class _Begun:
    """A step in progress. Waits and optimizer calls that begin in it count in full, even if they end later."""

    begin_s: float
    wait_s: float = 0.0
    wait_cpu_s: float = 0.0
    optimizer_s: float = 0.0
    batches: int = 0
    asked_s: float | None = None
    """When its first batch was requested."""
    worked_s: float | None = None
    """When its last optimizer was done."""

    def waited(self, asked: Mark, delivered: Mark) -> None:
        """Adds a batch that was requested in it and has arrived."""
        self.wait_s += delivered.t_s - asked.t_s
        self.wait_cpu_s += max(0.0, delivered.cpu_s - asked.cpu_s)
        self.batches += 1
        if self.asked_s is None:
            self.asked_s = asked.t_s

    def worked(self, begin_s: float, end_s: float) -> None:
        """Adds an optimizer that began in it and is done."""
        self.optimizer_s += end_s - begin_s
        self.worked_s = end_s

    def after_s(self, end_s: float, *, by_optimizer: bool) -> float:
        """Time from an optimizer's end to the request for a batch: before the step, or if batches count, at its end."""
        if by_optimizer:
            return self.asked_s - self.begin_s if self.asked_s is not None else 0.0
        return end_s - self.worked_s if self.worked_s is not None else 0.0


def steps_of(marks: Sequence[Mark], *, by_optimizer: bool, sampled: tuple[int, int] = (0, 0)) -> list[StepTimes]:
    """The steps between the first and the last end of one.

    Args:
        marks: in the order in which they were set.
        by_optimizer: whether optimizer steps count, rather than batches.
        sampled: numbers of the first step that was disturbed by sampling and of the first after them.
    """
    end = next((mark for mark in marks if mark.kind is MarkKind.STEPPED), None) if by_optimizer else None
    by_optimizer = end is not None
    end = end or next((mark for mark in marks if mark.kind is MarkKind.ASKED), None)
    if end is None:
        return []
    begun = _begun_at(end, (mark for mark in marks if mark.thread == end.thread))
    return [
        StepTimes(
            number=number,
            period_s=following.begin_s - step.begin_s,
            wait_s=step.wait_s,
            wait_cpu_s=step.wait_cpu_s,
            optimizer_s=step.optimizer_s,
            after_s=step.after_s(following.begin_s, by_optimizer=by_optimizer),
            batches=step.batches,
            sampled=sampled[0] <= number < sampled[1],
        )
        for number, (step, following) in enumerate(pairwise(begun))
    ]


def _begun_at(end: Mark, marks: Iterable[Mark]) -> list[_Begun]:
    """One step for each mark like ``end``, with what began after it.

    A loader inside another's dataset is part of that one's wait. For an optimizer with a closure, only the time after
    the last loss computation counts as optimizer.
    """
    begun = [_Begun(0.0)]  # what comes before the first end is part of no step
    waiting: list[tuple[Mark, _Begun]] = []
    working: tuple[float, _Begun] | None = None
    for mark in marks:
        if mark.kind is MarkKind.STEPPED and working is not None:
            begin_s, step = working
            step.worked(begin_s, mark.t_s)
            working = None
        if mark.kind is end.kind and mark.owner == end.owner:
            begun.append(_Begun(mark.t_s))
        if mark.kind is MarkKind.ASKED:
            waiting.append((mark, begun[-1]))
        elif mark.kind is MarkKind.STEPPING:
            working = mark.t_s, begun[-1]
        elif mark.kind is MarkKind.DELIVERED and waiting:
            asked, step = waiting.pop()
            if not waiting:
                step.waited(asked, mark)
    return begun[1:]


NUM_BLOCKS = 5


class StepPace(NamedTuple):
    """How long a step takes.

    Attributes:
        seconds: median over blocks of consecutive steps of each block's mean: waits that come every few batches count
            in full, a single disturbance does not.
        low, high: shortest and longest block.
        share: probability that the median of such blocks lies between them, 1 - 2 x 2^-blocks for independent ones
            (order statistics; no assumption on the distribution).
        blocks: how many.
    """

    seconds: float
    low: float
    high: float
    share: float
    blocks: int


def pace_of(periods_s: Sequence[float]) -> StepPace:
    """The pace of consecutive steps; at least one."""
    count = min(NUM_BLOCKS, len(periods_s))
    bounds = [round(k * len(periods_s) / count) for k in range(count + 1)]
    means = [sum(periods_s[a:b]) / (b - a) for a, b in pairwise(bounds)]
    return StepPace(median(means), min(means), max(means), max(0.0, 1 - 2 * 0.5**count), count)
