"""A plan as one HTML page that needs nothing else: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from stoker.core.units import format_cost, format_hours, format_seconds
from stoker.records.plan import Pick, PlanReport, PlanRow
from stoker.ui.figures import write_count
from stoker.ui.fleet_style import FLEET_STYLE
from stoker.ui.html_page import (
    draw_answer,
    draw_header,
    draw_legend,
    draw_list,
    draw_section,
    draw_table,
    render_page,
)
from stoker.ui.plan_plots import COLOURS, draw_parts, draw_plans, gpu_classes
from stoker.ui.plan_style import PLAN_STYLE
from stoker.ui.plan_words import (
    PART_WORDS,
    write_batch,
    write_cores,
    write_counts,
    write_facts,
    write_gb,
    write_headline,
    write_machines,
    write_pick,
    write_strategy,
    write_unbeaten,
)


def render_plan_page(report: PlanReport) -> str:
    """The page."""
    body = "\n".join(part for part in _parts(report) if part)
    return render_page(f"{report.name} · stoker plan", body, FLEET_STYLE + PLAN_STYLE)


def _parts(report: PlanReport) -> Iterable[str]:
    yield _header(report)
    yield _verdict(report)
    yield _picks(report)
    yield _plot(report)
    yield _front(report)
    yield _advice(report)
    yield _families(report)
    yield _notes(report)


def _header(report: PlanReport) -> str:
    words = " · ".join([*write_facts(report), report.batch])
    return draw_header("stoker plan", report.name, words, f"prices: {report.prices}")


def _verdict(report: PlanReport) -> str:
    remedies = draw_list(report.miss.remedies) if report.miss else ""
    more = f'<p class="soft small">What would make it fit</p>{remedies}' if remedies else ""
    kind = "plain" if report.picks and report.picks[0].keeps else "plain input"
    return draw_answer("What to take", write_headline(report), more, kind)


def _picks(report: PlanReport) -> str:
    if not report.picks:
        return ""
    names = list(dict.fromkeys(name for pick in report.picks for name in pick.plan.parts))
    legend = draw_legend([(COLOURS[name], PART_WORDS[name]) for name in COLOURS if name in names])
    cards = "".join(_pick(pick, number, report) for number, pick in enumerate(report.picks, start=1))
    return f'<section><div class="picks">{cards}</div><div class="foot">{legend}</div></section>'


def _pick(pick: Pick, number: int, report: PlanReport) -> str:
    plan = pick.plan
    currency = report.currency
    ends = (
        f"{format_hours(plan.hours.low)} to {format_hours(plan.hours.high)}",
        f"{format_cost(plan.cost.low, currency)} to {format_cost(plan.cost.high, currency)}",
    )
    facts = [
        ("servers", f"{plan.servers}x {plan.offer}"),
        ("batch", f"{write_batch(plan)} = {plan.global_batch}"),
        ("steps", f"{write_count(plan.steps)} of {format_seconds(plan.step_s.likely)}"),
        ("memory", f"{write_gb(plan.needed_bytes)} of {write_gb(plan.memory_bytes)}"),
    ]
    if cores := write_cores(plan):
        facts.append(("input", cores))
    listed = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    reason = escape("; ".join(plan.reasons))
    listed += f'<dt>sure</dt><dd><span class="tag {plan.tier}" title="{reason}">{plan.tier}</span></dd>'
    remarks = "".join(f'<p class="remark">{escape(each)}</p>' for each in pick.remarks)
    return (
        f'<div class="card pick {"keeps" if pick.keeps else "breaks"}">'
        f'<p class="role"><b>{number}</b>{escape(write_pick(pick))}</p>'
        f'<p class="what">{escape(write_machines(plan))}</p><p class="how">{escape(write_strategy(plan))}</p>'
        f'<div class="big"><div><b>{format_hours(plan.hours.likely)}</b><span>{ends[0]}</span></div>'
        f"<div><b>{escape(format_cost(plan.cost.likely, currency))}</b><span>{escape(ends[1])}</span></div></div>"
        f"{draw_parts(plan.parts)}<dl>{listed}</dl>{remarks}</div>"
    )


def _plot(report: PlanReport) -> str:
    if not report.dots:
        return ""
    legend = draw_legend([(colour, name) for name, colour in gpu_classes(report).items()])
    joined = "upper ends of the plans" if report.sure else "plans"
    about = (
        f"Each dot is the best plan of its servers, number of GPUs and kind of strategy that was priced; both axes are "
        f"logarithmic. The line joins the {joined} that no other beats; a slanted line is a plan's "
        f"{100 * report.share:.0f} % interval, an open circle one without measurements behind it."
    )
    return draw_section(
        "Time against cost",
        f'<div class="card">{legend}<div class="canvas tall">{draw_plans(report)}</div></div>',
        about,
    )


def _front(report: PlanReport) -> str:
    if not report.front:
        return ""
    head = ["time", "from … to", "cost", "from … to", "machines", "strategy", "batch", "memory", ""]
    table = draw_table(head, [_front_row(plan, report) for plan in report.front], numbers=(0, 1, 2, 3, 6, 7))
    about = f"Of these {write_unbeaten(report)}. Batch: samples at once x accumulated x replicas."
    return draw_section("Worth a look", f'<div class="card scroll">{table}</div>', about)


def _front_row(plan: PlanRow, report: PlanReport) -> list[str]:
    currency = report.currency
    return [
        format_hours(plan.hours.likely),
        f"{format_hours(plan.hours.low)} … {format_hours(plan.hours.high)}",
        format_cost(plan.cost.likely, currency),
        f"{format_cost(plan.cost.low, currency)} … {format_cost(plan.cost.high, currency)}",
        f"{write_machines(plan)} ({plan.offer})",
        write_strategy(plan),
        write_batch(plan),
        write_gb(plan.needed_bytes),
        plan.tier,
    ]


def _advice(report: PlanReport) -> str:
    if not report.advice:
        return ""
    items = draw_list(report.advice, "advice")
    return draw_section("What binds, and what relaxing it buys", f'<div class="card">{items}</div>')


def _families(report: PlanReport) -> str:
    rows = [
        [family.name, write_count(family.tried), write_count(family.priced), family.why or "on the front"]
        for family in report.families
    ]
    table = draw_table(["strategy", "candidates", "priced", "what became of them"], rows, numbers=(1, 2))
    about = (
        f"{write_counts(report)}. Candidates are not priced where others beat them even if their exchange took no time."
    )
    return draw_section("Strategies", f'<div class="card scroll">{table}</div>', about)


def _notes(report: PlanReport) -> str:
    if not report.notes:
        return ""
    return draw_section("Notes", f'<div class="card">{draw_list(report.notes, "advice")}</div>')
