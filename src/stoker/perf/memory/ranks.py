"""What ranks of a program may keep a share of, and what that exchanges: candidates and their choice; pure.

Each way is a timeline of one rank with what its exchange holds, and seconds that the exchange adds. All else that a
program of one process may do is chosen as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec.structs

from stoker.perf.communication.collectives import Group, all_gather
from stoker.perf.communication.links import Interconnect
from stoker.perf.communication.replicas import Shard, ddp, exposed
from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.features.records import block_of
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit, taken_of
from stoker.perf.memory.remedies import sharded
from stoker.records.fitting import FitMeasure, FitPlan, RankedFits, RejectedFit

Way = Literal["ddp", "zero1"]
"""``ddp``: all on each rank. ``zero1``: shares of optimizer states."""
WAYS: tuple[Way, ...] = ("ddp", "zero1")
NAMES: dict[Way, str] = {
    "ddp": "optimizer states whole on each rank",
    "zero1": "optimizer states in shares (ZeRO-1)",
}
GATHER_BYTES, LEAST_GATHER_BYTES, GATHERS = 8 << 20, 64 << 10, 8
"""Most and least bytes of all ranks together in one collective of updated weights, and how many collectives a small
model is gathered in: what ``train`` takes."""
_BARRED = {
    "used_up": "ranks exchange gradients before they are applied",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Bytes of a model by what is exchanged together.

    Attributes:
        weights: bytes of the trained weights outside of blocks, then of each block, in the order of the model.
        forward_s, backward_s: predicted seconds of the same.
    """

    weights: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


def facts_of(timeline: MemoryTimeline) -> RankFacts:
    """The blocks of a timeline, what they weigh and take."""
    units = list(
        dict.fromkeys(
            block
            for each in timeline.buffers
            if each.category == "parameters" and (block := block_of(each.module)) and block[-1].isdigit()
        )
    )
    numbers = {path: number + 1 for number, path in enumerate(units)}
    weights = [0] * (len(units) + 1)
    for each in timeline.buffers:
        if each.category == "parameters":
            weights[numbers.get(block_of(each.module), 0)] += each.bytes
    seconds = {phase: [0.0] * len(weights) for phase in ("forward", "backward")}
    for call in timeline.calls:
        if call.phase in seconds:
            seconds[call.phase][numbers.get(block_of(call.module), 0)] += call.seconds
    return RankFacts(
        weights=tuple(weights), forward_s=tuple(seconds["forward"]),
        backward_s=tuple(seconds["backward"]),
    )  # fmt: skip


def of_rank(timeline: MemoryTimeline, facts: RankFacts, ranks: int, way: Way) -> MemoryTimeline:
    """The timeline of one rank, with what the exchange holds."""
    total = sum(facts.weights)
    # DDP's buckets are copies of all gradients, from its constructor on.
    found = _lasting(timeline, [(total, 0, timeline.end)])
    if way == "ddp":
        return found
    behind = max(0, timeline.end - 1)
    return _lasting(sharded(found, ranks, weights=False), [(gather_bytes(total, ranks), behind, timeline.end)])


