"""A service on a virtual clock: the queue of the real one, before engines whose costs are given.

What is not simulated: the front end's own time, the network, and engines that share cores with each other.
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
    arrivals: Iterable[Arrival], policy: BatchPolicy, engines: int, cost_s: Callable[[int], float], slo_s: float
) -> ServedTrace:
    """Serves a trace until the last answer.

    Args:
        arrivals: in the order of their times.
        policy: of the queue; for as many engines.
        engines: that compute.
        cost_s: seconds that a batch really takes, by its samples; may differ from what the policy believes.
        slo_s: time that each request has.
    """
    trace = ServedTrace()
    numbers = itertools.count()
    coming = iter(arrivals)
    events: list[tuple[float, int, int, object]] = []
    arrived: dict[int, float] = {}
    idle = engines

    def next_arrival() -> None:
        if (arrival := next(coming, None)) is not None:
            heapq.heappush(events, (arrival.at_s, _ARRIVES, next(numbers), arrival))

    next_arrival()
    while events:
        now_s, kind, number, what = heapq.heappop(events)
        if kind == _ARRIVES:
            assert isinstance(what, Arrival)
            next_arrival()
            if policy.refusal_s(now_s, what.priority) is not None:
                trace.refused += 1
            else:
                arrived[number] = now_s
                policy.arrive(QueuedRequest(number, what.samples, now_s + slo_s, 0, what.priority))
        else:
            assert isinstance(what, _Running)
            idle += 1
            policy.ended(now_s, what.batch, what.samples, what.took_s)
            trace.latencies_s += [now_s - arrived.pop(each.number) for each in what.requests]
            trace.end_s = now_s
        while idle and policy.num_waiting:
            chosen = policy.next_batch(now_s)
            if chosen is None:
                break
            trace.dropped += len(chosen.dropped)
            for each in chosen.dropped:
                del arrived[each]
            if chosen.requests:
                samples = sum(each.samples for each in chosen.requests)
                took_s = cost_s(samples)
                batch = policy.started(now_s, chosen.expected_s)
                running = _Running(batch, samples, took_s, list(chosen.requests))
                heapq.heappush(events, (now_s + took_s, _ENDS, next(numbers), running))
                trace.batches.append(samples)
                idle -= 1
    return trace


class _Running(NamedTuple):
    batch: int
    samples: int
    took_s: float
    requests: list[QueuedRequest]
