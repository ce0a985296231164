"""Sentences that the text and the page of a plan share."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.units import format_cost, format_count, format_hours
from stoker.records.plan import Pick, PlanReport, PlanRow, Span
from stoker.ui.figures import write_count

DATA_WORDS = {
    "ddp": "DDP",
    "fsdp": "FSDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "ps": "PS/Worker",
    "pearl": "PEARL",
    "late": "DDP, late-multiply",
}
PART_WORDS = {
    "input": "input",
    "compute": "compute",
    "memory": "memory",
    "host": "host",
    "communication": "exchange",
    "optimizer": "optimizer",
    "other": "other",
}


def write_facts(report: PlanReport) -> Iterator[str]:
    """The question of the plan."""
    yield f"{write_count(report.samples)} samples"
    if report.deadline_h is not None:
        yield f"within {format_hours(report.deadline_h)}"
    if report.budget is not None:
        yield f"for {format_cost(report.budget, report.currency)}"
    if report.sure:
        yield "even at the upper ends of the intervals"


def write_headline(report: PlanReport) -> str:
    """The answer in one sentence."""
    if report.miss is not None:
        return f"Nothing fits: {write_miss(report)}"
    if not report.picks:
        return "Nothing can be planned: no candidate has a prediction."
    pick = report.picks[0]
    plan = pick.plan
    said = (
        f"{write_machines(plan)}, {write_strategy(plan)}: {write_hours_span(plan.hours)} and "
        f"{write_cost_span(plan.cost, report.currency)}"
    )
    if not pick.keeps and (report.deadline_h is not None or report.budget is not None):
        return f"No plan meets the limits; the closest is {said}."
    return f"Take {said}."


def write_miss(report: PlanReport) -> str:
    """The nearest miss, if nothing can run."""
    miss = report.miss
    assert miss is not None
    return (
        f"{write_gb(miss.missing_bytes)} are missing on each of {miss.gpus}x {miss.gpu} with {miss.family}, "
        "the nearest of all."
    )


def write_machines(plan: PlanRow) -> str:
    """``8x H100-SXM``."""
    return f"{plan.gpus}x {plan.gpu}"


def write_strategy(plan: PlanRow) -> str:
    """How the step is spread: ``ZeRO-1 x 8, 4-way tensor, 2 stages``."""
    words: list[str] = []
    if plan.replicas > 1:
        words.append(DATA_WORDS[plan.data])
    if plan.tensor > 1:
        words.append(f"tensor {plan.tensor}")
    if plan.pipeline > 1:
        words.append(f"{plan.pipeline} stages")
    if plan.recomputed:
        words.append(f"{format_count(len(plan.recomputed), 'module')} recomputed")
    if plan.products_kept:
        words.append(f"{format_count(len(plan.products_kept), 'module')} recomputed but for products")
    if plan.used_up:
        words.append("gradients used up")
    if plan.away:
        words.append(f"activations of {format_count(len(plan.away), 'module')} in host memory")
    if plan.states_away:
        words.append("optimizer states in host memory")
    return " + ".join(words) or "1 GPU"


def write_batch(plan: PlanRow) -> str:
    """Micro-batch x accumulation x replicas."""
    return " x ".join(str(count) for count in (plan.micro_batch, plan.accumulation, plan.replicas))


def write_hours_span(span: Span) -> str:
    """Most likely, and the ends of the interval."""
    return f"{format_hours(span.likely)} ({format_hours(span.low)} to {format_hours(span.high)})"


def write_cost_span(span: Span, currency: str) -> str:
    """Most likely, and the ends of the interval."""
    ends = f"{format_cost(span.low, currency)} to {format_cost(span.high, currency)}"
    return f"{format_cost(span.likely, currency)} ({ends})"


def write_gb(num_bytes: float) -> str:
    """Decimal gigabytes, as on GPU data sheets: ``38.2 GB``."""
    size = num_bytes / 1e9
    return f"{size:.1f} GB" if size < 100 else f"{size:,.0f} GB"


def write_cores(plan: PlanRow) -> str:
    """What the input side of a server needs; empty where that is not known."""
    if plan.cores is None:
        return ""
    offered = f" of {plan.offered_cores:g}" if plan.offered_cores else ""
    return f"{plan.cores:.1f}{offered} cores a server prepare its input"


def write_counts(report: PlanReport) -> str:
    """How many candidates there were, and their outcomes."""
    priced = sum(family.priced for family in report.families)
    words = [f"{write_count(report.candidates)} candidates", f"{write_count(priced)} priced"]
    if report.unfit:
        words.append(f"{write_count(report.unfit)} do not fit the memory of their GPUs")
    if report.refused:
        words.append(f"{write_count(report.refused)} have no prediction")
    return ", ".join(words)


def write_unbeaten(report: PlanReport) -> str:
    """What all plans of the front have in common."""
    return "none is both faster and cheaper" + (" at the upper ends" if report.sure else "")


def write_pick(pick: Pick) -> str:
    """The question that a plan answers, capitalised."""
    return pick.role[:1].upper() + pick.role[1:]
