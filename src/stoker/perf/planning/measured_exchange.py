"""How a running program's gradients are best exchanged: the planner's answer from what all of its ranks measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from msgspec import structs

from stoker.perf.communication.collectives import Backend, Group
from stoker.perf.communication.links import Interconnect, probed
from stoker.perf.communication.methods import METHODS, GradientLayer, Leave, Method, RankSpeed, Terms, ring_bytes
from stoker.perf.communication.planner import ExchangePlan, Planner
from stoker.perf.communication.replicas import Exchange, Shard
from stoker.perf.planning.exchanging import digest_of, layer_record
from stoker.records.exchange import (
    SPLITS,
    AgreedExchange,
    ExchangedStep,
    ExchangeReport,
    LayerMethod,
    MeasuredExchange,
    MeasuredLayer,
    ProbedLinks,
)
from stoker.records.plan import Span

_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_PROBE_SPREAD = 1.25
"""Interval of what a probe of 0.3 s says of sums by sockets, to each side (assumed)."""
_SPREAD = 1.15
"""Interval of a measured step, to each side (assumed: the spread of steps of one program)."""
_ROOM = 1.25
"""Rows that are agreed on over those that a table had: which rows a batch fills differs from step to step (assumed)."""
_KERNEL_S = 20e-6
"""Least time of a product (assumed)."""
_UNSEEN = "its weights were not seen in a way that a split keeps"


def planned_exchange(
    measured: Sequence[MeasuredExchange], *, allowed: frozenset[Leave] = frozenset(), has_ring: bool = False
) -> AgreedExchange:
    """Plans the exchange.

    Args:
        measured: by all ranks, in their order.
        allowed: methods that are not exact, or not safe by themselves.
        has_ring: whether there are sockets that sum by `ring`, of tensors on the CPU.
    """
    first = measured[0]
    if len({tuple(layer.module for layer in each.layers) for each in measured}) != 1 or not first.layers:
        return AgreedExchange(methods=[], note="ranks do not have the same layers")
    layers = [_joint([each.layers[place] for each in measured]) for place in range(len(first.layers))]
    link = _link(measured)
    if link is None:
        return AgreedExchange(methods=[], note="larger sums take no longer here, so there is nothing to save")
    gradients = _gradients(layers)
    group = _group(link, measured, has_ring=has_ring)
    terms = Terms(
        group=group, speed=_speed(measured), allowed=allowed, memory_bytes=min(each.memory_bytes for each in measured),
        chained=False,
    )  # fmt: skip
    left_out = set[str](() if "split" in allowed else SPLITS)
    if not has_ring or first.device != "cpu":
        left_out |= {"ring", "islands"}
    if group.local == 1 or group.nodes == 1:
        left_out.add("islands")
    shard = Shard(
        forward_s=(0.0,) * len(layers), backward_s=tuple(layer.backward_s for layer in layers),
        weight_bytes=(0.0,) * len(layers), gradient_bytes=tuple(layer.bytes for layer in layers),
    )  # fmt: skip
    plan = _planned(shard, gradients, terms, [each for each in METHODS if each not in left_out])
    chosen: dict[str, Method] = {each.layer.module: each.chosen.method for each in plan.layers}
    methods = [_method(layer, chosen[layer.module]) for layer in layers if layer.module in chosen]
    found = [each for each in methods if each.method != "all_reduce"]
    note = "" if found else "no other method makes the step shorter"
    return AgreedExchange(methods=found, report=_report(measured, plan, group, link, allowed), note=note)


def _planned(shard: Shard, gradients: Sequence[GradientLayer], terms: Terms, methods: Sequence[Method]) -> ExchangePlan:
    """The best plan that leaves DDP a gradient: without one its exchange, by which ranks agree on steps, ends."""
    plan = Planner(shard, gradients, terms, methods).plan()
    if any(each.chosen.sent.reduced_bytes or each.chosen.sent.own.seconds for each in plan.layers):
        return plan
    kept = min((each.layer for each in plan.layers), key=lambda layer: layer.bytes, default=None)
    if kept is None:
        return plan
    left = dict.fromkeys(SPLITS, "DDP must have a weight left")
    others = [replace(each, unsplit=left) if each is kept else each for each in gradients]
    return Planner(shard, others, terms, methods).plan()


def _method(layer: MeasuredLayer, method: Method) -> LayerMethod:
    rows = layer.rows
    if method == "rows":
        rows = min(layer.table_rows, round(rows * _ROOM))
    return LayerMethod(
        module=layer.module, weight=layer.weight or layer.module, method=method, rows=rows,
        factor_type=layer.factor_type,
    )  # fmt: skip


def _joint(ranks: Sequence[MeasuredLayer]) -> MeasuredLayer:
    """A layer as all ranks see it: the most rows, the widest type, the median time; a doubt of one rank is one of all.

    A rank whose layer had no rows has nothing to say of its form.
    """
    doubt = next((each.why_not for each in ranks if each.why_not), "")
    seconds = statistics.median(each.backward_s for each in ranks)
    kind = max((each.factor_type for each in ranks), key=lambda name: _SIZES.get(name, 8))
    if doubt:
        return structs.replace(
            ranks[0], why_not=doubt, weight="", rows=0, product_bytes=0.0, table_rows=0, backward_s=seconds
        )  # fmt: skip
    return structs.replace(
        ranks[0], rows=max(each.rows for each in ranks), factor_type=kind, backward_s=seconds,
        splits=[way for way in ranks[0].splits if all(way in each.splits for each in ranks)],
        unsplit=next((each.unsplit for each in ranks if each.unsplit), ""),
        lookups=max(each.lookups for each in ranks),
    )  # fmt: skip


def _gradients(layers: Sequence[MeasuredLayer]) -> list[GradientLayer]:
    places = {layer.module: place for place, layer in enumerate(layers)}
    return [replace(_gradient(layer), fed_by=places.get(layer.fed_by, -1)) for layer in layers]


def _gradient(layer: MeasuredLayer) -> GradientLayer:
    unsplit = {way: layer.unsplit or _UNSEEN for way in SPLITS if way not in layer.splits}
    if layer.why_not:
        return GradientLayer(module=layer.module, bytes=layer.bytes, why_not=layer.why_not)
    if layer.table_rows:
        return GradientLayer(
            module=layer.module, bytes=layer.bytes, lookups=layer.rows, table_rows=layer.table_rows,
            width_out=layer.width_out, asked=layer.lookups, unsplit=unsplit,
        )  # fmt: skip
    return GradientLayer(
        module=layer.module, bytes=layer.bytes, product_bytes=layer.product_bytes, rows=layer.rows,
        width_in=layer.width_in, width_out=layer.width_out, factor_bytes=_SIZES.get(layer.factor_type, 4),
        unsplit=unsplit,
    )  # fmt: skip


def _link(measured: Sequence[MeasuredExchange]) -> Interconnect | None:
    """The link by the shortest time of any rank for each size: the rank that came last did not wait for others."""
    least: dict[float, float] = {}
    for rank in measured:
        for size, seconds in rank.sums:
            least[size] = min(seconds, least.get(size, seconds))
    try:
        return probed(sorted(least.items()), measured[0].ranks)
    except ValueError:
        return None


def _group(link: Interconnect, measured: Sequence[MeasuredExchange], *, has_ring: bool) -> Group:
    """The ranks with their links: as the program's own sums show them, and as a probe does where sockets would go.

    Islands of different sizes count as none: sums go by a ring through all ranks then.
    """
    first = measured[0]
    backend, links = cast("Backend", first.backend), first.links
    flat = Group(fabric=link, size=first.ranks, local=1, network=link, backend=backend)
    if links is None or not has_ring or any(each.links is None for each in measured):
        return flat
    try:
        step_s = probed(links.sums, first.ranks).step_s
    except ValueError:  # on the fastest links large sums take no longer than small ones
        step_s = min(seconds for _, seconds in links.sums) / (2 * (first.ranks - 1))
    inner, outer = _rates(links)

    def ring(name: str, rate: float) -> Interconnect:
        return Interconnect(
            name=name, bandwidth=rate, step_s=step_s, spread=_PROBE_SPREAD, source="a probe", basis="probe",
            words="as a probe found them",
        )  # fmt: skip

    local = len(links.islands[0]) if len({len(island) for island in links.islands}) == 1 else 1
    between = ring("network", min(outer, default=min(links.rates)))
    inside = ring("islands", min(inner)) if inner and local > 1 else between
    if local == 1:
        inside = between = ring("network", min(links.rates))
    return Group(fabric=inside, size=first.ranks, local=local, network=between, backend=backend, flat=link)


def unequal_islands(links: ProbedLinks) -> str:
    """Why sums do not go by the islands that a probe found, as a sentence without its full stop; empty if they may."""
    sizes = sorted(map(len, links.islands), reverse=True)
    if len(set(sizes)) == 1:
        return ""
    shown = ", ".join(map(str, sizes[:-1]))
    return (
        f"a probe found islands of {shown} and {sizes[-1]} ranks; sums by islands need islands of one size, so "
        "there is one ring through all ranks"
    )


def _rates(links: ProbedLinks) -> tuple[list[float], list[float]]:
    """Rates of the ring's links inside islands, and between them."""
    island = {rank: number for number, ranks in enumerate(links.islands) for rank in ranks}
    inner: list[float] = []
    outer: list[float] = []
    for place, rate in enumerate(links.rates):
        rank, behind = links.order[place], links.order[(place + 1) % len(links.order)]
        (inner if island[rank] == island[behind] else outer).append(rate)
    return inner, outer


