"""The drawings of a search's page: interval against share of the device, and what each unit takes."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.units import format_seconds
from stoker.records.deploy.search import DesignRow, LayerRow, SearchReport
from stoker.ui.deploy.search_words import RESOURCES, write_figures, write_structure
from stoker.ui.drawing.fronts import (
    WORDS_APART,
    Axis,
    PlotPlace,
    draw_field,
    draw_line,
    draw_mark,
    draw_stairs,
    draw_text,
)
from stoker.ui.drawing.labels import Labels, around, draw_limits
from stoker.ui.html_page import BarPart, draw_bar

_CLASSES = ("c5", "c1", "c3", "c0", "c4", "c2")
_LEAST_LABEL = 0.25
"""Part of a bar that has room for a figure."""
_TICKS_S = tuple(digit * 10.0**power for power in range(-9, 3) for digit in (1, 2, 5))
_TICKS_CYCLES = tuple(digit * 10.0**power for power in range(9) for digit in (1, 2, 5))


def family_classes(report: SearchReport) -> dict[tuple[str, str], str]:
    """Class of each family, a package and a structure, that has designs, by its place."""
    names = dict.fromkeys((each.package, each.structure) for each in report.families if each.tried)
    return {name: _CLASSES[place] if place < len(_CLASSES) else "even" for place, name in enumerate(names)}


def draw_designs(report: SearchReport) -> str:
    """Time between two samples against the share of the device: the front, the limits as lines, the pick."""
    shown = report.shown
    own = [row for each in report.families for row in each.front]
    rows = [*own, *([shown] if shown else [])]
    interval = 1 / report.limits.rate_per_s if report.limits.rate_per_s else None
    cycles = any(row.clock_mhz is None for row in rows)
    place = PlotPlace(
        Axis.over([*(_interval(row) for row in rows), *([interval] if interval else [])]),
        Axis.over([*(100 * row.share for row in rows), 100.0]),
    )
    classes = family_classes(report)
    # Latency and loss are figures of the front, too: the stairs join what is left by these two.
    stairs: list[DesignRow] = []
    for row in report.front:
        if not stairs or row.share < stairs[-1].share:
            stairs.append(row)
    steps = [_at(row, place) for row in stairs]
    labels = Labels()
    labels.avoid_stairs(steps)
    for row in rows:
        labels.avoid_mark(*_at(row, place))
    limits = draw_limits(place.x(interval) if interval else None, place.y(100.0), "rate", report.limits.device, labels)
    pick = ""
    if shown is not None:
        pick = labels.draw("pick" if report.pick else "nearest", around(*_at(shown, place), 14, 10, 20), kind="name")
    body = [
        _grid(place, cycles=cycles),
        limits,  # their names are not to be crossed by the grid
        draw_stairs(steps),
        *(_mark(row, place, f"dot {_class(row, classes)}", 5) for row in own if row not in report.front),
        *(_mark(row, place, f"best {_class(row, classes)}", 6) for row in report.front),
        *(_name(row, place, labels) for row in own if row != shown),
        draw_text(100, 100, "cycles between two samples" if cycles else "between two samples", dy=34, anchor="end"),
    ]
    if shown is not None:
        kind = "best" if report.pick else "best open"
        body.append(_mark(shown, place, f"{kind} {_class(shown, classes)}", 10))
        body.append(pick)
    return draw_field("Interval of designs and their share of the device; the front is the line", body)


def draw_shares(layer: LayerRow, report: SearchReport) -> str:
    """What a unit takes of all that the design takes of the binding resource, as a bar."""
    shown = report.shown
    assert shown is not None, "units are those of a design"
    taken, whole = getattr(layer, shown.binding), getattr(shown, shown.binding)
    frac = taken / whole if whole else 0.0
    words = f"{layer.layer}: {taken:,.0f} of {whole:,.0f} {RESOURCES[shown.binding]}"
    return draw_bar([BarPart("c5", frac, words, _label(frac)), BarPart("rest", 1 - frac, words, "")])


def draw_busy(layer: LayerRow) -> str:
    """The share of a sample's cycles in which a unit works, as a bar."""
    frac = min(1.0, layer.busy_frac)
    words = f"{layer.layer}: {layer.cycles:,} cycles a sample"
    kind = "c0" if frac == 1.0 else "c1"
    return draw_bar([BarPart(kind, frac, words, _label(frac)), BarPart("rest", 1 - frac, words, "")])


def _label(frac: float) -> str:
    """Words in a part of a bar, where there is room for them."""
    return f"{100 * frac:.0f} %" if frac >= _LEAST_LABEL else ""


def _name(row: DesignRow, place: PlotPlace, labels: Labels) -> str:
    """The size of an engine next to its mark, where there is room; the mark says it, too."""
    if not row.engine:
        return ""
    return labels.draw(f"{row.engine['lanes']} lanes", around(*_at(row, place), 7, 8, 16), optional=True)


def _class(row: DesignRow, classes: dict[tuple[str, str], str]) -> str:
    return classes[row.package, row.structure]


def _at(row: DesignRow, place: PlotPlace) -> tuple[float, float]:
    return place.x(_interval(row)), place.y(100 * row.share)


def _interval(row: DesignRow) -> float:
    """Seconds between two samples, or cycles where no clock is known: alike in all designs for a device."""
    return float(row.cycles) if row.rate_per_s is None else 1 / row.rate_per_s


def _mark(row: DesignRow, place: PlotPlace, kind: str, radius: int) -> str:
    said = f"{row.package} as {write_structure(row)}: {write_figures(row)}"
    return draw_mark(kind, *_at(row, place), radius, said)


def _grid(place: PlotPlace, *, cycles: bool) -> str:
    return "".join(
        [*_lines(place, cycles=cycles), draw_line("axis", 0, 100, 100, 100), draw_line("axis", 0, 0, 0, 100)]
    )


def _lines(place: PlotPlace, *, cycles: bool) -> Iterable[str]:
    for value in place.up.decades():
        y = place.y(value)
        yield draw_line("grid", 0, y, 100, y)
        yield draw_text(0, y, f"{value:g} %", dx=-8, dy=4, anchor="end")
    for value in place.across.ticks(_TICKS_CYCLES if cycles else _TICKS_S, WORDS_APART):
        x = place.x(value)
        yield draw_line("grid", x, 0, x, 100)
        yield draw_text(x, 100, f"{value:,.0f}" if cycles else format_seconds(value), dy=18, anchor="middle")
