"""The drawings of a plan's page: hours against cost, and the parts of a step as bars.

Both axes are logarithmic: twice as fast and twice as cheap are the same step everywhere. Everything is placed by
percentages, so that a drawing stretches to its width without stretching its text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from stoker.core.units import format_cost, format_hours
from stoker.records.plan import Dot, PlanReport, PlanRow, Span
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
_LEAST_TICK_PERCENT = 9.0
"""Labels of an axis stand at least so far apart."""


def gpu_classes(report: PlanReport) -> dict[str, str]:
    """Class of each GPU of the picture: those of the front first, then those with the most plans."""
    count: dict[str, int] = {}
    for dot in report.dots:
        count[dot.gpu] = count.get(dot.gpu, 0) + 1
    front = dict.fromkeys(plan.gpu for plan in report.front)
    names = [*front, *sorted((name for name in count if name not in front), key=lambda name: -count[name])]
    return {name: _GPU_CLASSES[place] if place < len(_GPU_CLASSES) else "even" for place, name in enumerate(names)}


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis."""

    low: float
    high: float

    @staticmethod
    def over(values: Iterable[float]) -> _Axis:
        """An axis that holds all values, with some room around."""
        known = [value for value in values if 0 < value < math.inf]
        low, high = min(known, default=1.0), max(known, default=10.0)
        room = max(1.25, (high / low) ** 0.06)
        return _Axis(low / room, high * room)

    def percent(self, value: float) -> float:
        """Place of a value; beyond the ends at the ends."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return 100 * min(1.0, max(0.0, share))

    def ticks(self, wanted: Iterable[float]) -> list[float]:
        """Ticks inside the range, none too close to the previous one."""
        kept: list[float] = []
        for value in wanted:
            inside = self.low <= value <= self.high
            if inside and (not kept or self.percent(value) - self.percent(kept[-1]) >= _LEAST_TICK_PERCENT):
                kept.append(value)
        return kept

    def decades(self) -> list[float]:
        """1, 2, 5, 10, 20, ... inside."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        return self.ticks(digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5))


def draw_plans(report: PlanReport) -> str:
    """Hours against cost of all plans that were priced: the front as a staircase, the limits as lines."""
    picks = [pick.plan for pick in report.picks]
    spans = [(plan.hours, plan.cost) for plan in picks]
    hours = _Axis.over(
        [*(dot.hours for dot in report.dots), *(end for span, _ in spans for end in (span.low, span.high)),
         report.deadline_h or math.inf]
    )  # fmt: skip
    cost = _Axis.over(
        [*(dot.cost for dot in report.dots), *(end for _, span in spans for end in (span.low, span.high)),
         report.budget or math.inf]
    )  # fmt: skip
    place = _Place(hours, cost)
    classes = gpu_classes(report)
    on_front = {(plan.offer, plan.gpus, plan.family) for plan in report.front}
    others = [dot for dot in report.dots if (dot.offer, dot.gpus, dot.family) not in on_front]
    body = [
        _limits(report, place),
        _grid(report, place),
        _stairs(report, place),
        *(_dot(dot, report, place, classes[dot.gpu]) for dot in others),
        *(_cross(plan, place, classes[plan.gpu]) for plan in picks),
        *(_plan(plan, report, place, classes[plan.gpu], 6) for plan in report.front if plan not in picks),
        *_picked(picks, report, place, classes),
    ]
    label = "Hours and cost of plans; the front is the line"
    return f'<svg class="plot plans" role="img" aria-label="{label}" width="100%" height="100%">{"".join(body)}</svg>'


@dataclass(frozen=True)
class _Place:
    """Where hours and cost are in the drawing."""

    hours: _Axis
    cost: _Axis

    def x(self, hours: float) -> float:
        return self.hours.percent(hours)

    def y(self, cost: float) -> float:
        return 100 - self.cost.percent(cost)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.2f}%" y1="{y1:.2f}%" x2="{x2:.2f}%" y2="{y2:.2f}%"/>'