def _speed(measured: Sequence[MeasuredExchange]) -> RankSpeed:
    """The slowest rank's: all wait for it."""
    rates = [
        statistics.median(seconds / (2.0 * m * n * k) for m, n, k, seconds in each.products if m * n * k)
        for each in measured
        if each.products
    ]
    flop_s = max(rates, default=1e-10)

    def product(m: int, n: int, k: int) -> float:
        return max(_KERNEL_S, 2.0 * m * n * k * flop_s)

    return RankSpeed(product=product, byte_s=max(each.byte_s for each in measured))


def _report(
    measured: Sequence[MeasuredExchange],
    plan: ExchangePlan,
    group: Group,
    link: Interconnect,
    allowed: frozenset[Leave],
) -> ExchangeReport:
    first = measured[0]
    step_s = statistics.median(each.step_s for each in measured)
    alone_s = max(0.0, step_s - plan.before.overlap.exposed_s)
    # Where sums take most of a step, the rest is a difference of large numbers: what ranks saw of it says more.
    computed_s = max(each.computed_s for each in measured) or alone_s
    notes = ["times are those of the program's own steps, on links as their sums showed them"]
    if group.local > 1 and group.nodes > 1:
        notes.append(f"a probe found {group.nodes} islands of {group.local} ranks")
    elif first.links is not None and (words := unequal_islands(first.links)):
        notes.append(words)
    return ExchangeReport(
        name=first.name, ranks=first.ranks, hosts=group.nodes, rate_bytes_per_s=link.bandwidth,
        latency_s=link.step_s, device=first.device, backend=first.backend, allowed=sorted(allowed),
        basis=link.basis, tier="measured", share=0.9,
        before=_step(alone_s, plan.before, 0.0, sum(ring_bytes(first.ranks, each.layer.bytes) for each in plan.layers)),
        after=_step(min(computed_s, step_s), plan.after, plan.work_s, sum(layer.bytes for layer in plan.layers)),
        memory_bytes=plan.memory_bytes, digest=digest_of(plan), layers=[layer_record(each) for each in plan.layers],
        notes=notes,
    )  # fmt: skip


def _step(alone_s: float, found: Exchange, work_s: float, sent: float) -> ExchangedStep:
    computed, exposed = alone_s + work_s, found.overlap.exposed_s
    return ExchangedStep(
        step_s=Span(
            likely=computed + exposed, low=computed / _SPREAD + found.low_s, high=computed * _SPREAD + found.high_s
        ),
        bytes=sent, exposed_s=exposed, hidden_s=found.overlap.hidden_s, work_s=work_s,
    )  # fmt: skip
