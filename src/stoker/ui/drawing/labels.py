"""Words in a drawing that cross no line and no other words, as far as there is room.

Drawings stretch, words do not: a label is given the room that it takes in a narrow drawing, all the way from the place
that it belongs to. What is free there is free in a wider one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from stoker.ui.drawing.fronts import draw_line, draw_text

_WIDTH_PX, _HEIGHT_PX = 400.0, 340.0
"""Sides of a narrow drawing."""
_LETTER_PX, _LINE_PX, _DESCENT_PX = 7.2, 12.0, 3.0
"""What a letter takes across, a line of words above its foot, and below it."""
_EDGE = 0.01
"""Percents, to which places are written."""


class LabelBox(NamedTuple):
    """A part of the drawing, in percents from the left and the top; a line has no width or no height."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: LabelBox) -> bool:
        """Whether they have more in common than an edge."""
        across = self.left + _EDGE < other.right and other.left + _EDGE < self.right
        return across and self.top + _EDGE < other.bottom and other.top + _EDGE < self.bottom

    @property
    def is_inside(self) -> bool:
        """Whether all of it is in the drawing."""
        return self.left >= 0 and self.top >= 0 and self.right <= 100 and self.bottom <= 100


class LabelPlace(NamedTuple):
    """Where words may stand: a place in percents, and pixels from it, down to the foot of the words.

    Without pixels across, their middle is there.
    """

    x: float
    y: float
    dx: float
    dy: float

    def room(self, text: str) -> LabelBox:
        """What the words take, with all that is between them and their place."""
        wide = 100 * (abs(self.dx) + len(text) * _LETTER_PX) / _WIDTH_PX
        foot = self.dy + _DESCENT_PX
        top, bottom = (self.dy - _LINE_PX, 0.0) if self.dy < 0 else (0.0, foot)
        left = self.x - (wide if self.dx < 0 else 0.0 if self.dx else wide / 2)
        return LabelBox(left, self.y + 100 * top / _HEIGHT_PX, left + wide, self.y + 100 * bottom / _HEIGHT_PX)


@dataclass
class Labels:
    """The labels of one drawing, placed one after another: what matters most comes first."""

    _lines: list[LabelBox] = field(default_factory=list[LabelBox])
    _marks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    _taken: list[LabelBox] = field(default_factory=list[LabelBox])

    def avoid_line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A line along one of the axes that no label may cross."""
        self._lines.append(LabelBox(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)))

    def avoid_stairs(self, places: Iterable[tuple[float, float]]) -> None:
        """The lines of a staircase."""
        for (x1, y1), (x2, y2) in itertools.pairwise(places):
            self.avoid_line(x1, y1, x2, y1)
            self.avoid_line(x2, y1, x2, y2)

    def avoid_mark(self, x: float, y: float) -> None:
        """A circle that labels leave to be seen, where they can."""
        self._marks.append((x, y))

    def draw(self, text: str, places: Iterable[LabelPlace], *, kind: str = "", optional: bool = False) -> str:
        """Words at the first place where they cross least.

        Args:
            text: the words.
            places: those that would do, the best first.
            kind: class of the words.
            optional: without a place where they cross no line, no words and no mark, they are left out.
        """
        least, best = min(((self._crossed(place, text), place) for place in places), key=lambda found: found[0])
        if optional and least:
            return ""
        self._taken.append(best.room(text))
        anchor = "end" if best.dx < 0 else "start" if best.dx else "middle"
        return draw_text(best.x, best.y, text, dx=best.dx, dy=best.dy, anchor=anchor, kind=f"label {kind}".strip())

    def _crossed(self, place: LabelPlace, text: str) -> int:
        """How bad a place is: words on words are worst."""
        room = place.room(text)
        words = sum(map(room.meets, self._taken)) + (not room.is_inside)
        lines = sum(map(room.meets, self._lines))
        marks = sum(
            room.left <= x <= room.right and room.top <= y <= room.bottom
            for x, y in self._marks
            if (x, y) != (place.x, place.y)
        )
        return 100 * words + 10 * lines + marks


def around(x: float, y: float, dx: float, above: float, below: float) -> list[LabelPlace]:
    """Places around a mark: at its right, at its left, above and below, near and farther.

    Args:
        x: of the mark, in percents.
        y: of it.
        dx: pixels from it to the words.
        above: pixels from it up to the foot of the words.
        below: the same down.
    """
    feet = [(way * (foot + 16 * step), 4.0 * way) for step in range(3) for way, foot in ((-1, above), (1, below))]
    return [
        LabelPlace(x, y, side, foot if side else foot + more)  # above and below the mark itself they need some more
        for foot, more in feet
        for side in (dx, -dx, 0.0)
    ]


def draw_limits(x: float | None, y: float | None, across: str, up: str, labels: Labels) -> str:
    """The region that two limits allow, below and left of their lines; None for a limit that there is not.

    Args:
        x: place of the limit of what goes across, in percents.
        y: place of that of what goes up.
        across: what the former is called.
        up: the latter.
        labels: of the drawing; their names are put there, and later ones cross no limit.
    """
    if x is None and y is None:
        return ""
    right, top = 100.0 if x is None else x, 0.0 if y is None else y
    parts = [f'<rect class="allowed" x="0" y="{top:.2f}%" width="{right:.2f}%" height="{100 - top:.2f}%"/>']
    lines = [(x, 0.0, x, 100.0)] if x is not None else []
    lines += [(0.0, y, 100.0, y)] if y is not None else []
    for line in lines:
        labels.avoid_line(*line)
        parts.append(draw_line("limit", *line))
    if x is not None:
        feet = ((0.0, 13.0), (100.0, -8.0))
        parts.append(labels.draw(across, [LabelPlace(x, end, side, foot) for end, foot in feet for side in (6, -6)]))
    if y is not None:
        ends = [(100.0, -4.0), *([(x, -6.0), (x, 6.0)] if x is not None else []), (0.0, 4.0)]
        parts.append(labels.draw(up, [LabelPlace(end, y, side, foot) for end, side in ends for foot in (-6, 14)]))
    return "".join(parts)