def _limits(report: PlanReport, place: _Place) -> str:
    """The region that deadline and budget allow, and their lines."""
    if report.deadline_h is None and report.budget is None:
        return ""
    x = 100.0 if report.deadline_h is None else place.x(report.deadline_h)
    y = 0.0 if report.budget is None else place.y(report.budget)
    parts = [f'<rect class="allowed" x="0" y="{y:.2f}%" width="{x:.2f}%" height="{100 - y:.2f}%"/>']
    if report.deadline_h is not None:
        parts.append(_line("limit", x, 0, x, 100))
        parts.append(_text(x, 0, "deadline", dx=6 if x < 85 else -6, dy=13, anchor="start" if x < 85 else "end"))
    if report.budget is not None:
        parts.append(_line("limit", 0, y, 100, y))
        parts.append(_text(100, y, "budget", dx=-4, dy=-6 if y > 8 else 14, anchor="end"))
    return "".join(parts)


def _text(x: float, y: float, text: str, *, dx: float = 0, dy: float = 0, anchor: str = "start", kind: str = "") -> str:
    return (
        f'<text class="{kind}" x="{x:.2f}%" y="{y:.2f}%" dx="{dx:g}" dy="{dy:g}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _grid(report: PlanReport, place: _Place) -> str:
    parts: list[str] = []
    for value in place.cost.decades():
        y = place.y(value)
        parts += [
            _line("grid", 0, y, 100, y),
            _text(0, y, format_cost(value, report.currency), dx=-8, dy=4, anchor="end"),
        ]
    for value in place.hours.ticks(_TIME_TICKS_H):
        x = place.x(value)
        parts += [_line("grid", x, 0, x, 100), _text(x, 100, _tick(value), dy=18, anchor="middle")]
    return "".join([*parts, _line("axis", 0, 100, 100, 100), _line("axis", 0, 0, 0, 100)])


def _tick(hours: float) -> str:
    """A round number of hours, shortly."""
    if hours < 1 / 60:
        return f"{hours * 3600:.0f} s"
    if hours < 1:
        return f"{hours * 60:.0f} min"
    if hours < 48:
        return f"{hours:.0f} h"
    return f"{hours / 24:.0f} days" if hours < 8000 else f"{hours / 8766:.0f} y"


def _stairs(report: PlanReport, place: _Place) -> str:
    """What can be had for so much: from plan to plan along the time, then down, by the figures that are compared."""
    parts: list[str] = []
    for one, other in itertools.pairwise(report.front):
        x1, y1 = (place.x(_compared(one.hours, report)), place.y(_compared(one.cost, report)))
        x2, y2 = (place.x(_compared(other.hours, report)), place.y(_compared(other.cost, report)))
        parts += [_line("stairs", x1, y1, x2, y1), _line("stairs", x2, y1, x2, y2)]
    return "".join(parts)


def _compared(span: Span, report: PlanReport) -> float:
    return span.high if report.sure else span.likely


def _dot(dot: Dot, report: PlanReport, place: _Place, colour: str) -> str:
    said = (
        f"{dot.gpus}x {dot.gpu} ({dot.offer}), {dot.family}: {format_hours(dot.hours)}, "
        f"{format_cost(dot.cost, report.currency)}"
    )
    return (
        f'<circle class="dot {colour}" cx="{place.x(dot.hours):.2f}%" cy="{place.y(dot.cost):.2f}%" r="3.5">'
        f"<title>{escape(said)}</title></circle>"
    )


def _plan(plan: PlanRow, report: PlanReport, place: _Place, colour: str, radius: int) -> str:
    said = (
        f"{write_machines(plan)} ({plan.offer}), {write_strategy(plan)}: {write_hours_span(plan.hours)}, "
        f"{write_cost_span(plan.cost, report.currency)}; {plan.tier}"
    )
    kind = "best" if plan.tier == "calibrated" else "best open"
    return (
        f'<circle class="{kind} {colour}" cx="{place.x(plan.hours.likely):.2f}%" '
        f'cy="{place.y(plan.cost.likely):.2f}%" r="{radius}"><title>{escape(said)}</title></circle>'
    )


def _cross(plan: PlanRow, place: _Place, colour: str) -> str:
    """The interval: hours and cost move together, since the price of an hour is known."""
    return _line(
        f"span {colour}", place.x(plan.hours.low), place.y(plan.cost.low),
        place.x(plan.hours.high), place.y(plan.cost.high),
    )  # fmt: skip


def _picked(picks: Sequence[PlanRow], report: PlanReport, place: _Place, classes: Mapping[str, str]) -> Iterable[str]:
    """Circles with the numbers of the picked plans, and their machines where there is room for the words."""
    named: list[_Box] = []
    marks = [(place.x(dot.hours), place.y(dot.cost)) for dot in report.dots]
    marks += [(place.x(plan.hours.likely), place.y(plan.cost.likely)) for plan in (*report.front, *picks)]
    for number, plan in enumerate(picks, start=1):
        x, y = place.x(plan.hours.likely), place.y(plan.cost.likely)
        yield _plan(plan, report, place, classes[plan.gpu], 10)
        yield _text(x, y, str(number), dy=4, anchor="middle", kind="rank")
        box = _room(x, y, named, marks)
        named.append(box)
        yield _text(
            x, y, write_machines(plan), dx=_NAME_DX if box.right else -_NAME_DX, dy=5 + _NAME_DY * box.lines,
            anchor="start" if box.right else "end", kind="name",
        )  # fmt: skip


@dataclass(frozen=True)
class _Box:
    """Where the name of a circle may stand, in percents of the drawing.

    Attributes:
        x, y: middle of the circle.
        right: whether it begins there, or ends.
        lines: half lines below the circle.
    """

    x: float
    y: float
    right: bool
    lines: int

    @property
    def left(self) -> float:
        return self.x + (_NAME_AWAY if self.right else -_NAME_AWAY - _NAME_WIDTH)

    @property
    def middle(self) -> float:
        return self.y + self.lines * _HALF_LINE

    def covers(self, x: float, y: float) -> bool:
        """Whether a mark lies below it."""
        return self.left - 1 <= x <= self.left + _NAME_WIDTH and abs(y - self.middle) <= _HALF_LINE

    def meets(self, other: _Box) -> bool:
        """Whether another name would lie on it."""
        apart = abs(self.left - other.left) >= _NAME_WIDTH or abs(self.middle - other.middle) >= 2 * _HALF_LINE
        return not apart

    @property
    def is_inside(self) -> bool:
        return self.left >= 0 and self.left + _NAME_WIDTH <= 100 and 2 <= self.middle <= 98


def _room(x: float, y: float, named: Sequence[_Box], marks: Sequence[tuple[float, float]]) -> _Box:
    """The nearest place for a name that covers least: no other name, and as few marks as can be."""
    places = [_Box(x, y, right, lines) for lines in (-1, 1, 0, -2, 2, -3, 3) for right in (True, False)]
    inside = [box for box in places if box.is_inside] or places
    return min(inside, key=lambda box: (sum(map(box.meets, named)), sum(box.covers(*mark) for mark in marks)))


_NAME_WIDTH, _HALF_LINE, _NAME_AWAY = 17.0, 3.0, 2.0
"""Percents of the drawing that a name takes, of half the height of its line, and between it and its circle's middle."""
_NAME_DX, _NAME_DY = 14, 13
"""The same in pixels."""


def draw_parts(parts: Mapping[str, float]) -> str:
    """What a step's time is spent on, as one bar."""
    whole = sum(parts.values()) or 1.0
    fracs = {name: seconds / whole for name, seconds in parts.items()}
    return draw_bar(
        BarPart(COLOURS[name], frac, f"{PART_WORDS[name]} {100 * frac:.0f} %", f"{100 * frac:.0f} %")
        for name, frac in fracs.items()
    )
