"""What ranks of a program may keep a share of, and what that exchanges: candidates and their choice; pure.

Each way is a timeline of one rank with what its exchange holds, and seconds that the exchange adds. All else that a
program of one process may do is chosen as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec.structs

from stoker.perf.communication.collectives import Backend, Group, all_gather, all_reduce
from stoker.perf.communication.links import Interconnect
from stoker.perf.communication.replicas import Shard, ddp, exposed, fsdp
from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.features.records import block_of
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit, taken_of
from stoker.perf.memory.choice.options import BY_HAND
from stoker.perf.memory.remedies import sharded
from stoker.perf.memory.sharded_weights import REST, UnitNumbers, with_shares
from stoker.perf.memory.staged_ranks import StagedRanks, added_s, staged_ranks
from stoker.perf.memory.timeline import with_lives
from stoker.perf.memory.updates import may_cut
from stoker.records.fitting import FitMeasure, FitPlan, MeasureKind, RankedFits, RejectedFit, StageFlow

WayKind = Literal["ddp", "zero1", "fsdp2", "stages"]
SHARING: tuple[MeasureKind, ...] = ("zero1", "fsdp2", "stages")
"""Measures of ranks: what they share, done when ``DistributedDataParallel`` is made."""
_PROMISES = {"zero1": "equal", "fsdp2": "within 1e-6"}
"""How far losses of a way are from DDP's, as counted on ranks."""
GATHER_BYTES, LEAST_GATHER_BYTES, GATHERS = 8 << 20, 64 << 10, 8
"""Most and least bytes of all ranks together in one collective of updated weights, and how many collectives a small
model is gathered in: what ``train`` takes."""
_KEPT = (1.0, 0.75, 0.5, 0.25)
"""Shares of the units, the last ones, that are tried as kept whole from the forward to the backward pass."""
_HOST_BYTES_PER_S = 1e9
"""What gloo carries through host memory, by which stages send on GPUs as well (assumed)."""
_BARRED = {
    "used_up": "ranks exchange gradients before they are applied",
}


@dataclass(frozen=True, slots=True)
class RankWay:
    """What ranks share.

    Attributes:
        kind: ``ddp``: nothing. ``zero1``: optimizer states. ``fsdp2``: weights and gradients as well. ``stages``: each
            has some layers.
        kept: units whose weights stay whole from the forward to the backward pass (``fsdp2``).
    """

    kind: WayKind
    kept: tuple[str, ...] = ()


