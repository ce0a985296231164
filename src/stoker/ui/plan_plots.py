"""The drawings of a plan's page: hours against cost, and the parts of a step as bars.

Both axes are logarithmic: twice as fast and twice as cheap are the same step everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from stoker.core.units import format_cost, format_hours
from stoker.records.plan import Dot, PlanReport, PlanRow, Span
from stoker.ui.drawing.fronts import (
    NAME_DX,
    NAME_DY,
    WORDS_APART,
    Axis,
    NameBox,
    PlotPlace,
    draw_field,
    draw_line,
    draw_mark,
    draw_stairs,
    draw_text,
    find_room,
)
from stoker.ui.drawing.labels import Labels, draw_limits
from stoker.ui.html_page import BarPart, draw_bar
from stoker.ui.plan_words import (
    PART_WORDS,
    write_cost_span,
    write_hours_span,
    write_machines,
    write_strategy,
)

COLOURS = {
    "input": "c0",
    "compute": "c1",
    "memory": "c2",
    "host": "c3",
    "communication": "c5",
    "optimizer": "c4",
    "other": "even",
}
"""Class of each part of a step."""
_GPU_CLASSES = ("c5", "c1", "c3", "c0", "c4", "c2")
"""Classes of GPUs, by their place among those that are shown."""
_TIME_TICKS_H = (
    *(seconds / 3600 for seconds in (1, 10)),
    *(minutes / 60 for minutes in (1, 3, 10, 30)),
    *(1, 3, 10, 24, 72, 240, 720, 2400, 8766, 87660, 876600),
)
"""Hours that people have a word for."""


def gpu_classes(report: PlanReport) -> dict[str, str]:
    """Class of each GPU of the picture: those of the front first, then those with the most plans."""
    count: dict[str, int] = {}
    for dot in report.dots:
        count[dot.gpu] = count.get(dot.gpu, 0) + 1
    front = dict.fromkeys(plan.gpu for plan in report.front)
    names = [*front, *sorted((name for name in count if name not in front), key=lambda name: -count[name])]
    return {name: _GPU_CLASSES[place] if place < len(_GPU_CLASSES) else "even" for place, name in enumerate(names)}


def draw_plans(report: PlanReport) -> str:
    """Hours against cost of all plans that were priced: the front as a staircase, the limits as lines."""
    picks = [pick.plan for pick in report.picks]
    spans = [(plan.hours, plan.cost) for plan in picks]
    hours = Axis.over(
        [*(dot.hours for dot in report.dots), *(end for span, _ in spans for end in (span.low, span.high)),
         report.deadline_h or math.inf]
    )  # fmt: skip
    cost = Axis.over(
        [*(dot.cost for dot in report.dots), *(end for _, span in spans for end in (span.low, span.high)),
         report.budget or math.inf]
    )  # fmt: skip
    place = PlotPlace(hours, cost)
    classes = gpu_classes(report)
    on_front = {(plan.offer, plan.gpus, plan.family) for plan in report.front}
    others = [dot for dot in report.dots if (dot.offer, dot.gpus, dot.family) not in on_front]
    body = [
        _grid(report, place),
        _limits(report, place),
        _stairs(report, place),
        *(_dot(dot, report, place, classes[dot.gpu]) for dot in others),
        *(_cross(plan, place, classes[plan.gpu]) for plan in picks),
        *(_plan(plan, report, place, classes[plan.gpu], 6) for plan in report.front if plan not in picks),
        *_picked(picks, report, place, classes),
    ]
    return draw_field("Hours and cost of plans; the front is the line", body)


def _limits(report: PlanReport, place: PlotPlace) -> str:
    """The region that deadline and budget allow, and their lines."""
    return draw_limits(
        None if report.deadline_h is None else place.x(report.deadline_h),
        None if report.budget is None else place.y(report.budget),
        "deadline",
        "budget",
        Labels(),
    )


def _grid(report: PlanReport, place: PlotPlace) -> str:
    parts: list[str] = []
    for value in place.up.decades():
        y = place.y(value)
        parts += [
            draw_line("grid", 0, y, 100, y),
            draw_text(0, y, format_cost(value, report.currency), dx=-8, dy=4, anchor="end"),
        ]
    for value in place.across.ticks(_TIME_TICKS_H, WORDS_APART):
        x = place.x(value)
        parts += [draw_line("grid", x, 0, x, 100), draw_text(x, 100, _tick(value), dy=18, anchor="middle")]
    return "".join([*parts, draw_line("axis", 0, 100, 100, 100), draw_line("axis", 0, 0, 0, 100)])


def _tick(hours: float) -> str:
    """A round number of hours, shortly."""
    if hours < 1 / 60:
        return f"{hours * 3600:.0f} s"
    if hours < 1:
        return f"{hours * 60:.0f} min"
    if hours < 48:
        return f"{hours:.0f} h"
    return f"{hours / 24:.0f} days" if hours < 8000 else f"{hours / 8766:.0f} y"


def _stairs(report: PlanReport, place: PlotPlace) -> str:
    """What can be had for so much: from plan to plan along the time, then down, by the figures that are compared."""
    return draw_stairs(
        [(place.x(_compared(plan.hours, report)), place.y(_compared(plan.cost, report))) for plan in report.front]
    )


def _compared(span: Span, report: PlanReport) -> float:
    return span.high if report.sure else span.likely


def _dot(dot: Dot, report: PlanReport, place: PlotPlace, colour: str) -> str:
    said = (
        f"{dot.gpus}x {dot.gpu} ({dot.offer}), {dot.family}: {format_hours(dot.hours)}, "
        f"{format_cost(dot.cost, report.currency)}"
    )
    return draw_mark(f"dot {colour}", place.x(dot.hours), place.y(dot.cost), 3.5, said)


def _plan(plan: PlanRow, report: PlanReport, place: PlotPlace, colour: str, radius: int) -> str:
    said = (
        f"{write_machines(plan)} ({plan.offer}), {write_strategy(plan)}: {write_hours_span(plan.hours)}, "
        f"{write_cost_span(plan.cost, report.currency)}; {plan.tier}"
    )
    kind = "best" if plan.tier == "calibrated" else "best open"
    return draw_mark(f"{kind} {colour}", place.x(plan.hours.likely), place.y(plan.cost.likely), radius, said)


def _cross(plan: PlanRow, place: PlotPlace, colour: str) -> str:
    """The interval: hours and cost move together, since the price of an hour is known."""
    return draw_line(
        f"span {colour}", place.x(plan.hours.low), place.y(plan.cost.low),
        place.x(plan.hours.high), place.y(plan.cost.high),
    )  # fmt: skip


def _picked(
    picks: Sequence[PlanRow], report: PlanReport, place: PlotPlace, classes: Mapping[str, str]
) -> Iterable[str]:
    """Circles with the numbers of the picked plans, and their machines where there is room for the words."""
    named: list[NameBox] = []
    marks = [(place.x(dot.hours), place.y(dot.cost)) for dot in report.dots]
    marks += [(place.x(plan.hours.likely), place.y(plan.cost.likely)) for plan in (*report.front, *picks)]
    for number, plan in enumerate(picks, start=1):
        x, y = place.x(plan.hours.likely), place.y(plan.cost.likely)
        yield _plan(plan, report, place, classes[plan.gpu], 10)
        yield draw_text(x, y, str(number), dy=4, anchor="middle", kind="rank")
        box = find_room(x, y, named, marks)
        named.append(box)
        yield draw_text(
            x, y, write_machines(plan), dx=NAME_DX if box.right else -NAME_DX, dy=5 + NAME_DY * box.lines,
            anchor="start" if box.right else "end", kind="name",
        )  # fmt: skip


def draw_parts(parts: Mapping[str, float]) -> str:
    """What a step's time is spent on, as one bar."""
    whole = sum(parts.values()) or 1.0
    fracs = {name: seconds / whole for name, seconds in parts.items()}
    return draw_bar(
        BarPart(COLOURS[name], frac, f"{PART_WORDS[name]} {100 * frac:.0f} %", f"{100 * frac:.0f} %")
        for name, frac in fracs.items()
    )
