"""Small plots as inline SVG: axes with round ticks, lines, stacked areas, steps.

A plot stretches to the width it is given without stretching its text: everything that is text or a grid line is placed
by percentages, the data lie in an inner drawing that is scaled freely. Colours and sizes are classes, styled by the
page (``s0`` … ``s3`` are series), so that one drawing serves light and dark. Nothing here runs or is fetched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

_CLOCK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)
_UNIT = 1000.0
"""Side of the inner drawing."""

Pair = tuple[float, float]


def nice_ticks(top: float, wanted: int = 4) -> list[float]:
    """Round values from 0 up to the first one at or above ``top``."""
    if not math.isfinite(top) or top <= 0:
        return [0.0, 1.0]
    rough = top / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= rough * 0.999999)
    count = math.ceil(top / step - 1e-9)
    return [step * number for number in range(count + 1)]


def count_ticks(top: int, wanted: int = 4) -> list[float]:
    """Like :func:`nice_ticks`, in whole numbers."""
    step = max(1, math.ceil(nice_ticks(top, wanted)[1] - 1e-9)) if top > wanted else 1
    return [float(step * number) for number in range(max(1, math.ceil(top / step)) + 1)]


def clock_ticks(end_s: float, wanted: int = 5) -> list[float]:
    """Round points of time from 0, not beyond the end."""
    if not math.isfinite(end_s) or end_s <= 0:
        return [0.0]
    days = 86400 * math.ceil(end_s / wanted / 86400)
    step = next((step for step in _CLOCK_STEPS_S if end_s / step <= wanted), days)
    return [float(step * number) for number in range(int(end_s / step) + 1)]


@dataclass(kw_only=True)
class Plot:
    """One plot, over time by default; add layers from back to front, then ``render``."""

    title: str
    """What is shown, with its unit; read out by screen readers."""
    begin_s: float
    end_s: float
    ticks: list[float]
    """Values of the vertical axis; the last one is its top."""
    write_value: Callable[[float], str]
    write_time: Callable[[float], str]
    places: Sequence[float] | None = None
    """Labelled points of the horizontal axis; round points of time by default."""
    _layers: list[str] = field(default_factory=list[str])
    _marks: list[str] = field(default_factory=list[str])

    def line(self, points: Sequence[Pair], kind: str) -> None:
        """A line through the points; a single point becomes a short dash."""
        if len(points) == 1:
            (x, y), half = points[0], (self.end_s - self.begin_s) / 200
            points = [(x - half, y), (x + half, y)]
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
        self._layers.append(f'<polyline class="line {kind}" points="{path}"/>')

    def area(self, points: Sequence[Pair], kind: str) -> None:
        """The area between the points and zero."""
        self.band([(x, 0.0) for x, _ in points], points, kind)

    def band(self, lower: Sequence[Pair], upper: Sequence[Pair], kind: str) -> None:
        """The area between two edges."""
        if len(upper) < 1:
            return
        around = [*upper, *reversed(lower)]
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in around)
        self._layers.append(f'<polygon class="area {kind}" points="{path}"/>')

    def steps(self, points: Sequence[Pair], kind: str) -> None:
        """A line that keeps each value until the next point, the last one to the end."""
        corners: list[Pair] = []
        for x, y in points:
            if corners:
                corners.append((x, corners[-1][1]))
            corners.append((x, y))
        if corners:
            corners.append((self.end_s, corners[-1][1]))
            self.area(corners, f"{kind} faint")
            self.line(corners, kind)

    def mark(self, x: float, kind: str, text: str) -> None:
        """A vertical line at a point of time, explained when pointed at."""
        place = 100 * self._x(x) / _UNIT
        self._marks.append(
            f'<g class="mark {kind}"><line x1="{place:.2f}%" x2="{place:.2f}%" y1="0" y2="100%"/>'
            f'<circle cx="{place:.2f}%" cy="0" r="4"/><title>{escape(text)}</title></g>'
        )

    def note(self, x: float, y: float, kind: str, text: str) -> None:
        """A point with words next to it, on the side that has room."""
        left, top = 100 * self._x(x) / _UNIT, 100 * self._y(y) / _UNIT
        aside, anchor = (10, "start") if left < 50 else (-10, "end")
        self._marks.append(
            f'<g class="note {kind}"><circle cx="{left:.2f}%" cy="{top:.2f}%" r="4.5"/>'
            f'<text x="{left:.2f}%" y="{top:.2f}%" dx="{aside}" dy="-8" text-anchor="{anchor}">'
            f"{escape(text)}</text></g>"
        )

    def explain(self, from_s: float, to_s: float, text: str) -> None:
        """Shows the text when the span is pointed at."""
        left, right = 100 * self._x(from_s) / _UNIT, 100 * self._x(to_s) / _UNIT
        self._marks.append(
            f'<rect class="hover" x="{left:.2f}%" width="{max(0.1, right - left):.2f}%" y="0" height="100%">'
            f"<title>{escape(text)}</title></rect>"
        )

    def render(self) -> str:
        """The drawing, to be put into a box with a margin for the labels at its left and foot."""
        inner = (
            f'<svg class="data" viewBox="0 0 {_UNIT:.0f} {_UNIT:.0f}" preserveAspectRatio="none" '
            f'width="100%" height="100%">{"".join(self._layers)}</svg>'
        )
        label = escape(self.title, quote=True)
        body = self._grid() + inner + "".join(self._marks)
        return f'<svg class="plot" role="img" aria-label="{label}" width="100%" height="100%">{body}</svg>'

    def _grid(self) -> str:
        parts: list[str] = []
        for value in self.ticks:
            y = f"{100 * self._y(value) / _UNIT:.2f}%"
            parts.append(
                f'<line class="{"grid" if value else "axis"}" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
                f'<text class="y" x="-8" y="{y}" dy="0.32em">{escape(self.write_value(value))}</text>'
            )
        for time_s in clock_ticks(self.end_s) if self.places is None else self.places:
            if time_s < self.begin_s:
                continue
            place = 100 * self._x(time_s) / _UNIT
            # A label centred at the very end would be cut off by the edge of the page.
            anchor = "end" if place > 97 else "middle"
            parts.append(
                f'<line class="tick" x1="{place:.2f}%" x2="{place:.2f}%" y1="100%" y2="100%"/>'
                f'<text class="x" x="{place:.2f}%" y="100%" dy="1.5em" text-anchor="{anchor}">'
                f"{escape(self.write_time(time_s))}</text>"
            )
        return "".join(parts)

    def _x(self, time_s: float) -> float:
        span = self.end_s - self.begin_s
        return _UNIT * min(1.0, max(0.0, (time_s - self.begin_s) / span)) if span > 0 else 0.0

    def _y(self, value: float) -> float:
        return _UNIT * (1 - min(1.0, max(0.0, value / self.ticks[-1])))
