"""A search for a design as one HTML page that needs nothing else: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from stoker.records.deploy.search import LayerRow, SearchReport
from stoker.ui.deploy.activity_words import ACTIVITY_HEAD, activity_rows, write_activity
from stoker.ui.deploy.search_plots import draw_busy, draw_designs, draw_shares, family_classes
from stoker.ui.deploy.search_words import (
    FAMILY_HEAD,
    FORM_HEAD,
    FORM_NUMBERS,
    FRONT_HEAD,
    FRONT_NUMBERS,
    MEMORY_HEAD,
    RESOURCES,
    TABLE_HEAD,
    TABLE_NUMBERS,
    beaten_fronts,
    design_row,
    family_row,
    family_rows,
    form_rows,
    layer_row,
    memory_rows,
    table_rows,
    write_command,
    write_counting,
    write_headline,
    write_limiting,
    write_limits,
    write_proof,
)
from stoker.ui.fleet_style import FLEET_STYLE
from stoker.ui.html_page import (
    draw_answer,
    draw_header,
    draw_legend,
    draw_list,
    draw_prose,
    draw_section,
    draw_table,
    draw_tiles,
    render_page,
)
from stoker.ui.plan_style import PLAN_STYLE

_STYLE = """
table.units td { vertical-align: middle; } table.units .bar { min-width: 120px; height: 18px; margin: 0; }
table.units .bar span { line-height: 18px; font-size: 11.5px; } .bar span.rest { background: none; }
table.units .bar { background: color-mix(in srgb, var(--soft) 14%, transparent); }
"""


def render_search_page(report: SearchReport) -> str:
    """The page."""
    body = "\n".join(part for part in _parts(report) if part)
    return render_page(f"{report.limits.device} · stoker deploy search", body, FLEET_STYLE + PLAN_STYLE + _STYLE)


def _parts(report: SearchReport) -> Iterable[str]:
    yield draw_header("stoker deploy search", write_limits(report), f"model: {report.model}")
    kind = "plain" if report.pick else "plain input"
    how = f'<p class="soft small">{draw_prose(write_command(report))}.</p>' if report.command else ""
    yield draw_answer("What to build", write_headline(report), how, kind)
    yield _tiles(report)
    yield _plot(report)
    yield _front(report)
    rows = [family_row(each) for each in family_rows(report)]
    yield draw_section("Families", _card(draw_table(FAMILY_HEAD, rows, numbers=(4,))))
    yield _program(report) if report.shown and report.shown.engine else _units(report)
    yield _forms(report)
    yield _tables(report)
    yield _memories(report)
    yield _changes(report)
    notes = draw_list(report.notes, "advice")
    yield draw_section("Notes", f'<div class="card">{notes}</div>') if notes else ""


def _card(table: str) -> str:
    return f'<div class="card scroll">{table}</div>'


def _tiles(report: SearchReport) -> str:
    shown = report.shown
    if shown is None:
        return ""
    return draw_tiles(
        (name, f"{getattr(shown, kind):,.0f}", f"of {there:,}", _share(getattr(shown, kind), there))
        for kind, there in report.there.items()
        for name in (RESOURCES[kind],)
    )


def _share(taken: float, there: int) -> str:
    return f"{100 * taken / there:.0f} %" if there else "designs use none"


def _plot(report: SearchReport) -> str:
    classes = family_classes(report)
    several = len({package for package, _ in classes}) > 1
    names = [
        (kind, f"{package}, {structure}" if several else structure) for (package, structure), kind in classes.items()
    ]
    legend = draw_legend(names) if len(classes) > 1 else ""
    about = (
        "Time between two samples against the largest share of a resource of the device, both logarithmic. Full "
        "circles are designs that no other beats in rate, latency, share, loss and bytes from the host, pale ones "
        "those that no other of their own family beats. The line joins those that none beats in rate and share."
    )
    drawing = f'<div class="card">{legend}<div class="canvas tall">{draw_designs(report)}</div></div>'
    return draw_section("Front", drawing, about)


def _units(report: SearchReport) -> str:
    shown = report.shown
    if shown is None:
        return ""
    head = ("result", "unit", "folding", "busy", f"part of the {RESOURCES[shown.binding]}", *RESOURCES.values())
    rows = (_unit(each, report) for each in report.layers)
    about = f"Folding: results x channels x taps in a cycle. {write_limiting(report)}."
    proof = f'<p class="soft small">{draw_prose(write_proof(report))}</p>' if report.proof else ""
    title = "Units, in the order of the data"
    return draw_section(title, _card(_bars(head, rows, first_number=5)) + proof, about.replace("`", ""))


def _program(report: SearchReport) -> str:
    """What an engine computes, one after another."""
    rows = (
        f"<tr><td>{escape(each.layer)}</td><td>{draw_busy(each)}</td><td class=n>{each.cycles:,}</td></tr>"
        for each in report.layers[1:]
    )
    table = _card(_bars(("result", "part of the time", "cycles"), rows, first_number=2))
    return draw_section("Program, in its order", table, f"{write_limiting(report)}.".replace("`", ""))


def _bars(head: Sequence[str], rows: Iterable[str], *, first_number: int) -> str:
    """A table with bars in it."""
    cells = "".join(
        f"<th{' class=n' if at >= first_number else ''}>{escape(name)}</th>" for at, name in enumerate(head)
    )
    return f'<table class="units"><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _unit(layer: LayerRow, report: SearchReport) -> str:
    name, kind, fold, _, *numbers = layer_row(layer)
    words = "".join(f"<td>{escape(text)}</td>" for text in (name, kind, fold))
    figures = "".join(f"<td class=n>{escape(text)}</td>" for text in numbers)
    return f"<tr>{words}<td>{draw_busy(layer)}</td><td>{draw_shares(layer, report)}</td>{figures}</tr>"


def _forms(report: SearchReport) -> str:
    about = (
        "The least unit of each layer that is as fast as this design, by the model: with its weights in memories, and "
        "with its weights in the circuit, as additions that results share. What is taken is the least for the whole."
    )
    rows = form_rows(report)
    table = _card(draw_table(FORM_HEAD, rows, numbers=FORM_NUMBERS))
    return draw_section("Where weights may be", table, about) if rows else ""


def _tables(report: SearchReport) -> str:
    about = (
        "A table on the chip takes row numbers; one on the host sends its rows, or sums of rows, in words of the "
        "stream that enters the design, one a cycle. Tables leave the chip where the design does not fit otherwise, "
        "those that cost the fewest bytes a sample."
    )
    rows = table_rows(report)
    return draw_section("Tables", _card(draw_table(TABLE_HEAD, rows, numbers=TABLE_NUMBERS)), about) if rows else ""


def _changes(report: SearchReport) -> str:
    if report.activity is not None:
        table = draw_table(ACTIVITY_HEAD, activity_rows(report.activity), numbers=(2, 3))
        return draw_section("Changes of bits", _card(table), f"{write_activity(report.activity)}.")
    counting = write_counting(report)
    words = draw_prose(counting[:1].upper() + counting[1:])
    return draw_section("Changes of bits", f'<p class="soft small">{words}.</p>') if counting else ""


def _memories(report: SearchReport) -> str:
    rows = memory_rows(report)
    about = "What synthesis makes of each memory. "
    if report.shown and report.shown.engine:
        about += "Those that are loaded have room for two models, each bank of data two copies."
    else:
        about += "A line buffer is kept once for each tap that is read at a time."
    return draw_section("Memory map", _card(draw_table(MEMORY_HEAD, rows, numbers=(2, 4))), about) if rows else ""


def _front(report: SearchReport) -> str:
    parts = (
        ("Designs that no other beats", report.front),
        ("Structures with none of these: their own fronts", beaten_fronts(report)),
    )
    return "".join(
        draw_section(
            title, _card(draw_table(FRONT_HEAD, [design_row(each, report) for each in rows], numbers=FRONT_NUMBERS))
        )
        for title, rows in parts
        if rows
    )
