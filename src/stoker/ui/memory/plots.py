"""Memory over a step or a snapshot, stacked, with its peak marked; :mod:`stoker.ui.svg` draws it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from stoker.ui.html_page import BarPart, Figure, draw_bar
from stoker.ui.memory.words import MemoryUnit
from stoker.ui.svg import Plot, nice_ticks

_HEADROOM = 1.12
"""Room above the peak for its words."""
_LEAST_LABELLED = 0.07
"""A part of the axis narrower than this has no label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedMemory:
    """What a picture shows.

    Attributes:
        title: of the picture.
        about: what its horizontal axis is.
        unit: of all figures.
        at: place of each moment, in [0, 1].
        layers: class, name and bytes at each moment, from the bottom up.
        peak: place, bytes and words of the marked moment; None to mark none.
        lines: class, name and bytes at each moment, drawn over the layers.
        spans: name of each moment's part of the axis; empty for none.
        overlays: class and bytes at each moment, drawn above all and not in the legend.
    """

    title: str
    about: str
    unit: MemoryUnit
    at: Sequence[float]
    layers: Sequence[tuple[str, str, Sequence[int]]]
    peak: tuple[float, int, str] | None
    lines: Sequence[tuple[str, str, Sequence[int]]] = ()
    spans: Sequence[str] = field(default=())
    overlays: Sequence[tuple[str, Sequence[int]]] = ()


def draw_memory(picture: StackedMemory) -> Figure:
    """The picture with its legend; layers of nothing are left out."""
    layers = [layer for layer in picture.layers if any(layer[2])]
    sums = [sum(column) for column in zip(*(layer[2] for layer in layers), strict=True)] or [0] * len(picture.at)
    top = max([*sums, *(max(line[-1], default=0) for line in (*picture.lines, *picture.overlays)), 1])
    spans = _spans(picture)
    centres = {(start + stop) / 2: name for start, stop, name in spans if stop - start >= _LEAST_LABELLED}
    ticks = nice_ticks(top * _HEADROOM)
    plot = Plot(
        title=picture.title, begin_s=0.0, end_s=1.0, ticks=ticks, write_value=picture.unit.of,
        write_time=lambda at: centres[at], places=list(centres),
    )  # fmt: skip
    lower = [0] * len(picture.at)
    for kind, _, sizes in layers:
        upper = [below + size for below, size in zip(lower, sizes, strict=True)]
        plot.band(_corners(picture.at, lower), _corners(picture.at, upper), kind)
        lower = upper
    for _, stop, _ in spans[:-1]:
        plot.line([(stop, 0.0), (stop, ticks[-1])], "edge")
    for kind, _, sizes in picture.lines:
        plot.line(_corners(picture.at, sizes), kind)
    for kind, sizes in picture.overlays:
        plot.line(_corners(picture.at, sizes), f"{kind} halo")
        plot.line(_corners(picture.at, sizes), kind)
    for place, (start, stop) in enumerate(itertools.pairwise([*picture.at, 1.0])):
        plot.explain(start, stop, _words(picture, layers, place))
    if picture.peak is not None:
        plot.note(*picture.peak[:2], "peak", picture.peak[2])
    return Figure(
        title=picture.title, unit=f"{picture.unit.name}, {picture.about}",
        legend=[*((kind, name) for kind, name, _ in reversed(layers)), *(line[:2] for line in picture.lines)],
        drawing=plot.render(),
    )  # fmt: skip


def draw_shares(shares: Sequence[tuple[str, str, int]], unit: MemoryUnit) -> str:
    """Class, name and bytes of each share as one bar."""
    whole = sum(size for _, _, size in shares) or 1
    return draw_bar(
        BarPart(kind, size / whole, f"{name} {unit.full(size)}", unit.of(size)) for kind, name, size in shares
    )


def _corners(at: Sequence[float], sizes: Sequence[int]) -> list[tuple[float, float]]:
    """A course that keeps each value until the next moment."""
    if not at:
        return []
    points: list[tuple[float, float]] = []
    for (start, stop), size in zip(itertools.pairwise([*at, 1.0]), sizes, strict=True):
        points += [(start, float(size)), (stop, float(size))]
    points[0] = (0.0, points[0][1])
    return points


def _spans(picture: StackedMemory) -> list[tuple[float, float, str]]:
    """Parts of the axis: consecutive moments of one name."""
    found: list[tuple[float, float, str]] = []
    for (start, stop), name in zip(itertools.pairwise([*picture.at, 1.0]), picture.spans, strict=False):
        if found and found[-1][2] == name:
            found[-1] = (found[-1][0], stop, name)
        else:
            found.append((start if found else 0.0, stop, name))
    return found


def _words(picture: StackedMemory, layers: Sequence[tuple[str, str, Sequence[int]]], place: int) -> str:
    parts = [f"{name} {picture.unit.of(sizes[place])}" for _, name, sizes in reversed(layers) if sizes[place]]
    whole = sum(sizes[place] for _, _, sizes in layers)
    return "\n".join([picture.unit.full(whole), *parts])
