"""Fronts as drawings: two logarithmic axes, a staircase of what is not beaten, names that find room.

Everything is placed by percentages, so that a drawing stretches to its width without stretching its text. Classes are
those of ``plan_style``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

NUMBERS_APART, WORDS_APART = 9.0, 13.0
"""Labels of an axis stand at least so many percents apart: above one another, and next to one another."""


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis."""

    low: float
    high: float

    @staticmethod
    def over(values: Iterable[float]) -> Axis:
        """An axis that holds all values, with some room around."""
        known = [value for value in values if 0 < value < math.inf]
        low, high = min(known, default=1.0), max(known, default=10.0)
        room = max(1.25, (high / low) ** 0.06)
        return Axis(low / room, high * room)

    def percent(self, value: float) -> float:
        """PlotPlace of a value; beyond the ends at the ends."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return 100 * min(1.0, max(0.0, share))

    def ticks(self, wanted: Iterable[float], apart: float = NUMBERS_APART) -> list[float]:
        """Ticks inside the range, none less than so many percents from the previous one."""
        kept: list[float] = []
        for value in wanted:
            inside = self.low <= value <= self.high
            if inside and (not kept or self.percent(value) - self.percent(kept[-1]) >= apart):
                kept.append(value)
        return kept

    def decades(self) -> list[float]:
        """1, 2, 5, 10, 20, ... inside."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        return self.ticks(digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5))


@dataclass(frozen=True)
class PlotPlace:
    """Where two figures are in the drawing."""

    across: Axis
    up: Axis

    def x(self, value: float) -> float:
        """Percent from the left."""
        return self.across.percent(value)

    def y(self, value: float) -> float:
        """Percent from the top."""
        return 100 - self.up.percent(value)


def draw_line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A line between two places, in percents."""
    return f'<line class="{kind}" x1="{x1:.2f}%" y1="{y1:.2f}%" x2="{x2:.2f}%" y2="{y2:.2f}%"/>'


def draw_text(
    x: float, y: float, text: str, *, dx: float = 0, dy: float = 0, anchor: str = "start", kind: str = ""
) -> str:
    """Words at a place, in percents, and so many pixels from it."""
    return (
        f'<text class="{kind}" x="{x:.2f}%" y="{y:.2f}%" dx="{dx:g}" dy="{dy:g}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def draw_stairs(places: Iterable[tuple[float, float]]) -> str:
    """What can be had for so much: from place to place along, then down."""
    parts: list[str] = []
    for (x1, y1), (x2, y2) in itertools.pairwise(places):
        parts += [draw_line("stairs", x1, y1, x2, y1), draw_line("stairs", x2, y1, x2, y2)]
    return "".join(parts)


def draw_mark(kind: str, x: float, y: float, radius: float, said: str) -> str:
    """A circle at a place, in percents, explained when pointed at."""
    return f'<circle class="{kind}" cx="{x:.2f}%" cy="{y:.2f}%" r="{radius:g}"><title>{escape(said)}</title></circle>'


def draw_field(label: str, body: Iterable[str]) -> str:
    """The drawing, of parts from back to front."""
    return (
        f'<svg class="plot plans" role="img" aria-label="{escape(label, quote=True)}" width="100%" height="100%">'
        f"{''.join(body)}</svg>"
    )


@dataclass(frozen=True)
class NameBox:
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
        """Where its text begins."""
        return self.x + (_NAME_AWAY if self.right else -_NAME_AWAY - _NAME_WIDTH)

    @property
    def middle(self) -> float:
        """Where the middle of its line is, from the top."""
        return self.y + self.lines * _HALF_LINE

    def covers(self, x: float, y: float) -> bool:
        """Whether a mark lies below it."""
        return self.left - 1 <= x <= self.left + _NAME_WIDTH and abs(y - self.middle) <= _HALF_LINE

    def meets(self, other: NameBox) -> bool:
        """Whether another name would lie on it."""
        apart = abs(self.left - other.left) >= _NAME_WIDTH or abs(self.middle - other.middle) >= 2 * _HALF_LINE
        return not apart

    @property
    def is_inside(self) -> bool:
        """Whether all of it is in the drawing."""
        return self.left >= 0 and self.left + _NAME_WIDTH <= 100 and 2 <= self.middle <= 98


def find_room(x: float, y: float, named: Sequence[NameBox], marks: Sequence[tuple[float, float]]) -> NameBox:
    """The nearest place for a name that covers least: no other name, and as few marks as can be."""
    places = [NameBox(x, y, right, lines) for lines in (-1, 1, 0, -2, 2, -3, 3) for right in (True, False)]
    inside = [box for box in places if box.is_inside] or places
    return min(inside, key=lambda box: (sum(map(box.meets, named)), sum(box.covers(*mark) for mark in marks)))


_NAME_WIDTH, _HALF_LINE, _NAME_AWAY = 17.0, 3.0, 2.0
"""Percents of the drawing that a name takes, of half the height of its line, and between it and its circle's middle."""
NAME_DX, NAME_DY = 14, 13
"""The same in pixels."""
