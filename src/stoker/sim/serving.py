"""A service on a virtual clock: the queue of the real one, before engines whose costs are given.

The front end's own time is given, if it is to count. What is not simulated: the network, and engines that share cores
with each other.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from stoker.serve.policy import BatchPolicy, QueuedRequest

_ENDS, _ARRIVES = 0, 1
"""At the same moment, an engine becomes idle before a request arrives."""


class Arrival(NamedTuple):
    """A request of a trace.

    Attributes:
        at_s: when it arrives; not before the one before it.
        samples: that it has.
        priority: lower goes first.
    """

    at_s: float
    samples: int = 1
    priority: int = 3


class FrontEnd(NamedTuple):
    """Time that the service itself takes, besides its engines.

    Attributes:
        before_s: from a request's arrival until the queue has it.
        handover_s: of a batch to an idle engine and back, in which that engine computes nothing.
        between_s: of a batch that its engine has already, from the end of the one before it.
        after_s: from the end of a batch until its answers are out.
        core_s: of its one core for a request, one after another, before the queue has it.
    """

    before_s: float = 0.0
    handover_s: float = 0.0
    between_s: float = 0.0
    after_s: float = 0.0
    core_s: float = 0.0


NO_FRONT_END = FrontEnd()
"""One that takes no time."""


@dataclass
class ServedTrace:
    """What became of the requests of a trace.

    Attributes:
        latencies_s: of answered ones, in the order of their ends.
        refused: on arrival.
        dropped: at dispatch.
        batches: samples of each.
        end_s: of the last batch.
    """

    latencies_s: list[float] = field(default_factory=list[float])
    refused: int = 0
    dropped: int = 0
    batches: list[int] = field(default_factory=list[int])
    end_s: float = 0.0

    def quantile_s(self, frac: float) -> float:
        """The time within which this share of the answers came; NaN without any."""
        if not self.latencies_s:
            return math.nan
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, math.ceil(frac * len(ordered)) - 1)]

    def in_time(self, slo_s: float) -> int:
        """Answers that came within a time."""
        return sum(latency_s <= slo_s for latency_s in self.latencies_s)


def poisson(rate: float, count: int, seed: int = 0, samples: int = 1) -> Iterator[Arrival]:
    """Requests that arrive independently of each other.

    Args:
        rate: requests a second.
        count: of them.
        seed: of their times.
        samples: of each.
    """
    random_s = random.Random(seed)
    at_s = 0.0
    for _ in range(count):
        at_s += random_s.expovariate(rate)
        yield Arrival(at_s, samples)


def serve_trace(
    arrivals: Iterable[Arrival], policy: BatchPolicy, engines: int, cost_s: Callable[[int], float], slo_s: float,
    front: FrontEnd = NO_FRONT_END,
) -> ServedTrace:  # fmt: skip
    """Serves a trace until the last answer.

    Args:
        arrivals: in the order of their times.
        policy: of the queue; for as many engines.
        engines: that compute.
        cost_s: seconds that a batch really takes, by its samples; may differ from what the policy believes.
        slo_s: time that each request has.
        front: what the service itself takes; nothing by default.
    """
    trace = ServedTrace()
    numbers = itertools.count()
    coming = iter(arrivals)
    events: list[tuple[float, int, int, object]] = []
    arrived: dict[int, float] = {}
    busy: dict[int, _Running] = {}
    """By batch; each may have the next one of its engine."""

    read_s = -math.inf
    """When the front end has read all that it has begun."""

    def next_arrival() -> None:
        nonlocal read_s
        if (arrival := next(coming, None)) is not None:
            read_s = max(read_s, arrival.at_s) + front.core_s
            heapq.heappush(events, (read_s + front.before_s, _ARRIVES, next(numbers), arrival))

    def chosen(now_s: float, wait_s: float | None) -> _Running | None:
        """The next batch of an engine that is idle, or will be in ``wait_s``."""
        found = policy.next_batch(now_s, wait_s)
        if found is None:
            return None
        trace.dropped += len(found.dropped)
        for each in found.dropped:
            del arrived[each]
        samples = sum(each.samples for each in found.requests)
        if not samples:
            return _Running(-1, 0, 0.0, 0.0, [])
        trace.batches.append(samples)
        batch = policy.started(now_s + (wait_s or 0.0), found.expected_s)
        handover_s = front.handover_s if wait_s is None else front.between_s
        return _Running(batch, samples, cost_s(samples), handover_s, list(found.requests))

    def run(now_s: float, running: _Running) -> None:
        busy[running.batch] = running
        heapq.heappush(events, (now_s + running.took_s + running.handover_s, _ENDS, next(numbers), running))

    next_arrival()
    while events:
        now_s, kind, number, what = heapq.heappop(events)
        if kind == _ARRIVES:
            assert isinstance(what, Arrival)
            next_arrival()
            if policy.refusal_s(now_s, what.priority) is not None:
                trace.refused += 1
            else:
                arrived[number] = what.at_s
                policy.arrive(QueuedRequest(number, what.samples, now_s + slo_s, 0, what.priority))
        else:
            assert isinstance(what, _Running)
            del busy[what.batch]
            policy.ended(now_s, what.batch, what.samples, what.took_s, what.handover_s)
            latencies_s = [now_s + front.after_s - arrived.pop(each.number) for each in what.requests]
            late = sum(now_s + front.after_s > each.deadline_s for each in what.requests)
            policy.answered(front.after_s, late / len(what.requests))
            trace.latencies_s += latencies_s
            trace.end_s = now_s
            if what.next is not None:
                policy.begins(now_s, what.next.batch)
                run(now_s, what.next)
        while len(busy) < engines and policy.num_waiting and (running := chosen(now_s, None)) is not None:
            if running.requests:
                run(now_s, running)
        while policy.is_full and (first := _soonest(busy.values(), policy, now_s)) is not None:
            ahead = chosen(now_s, policy.left_s(now_s, first.batch))
            if ahead is None:
                break
            if ahead.requests:
                first.next = ahead
    return trace


@dataclass(eq=False)
class _Running:
    batch: int
    samples: int
    took_s: float
    handover_s: float
    requests: list[QueuedRequest]
    next: _Running | None = None
    """The next one of the same engine, which has it already."""


def _soonest(busy: Iterable[_Running], policy: BatchPolicy, now_s: float) -> _Running | None:
    """The batch that ends first among those whose engine has no next one."""
    alone = [running for running in busy if running.next is None]
    return min(alone, key=lambda running: policy.left_s(now_s, running.batch), default=None)
