"""A plan as text: what to take, what else is worth a look, why not the rest."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.units import format_cost, format_hours, format_seconds
from stoker.records.plan import Pick, PlanReport, PlanRow
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.figures import write_count
from stoker.ui.plan_words import (
    PART_WORDS,
    write_batch,
    write_cores,
    write_cost_span,
    write_counts,
    write_facts,
    write_gb,
    write_headline,
    write_hours_span,
    write_machines,
    write_pick,
    write_strategy,
    write_unbeaten,
)
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

_FRONT_SHOWN = 12
_LABEL_WIDTH = 7
_WIDE = 96
"""Columns that the whole table of the front takes."""


def render_plan(report: PlanReport, style: Style | None = None, command: str = "") -> str:
    """The report, lines joined by newlines, the last one ended by one.

    Args:
        report: what was found.
        style: what the terminal shows.
        command: that shows more, if there is one.
    """
    style = style or Style()
    blocks = (
        _heading(report, style),
        wrap(write_headline(report), style, 1),
        *(_pick(pick, report, style) for pick in report.picks),
        _remedies(report, style),
        _front(report, style),
        titled("What binds", [line for each in report.advice for line in _item(each, style)], style),
        _families(report, style),
        _notes(report, style),
    )
    return join(blocks, style, command)


def _heading(report: PlanReport, style: Style) -> list[str]:
    return [
        style.paint(style.cut(f"stoker plan · {report.name}", style.width), 1),
        *wrap(" · ".join([*write_facts(report), report.batch]), style),
        style.paint(style.cut(f"prices: {report.prices}", style.width), 90),
        style.paint(style.clean("─" * style.width), 90),
    ]


def _item(text: str, style: Style) -> list[str]:
    return wrap(f"- {text}", style, indent="  ")


def _pick(pick: Pick, report: PlanReport, style: Style) -> list[str]:
    plan = pick.plan
    hour = sum(plan.parts.values())
    parts = ", ".join(f"{PART_WORDS[name]} {100 * seconds / hour:.0f} %" for name, seconds in plan.parts.items())
    where = f"{write_machines(plan)} ({plan.servers}x {plan.offer})" if plan.offer else write_machines(plan)
    facts = [
        ("on", where),
        ("how", f"{write_strategy(plan)}; batch {write_batch(plan)} = {plan.global_batch} samples"),
        (
            "takes",
            f"{write_hours_span(plan.hours)}, {write_count(plan.steps)} steps of {format_seconds(plan.step_s.likely)}",
        ),
        ("costs", write_cost_span(plan.cost, report.currency)),
        ("step", parts + f"; {write_gb(plan.needed_bytes)} of {write_gb(plan.memory_bytes)}"),
        ("sure", plan.tier + (f": {plan.reasons[0]}" if plan.reasons else "")),
    ]
    if cores := write_cores(plan):
        facts.append(("input", cores))
    facts += [("note", remark) for remark in pick.remarks]
    return titled(write_pick(pick), [line for fact in facts for line in _fact(*fact, style)], style)


def _fact(name: str, value: str, style: Style) -> list[str]:
    """A labelled line, or several where it is long."""
    label = f"  {name:<{_LABEL_WIDTH}}"
    first, *others = wrap(label + value, style, indent=" " * len(label))
    return ["  " + style.paint(first[2 : len(label)].rstrip(), 1) + first[2 + len(name) :], *others]


def _remedies(report: PlanReport, style: Style) -> list[str]:
    if report.miss is None:
        return []
    lines = [line for each in report.miss.remedies for line in _item(each, style)]
    return titled("What would make it fit", lines, style)


def _front(report: PlanReport, style: Style) -> list[str]:
    rows = [_front_row(plan, report) for plan in _shown(report.front)]
    if not rows:
        return []
    head = ["time", "from … to", "cost", "machines", "memory", "batch", "", "strategy"]
    right = {0, 1, 2, 4}
    # Intervals, memory and batches are dropped on a narrow terminal: the picked plans above show them.
    kept = range(len(head)) if style.width >= _WIDE else (0, 2, 3, 6, 7)
    lines = render_table(
        [head[place] for place in kept], [[row[place] for place in kept] for row in rows], style,
        right=[number for number, place in enumerate(kept) if place in right],
    )  # fmt: skip
    if any(plan.tier != "calibrated" for plan in report.front):
        lines += wrap("~ extrapolated: not backed by measurements of such steps", style, 90)
    title = f"Worth a look: {write_unbeaten(report)} ({100 * report.share:.0f} % intervals)"
    return titled(style.cut(title, style.width), lines, style)


def _shown(front: Sequence[PlanRow]) -> list[PlanRow]:
    """All of a short front; of a long one evenly spread plans, its ends among them."""
    if len(front) <= _FRONT_SHOWN:
        return list(front)
    last = len(front) - 1
    return [front[round(place * last / (_FRONT_SHOWN - 1))] for place in range(_FRONT_SHOWN)]


def _front_row(plan: PlanRow, report: PlanReport) -> list[str]:
    return [
        format_hours(plan.hours.likely),
        f"{format_hours(plan.hours.low)} … {format_hours(plan.hours.high)}",
        format_cost(plan.cost.likely, report.currency),
        write_machines(plan),
        write_gb(plan.needed_bytes),
        write_batch(plan),
        "" if plan.tier == "calibrated" else "~",
        write_strategy(plan),
    ]


def _families(report: PlanReport, style: Style) -> list[str]:
    left = [(family.name, family.why) for family in report.families if family.why]
    width = max((len(name) for name, _ in left), default=0)
    lines = [line for name, why in left for line in wrap(f"{name:<{width}}  {why}", style, indent=" " * (width + 2))]
    lines += [style.paint(line, 90) for line in wrap(f"{write_counts(report)}.", style)]
    return titled("Not taken, and why", lines, style)


def _notes(report: PlanReport, style: Style) -> list[str]:
    return [line for note in report.notes for line in wrap(f"Note: {note}.", style, 90)]
