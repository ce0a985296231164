"""How the reports write figures; sizes and durations are in :mod:`stoker.core.units`."""

from __future__ import annotations

import unicodedata


def write_count(value: float) -> str:
    """A whole number with thousands separated: ``41,600``."""
    return f"{round(value):,}"


def write_rate(value: float) -> str:
    """Three significant digits, never more decimals than they carry: ``1,204``, ``52.3``, ``0.31``."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def write_percent(frac: float) -> str:
    """A share as percent with one decimal; a share that would round to nothing says so."""
    percent = 100 * frac
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.1f} %"


def write_clock(seconds: float) -> str:
    """A point in time of a run: ``0:05``, ``2:14``, ``1:05:00``."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def shorten(text: str, width: int, *, ellipsis: str = "…") -> str:
    """At most ``width`` characters; what was cut off is replaced by the ellipsis."""
    if len(text) <= width:
        return text
    return text[: max(0, width - len(ellipsis))].rstrip() + ellipsis[:width]


def shorten_start(text: str, width: int, *, ellipsis: str = "…") -> str:
    """Like :func:`shorten`, but cuts at the start: the end of a path tells more."""
    if len(text) <= width:
        return text
    return ellipsis + text[len(text) - max(0, width - len(ellipsis)) :]


def count_columns(text: str) -> int:
    """Columns that a text takes on a terminal: two for each wide character, none for one that joins the last."""
    if text.isascii():
        return len(text)
    return sum(_columns_of(character) for character in text)


def _columns_of(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
