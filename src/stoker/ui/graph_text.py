"""A cut as text: every call of the step in program order, what it costs, where it runs and why."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from stoker.core.units import format_bytes, format_count
from stoker.records.events import CutChosen, GraphNode, GraphValue
from stoker.ui.cuts import (
    MAX_REASON,
    PLACE_NAMES,
    PLACES,
    in_place,
    sent_values,
    short_name,
    write_gain,
    write_time,
    write_title,
    write_type,
)
from stoker.ui.figures import shorten, shorten_start
from stoker.ui.report_text import Style

_MARKS = {
    True: {"moved": "◀", "stateless": "○", "stateful": "■", "leaf": "·"},
    False: {"moved": "<", "stateless": "o", "stateful": "#", "leaf": "."},
}
_COLOURS = {"moved": 34, "stateless": 33, "stateful": 90, "leaf": 0}
"""ANSI styles, as the picture's colours: blue, orange, grey."""
_TIME, _SENT = 7, 8
_WIDEST_RESULT, _WIDEST_SITE = 23, 26
_LEAST_CALL, _LEAST_SITE = 16, 8
_GAPS = 2 + 4 * 2
_INDENT = 4

Cells = tuple[str, str, str, str, str]
"""Call, result, time, bytes sent, site."""


def render_graph(cut: CutChosen, style: Style | None = None, *, site: str = "", more: str = "") -> str:
    """The text, lines joined by newlines, the last one ended by one.

    Args:
        cut: what to show.
        style: what the terminal can show.
        site: where the program made the loader.
        more: a line on other cuts of the run, shown at the end.
    """
    style = style or Style()
    blocks = [
        _heading(cut, style, site),
        _table(cut, style),
        _totals(cut, style),
        _wrapped(more, style) if more else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _heading(cut: CutChosen, style: Style, site: str) -> list[str]:
    recorded = f"recorded over {format_count(cut.steps, 'step')}"
    lines = [style.paint(style.cut(f"{write_title(cut, site)}, {recorded}", style.width), 1)]
    lines += _wrapped(write_gain(cut), style)
    return lines + _wrapped(cut.reason, style)


def _wrapped(text: str, style: Style, indent: int = 0) -> list[str]:
    # A figure stays on the line of its unit.
    kept = re.sub(r"(?<=\d) (?=(?:[KMGT]i)?B\b|[mu]?s\b)", "\u00a0", style.clean(shorten(text, MAX_REASON)))
    wrapped = textwrap.wrap(kept, style.width - indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in wrapped]


@dataclass(frozen=True)
class _Columns:
    """Widths of the table, as its content and the terminal ask."""

    call: int
    result: int
    site: int


def _table(cut: CutChosen, style: Style) -> list[str]:
    """The batch's tensors, then the calls, with the reasons below those that stay."""
    values = {value.number: value for value in cut.values}
    leaves = [_leaf_cells(value) for value in cut.values if value.producer is None]
    calls = [_call_cells(node, values) for node in cut.nodes]
    columns = _columns([*leaves, *calls], style)
    marks = _MARKS[style.unicode]
    lines = [style.paint(_row(" ", ("call", "result", "time", "sent", "at"), columns, style), 1)]
    lines += [_row(marks["leaf"], cells, columns, style) for cells in leaves]
    said = ""
    for node, cells in zip(cut.nodes, calls, strict=True):
        line = _row(marks.get(node.place, "?"), cells, columns, style)
        lines.append(style.paint(line, _COLOURS.get(node.place, 0)))
        why = _why(node, values)
        # A reason shared by many calls in a row is shown once.
        if why != said:
            lines += [style.paint(" " * _INDENT + line, 90) for line in _wrapped(why, style, _INDENT)]
        said = why
    return lines


def _columns(cells: list[Cells], style: Style) -> _Columns:
    result = min(_WIDEST_RESULT, max((len(row[1]) for row in cells), default=6))
    site = min(_WIDEST_SITE, max((len(row[4]) for row in cells), default=2))
    left = style.width - _GAPS - _TIME - _SENT
    # On a narrow terminal, the site shrinks first, then the result.
    site = min(site, max(_LEAST_SITE, left - result - _LEAST_CALL))
    result = min(result, left - site - _LEAST_CALL)
    return _Columns(call=left - result - site, result=result, site=site)


def _row(mark: str, cells: Cells, columns: _Columns, style: Style) -> str:
    call, result, time, sent, site = cells
    ellipsis = "…" if style.unicode else "..."
    words = [
        f"{style.cut(call, columns.call):<{columns.call}}",
        f"{style.cut(result, columns.result):<{columns.result}}",
        f"{time:>{_TIME}}",
        f"{sent:>{_SENT}}",
        shorten_start(style.clean(site), columns.site, ellipsis=ellipsis),
    ]
    return style.cut(f"{mark} {'  '.join(words)}".rstrip(), style.width)


def _leaf_cells(value: GraphValue) -> Cells:
    return value.label, write_type(value), "", format_bytes(value.size_bytes) if value.crosses else "not sent", ""


def _call_cells(node: GraphNode, values: dict[int, GraphValue]) -> Cells:
    results = [values[number] for number in node.outputs if number in values]
    taken = ", ".join(values[number].label if number in values else "?" for number in node.inputs)
    made = ", ".join(value.label for value in results)
    call = f"{short_name(node.function)}({taken})"
    crossing = sum(value.size_bytes for value in results if value.crosses)
    sent = format_bytes(crossing) if any(value.crosses for value in results) else ""
    first = write_type(results[0]) if results else ""
    result = first if len(results) < 2 else f"{len(results)} of {first}"
    return f"{made} = {call}" if made else call, result, write_time([node]), sent, node.site


def _why(node: GraphNode, values: dict[int, GraphValue]) -> str:
    kept = "; ".join(
        f"{values[number].label} {values[number].kept}"
        for number in node.outputs
        if number in values and values[number].kept
    )
    return "; ".join(part for part in (node.why, kept) if part)


def _totals(cut: CutChosen, style: Style) -> list[str]:
    """The legend of the marks, with what each place holds."""
    lines: list[str] = []
    for place in PLACES:
        nodes = in_place(cut, place)
        text = f"{_MARKS[style.unicode][place]} {PLACE_NAMES[place]:<23} {_amount(nodes)}"
        lines.append(style.paint(style.cut(text, style.width), _COLOURS[place]))
    sent = sent_values(cut)
    size = format_bytes(cut.bytes_after if cut.outcome == "moved" else sum(value.size_bytes for value in sent))
    text = f"  {'sent to the program':<23} {format_count(len(sent), 'tensor'):>9}   {size} a batch"
    return [*lines, style.cut(text, style.width)]


def _amount(nodes: Iterable[GraphNode]) -> str:
    listed = list(nodes)
    time = write_time(listed)
    return f"{format_count(len(listed), 'call'):>9}" + (f"   {time} a step" if time else "")