def gather_bytes(total: int, ranks: int) -> int:
    """What gathering updated weights takes: what this rank sends, and what all do."""
    bucket = min(GATHER_BYTES, max(LEAST_GATHER_BYTES, total // GATHERS))
    return min(bucket // ranks, -(-total // ranks)) * (ranks + 1)


def exchange_s(facts: RankFacts, ranks: int, way: Way, link: Interconnect) -> float:
    """Seconds that the exchange of a way adds to the computation of a step."""
    group = Group(fabric=link, size=ranks, local=1, network=link, backend="gloo")
    sizes = tuple(map(float, facts.weights))
    shard = Shard(
        forward_s=facts.forward_s, backward_s=facts.backward_s, weight_bytes=sizes, gradient_bytes=sizes
    )  # fmt: skip
    found = ddp(shard, group).overlap.exposed_s
    return found if way == "ddp" else found + exposed(all_gather(group, sum(sizes))).overlap.exposed_s


def plan_ranks(question: FitQuestion, ranks: int, *, margins: dict[Way, int] | None = None) -> dict[Way, FitPlan]:
    """The plan of each way, without the seconds of its exchange.

    Args:
        question: of the program as one process.
        ranks: that run it.
        margins: bytes that the peak of a way must stay below the budget besides its interval.
    """
    facts = facts_of(question.timeline)
    return {
        way: plan_of_way(question, facts, ranks, way, (margins or {}).get(way, 0))
        for way in WAYS
        if way not in question.barred
    }


def plan_of_way(question: FitQuestion, facts: RankFacts, ranks: int, way: Way, margin: int = 0) -> FitPlan:
    """The quickest plan that fits with one way of sharing, or its nearest miss; without the seconds of its exchange."""
    asked = replace(
        question, timeline=of_rank(question.timeline, facts, ranks, way), barred={**question.barred, **_BARRED}
    )
    plan = plan_fit(asked, margin=margin)
    measures = plan.measures
    whole = of_rank(question.timeline, facts, ranks, "ddp")
    before = taken_of(whole, emulated=question.emulated, expandable=False)
    if way == "zero1":
        saves = before - plan.plain_bytes
        measures = (FitMeasure(kind="zero1", number=ranks, saves_bytes=saves), *measures)
    return msgspec.structs.replace(plan, ranks=ranks, measures=measures, plain_bytes=before)


def ranked(plans: dict[Way, FitPlan], facts: RankFacts) -> RankedFits:
    """All ways, from which the ranks choose when they know their links."""
    return RankedFits(
        ways=tuple(plans), plans=tuple(plans.values()), weights=facts.weights,
        forward_s=facts.forward_s, backward_s=facts.backward_s,
    )  # fmt: skip


def chosen(fits: RankedFits, link: Interconnect) -> FitPlan:
    """The way that takes least among those that fit; else the one with the least peak.

    Args:
        fits: all ways.
        link: between the ranks.
    """
    facts = RankFacts(
        weights=fits.weights, forward_s=fits.forward_s, backward_s=fits.backward_s,
    )  # fmt: skip
    ranks = fits.plans[0].ranks
    ways: list[Way] = [way for way in WAYS if way in fits.ways]
    seconds: dict[Way, float] = {way: exchange_s(facts, ranks, way, link) for way in ways}
    plans: dict[Way, FitPlan] = {way: fits.plans[fits.ways.index(way)] for way in ways}
    added: dict[Way, float] = {
        way: seconds[way] + sum(each.added_s or 0.0 for each in plans[way].measures) for way in ways
    }
    # Of equal times, the one that does least to the program: ways stand in that order.
    best = ways[0]
    for way in ways[1:]:
        if _is_better(way, best, plans, added):
            best = way
    plan = _priced(plans[best], best, seconds[best] - seconds["ddp"] if "ddp" in seconds else seconds[best])
    others = [_rejected(way, plans[way], added[way] - added[best], plans[best].fits) for way in ways if way != best]
    return msgspec.structs.replace(plan, rejected=(*others, *plan.rejected))


def _is_better(way: Way, best: Way, plans: dict[Way, FitPlan], added: dict[Way, float]) -> bool:
    if plans[way].fits != plans[best].fits:
        return plans[way].fits
    return added[way] < added[best] if plans[way].fits else plans[way].peak_bytes < plans[best].peak_bytes


def _priced(plan: FitPlan, way: Way, added_s: float) -> FitPlan:
    """The plan with what its exchange adds to DDP's."""
    if way == "ddp":
        return plan
    first = msgspec.structs.replace(plan.measures[0], added_s=max(0.0, added_s))
    step_s = None if plan.step_s is None else plan.step_s + max(0.0, added_s)
    return msgspec.structs.replace(plan, measures=(first, *plan.measures[1:]), step_s=step_s)


def _rejected(way: Way, plan: FitPlan, more_s: float, is_found: bool) -> RejectedFit:
    if not plan.fits:
        reason = "it does not fit" if is_found else "it lacks more"
    else:
        reason = "it is slower" if more_s > 0 else "it does more to the program"
    return RejectedFit(name=NAMES[way], peak_bytes=plan.peak_bytes, step_s=plan.step_s, reason=reason)


def _lasting(timeline: MemoryTimeline, lives: Sequence[tuple[int, int, int]]) -> MemoryTimeline:
    """The timeline with buffers of the exchange: bytes, birth and death of each."""
    added = [
        BufferLife(nbytes, birth, death, -1, -1, "temporaries", "backward", "(exchange)", "")
        for nbytes, birth, death in lives
        if nbytes and death > birth
    ]
    order = sorted(range(len(timeline.buffers)), key=lambda place: timeline.buffers[place].birth)
    every = sorted([*(timeline.buffers[place] for place in order), *added], key=lambda each: each.birth)
    places = {id(each): place for place, each in enumerate(every)}
    held = tuple(
        msgspec.structs.replace(each, buffer=places[id(timeline.buffers[each.buffer])]) for each in timeline.held
    )
    return msgspec.structs.replace(timeline, buffers=tuple(every), held=held)
