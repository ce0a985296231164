"""A cut as a picture: the batch at the top, calls in data workers, tensors sent, calls in the training process.

One self-contained SVG, dark on light on any page, without scripts or external resources. Its class names are prefixed,
so that it can stand inside a page. Colours tell the places apart for the colour-blind as well (blue, orange, grey), and
so do the borders. :mod:`stoker.ui.graph_folding` folds calls, and :mod:`stoker.ui.graph_layers` places them.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from stoker.core.units import format_bytes, format_count
from stoker.records.events import CutChosen
from stoker.ui.cuts import (
    MAX_REASON,
    PLACE_NAMES,
    PLACES,
    in_place,
    sent_values,
    write_gain,
    write_time,
    write_title,
)
from stoker.ui.figures import shorten
from stoker.ui.graph_layers import Drawing, lay_out
from stoker.ui.graph_scene import Scene, SceneItem, build_scene, bytes_of
from stoker.ui.report_style import LIGHT

_WIDTH = 192.0
_HEIGHTS = {"leaf": 44.0, "sent": 34.0}
_BOX_HEIGHT = 62.0
_GAP, _ROW_GAP, _MARGIN = 22.0, 34.0, 28.0
_LEAST_WIDTH = 900.0
_LINE = 18.0

_FILLS = {"leaf": LIGHT["card"], "moved": "#e6eefc", "sent": LIGHT["s1"], "stateless": "#fdf0dd", "stateful": "#ededea"}
_BORDERS = {
    "leaf": LIGHT["soft"],
    "moved": LIGHT["s1"],
    "sent": LIGHT["s1"],
    "stateless": LIGHT["s0"],
    "stateful": "#7d828b",
}
_DASHES = {"stateless": ' stroke-dasharray="6 3"'}

_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'
_STYLE = f"""
.cutgraph {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }}
.cutgraph text {{ fill: {LIGHT["ink"]}; font-size: 12px; }}
.cutgraph .cg-title {{ font-size: 19px; font-weight: 600; }}
.cutgraph .cg-lead {{ font-size: 14px; }}
.cutgraph .cg-name {{ font-size: 13px; font-weight: 600; }}
.cutgraph .cg-soft {{ fill: {LIGHT["soft"]}; font-size: 11.5px; }}
.cutgraph .cg-side {{ fill: {LIGHT["soft"]}; font-size: 12.5px; font-weight: 600; }}
.cutgraph .cg-sent {{ fill: #ffffff; font-size: 12px; font-weight: 600; }}
.cutgraph .cg-note {{ fill: #ffffff; font-size: 10.5px; font-weight: 600; }}
"""


def render_svg(cut: CutChosen, *, site: str = "", inline: bool = False) -> str:
    """The picture of a cut.

    Args:
        cut: what to draw.
        site: where the program made the loader.
        inline: for a drawing inside a page instead of a separate document.
    """
    scene = build_scene(cut)
    drawing = lay_out(scene.row_of, scene.edges, lambda _: _WIDTH, _GAP)
    width = max(_LEAST_WIDTH, drawing.width + 4 * _MARGIN)
    head, top = _head(cut, site, width)
    body, bottom = _body(scene, drawing, top, width)
    notes, height = _notes(scene, bottom, width)
    title, lead = write_title(cut, site), write_gain(cut)
    name = f"cutgraph-{cut.loader}-{cut.variant}"
    return (
        f'<svg class="cutgraph"{"" if inline else _NAMESPACE} role="img" '
        f'aria-labelledby="{name}-title {name}-desc" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f'<title id="{name}-title">{_safe(title)}</title><desc id="{name}-desc">{_safe(f"{lead}. {cut.reason}")}</desc>'
        f"<style>{_STYLE}</style>"
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="{LIGHT["card"]}"/>'
        f"{head}{body}{notes}</svg>\n"
    )


def _safe(text: str) -> str:
    """Text for XML, which forbids control characters even when they are escaped."""
    return escape("".join(character if character.isprintable() else " " for character in text))


def _height(item: SceneItem) -> float:
    return _HEIGHTS.get(item.kind, _BOX_HEIGHT)


def _text(x: float, y: float, kind: str, text: str, anchor: str = "") -> str:
    anchored = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="cg-{kind}" x="{x:.1f}" y="{y:.1f}"{anchored}>{_safe(text)}</text>'


def _head(cut: CutChosen, site: str, width: float) -> tuple[str, float]:
    """Title, gain, reason and legend; and where they end."""
    parts = [_text(_MARGIN, 36, "title", write_title(cut, site))]
    y = 62.0
    columns = int((width - 2 * _MARGIN) / 7.0)
    for line in textwrap.wrap(write_gain(cut), columns):
        parts.append(_text(_MARGIN, y, "lead", line))
        y += 20
    for line in textwrap.wrap(shorten(cut.reason, MAX_REASON), columns + 10):
        parts.append(_text(_MARGIN, y, "soft", line))
        y += _LINE
    legend, y = _legend(cut, y + 10)
    return "".join(parts) + legend, y


def _legend(cut: CutChosen, y: float) -> tuple[str, float]:
    parts: list[str] = []
    x = _MARGIN
    for place in PLACES:
        nodes = in_place(cut, place)
        amount = ", ".join(filter(None, (format_count(len(nodes), "call"), write_time(nodes))))
        shape = (
            f'<rect x="{x:.0f}" y="{y:.0f}" width="22" height="30" rx="4" fill="{_FILLS[place]}" '
            f'stroke="{_BORDERS[place]}" stroke-width="1.6"{_DASHES.get(place, "")}/>'
        )
        parts += [shape, _text(x + 32, y + 12, "name", PLACE_NAMES[place]), _text(x + 32, y + 28, "soft", amount)]
        x += 218
    sent = sent_values(cut)
    amount = f"{format_count(len(sent), 'tensor')}, {format_bytes(bytes_of(sent))} a batch"
    parts.append(f'<path d="M{x + 11:.0f},{y:.0f} v30" stroke="{LIGHT["s1"]}" stroke-width="5" fill="none"/>')
    parts += [_text(x + 32, y + 12, "name", "sent by data workers"), _text(x + 32, y + 28, "soft", amount)]
    return "".join(parts), y + 50


@dataclass(frozen=True)
class _Places:
    """Where the shapes are, stand-ins of long edges included."""

    centre: dict[int, float]
    upper: dict[int, float]
    lower: dict[int, float]
    boundary: float
    bottom: float


def _place(scene: Scene, drawing: Drawing, top: float, width: float) -> _Places:
    shift = (width - drawing.width) / 2 + _MARGIN / 4
    upper: dict[int, float] = {}
    lower: dict[int, float] = {}
    boundary = 0.0
    for number, row in enumerate(drawing.rows):
        # Extra space around the boundary, the subject of the picture.
        top += 14 if number in (scene.boundary_row, scene.boundary_row + 1) else 0
        heights = {item: _height(scene.items[item]) for item in row if item >= 0}
        tallest = max(heights.values(), default=0.0)
        if number == scene.boundary_row:
            boundary = top + tallest / 2
        for item in row:
            upper[item], lower[item] = top, top + heights.get(item, tallest)
        top += tallest + _ROW_GAP
    centre = {item: x + shift for item, x in drawing.centre.items()}
    return _Places(centre, upper, lower, boundary or top, max(top - _ROW_GAP + 22, boundary + 170))


def _body(scene: Scene, drawing: Drawing, top: float, width: float) -> tuple[str, float]:
    """The two sides, edges over them, shapes over the edges; and where it ends."""
    places = _place(scene, drawing, top + 22, width)
    parts = [_sides(top, places, width)]
    parts += [_edge(segment, scene, places) for segment in _segments(drawing, scene)]
    parts += [_shape(item, places.centre[at], places.upper[at]) for at, item in enumerate(scene.items)]
    return "".join(parts), places.bottom


def _sides(top: float, places: _Places, width: float) -> str:
    left, across, edge = _MARGIN / 2, width - _MARGIN, places.boundary
    return (
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{across:.0f}" height="{edge - top:.0f}" fill="#f4f7fd"/>'
        f'<rect x="{left:.0f}" y="{edge:.0f}" width="{across:.0f}" height="{places.bottom - edge:.0f}" '
        f'fill="{LIGHT["page"]}"/>'
        f'<line x1="{left:.0f}" x2="{left + across:.0f}" y1="{edge:.0f}" y2="{edge:.0f}" stroke="{LIGHT["s1"]}" '
        'stroke-width="1.5" stroke-dasharray="2 4"/>'
        + _upright(left + 19, (top + edge) / 2, "in data workers")
        + _upright(left + 19, (edge + places.bottom) / 2, "in the training process")
    )


def _upright(x: float, y: float, text: str) -> str:
    """A side's name along the left edge, where nothing else is."""
    return (
        f'<text class="cg-side" text-anchor="middle" transform="translate({x:.1f} {y:.1f}) rotate(-90)">{text}</text>'
    )


def _segments(drawing: Drawing, scene: Scene) -> list[tuple[int, int, int, int]]:
    """Each stretch between two rows once: its two ends, and those of an edge that it belongs to."""
    found: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    # Where a thick edge and a thin one share a stretch, it is thick.
    ways = sorted(drawing.ways.items(), key=lambda pair: scene.items[pair[0][1]].kind != "sent")
    for (source, target), way in ways:
        for first, second in pairwise(way):
            found.setdefault((first, second), (first, second, source, target))
    return list(found.values())


def _edge(segment: tuple[int, int, int, int], scene: Scene, places: _Places) -> str:
    first, second, source, target = segment
    kinds = scene.items[source].kind, scene.items[target].kind
    crossing = "sent" in kinds
    colour = LIGHT["s1"] if crossing else _BORDERS[kinds[0]]
    arrow = 8.0 if second == target and kinds[1] != "sent" else 0.0
    x1, y1, x2, y2 = places.centre[first], places.lower[first], places.centre[second], places.upper[second]
    end, middle = y2 - arrow, (y1 + y2 - arrow) / 2
    path = f"M{x1:.1f},{y1:.1f} C{x1:.1f},{middle:.1f} {x2:.1f},{middle:.1f} {x2:.1f},{end:.1f}"
    if second < 0:
        path += f" V{places.lower[second]:.1f}"
    drawn = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{4 if crossing else 1.5:g}"/>'
    if arrow:
        half = 6.0 if crossing else 4.0
        drawn += f'<path d="M{x2:.1f},{y2:.1f} l{-half:g},{-arrow:g} h{2 * half:g} z" fill="{colour}"/>'
    return drawn


def _shape(item: SceneItem, centre: float, top: float) -> str:
    width, height = _WIDTH, _height(item)
    left = centre - width / 2
    radius = height / 2 if item.kind == "sent" else 6
    border = f'stroke="{_BORDERS[item.kind]}" stroke-width="1.6"{_DASHES.get(item.kind, "")}'
    parts = [
        f"<g><title>{_safe(item.tip)}</title>",
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
        f'fill="{_FILLS[item.kind]}" {border}/>',
    ]
    if item.kind == "sent":
        parts.append(_text(centre, top + height / 2 + 4, "sent", item.lines[0], "middle"))
    else:
        parts.append(_text(left + 10, top + 18, "name", item.lines[0]))
        parts += [_text(left + 10, top + 35 + 16 * at, "soft", line) for at, line in enumerate(item.lines[1:])]
    if item.right:
        parts.append(_text(left + width - 10, top + 51, "soft", item.right, "end"))
    if item.share > 0:
        # The item's share of the time, as a bar at its bottom.
        parts.append(
            f'<rect x="{left + 3:.1f}" y="{top + height - 4:.1f}" width="{(width - 6) * min(1.0, item.share):.1f}" '
            f'height="3" rx="1.5" fill="{_BORDERS[item.kind]}"/>'
        )
    if item.note:
        parts.append(_note_mark(left + width - 2, top + 2, item))
    return "".join(parts) + "</g>"


def _note_mark(x: float, y: float, item: SceneItem) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8.5" fill="{LIGHT["soft"]}"/>' + _text(
        x, y + 3.8, "note", str(item.note), "middle"
    )


def _notes(scene: Scene, top: float, width: float) -> tuple[str, float]:
    """Why calls stay, by the numbers at the shapes; and where it ends."""
    if not scene.notes:
        return "", top + _MARGIN
    y = top + 32
    parts = [_text(_MARGIN, y, "name", "Why calls stay in the training process")]
    for number, text in enumerate(scene.notes, 1):
        y += 8
        for line_number, line in enumerate(textwrap.wrap(text, int((width - 3 * _MARGIN) / 6.6))):
            y += _LINE
            if line_number == 0:
                parts.append(f'<circle cx="{_MARGIN + 9:.0f}" cy="{y - 4:.0f}" r="8.5" fill="{LIGHT["soft"]}"/>')
                parts.append(_text(_MARGIN + 9, y - 0.2, "note", str(number), "middle"))
            parts.append(_text(_MARGIN + 26, y, "plain", line))
    return "".join(parts), y + _MARGIN
