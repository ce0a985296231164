"""`stoker serve plan`: how many engines of which kind, found by the service's own queue on a virtual clock."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.core.units import format_count, format_seconds
from stoker.run.serving.fetching import found_source
from stoker.run.serving.sources import ModelForm, chosen_forms
from stoker.run.serving.template import ModelTemplate
from stoker.scale.serving import CostCurve, ServingQueue, ServingRules
from stoker.serve.figures import ModelFigures
from stoker.serve.models.version import Costs, ModelVersion, VersionSettings
from stoker.serve.processes.pooled import PoolSettings
from stoker.sim.serving import Arrival, ServedTrace, poisson, serve_trace

REQUESTS = 20_000
"""Length of a simulated trace: 200 of them are beyond the 99th percentile."""
_SHED_FRAC = 0.001


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
        count: engines; None where as many as were tried do not do.
        requests: of the trace.
        trace: what became of the requests with these, or with the most.
        reason: why as many as were tried do not do, in words; empty where they do.
    """

    engine: str
    costs: tuple[tuple[int, float], ...]
    count: int | None
    requests: int
    trace: ServedTrace
    reason: str = ""


def plan(engine: str, costs: Costs, demand: Demand, most: int, arrivals: Sequence[Arrival] | None = None) -> Planned:
    """The least engines with which nothing is refused and the 99th percentile is kept.

    Args:
        engine: name, for the answer.
        costs: of batches.
        demand: what is asked.
        most: engines to try.
        arrivals: a trace; None for requests that arrive independently of each other.
    """
    trace = ServedTrace()
    requests = arrivals if arrivals is not None else list(poisson(demand.rate, REQUESTS, samples=demand.samples))
    curve = CostCurve(tuple(costs))
    rules = ServingRules(slo_s=demand.p99_s, max_batch=demand.max_batch)
    # Where one request alone takes too long, no number of engines does.
    hopeless = curve.seconds(min([each.samples for each in requests])) > demand.p99_s
    for count in range(most if hopeless else 1, most + 1):
        trace = serve_trace(requests, ServingQueue(rules, curve, count), count, curve.seconds, demand.p99_s)
        shed = trace.refused + trace.dropped
        if trace.quantile_s(0.99) <= demand.p99_s and shed <= _SHED_FRAC * len(requests):
            return Planned(engine=engine, costs=curve.points, count=count, requests=len(requests), trace=trace)
    reason = _reason(curve, rules, requests, most, trace)
    return Planned(engine=engine, costs=curve.points, count=None, requests=len(requests), trace=trace, reason=reason)


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


def measured(source: str, engine: str, threads: int, max_batch: int) -> dict[str, Costs]:
    """What batches cost an engine of this machine, alone, by the engines of a model.

    Args:
        source: of the model.
        engine: the only one, or ``auto``.
        threads: of an engine.
        max_batch: samples that run together.

    Raises:
        ConfigError: there is no model, or none for this engine.
        ServingError: it cannot be fetched, or does not load.
    """

    async def each() -> dict[str, Costs]:
        found = await found_source(source, threads)
        try:
            forms = chosen_forms(found.forms, engine)
            return {form.engine: await _measured(form, max_batch) for form in forms}
        finally:
            await found.close()

    return asyncio.run(each())


async def _measured(form: ModelForm, max_batch: int) -> Costs:
    rules = ServingRules(max_batch=max_batch)
    lost: list[str] = []
    template = ModelTemplate()
    version = ModelVersion(
        form.text, functools.partial(template.start, form),
        VersionSettings(pool=PoolSettings(engines=1, max_batch=max_batch)),
        lambda costs, engines: ServingQueue(rules, CostCurve(tuple(costs)), engines), ModelFigures(), lost.append,
    )  # fmt: skip
    try:
        return (await version.start()).costs
    finally:
        await version.close()
        template.close()
