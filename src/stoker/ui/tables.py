"""Tables on a terminal: columns as wide as their content, numbers to the right, a heading in bold."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.ui.figures import shorten_start
from stoker.ui.report_text import Style

_GAP = "  "


def render_table(
    heading: Sequence[str], rows: Sequence[Sequence[str]], style: Style, *, right: Sequence[int] = ()
) -> list[str]:
    """Lines of a table; on a narrow terminal the last column is cut, from its start.

    Args:
        heading: of the columns.
        rows: cells as text.
        style: what the terminal shows.
        right: columns that are aligned to the right, by number.
    """
    heading, *clean = [[style.clean(cell) for cell in row] for row in (heading, *rows)]
    widths = [max(len(row[column]) for row in (heading, *clean)) for column in range(len(heading))]
    used = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(16, style.width - used))
    lines = [style.paint(_line(heading, widths, right, style), 1)]
    return lines + [_line(row, widths, right, style) for row in clean]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[int], style: Style) -> str:
    ellipsis = "…" if style.unicode else "..."
    shown = [*cells[:-1], shorten_start(cells[-1], widths[-1], ellipsis=ellipsis)]
    padded = [
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(shown, widths, strict=True))
    ]
    return _GAP.join(padded).rstrip()


def render_facts(facts: Sequence[tuple[str, str]], style: Style, *, indent: int = 0) -> list[str]:
    """Labelled lines: the labels in bold, the values in one column."""
    width = max((len(label) for label, _ in facts), default=0)
    pad = " " * indent
    return [(pad + style.paint(f"{label:<{width}}", 1) + _GAP + style.clean(value)).rstrip() for label, value in facts]
