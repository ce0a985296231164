"""The answer to "which hardware, how many GPUs, which strategy?", as records that can be shown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stoker.core.units import format_cost, format_hours
from stoker.perf.planning.choosing import TIE, PlanLimits, Recommendation, choose, front, measured_instead, settled
from stoker.perf.planning.offers import PriceList
from stoker.perf.planning.pricing import Amount, PricedPlan, Rejection, TrainingJob
from stoker.perf.planning.searching import Found, examples, search
from stoker.perf.planning.space import Space
from stoker.records.plan import Dot, Family, NearestMiss, Pick, PlanReport, PlanRow, Span

_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question: a job, its limits, and where it may run."""

    name: str
    job: TrainingJob
    space: Space
    limits: PlanLimits
    prices: PriceList
    notes: tuple[str, ...] = ()


def answer(question: Question) -> PlanReport:
    """Searches the space; reports what to take, what else there is, and which limits bind."""
    limits = question.limits
    found = search(question.space, question.job, limits)
    best = settled(front(found.plans, limits), found.plans, limits)
    choice = choose(best, limits)
    prices, job = question.prices, question.job
    return PlanReport(
        name=question.name,
        samples=job.samples,
        batch=_batch(question.space),
        currency=prices.currency,
        is_money=prices.is_money,
        prices=_prices(prices),
        budget=_finite(limits.budget),
        deadline_h=_finite(limits.deadline_h),
        sure=limits.sure,
        share=_SHARE,
        candidates=found.candidates,
        unfit=sum(each.count for each in found.unfit.values()),
        refused=sum(each.count for each in found.refused.values()),
        picks=_picks(best, choice, found.plans, question),
        front=[_row(plan) for plan in best],
        dots=_dots([*found.plans, *examples(question.space, question.job, found)]),
        families=[_family(name, found, best, question) for name in question.space.families],
        advice=_advice(best, choice, question),
        miss=None if found.plans else _miss(found, question),
        notes=[*question.notes, *_notes(found.plans, question)],
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _batch(space: Space) -> str:
    if space.grows:
        return f"each replica computes {space.batch:,} samples a step: the global batch grows with the GPUs"
    return f"global batch of {space.batch:,} samples, however many GPUs"


def _prices(prices: PriceList) -> str:
    if not prices.is_money:
        return "none given: GPU-hours are counted, whatever the GPU"
    return prices.source + (f", {prices.date}" if prices.date else "")


def _span(amount: Amount) -> Span:
    return Span(likely=amount.likely, low=amount.low, high=amount.high)


def _row(plan: PricedPlan) -> PlanRow:
    candidate = plan.candidate
    strategy = candidate.strategy
    return PlanRow(
        offer=candidate.offer.name,
        gpu=candidate.offer.gpu.name,
        gpus=candidate.gpus,
        servers=candidate.servers,
        family=candidate.family,
        data=strategy.data,
        tensor=strategy.tensor,
        pipeline=strategy.pipeline,
        replicas=candidate.replicas,
        micro_batch=candidate.micro_batch,
        accumulation=strategy.accumulation,
        global_batch=candidate.global_batch,
        recomputed=list(strategy.recomputed),
        products_kept=list(strategy.products_kept),
        used_up=bool(strategy.updates),
        away=list(strategy.away),
        states_away=strategy.states_away,
        steps=plan.steps,
        step_s=_span(plan.step_s),
        hours=_span(plan.hours),
        cost=_span(plan.cost),
        tier=plan.tier,
        parts={name: seconds for name, seconds in plan.parts.items() if seconds},
        hidden_s=plan.hidden_s,
        needed_bytes=plan.needed_bytes,
        memory_bytes=candidate.offer.gpu.memory_bytes,
        cores=plan.cores,
        offered_cores=candidate.offer.cores,
        reasons=list(plan.reasons),
    )


def _picks(best: list[PricedPlan], choice: Recommendation, plans: list[PricedPlan], question: Question) -> list[Pick]:
    """The plans that answer the question; the same plan only once, for its first role."""
    limits, currency = question.limits, question.prices.currency
    wanted: list[tuple[str, PricedPlan | None]] = []
    if choice.nearest is not None:
        wanted.append(("nearest to both limits", choice.nearest))
    within = f" within {format_hours(limits.deadline_h)}" if math.isfinite(limits.deadline_h) else ""
    wanted.append((f"cheapest{within}", choice.cheapest))
    within = f" for {format_cost(limits.budget, currency)}" if math.isfinite(limits.budget) else ""
    wanted.append((f"fastest{within}", choice.fastest))
    if len(best) > 2 and choice.nearest is None:
        wanted.append(("in between", _middle(best, limits)))
    role, first = next(((role, plan) for role, plan in wanted if plan is not None), ("", None))
    calibrated = None if first is None else measured_instead(first, plans, limits)
    if calibrated is not None:
        wanted.insert(0, (f"{role}, of those that were measured", calibrated))
    picks: dict[int, Pick] = {}
    for role, plan in wanted:
        if plan is None:
            continue
        before = picks.get(id(plan))
        if before is None:
            picks[id(plan)] = Pick(
                role=role,
                plan=_row(plan),
                keeps=limits.allow(plan),
                remarks=[*_remarks(plan, question), *(_surer(plan, plans, question) if calibrated is None else [])],
            )
        elif role != "in between":
            picks[id(plan)] = Pick(role=f"{before.role}, {role}", plan=before.plan, keeps=before.keeps,
                                   remarks=before.remarks)  # fmt: skip
    return list(picks.values())


def _middle(best: list[PricedPlan], limits: PlanLimits) -> PricedPlan:
    """The plan with the least product of hours and cost: a little more of the one buys the most of the other."""
    allowed = [plan for plan in best if limits.allow(plan)] or best
    return min(allowed, key=lambda plan: plan.hours.likely * plan.cost.likely)


def _remarks(plan: PricedPlan, question: Question) -> list[str]:
    """What to know before choosing a plan."""
    limits, currency = question.limits, question.prices.currency
    remarks: list[str] = []
    over = limits.hours(plan) / limits.deadline_h
    if over > 1:
        remarks.append(f"{format_hours(limits.hours(plan) - limits.deadline_h)} beyond the deadline")
    elif plan.hours.high > limits.deadline_h:
        remarks.append(f"the deadline is inside its interval, which ends at {format_hours(plan.hours.high)}")
    if limits.cost(plan) > limits.budget:
        remarks.append(f"{format_cost(limits.cost(plan) - limits.budget, currency)} beyond the budget")
    elif plan.cost.high > limits.budget:
        remarks.append(f"the budget is inside its interval, which ends at {format_cost(plan.cost.high, currency)}")
    if plan.parts.get("input", 0.0) > 0.05 * plan.step_s.likely and plan.candidate.offer.cores:
        remarks.append(f"waits for input: {plan.candidate.offer.cores:g} cores a server are too few")
    return remarks


def _surer(plan: PricedPlan, plans: list[PricedPlan], question: Question) -> list[str]:
    """For an extrapolated plan, a calibrated one whose interval overlaps with it."""
    calibrated = [other for other in plans if other.tier == "calibrated"]
    if plan.tier == "calibrated" or not calibrated:
        return []
    behind, other = min(((1 / _margin(plan, each), each) for each in calibrated), key=lambda each: each[0])
    if other.hours.likely > plan.hours.high or other.cost.likely > plan.cost.high:
        return []
    candidate = other.candidate
    more = f", {100 * (behind - 1):.0f} % more" if behind > 1.005 else ""
    return [
        f"backed by measurements: {candidate.gpus}x {candidate.offer.gpu.name} with {candidate.family}: "
        f"{format_hours(other.hours.likely)} and {format_cost(other.cost.likely, question.prices.currency)}{more}"
    ]


def _dots(plans: Iterable[PricedPlan]) -> list[Dot]:
    """The fastest of each kind of server, number of GPUs and kind of strategy, which all cost the same per hour."""
    found: dict[tuple[str, int, str], PricedPlan] = {}
    for plan in plans:
        candidate = plan.candidate
        key = (candidate.offer.name, candidate.gpus, candidate.family)
        if key not in found or plan.hours.likely < found[key].hours.likely:
            found[key] = plan
    return [
        Dot(
            offer=plan.candidate.offer.name, gpu=plan.candidate.offer.gpu.name, gpus=plan.candidate.gpus,
            family=plan.candidate.family, tier=plan.tier, hours=plan.hours.likely, cost=plan.cost.likely,
        )
        for plan in found.values()
    ]  # fmt: skip


def _family(name: str, found: Found, best: list[PricedPlan], question: Question) -> Family:
    plans = found.of(name)
    on_front = sum(plan.candidate.family == name for plan in best)
    return Family(
        name=name, tried=found.tried.get(name, 0), priced=len(plans), on_front=on_front,
        why="" if on_front else _why(name, found, best, question.space),
    )  # fmt: skip


def _why(name: str, found: Found, best: list[PricedPlan], space: Space) -> str:
    """Why nothing of a family is worth taking."""
    if not found.tried.get(name):
        return _absent(name, space)
    if plans := found.of(name):
        return _beaten(*_least_beaten(plans, best))
    unfit, refused, beaten = found.unfit.get(name), found.refused.get(name), found.beaten.get(name, 0)
    words: list[str] = []
    if beaten:
        share = "all are" if beaten == found.tried[name] else f"{beaten:,} of {found.tried[name]:,} are"
        words.append(f"{share} beaten by other plans even if their exchange took no time")
    if unfit is not None:
        least = unfit.least.candidate
        words.append(
            f"{unfit.count:,} do not fit, at best {_gb(unfit.least.missing_bytes)} are missing on each of "
            f"{least.gpus}x {least.offer.gpu.name}"
        )
    if refused is not None:
        reasons = "; ".join(refused.least.reasons) or "a part of their time is not known"
        words.append(f"{refused.count:,} have no prediction: {reasons}")
    return "; ".join(words)


def _beaten(margin: float, plan: PricedPlan, by: PricedPlan) -> str:
    """How much worse a plan is than another."""
    one, other = plan.candidate, by.candidate
    name = f"{one.gpus}x {one.offer.gpu.name} in {format_hours(plan.hours.likely)}"
    against = other.family if _same_machines(plan, by) else f"{other.family} on {other.gpus}x {other.offer.gpu.name}"
    if margin < 1:
        return f"{name} at best: within {100 * (TIE - 1):.0f} % of {against}, which is surer or simpler"
    if margin < 1.03:
        return f"no better than {against}: {name} at best"
    behind = (
        f"{100 * (margin - 1):.0f} % more time and cost than"
        if margin < 2
        else f"{margin:.2g} times the time and cost of"
    )
    return f"{name} at best: {behind} {against}"


def _same_machines(plan: PricedPlan, other: PricedPlan) -> bool:
    return (plan.candidate.offer, plan.candidate.gpus) == (other.candidate.offer, other.candidate.gpus)


def _gb(num_bytes: float) -> str:
    """Bytes in the decimal gigabytes of GPU data sheets."""
    return f"{num_bytes / 1e9:.3g} GB"


def _margin(plan: PricedPlan, other: PricedPlan) -> float:
    return min(plan.hours.likely / other.hours.likely, plan.cost.likely / other.cost.likely)


def _least_beaten(plans: list[PricedPlan], best: list[PricedPlan]) -> tuple[float, PricedPlan, PricedPlan]:
    """The plan nearest to a front among those that it beats, and the plan that beats it."""
    nearest: tuple[float, PricedPlan, PricedPlan] | None = None
    for plan in plans:
        margin, by = max(((_margin(plan, other), other) for other in best), key=lambda each: each[0])
        if nearest is None or margin < nearest[0]:
            nearest = margin, plan, by
    assert nearest is not None
    return nearest


def _absent(name: str, space: Space) -> str:
    """Why a family has no candidate at all."""
    if name == "PEARL" and not space.embeddings:
        return "the program has no embedding tables to partition"
    if name == "1 GPU":
        return "no offer is for a single GPU, and none of a server's can be left idle"
    if space.max_gpus == 1:
        return "one GPU at most (--max-gpus)"
    if name == "DDP over servers" and all(
        offer.max_servers == 1 or offer.gpus >= space.max_gpus for offer in space.offers
    ):
        return "no offer has more than one server within --max-gpus"
    return f"the batch of {space.batch:,} cannot be shared among its replicas evenly"


def _advice(best: list[PricedPlan], choice: Recommendation, question: Question) -> list[str]:
    """What binds, and what relaxing it buys."""
    limits, currency = question.limits, question.prices.currency
    lines: list[str] = []
    if choice.cheapest is not None and math.isfinite(limits.deadline_h):
        at = best.index(choice.cheapest)
        if at + 1 < len(best):
            other = best[at + 1]
            saved = limits.cost(choice.cheapest) - limits.cost(other)
            lines.append(
                f"The deadline binds: with {format_hours(limits.hours(other))} it costs "
                f"{format_cost(limits.cost(other), currency)}, {format_cost(saved, currency)} less."
            )
    if choice.fastest is not None and math.isfinite(limits.budget):
        at = best.index(choice.fastest)
        if at > 0:
            other = best[at - 1]
            lines.append(
                f"The budget binds: with {format_cost(limits.cost(other), currency)} it takes "
                f"{format_hours(limits.hours(other))} instead of {format_hours(limits.hours(choice.fastest))}."
            )
    if best and best[0].candidate.gpus > question.space.max_gpus // 2:
        lines += _with_more_gpus(best, question)
    return lines


def _with_more_gpus(best: list[PricedPlan], question: Question) -> list[str]:
    """What twice as many GPUs would bring, on the fastest plan's servers."""
    offers = (best[0].candidate.offer,)
    most = 2 * question.space.max_gpus
    space = replace(question.space, offers=offers, max_gpus=most, beyond=question.space.max_gpus)
    wider = search(space, question.job, question.limits, known=best)
    before = best[0]
    plans = [*wider.plans, before]
    faster = settled(front(plans, question.limits), plans, question.limits)[0]
    if faster is before:
        return []
    currency = question.prices.currency
    return [
        f"--max-gpus {question.space.max_gpus} binds: with {faster.candidate.gpus} GPUs the fastest takes "
        f"{format_hours(faster.hours.likely)} instead of {format_hours(before.hours.likely)}, for "
        f"{format_cost(faster.cost.likely, currency)} instead of {format_cost(before.cost.likely, currency)}."
    ]


def _miss(found: Found, question: Question) -> NearestMiss | None:
    """The candidate that lacks the least memory, for when none can run."""
    unfit = [rejected.least for rejected in found.unfit.values()]
    if not unfit:
        return None
    least: Rejection = min(unfit, key=lambda rejection: rejection.missing_bytes)
    candidate = least.candidate
    needed = candidate.offer.gpu.memory_bytes + least.missing_bytes
    remedies = [f"GPUs with {_gb(needed)} of memory"]
    wider = search(replace(question.space, max_gpus=4 * question.space.max_gpus), question.job)
    if wider.plans:
        smallest = min(wider.plans, key=lambda plan: (plan.candidate.gpus, plan.cost.likely))
        remedies.append(
            f"--max-gpus {smallest.candidate.gpus}: {smallest.candidate.family} on "
            f"{smallest.candidate.gpus}x {smallest.candidate.offer.gpu.name} fits"
        )
    return NearestMiss(
        offer=candidate.offer.name, gpu=candidate.offer.gpu.name, gpus=candidate.gpus, family=candidate.family,
        missing_bytes=least.missing_bytes, needed_bytes=needed, remedies=remedies,
    )  # fmt: skip


def _notes(plans: list[PricedPlan], question: Question) -> list[str]:
    notes: list[str] = []
    batches = question.job.batches
    if not batches.is_exact:
        notes.append(f"traced with a micro-batch of {batches.first.batch_size:,}; other sizes are scaled from it")
    if question.space.grows:
        notes.append(
            "the global batch grows with the GPUs: the learning rate and its schedule have to follow, and "
            "the same samples may teach less"
        )
    elif question.space.batch != batches.own:
        notes.append(
            f"the program's own batch is {batches.own:,}: with {question.space.batch:,} the learning rate and its "
            "schedule have to follow"
        )
    cheapest = min(plans, key=lambda plan: plan.cost.likely, default=None)
    launching = cheapest.parts.get("host", 0.0) / cheapest.step_s.likely if cheapest else 0.0
    if launching > 0.5:
        notes.append(
            f"{100 * launching:.0f} % of a step of the cheapest plan its GPUs wait for the host to launch kernels: "
            "larger steps (`--batch`) or torch.compile would use them better"
        )
    if any(plan.tier == "extrapolated" for plan in plans):
        notes.append("extrapolated times are from specifications alone: their intervals are wide")
    return notes