DDP, ZERO1, STAGES = RankWay("ddp"), RankWay("zero1"), RankWay("stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Bytes of a model by what is exchanged together.

    Attributes:
        units: paths of the blocks, in the order of the model.
        weights: bytes of the trained weights outside of blocks, then of each block.
        forward_s, backward_s: predicted seconds of the same.
        flow: of a pipeline of its layers; None where they can't be in stages.
        cut: whether ranks may update parts of a weight each (``zero1``).
    """

    units: tuple[str, ...]
    weights: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    flow: StageFlow | None = None
    cut: bool = True


def facts_of(timeline: MemoryTimeline, units: Sequence[str] = (), optimizers: Sequence[str] = ()) -> RankFacts:
    """The blocks of a timeline, what they weigh and take.

    Args:
        timeline: of the program as one process.
        units: paths of the blocks; by default those that paths of modules show.
        optimizers: classes of those that step.
    """
    blocks = tuple(units) or tuple(
        dict.fromkeys(
            block
            for each in timeline.buffers
            if each.category == "parameters" and (block := block_of(each.module)) and block[-1].isdigit()
        )
    )
    numbers = UnitNumbers(blocks)
    called = dict.fromkeys(numbers.of(call.module) for call in timeline.calls if call.phase == "forward")
    places = {number: place for place, number in enumerate(called)}
    # In the order of their forward passes; those that are not called come last.
    blocks = tuple(sorted(blocks, key=lambda path: places.get(numbers.of(path), len(places))))
    numbers = UnitNumbers(blocks)
    weights = [0] * (len(blocks) + 1)
    for each in timeline.buffers:
        if each.category == "parameters":
            weights[numbers.of(each.module)] += each.bytes
    seconds = {phase: [0.0] * len(weights) for phase in ("forward", "backward")}
    for call in timeline.calls:
        if call.phase in seconds:
            seconds[call.phase][numbers.of(call.module)] += call.seconds
    return RankFacts(
        units=blocks, weights=tuple(weights), forward_s=tuple(seconds["forward"]),
        backward_s=tuple(seconds["backward"]), cut=may_cut(optimizers),
    )  # fmt: skip


def of_rank(timeline: MemoryTimeline, facts: RankFacts, ranks: int, way: RankWay) -> MemoryTimeline:
    """The timeline of one rank, with what the exchange holds."""
    if way.kind == "fsdp2":
        return with_shares(timeline, facts.units, way.kept, ranks)
    total = sum(facts.weights)
    # DDP's buckets are copies of all gradients, from its constructor on.
    found = with_lives(timeline, [_of_exchange(total, 0, timeline.end)])
    if way.kind == "ddp":
        return found
    behind = max(0, timeline.end - 1)
    return with_lives(
        sharded(found, ranks, weights=False, cut=facts.cut),
        [_of_exchange(gather_bytes(total, ranks), behind, timeline.end)],
    )


def _of_exchange(nbytes: int, birth: int, death: int) -> BufferLife:
    return BufferLife(nbytes, birth, death, -1, "temporaries", "backward", "(exchange)", "")


def gather_bytes(total: int, ranks: int) -> int:
    """What gathering updated weights takes: what this rank sends, and what all do."""
    bucket = min(GATHER_BYTES, max(LEAST_GATHER_BYTES, total // GATHERS))
    return min(bucket // ranks, -(-total // ranks)) * (ranks + 1)


def exchange_s(facts: RankFacts, ranks: int, way: RankWay, link: Interconnect, backend: Backend = "gloo") -> float:
    """Seconds that the exchange of a way adds to the computation of a step; of stages, with what they wait."""
    if way.kind == "stages":
        assert facts.flow is not None
        return added_s(facts.flow, ranks, link.at_most(_HOST_BYTES_PER_S) if backend == "nccl" else link)
    group = Group(fabric=link, size=ranks, local=1, network=link, backend=backend)
    sizes = tuple(map(float, facts.weights))
    shard = Shard(
        forward_s=facts.forward_s, backward_s=facts.backward_s, weight_bytes=sizes, gradient_bytes=sizes
    )  # fmt: skip
    if way.kind == "fsdp2":
        kept = {REST, *(number for number, path in enumerate(facts.units, 1) if path in way.kept)}
        return fsdp(shard, group, kept).overlap.exposed_s if backend == "nccl" else _one_by_one(sizes, kept, group)
    found = ddp(shard, group).overlap.exposed_s
    return found if way.kind == "ddp" else found + exposed(all_gather(group, sum(sizes))).overlap.exposed_s


def _one_by_one(sizes: Sequence[float], kept: set[int], group: Group) -> float:
    """Seconds of FSDP2's collectives over gloo: each is waited for, and gradients are summed whole on all ranks."""
    gathers = sum((1 if number in kept else 2) * all_gather(group, size).seconds for number, size in enumerate(sizes))
    return gathers + sum(all_reduce(group, size).seconds for size in sizes)


def ways_of(question: FitQuestion, facts: RankFacts) -> tuple[RankWay, ...]:
    """Ways to share that a program may take besides stages, those that do least to it first."""
    found = [DDP] if question.model.passes_by_hand else [DDP, ZERO1]
    if facts.units and not question.model.not_sharded:
        count = len(facts.units)
        numbers = dict.fromkeys([*(round(count * share) for share in _KEPT), 1, 0])
        found += [RankWay("fsdp2", facts.units[count - number :]) for number in numbers if number <= count]
    return tuple(way for way in found if way.kind not in question.barred)


def plan_ranks(
    question: FitQuestion, ranks: int, facts: RankFacts, *, margins: Mapping[RankWay, int] | None = None
) -> dict[RankWay, FitPlan]:
    """The plan of each way, without the seconds of its exchange.

    Args:
        question: of the program as one process.
        ranks: that run it.
        facts: of its blocks.
        margins: bytes that the peak of a way must stay below the budget besides its interval.
    """
    margins = margins or {}
    return {way: plan_of_way(question, facts, ranks, way, margins.get(way, 0)) for way in ways_of(question, facts)}


def plan_of_way(question: FitQuestion, facts: RankFacts, ranks: int, way: RankWay, margin: int = 0) -> FitPlan:
    """The quickest plan that fits with one way of sharing, or its nearest miss; without the seconds of its exchange."""
    without = dict(question.without)
    if way.kind == "fsdp2":
        without |= dict.fromkeys(_around(facts.units), "units inside it gather their weights at each forward pass")
    asked = replace(
        question, timeline=of_rank(question.timeline, facts, ranks, way), without=without,
        barred={**question.barred, **_BARRED},
    )  # fmt: skip
    plan = plan_fit(asked, margin=margin)
    measures = plan.measures
    whole = of_rank(question.timeline, facts, ranks, DDP)
    before = taken_of(whole, emulated=question.emulated, expandable=False)
    if way.kind != "ddp":
        measures = (_measure_of(way, facts, ranks, before - plan.plain_bytes), *measures)
    return msgspec.structs.replace(plan, ranks=ranks, measures=measures, plain_bytes=before)


def with_stages(
    question: FitQuestion, ranks: int, facts: RankFacts, plans: Mapping[RankWay, FitPlan]
) -> tuple[dict[RankWay, FitPlan], RankFacts, tuple[RejectedFit, ...]]:
    """Plans and facts with those of a pipeline, and ways that the model does not allow.

    Args:
        question: of the program as one process.
        ranks: that run it.
        facts: of its blocks.
        plans: of other ways.
    """
    refused: list[RejectedFit] = []

    def refuse(name: str, reason: str) -> None:
        refused.append(RejectedFit(name=name, peak_bytes=None, step_s=None, reason=reason))

    if reason := question.barred.get("fsdp2") or question.model.not_sharded:
        refuse("weights in shares (FSDP2)", reason)
    if question.model.passes_by_hand:
        refuse(name_of(ZERO1), BY_HAND)
    try:
        staged = staged_ranks(question, ranks)
    except ValueError as error:
        refuse(name_of(STAGES), str(error))
        return dict(plans), facts, tuple(refused)
    found = {**plans, STAGES: _plan_of_stages(question, plans[DDP], staged)}
    return found, replace(facts, flow=staged.flow), tuple(refused)


def _plan_of_stages(question: FitQuestion, as_it_is: FitPlan, staged: StagedRanks) -> FitPlan:
    """Nothing else is done to stages, so the plain trace is that of the plan."""
    return msgspec.structs.replace(
        as_it_is, peak_bytes=staged.peak, step_s=as_it_is.plain_step_s, certified=True, rejected=(),
        lacks_bytes=max(0, staged.peak - question.budget),
        measures=(staged.measure(question, as_it_is.plain_bytes - staged.peak),),
    )  # fmt: skip


def _around(units: Sequence[str]) -> list[str]:
    """Paths of modules with units inside."""
    found: dict[str, None] = {}
    for path in units:
        while path:
            path = path.rpartition(".")[0]
            found[path] = None
    return list(found)


def _measure_of(way: RankWay, facts: RankFacts, ranks: int, saves: int) -> FitMeasure:
    if way.kind == "fsdp2":
        return FitMeasure(
            kind="fsdp2", number=ranks, paths=facts.units, kept=way.kept, saves_bytes=saves,
            promise=_PROMISES["fsdp2"],
        )  # fmt: skip
    return FitMeasure(kind="zero1", number=ranks, saves_bytes=saves)


def way_of(plan: FitPlan) -> RankWay:
    """What ranks share under a plan."""
    measure = next((each for each in plan.measures if each.kind in SHARING), None)
    if measure is None:
        return DDP
    if measure.kind == "fsdp2":
        return RankWay("fsdp2", measure.kept)
    return STAGES if measure.kind == "stages" else ZERO1


def name_of(way: RankWay) -> str:
    """A way for people."""
    if way.kind == "fsdp2":
        return f"weights in shares (FSDP2), {len(way.kept)} units kept whole"
    if way.kind == "stages":
        return "layers in stages (pipeline)"
    return "optimizer states in shares (ZeRO-1)" if way.kind == "zero1" else "optimizer states whole on each rank"


def worth_certifying(plans: Mapping[RankWay, FitPlan]) -> list[RankWay]:
    """Ways whose plans may be the quickest that fits at some link; where nothing fits, the nearest miss.

    Of ways that differ in units that are kept, one with fewer gathers more: it must compute less again.
    """
    fitting = [way for way, plan in plans.items() if plan.fits]
    if not fitting:
        return [min(plans, key=lambda way: plans[way].peak_bytes)]
    found: list[RankWay] = []
    least = float("inf")
    for way in fitting:
        again_s = _again_s(plans[way])
        if way.kind != "fsdp2" or again_s < least:
            found.append(way)
        if way.kind == "fsdp2":
            least = min(least, again_s)
    return found


def _again_s(plan: FitPlan) -> float:
    return sum(each.added_s or 0.0 for each in plan.measures)


def ranked(
    plans: Mapping[RankWay, FitPlan], facts: RankFacts, refused: tuple[RejectedFit, ...] = ()
) -> RankedFits:  # fmt: skip
    """All ways, from which the ranks choose when they know their links, and those that the model does not allow."""
    return RankedFits(
        plans=tuple(plans.values()), units=facts.units, weights=facts.weights, forward_s=facts.forward_s,
        backward_s=facts.backward_s, flow=facts.flow, refused=refused,
    )  # fmt: skip


def in_order(fits: RankedFits, link: Interconnect, backend: Backend = "gloo") -> tuple[FitPlan, ...]:
    """Plans that fit, the one that takes least first; without one, the plan with the least peak.

    Args:
        fits: all ways.
        link: between the ranks.
        backend: of their collectives.
    """
    facts = RankFacts(
        units=fits.units, weights=fits.weights, forward_s=fits.forward_s, backward_s=fits.backward_s, flow=fits.flow,
    )  # fmt: skip
    ranks = fits.plans[0].ranks
    seconds = [exchange_s(facts, ranks, way_of(plan), link, backend) for plan in fits.plans]
    plain_s = exchange_s(facts, ranks, DDP, link, backend)
    added = [one + _again_s(plan) for one, plan in zip(seconds, fits.plans, strict=True)]
    # Of equal times, the one that does least to the program: ways stand in that order.
    order = sorted(range(len(added)), key=lambda place: _rank_of(fits.plans[place], added[place]))
    plans = [_priced(plan, one, plain_s) for plan, one in zip(fits.plans, seconds, strict=True)]
    best = order[0]
    others = [_rejected(plans[place], added[place] - added[best], plans[best].fits) for place in order[1:]]
    first = msgspec.structs.replace(plans[best], rejected=(*others, *fits.refused, *plans[best].rejected))
    return (first, *(plans[place] for place in order[1:] if plans[place].fits))


def chosen(fits: RankedFits, link: Interconnect, backend: Backend = "gloo") -> FitPlan:
    """The first of :func:`in_order`."""
    return in_order(fits, link, backend)[0]


def _rank_of(plan: FitPlan, added_s: float) -> tuple[bool, float]:
    return (not plan.fits, added_s if plan.fits else plan.peak_bytes)


def _priced(plan: FitPlan, exchange_s: float, plain_s: float) -> FitPlan:
    """The plan with the seconds of exchanges: its own in all that it weighs, DDP's in the step as it is.

    Args:
        plan: of the computation alone.
        exchange_s: that its exchange adds to it.
        plain_s: that DDP's adds, which may be more.
    """

    def with_own(step_s: float | None) -> float | None:
        return None if step_s is None else step_s + exchange_s

    measures = plan.measures
    if way_of(plan) != DDP:
        measures = (msgspec.structs.replace(measures[0], added_s=exchange_s - plain_s), *measures[1:])
    return msgspec.structs.replace(
        plan, measures=measures, step_s=with_own(plan.step_s),
        plain_step_s=None if plan.plain_step_s is None else plan.plain_step_s + plain_s,
        rejected=tuple(msgspec.structs.replace(each, step_s=with_own(each.step_s)) for each in plan.rejected),
    )  # fmt: skip


def _rejected(plan: FitPlan, more_s: float, is_found: bool) -> RejectedFit:
    if not plan.fits:
        reason = "it does not fit" if is_found else "it lacks more"
    else:
        reason = "it is slower" if more_s > 0 else "it does more to the program"
    return RejectedFit(name=name_of(way_of(plan)), peak_bytes=plan.peak_bytes, step_s=plan.step_s, reason=reason)
