"""From marks that cost nanoseconds to steps: batch asked for, batch delivered, optimizer begun, optimizer done.

A step ends with a step of the optimizer that stepped first (one that trains two models in turn has one step for both),
or, where no optimizer steps, with the request for the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from stoker.records.profile import StepTimes


class Kind(IntEnum):
    """What happened."""

    ASKED = 0
    DELIVERED = 1
    STEPPING = 2
    """An optimizer begins, or goes on after it had the loss computed by the program."""
    STEPPED = 3


class Mark(NamedTuple):
    """One event of the training process.

    Attributes:
        t_s: seconds of a clock that only goes forwards.
        thread: that it happened in.
        owner: of optimizer marks, which optimizer.
        cpu_s: processor time of the thread, of loader marks.
    """

    kind: Kind
    t_s: float
    thread: int
    owner: int = 0
    cpu_s: float = 0.0


class _Span(NamedTuple):
    begin_s: float
    end_s: float
    cpu_s: float


def steps_of(marks: Sequence[Mark], *, by_optimizer: bool, sampled: tuple[int, int] = (0, 0)) -> list[StepTimes]:
    """The steps between the first and the last end of one.

    Args:
        marks: in the order in which they were set.
        by_optimizer: whether optimizer steps count, rather than batches.
        sampled: numbers of the first step that was disturbed by sampling and of the first after them.
    """
    stepped = [mark for mark in marks if mark.kind is Kind.STEPPED]
    if by_optimizer and stepped:
        thread, owner = stepped[0].thread, stepped[0].owner
        ends = [mark.t_s for mark in stepped if mark.owner == owner and mark.thread == thread]
    else:
        asked = [mark for mark in marks if mark.kind is Kind.ASKED]
        if not asked:
            return []
        thread = asked[0].thread
        ends = [mark.t_s for mark in asked if mark.thread == thread]
    own = [mark for mark in marks if mark.thread == thread]
    waits, works = _pairs(own, Kind.ASKED, Kind.DELIVERED), _pairs(own, Kind.STEPPING, Kind.STEPPED)
    first_asked = [wait.begin_s for wait in waits]
    steps: list[StepTimes] = []
    at_wait = at_work = at_asked = 0
    for number, (begin_s, end_s) in enumerate(pairwise(ends)):
        at_wait, waited = _inside(waits, at_wait, begin_s, end_s)
        at_work, worked = _inside(works, at_work, begin_s, end_s)
        while at_asked < len(first_asked) and first_asked[at_asked] < begin_s:
            at_asked += 1
        after_s = 0.0
        if by_optimizer and at_asked < len(first_asked) and first_asked[at_asked] < end_s:
            after_s = first_asked[at_asked] - begin_s
        elif not by_optimizer and works and worked:
            after_s = end_s - worked[-1].end_s
        steps.append(
            StepTimes(
                number=number,
                period_s=end_s - begin_s,
                wait_s=sum(each.end_s - each.begin_s for each in waited),
                wait_cpu_s=sum(each.cpu_s for each in waited),
                optimizer_s=sum(each.end_s - each.begin_s for each in worked),
                after_s=after_s,
                batches=len(waited),
                sampled=sampled[0] <= number < sampled[1],
            )
        )
    return steps


def _pairs(marks: Sequence[Mark], begin: Kind, end: Kind) -> list[_Span]:
    """Outermost pairs; a loader inside of another's dataset is part of that one's wait.

    Of an optimizer that has the loss computed in between, only what follows the last computation is its own.
    """
    found: list[_Span] = []
    open_marks: list[Mark] = []
    for mark in marks:
        if mark.kind is begin:
            if begin is Kind.STEPPING:
                open_marks = [mark]
            else:
                open_marks.append(mark)
        elif mark.kind is end and open_marks:
            first = open_marks.pop()
            if not open_marks:
                found.append(_Span(first.t_s, mark.t_s, max(0.0, mark.cpu_s - first.cpu_s)))
    return found


def _inside(spans: Sequence[_Span], at: int, begin_s: float, end_s: float) -> tuple[int, list[_Span]]:
    """The spans that begin in a step, and where the next step's begin."""
    while at < len(spans) and spans[at].begin_s < begin_s:
        at += 1
    first = at
    while at < len(spans) and spans[at].begin_s < end_s:
        at += 1
    return at, list(spans[first:at])


NUM_BLOCKS = 5


class Pace(NamedTuple):
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


def pace_of(periods_s: Sequence[float]) -> Pace:
    """The pace of consecutive steps; at least one."""
    count = min(NUM_BLOCKS, len(periods_s))
    bounds = [round(k * len(periods_s) / count) for k in range(count + 1)]
    means = [sum(periods_s[a:b]) / (b - a) for a, b in pairwise(bounds)]
    return Pace(median(means), min(means), max(means), max(0.0, 1 - 2 * 0.5**count), count)
