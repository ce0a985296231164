"""`stoker serve plan`: how many services with how many engines of which kind, by their own queue on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.core.units import format_count, format_seconds
from stoker.scale.serving import CostCurve, ServingQueue, ServingRules
from stoker.serve.models.version import Costs
from stoker.sim.serving import Arrival, FrontEnd, ServedTrace, poisson, serve_trace

REQUESTS = 20_000
"""Length of a simulated trace: 200 of them are beyond the 99th percentile."""
_SHED_FRAC = 0.001
_FRONT_FRAC = 0.7
"""Share of its core that a service's front end may be busy: more requests than usual come at times."""
_MORE_SERVICES = 32
"""To try beyond those that are needed by this share."""
_LEAST_SHARE = 100
"""Requests of a trace that a service must have: fewer say nothing about a 99th percentile."""
_EXACT_S = 1e-9
"""Less than that is a matter of rounding."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is asked of a service.

    Attributes:
        rate: requests a second.
        p99_s: of answers.
        samples: of a request.
        max_batch: samples that run together.
    """

    rate: float
    p99_s: float
    samples: int = 1
    max_batch: int = 32


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What one kind of engine needs.

    Attributes:
        engine: its name.
        costs: samples and seconds.
        count: engines of each service; None where as many as were tried do not do.
        services: that the requests are divided among.
        requests: of the trace.
        trace: what became of them with these, or with the most.
        reason: why as many as were tried do not do, in words; empty where they do.
    """

    engine: str
    costs: tuple[tuple[int, float], ...]
    count: int | None
    services: int
    requests: int
    trace: ServedTrace
    reason: str = ""


def plan(
    engine: str, costs: Costs, demand: Demand, most: int, arrivals: Sequence[Arrival] | None = None,
    front_s: float = 0.0,
) -> Planned:  # fmt: skip
    """The least services and engines with which nothing is refused and the 99th percentile is kept.

    Args:
        engine: name, for the answer.
        costs: of batches.
        demand: what is asked.
        most: engines of a service to try.
        arrivals: a trace; None for requests that arrive independently of each other.
        front_s: of the core of a service's front end for a request.
    """
    rules = ServingRules(slo_s=demand.p99_s, max_batch=demand.max_batch)
    curve = CostCurve(tuple(costs))

    def shares(services: int) -> list[Sequence[Arrival]]:
        """Requests by service: those of a trace go to services in turn; others are alike."""
        if arrivals is not None:
            return [arrivals[first::services] for first in range(services)]
        return [list(poisson(demand.rate / services, REQUESTS, samples=demand.samples))]

    def served(divided: list[Sequence[Arrival]], engines: int, front_s: float) -> list[ServedTrace]:
        return [
            serve_trace(
                requests, ServingQueue(rules, curve, engines), engines, curve.seconds, demand.p99_s,
                FrontEnd(core_s=front_s),
            )
            for requests in divided
        ]  # fmt: skip

    def kept(traces: list[ServedTrace], divided: list[Sequence[Arrival]]) -> bool:
        return all(
            trace.quantile_s(0.99) <= demand.p99_s and trace.refused + trace.dropped <= _SHED_FRAC * len(requests)
            for trace, requests in zip(traces, divided, strict=True)
        )

    alone_s = curve.seconds(min([each.samples for each in arrivals or ()], default=demand.samples))
    needed = max(1, math.ceil(demand.rate * front_s / _FRONT_FRAC))
    limit = needed + _MORE_SERVICES if arrivals is None else max(1, len(arrivals) // _LEAST_SHARE)
    if front_s + alone_s > demand.p99_s:  # no number of services does
        limit = min(needed, limit)
    services = services_for(shares, min(needed, limit), limit, front_s, demand.p99_s - alone_s)
    is_front = False
    while True:
        divided = shares(services)
        traces = served(divided, most, front_s)
        if is_kept := kept(traces, divided):
            break
        # One more service is worth a try where the front end alone is to blame.
        is_front = kept(served(divided, most, 0.0), divided)
        if services >= limit or not is_front:
            break
        services += 1
    if is_kept:
        count, reason = most, ""
        for tried in range(1, most):
            fewer = served(divided, tried, front_s)
            if kept(fewer, divided):
                count, traces = tried, fewer
                break
    else:
        count = None
        reason = (
            _front_reason(front_s, alone_s, demand.p99_s, services, arrivals)
            if is_front
            else _reason(curve, rules, divided[0], most, traces[0])
        )
    return Planned(
        engine=engine, costs=curve.points, count=count, services=services, requests=sum(map(len, divided)),
        trace=_together(traces), reason=reason,
    )  # fmt: skip


def services_for(
    shares: Callable[[int], list[Sequence[Arrival]]], needed: int, most: int, front_s: float, allowed_s: float
) -> int:  # fmt: skip
    """The least services whose front ends are seldom so long behind that no engine is in time.

    Args:
        shares: requests by service, by the number of services.
        needed: services at least.
        most: services at most.
        front_s: of a front end's core for a request.
        allowed_s: that the 99th percentile of the way through a front end may be; if a request alone takes longer, more
            services do not help.
    """
    services = needed
    if _EXACT_S < front_s <= allowed_s:
        while services < most and max(_way_s(each, front_s) for each in shares(services)) > allowed_s + _EXACT_S:
            services += 1
    return services


def _way_s(requests: Sequence[Arrival], front_s: float) -> float:
    """The 99th percentile of the way through one front end."""
    read_s, ways_s = -math.inf, list[float]()
    for each in requests:
        read_s = max(read_s, each.at_s) + front_s
        ways_s.append(read_s - each.at_s)
    return sorted(ways_s)[math.ceil(0.99 * len(ways_s)) - 1]


def _together(traces: Sequence[ServedTrace]) -> ServedTrace:
    return ServedTrace(
        latencies_s=[each for trace in traces for each in trace.latencies_s],
        refused=sum(trace.refused for trace in traces),
        dropped=sum(trace.dropped for trace in traces),
        batches=[each for trace in traces for each in trace.batches],
        end_s=max(trace.end_s for trace in traces),
    )


def _front_reason(
    front_s: float, alone_s: float, p99_s: float, services: int, arrivals: Sequence[Arrival] | None
) -> str:  # fmt: skip
    """Why front ends do not do, where engines would."""
    if front_s + alone_s > p99_s:
        return (
            f"a request takes {format_seconds(front_s)} of the front end and {format_seconds(alone_s)} of an engine, "
            "together more than the 99th percentile"
        )
    more = f"; a trace of {len(arrivals):,} requests is too short for more services" if arrivals is not None else ""
    return (
        f"the front ends of {format_count(services, 'service')} are too long behind when many requests come at once: "
        f"each takes {format_seconds(front_s)} of their core{more}"
    )


def _reason(
    curve: CostCurve, rules: ServingRules, requests: Sequence[Arrival], most: int, trace: ServedTrace
) -> str:  # fmt: skip
    """Why so many engines do not do."""
    least = min([each.samples for each in requests])
    alone_s, allowed_s = curve.seconds(least), rules.margin_frac * rules.slo_s
    if alone_s > allowed_s:
        return (
            f"a request of {format_count(least, 'sample')} takes {format_seconds(alone_s)} alone, and "
            f"{rules.margin_frac:.0%} of the 99th percentile is {format_seconds(allowed_s)}"
        )
    batch = ServingQueue(rules, curve, most).batch
    rate = most * batch / curve.seconds(batch)
    took_s = requests[-1].at_s - requests[0].at_s
    asked = sum(each.samples for each in requests) / took_s if took_s > 0.0 else math.inf
    if asked > rate:
        return (
            f"they compute at most {rate:,.0f} samples/s in batches of {batch}, which the 99th percentile allows, of "
            f"{asked:,.0f} that come; allow more engines with --most"
        )
    return (
        f"of {len(requests):,} requests {trace.refused + trace.dropped:,} are refused or dropped when many come at "
        "once; allow more engines with --most"
    )
