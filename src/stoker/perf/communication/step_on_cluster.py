"""Spreads a step over GPUs: from the times on one GPU to those on all of them.

A step is computation, exposed communication, pipeline bubbles, straggler wait, and the optimizer. The times on one GPU
are given; the parts added here come with an interval.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stoker.perf.communication import replicas
from stoker.perf.communication.blocks import units_of
from stoker.perf.communication.collectives import Group
from stoker.perf.communication.cost import NOTHING, Basis
from stoker.perf.communication.gradients import gradient_layers
from stoker.perf.communication.links import Interconnect, fabric_of
from stoker.perf.communication.methods import Method, RankSpeed, Terms
from stoker.perf.communication.planner import Planner
from stoker.perf.communication.replica_split import Replica, ReplicaLayout
from stoker.perf.communication.replicas import Exchange, Shard
from stoker.perf.communication.servers import served
from stoker.perf.communication.stragglers import Cluster, slowest
from stoker.perf.communication.times import PassTimes, layers_of
from stoker.perf.features.records import StepFeatures
from stoker.perf.strategy import UPDATE_S, Machines, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One optimizer step on all GPUs.

    Attributes:
        step_s: the step. low, high: its interval, from the uncertainty of what is added to the times on one GPU.
        compute_s: forward and backward passes of all micro-batches on one GPU, recomputation included.
        optimizer_s: on one GPU, of the weights that it keeps. exposed_s, hidden_s: communication that does not overlap
            with computation, and that does.
        bubble_s: pipeline stages waiting for others.
        waiting_s: straggler wait.
        basis: of the exchange.
        notes: what was assumed, as sentences.
        unvalidated: parts that no measurement has validated.
    """

    step_s: float
    low: float
    high: float
    compute_s: float
    optimizer_s: float
    exposed_s: float
    hidden_s: float
    bubble_s: float
    waiting_s: float
    basis: Basis
    notes: tuple[str, ...] = ()
    unvalidated: tuple[str, ...] = ()


def refusal(features: StepFeatures, machines: Machines, strategy: Strategy) -> str:
    """Why a step cannot be spread this way; empty if it can."""
    cut = strategy.tensor * strategy.pipeline
    if machines.gpus % cut:
        return f"{machines.gpus} GPUs cannot be divided into replicas of {strategy.tensor} x {strategy.pipeline}"
    replicas_count = machines.gpus // cut
    if strategy.tensor > 1 and not features.transformer_blocks:
        return (
            f"tensor parallelism is known for blocks of attention and MLP; {features.name} has none that is told apart"
        )
    if strategy.pipeline > 1:
        parts = len(units_of(layers_of(features)))
        if parts < strategy.pipeline:
            return f"{strategy.pipeline} stages need as many parts; {features.name} has {parts} that are told apart"
    if replicas_count > 1 and cut > 1 and strategy.data in ("fsdp", "ps", "pearl", "late"):
        return f"{strategy.data} together with tensor or pipeline parallelism is not modelled"
    if strategy.data == "pearl" and replicas_count > 1 and not features.weights.embedding_bytes:
        return f"partitioned embeddings need tables that are only looked up; {features.name} has none"
    return ""


def spread(
    compute: PassTimes,
    features: StepFeatures,
    machines: Machines,
    strategy: Strategy | None = None,
    *,
    precision: str = "fp32",
    fabric: Interconnect | None = None,
    cluster: Cluster = "dedicated",
    sent: float = 1.0,
    speed: RankSpeed | None = None,
) -> Spread:
    """One optimizer step on all GPUs, each with micro-batches of the features' size.

    Args:
        compute: one micro-batch on one GPU.
        features: of that micro-batch.
        machines: to run on.
        strategy: how it is spread; plain data parallelism by default.
        precision: of products; sharded weights are gathered in it.
        fabric: what connects the GPUs of a server; by default that of :func:`fabric_of`.
        cluster: whether the servers are dedicated or shared.
        sent: bytes exchanged for each byte of gradients, such as 0.5 if fp32 ones are sent in 16 bits.
        speed: of a GPU, for strategies that compute in order to send less.

    Raises:
        ValueError: the step cannot be spread this way; :func:`refusal` tells beforehand.
    """
    strategy = strategy or Strategy()
    if reason := refusal(features, machines, strategy):
        raise ValueError(f"`strategy` cannot be used: {reason}")
    if strategy.data == "late" and speed is None:
        raise ValueError("`speed` must be given to price factors, whose products every rank repeats, got None")
    fabric = fabric or fabric_of(machines.gpu, gpus=min(machines.gpus, machines.gpus_per_node))
    layout = ReplicaLayout(machines, strategy, fabric)
    replica = Replica(features, compute, layout, precision, sent)
    steps = strategy.accumulation
    passes = steps + strategy.pipeline - 1
    exchange = replicas.together(
        _data(replica, layout, speed),
        replicas.exposed(replica.tensor.times(passes)),
        replicas.exposed(replica.sends.times(passes)),
    )
    optimizer = compute.optimizer_s * replica.kept / _shards(strategy, layout.replicas)
    optimizer += strategy.updates * UPDATE_S + strategy.copies_s
    mean = sum(replica.stage_s) / len(replica.stage_s)
    computing = mean * steps
    bubble = max(replica.stage_s) * passes - computing
    waiting = slowest(machines.gpus, cluster)
    likely, low, high = (part * (computing + bubble) for part in waiting)
    fixed = computing + bubble + optimizer
    return Spread(
        step_s=fixed + likely + exchange.overlap.exposed_s,
        low=fixed + low + exchange.low_s,
        high=fixed + high + exchange.high_s,
        compute_s=computing,
        optimizer_s=optimizer,
        exposed_s=exchange.overlap.exposed_s,
        hidden_s=exchange.overlap.hidden_s,
        bubble_s=bubble,
        waiting_s=likely,
        basis=exchange.cost.basis,
        notes=(*(f"exchange taken for {note}" for note in exchange.cost.note.split("; ") if note), *replica.notes),
        unvalidated=_unvalidated(strategy, layout),
    )


