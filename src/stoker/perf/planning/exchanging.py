"""How a program's gradients are best exchanged over given ranks and a given link: the planner's answer as a record."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from stoker.perf.communication.collectives import Backend, Group
from stoker.perf.communication.cost import ExchangeCost
from stoker.perf.communication.gradients import gradient_layers, norms_of, row_gradient_bytes
from stoker.perf.communication.links import Interconnect, stated
from stoker.perf.communication.methods import GradientLayer, Leave, MethodOption, Terms, ring_bytes
from stoker.perf.communication.planner import ExchangePlan, LayerPlan, Planner
from stoker.perf.communication.replicas import Exchange, Shard
from stoker.perf.features.records import StepFeatures
from stoker.perf.prediction.rank import Rank
from stoker.records.exchange import ExchangedLayer, ExchangedStep, ExchangeReport, RejectedMethod
from stoker.records.plan import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeQuestion:
    """A step, and the ranks that shall take it together.

    Attributes:
        features: of the step on one rank.
        rank: how fast it computes. device: what it is called.
        ranks: all of them, on ``hosts`` equal hosts.
        rate: bytes/s of a host's link to the others, as stated. latency_s: of a message over it.
        fabric: links within a host.
        allowed: methods that are not exact, or not safe by themselves.
        memory_bytes: free on a rank.
    """

    features: StepFeatures
    rank: Rank
    device: str
    backend: Backend
    ranks: int
    hosts: int
    rate: float
    latency_s: float
    fabric: Interconnect
    allowed: frozenset[Leave] = frozenset()
    memory_bytes: float = float("inf")

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.hosts < 1 or self.ranks % self.hosts:
            raise ValueError(
                f"`ranks` must be 1 or more, as many on each of `hosts`, got {self.ranks} on {self.hosts}"
            )  # fmt: skip

    @property
    def group(self) -> Group:
        """The ranks, with their links."""
        return Group(
            fabric=self.fabric, size=self.ranks, local=self.ranks // self.hosts,
            network=stated(self.rate, self.latency_s), backend=self.backend,
        )  # fmt: skip


def exchange(question: ExchangeQuestion) -> ExchangeReport:
    """Plans the exchange.

    Raises:
        ValueError: the step has no gradients, or its times are not known.
    """
    features, rank = question.features, question.rank
    if rank.tier == "refused":
        raise ValueError(f"`{features.name}` has no predicted times: {'; '.join(rank.reasons)}")
    layers = gradient_layers(features)
    row_bytes = row_gradient_bytes(features)
    if not sum(layer.bytes for layer in layers) + row_bytes:
        raise ValueError(f"`{features.name}` must have gradients to exchange, got none")
    norm = norms_of(features)
    unsafe = f"not safe: `{norm}` takes norms of whole gradients, and would see a part of them" if norm else ""
    terms = Terms(
        group=question.group, speed=rank.speed, allowed=question.allowed, memory_bytes=question.memory_bytes,
        unsafe=unsafe,
    )  # fmt: skip
    plan = Planner(_shard(rank, layers, row_bytes), layers, terms).plan()
    return _report(question, plan, row_bytes)


def digest_of(plan: ExchangePlan) -> str:
    """Hash of the methods of all layers: the same on all ranks that decide alike."""
    methods = [(layer.layer.module, layer.chosen.method) for layer in plan.layers]
    return hashlib.sha256(msgspec.json.encode(methods)).hexdigest()[:16]


def _shard(rank: Rank, layers: tuple[GradientLayer, ...], row_bytes: float) -> Shard:
    return Shard(
        forward_s=rank.times.forward_s, backward_s=rank.times.backward_s, weight_bytes=(0.0,) * len(layers),
        gradient_bytes=tuple(layer.bytes for layer in layers), row_bytes=row_bytes,
    )  # fmt: skip


def _report(question: ExchangeQuestion, plan: ExchangePlan, row_bytes: float) -> ExchangeReport:
    group, rank = question.group, question.rank
    alone = rank.times.compute_s * question.features.micro_batches + rank.times.optimizer_s
    rows = (group.size - 1) * row_bytes
    plain = sum(ring_bytes(group.size, layer.layer.bytes) for layer in plan.layers) + rows
    return ExchangeReport(
        name=question.features.name, ranks=question.ranks, hosts=question.hosts, rate_bytes_per_s=question.rate,
        latency_s=question.latency_s, device=question.device, backend=question.backend,
        allowed=sorted(question.allowed), basis=plan.before.cost.basis, tier=rank.tier, share=rank.share,
        before=_step(rank, alone, plan.before, 0.0, plain),
        after=_step(rank, alone, plan.after, plan.work_s, sum(layer.bytes for layer in plan.layers) + rows),
        memory_bytes=plan.memory_bytes, digest=digest_of(plan),
        layers=[layer_record(layer) for layer in plan.layers], notes=_notes(question, plan, row_bytes),
    )  # fmt: skip


def _step(rank: Rank, alone_s: float, found: Exchange, work_s: float, sent: float) -> ExchangedStep:
    computed, exposed = alone_s + work_s, found.overlap.exposed_s
    return ExchangedStep(
        step_s=Span(
            likely=computed + exposed, low=computed * rank.below + found.low_s,
            high=computed * rank.above + found.high_s,
        ),
        bytes=sent, exposed_s=exposed, hidden_s=found.overlap.hidden_s, work_s=work_s,
    )  # fmt: skip


def layer_record(plan: LayerPlan) -> ExchangedLayer:
    """A layer's plan as a record."""
    layer = plan.layer
    shape = (layer.width_in, layer.width_out) if layer.product_bytes else ()
    return ExchangedLayer(
        module=layer.module, shape=(layer.table_rows, layer.width_out) if layer.lookups else shape,
        rows=layer.rows or layer.lookups, gradient_bytes=layer.bytes, method=plan.chosen.method, bytes=plan.bytes,
        seconds=_span(plan.seconds), memory_bytes=plan.chosen.memory_bytes, why_not=layer.why_not,
        rejected=[_rejected(each.option, each.reason) for each in plan.rejected],
    )  # fmt: skip


def _rejected(option: MethodOption, reason: str) -> RejectedMethod:
    found, work = option.transfer, option.work_s
    return RejectedMethod(
        method=option.method, bytes=option.bytes, reason=reason,
        seconds=Span(likely=found.seconds + work, low=found.low + work, high=found.high + work),
    )  # fmt: skip


def _span(cost: ExchangeCost) -> Span:
    return Span(likely=cost.seconds, low=cost.low, high=cost.high)


def _notes(question: ExchangeQuestion, plan: ExchangePlan, row_bytes: float) -> list[str]:
    notes = list(question.rank.reasons)
    if row_bytes:
        notes.append("gradients of tables that the program has row by row (sparse=True) stay as they are")
    if any(layer.chosen.method == "rows" for layer in plan.layers):
        notes.append("rows of tables are counted as if each lookup were another row, which is the most there can be")
    if question.backend == "gloo" and question.hosts < question.ranks:
        notes.append("ranks of one host are taken to compute as fast as one alone")
    if any(layer.chosen.method in ("column", "row", "table") for layer in plan.layers):
        notes.append("splits are exact only with optimizers that work element by element; that is not checked here")
    found = plan.after.cost.note or plan.before.cost.note
    return [*notes, *(f"exchange taken for {note}" for note in found.split("; ") if note)]
