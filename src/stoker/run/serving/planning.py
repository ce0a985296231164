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
_MOST_SERVICES = 256


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
        requests: of the trace, for one of the services.
        trace: what became of the requests with these, or with the most.
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
    trace, curve = ServedTrace(), CostCurve(tuple(costs))

    def share(services: int) -> Sequence[Arrival]:
        """Requests of one service: those of a trace go to services in turn."""
        if arrivals is not None:
            return arrivals[::services]
        return list(poisson(demand.rate / services, REQUESTS, samples=demand.samples))

    services = services_for(share, demand.rate, front_s, (1.0 - rules.margin_frac) * demand.p99_s)
    requests = share(services)
    # Where one request alone takes too long, no number of engines does.
    hopeless = front_s + curve.seconds(min([each.samples for each in requests])) > demand.p99_s
    front = FrontEnd(core_s=front_s)
    count = None
    for tried in range(most if hopeless else 1, most + 1):
        trace = serve_trace(requests, ServingQueue(rules, curve, tried), tried, curve.seconds, demand.p99_s, front)
        shed = trace.refused + trace.dropped
        if trace.quantile_s(0.99) <= demand.p99_s and shed <= _SHED_FRAC * len(requests):
            count = tried
            break
    reason = "" if count is not None else _reason(curve, rules, requests, most, trace)
    return Planned(
        engine=engine, costs=curve.points, count=count, services=services, requests=len(requests), trace=trace,
        reason=reason,
    )  # fmt: skip


def services_for(
    share: Callable[[int], Sequence[Arrival]], rate: float, front_s: float, allowed_s: float
) -> int:  # fmt: skip
    """Services whose front ends keep up: busy for at most 70 % of the time, and seldom long behind.

    Args:
        share: requests of one service, by the number of services.
        rate: of all requests a second.
        front_s: of a front end's core for one.
        allowed_s: that the 99th percentile of the way through a front end may be, if a request alone does not take it.
    """
    services = max(1, math.ceil(rate * front_s / _FRONT_FRAC))
    most_s = max(allowed_s, front_s)
    while front_s > 0.0 and services < _MOST_SERVICES and _way_s(share(services), front_s) > most_s:
        services += 1
    return services


def _way_s(requests: Sequence[Arrival], front_s: float) -> float:
    """The 99th percentile of the way through one front end."""
    read_s, ways_s = -math.inf, list[float]()
    for each in requests:
        read_s = max(read_s, each.at_s) + front_s
        ways_s.append(read_s - each.at_s)
    return sorted(ways_s)[math.ceil(0.99 * len(ways_s)) - 1]


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