def _data(replica: Replica, layout: ReplicaLayout, speed: RankSpeed | None) -> Exchange:
    """The exchange that keeps replicas alike, over the whole step; of the stage that it delays most."""
    strategy, group = layout.strategy, layout.data()
    if layout.replicas == 1:
        return replicas.exposed(NOTHING)
    if strategy.data in ("ps", "pearl"):
        return served(replica.shards(has_tables=False)[0], replica.features, layout.machines, strategy, group)
    if strategy.data == "late":
        assert speed is not None
        return _planned(replica, layout, speed)
    found = [_kept_alike(shard, strategy, group) for shard in replica.shards(by_unit=strategy.data == "fsdp")]
    return max(found, key=lambda exchange: exchange.overlap.exposed_s)


_EXACT: tuple[Method, ...] = ("late", "rows")
_EVENTS = 5_000
"""Layers times simulations for one candidate of many."""


def _planned(replica: Replica, layout: ReplicaLayout, speed: RankSpeed) -> Exchange:
    """The quickest exact method for each layer; added products count as exposed, since nothing hides them.

    Factors may take as much memory as gradients do, which :func:`~stoker.perf.memory.needs` charges.
    """
    repeated, shard = layout.strategy.accumulation, replica.shards()[0]
    layers = [
        replace(layer, rows=layer.rows * repeated, lookups=layer.lookups * repeated)
        for layer in gradient_layers(replica.features)
    ]
    terms = Terms(group=layout.data(), speed=speed, memory_bytes=sum(layer.bytes for layer in layers))
    plan = Planner(shard, layers, terms, _EXACT, events=_EVENTS).plan()
    found, work = plan.after, plan.work_s
    overlap = replace(found.overlap, exposed_s=found.overlap.exposed_s + work)
    return Exchange(overlap, found.low_s + work, found.high_s + work, found.cost)


def _kept_alike(shard: Shard, strategy: Strategy, group: Group) -> Exchange:
    if strategy.data == "fsdp":
        return replicas.times(replicas.fsdp(shard, group), strategy.accumulation)
    if strategy.data in ("zero1", "zero2"):
        scattered = replicas.scattered(shard, group)
        count = strategy.accumulation if strategy.data == "zero2" else 1  # no GPU keeps whole gradients
        return replicas.together(replicas.times(scattered, count), replicas.gathered(shard, group))
    return replicas.ddp(shard, group)


def _shards(strategy: Strategy, count: int) -> int:
    """GPUs over which the optimizer's work is divided."""
    return count if strategy.data in ("fsdp", "zero1", "zero2") else 1


_NOT_MEASURED = {
    "ps": "parameter servers",
    "pearl": "partitioned embeddings",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "late": "late-multiply",
}


def is_measured(strategy: Strategy, gpus: int) -> bool:
    """Whether measurements of steps with this strategy exist. vTrain's table of split replicas is arithmetic."""
    cut = strategy.tensor * strategy.pipeline
    return cut == 1 and (gpus == 1 or strategy.data not in _NOT_MEASURED)


def _unvalidated(strategy: Strategy, layout: ReplicaLayout) -> tuple[str, ...]:
    found = [_NOT_MEASURED[strategy.data]] if layout.replicas > 1 and strategy.data in _NOT_MEASURED else []
    if strategy.tensor > 1:
        found.append("tensor parallelism" + (" over servers" if strategy.tensor > layout.local else ""))
    if strategy.pipeline > 1:
        found.append("pipeline stages" + (" over servers" if layout.stages_apart else ""))
    return tuple(found)
