"""A program's memory as one HTML page that needs nothing else: the step as a picture, what holds the peak, remedies."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from stoker.records.memory import MemoryReport, MemoryShare
from stoker.ui.fleet_style import FLEET_STYLE
from stoker.ui.html_page import (
    Figure,
    draw_answer,
    draw_header,
    draw_legend,
    draw_list,
    draw_section,
    draw_table,
    draw_tiles,
    render_page,
)
from stoker.ui.memory.plots import StackedMemory, draw_memory, draw_shares
from stoker.ui.memory.style import MEMORY_STYLE, MOST_DRAWN
from stoker.ui.memory.words import (
    PASSES,
    REMEDY_HEAD,
    MemoryUnit,
    remedy_rows,
    share_rows,
    write_arena,
    write_facts,
    write_growing,
    write_kept,
    write_passes,
    write_verdict,
)

_COLOURS = {
    "context": "even", "parameters": "c5", "optimizer": "c4", "gradients": "c3", "buffers": "c2", "inputs": "c6",
    "activations": "c0", "temporaries": "c7", "allocator": "c1",
}  # fmt: skip
"""Class of each category, in the order of the layers: what stays longest is at the bottom."""
_ROWS = 12
"""Modules and lines that are shown one by one."""
_NEAR = 2.0
"""A device of more than this times the peak would squeeze the picture; it is not drawn."""


def render_memory_page(report: MemoryReport, fitted: str = "") -> str:
    """The page.

    Args:
        report: to show.
        fitted: what ``--fit auto`` does, in words; empty for nothing.
    """
    body = "\n".join(part for part in _parts(report, fitted) if part)
    return render_page(f"{report.name} · stoker memory", body, FLEET_STYLE + MEMORY_STYLE)


def _parts(report: MemoryReport, fitted: str) -> Iterable[str]:
    unit = MemoryUnit(report.peak_bytes)
    yield draw_header("stoker memory", report.name, write_facts(report))
    yield _verdict(report, unit)
    yield _tiles(report, unit)
    yield draw_section(
        "The step", draw_tall(draw_memory(_picture(report, unit)), _toggles(report, unit)), _about(report)
    )
    yield draw_section("Its parts", _passes(report, unit))
    yield draw_section("The peak", _peak(report, unit))
    yield draw_section("Who holds it", _holders(report, unit), "Tensors alone, at the peak.")
    rows = remedy_rows(report.remedies, unit)
    table = f'<div class="card scroll">{draw_table(REMEDY_HEAD, rows, numbers=(1, 2, 3))}</div>'
    yield draw_section(f"Remedies ({unit.name})", table, _ABOUT_REMEDIES) if rows else ""
    yield draw_section("With --fit auto", draw_list([f"{fitted}."])) if fitted else ""
    yield draw_section("Notes", draw_list(f"{note}." for note in report.notes))


_ABOUT_STEP = (
    "From left to right: allocations and frees in the order in which they happen, not seconds. The dashed line is what "
    "the process takes of the device once steps repeat: tensors, the context, what the allocator reserves beyond them."
)
_ABOUT_DRAWN = (
    "A remedy that is ticked is drawn over it: tensors and the context, and in green what the process then takes. What "
    "it runs besides stands where the call before it does."
)
_ABOUT_REMEDIES = "One at a time. Losses equal: bit for bit."


def _about(report: MemoryReport) -> str:
    return f"{_ABOUT_STEP} {_ABOUT_DRAWN}" if report.remedies else _ABOUT_STEP


def draw_tall(figure: Figure, toggles: str = "") -> str:
    """A figure that is as wide as the page, below what shows and hides its overlays."""
    return (
        f'<div class="card">{draw_legend(figure.legend)}{toggles}<p class="soft small">{escape(figure.unit)}</p>'
        f'<div class="canvas tall">{figure.drawing}</div></div>'
    )


def _shown(report: MemoryReport) -> int:
    """The remedy that is drawn at first: the first of those that fit, else the one that saves most."""
    fitting = [place for place, each in enumerate(report.remedies) if each.fits and each.course]
    return fitting[0] if fitting else len(report.remedies) - 1


def _toggles(report: MemoryReport, unit: MemoryUnit) -> str:
    """A tick box for each remedy: siblings of the picture, so that style alone shows and hides."""
    parts: list[str] = []
    for place, each in enumerate(report.remedies[:MOST_DRAWN]):
        name, ticked = f"{each.name}, peak {unit.full(each.peak_bytes)}", _TICKED if place == _shown(report) else ""
        parts.append(f'<input type="checkbox" id="remedy{place}"{ticked}/>')
        parts.append(f'<label for="remedy{place}" class="tick">{escape(name)}</label>')
    return "".join(parts)


_TICKED = ' checked="checked"'


def _overlays(report: MemoryReport, context: int) -> list[tuple[str, list[int]]]:
    found: list[tuple[str, list[int]]] = []
    for place, each in enumerate(report.remedies[:MOST_DRAWN]):
        found.append((f"remedy taken r{place}", [each.peak_bytes] * len(report.moments)))
        if len(each.course) == len(report.moments):
            found.append((f"remedy r{place}", [size + context for size in each.course]))
    return found


def _passes(report: MemoryReport, unit: MemoryUnit) -> str:
    """The peaks of the run's parts, and the step in one planned arena next to the allocator's."""
    arena = write_arena(report)
    words = f'<p class="soft">{escape(arena)}.</p>' if arena else ""
    rows = write_passes(report)
    table = draw_table((unit.name, "tensors alone, at the fullest"), rows, numbers=(0,)) if rows else ""
    placed = f'<div class="card"><h3>Reserved for a step ({unit.name}, without the context)</h3>{words}</div>'
    return (
        f'<div class="two"><div class="card"><h3>Peaks</h3>{table}</div>{placed if arena else ""}</div>' if rows else ""
    )


def _verdict(report: MemoryReport, unit: MemoryUnit) -> str:
    held = draw_list(write_kept(each, unit).replace("`", "") + "." for each in report.held)
    more = f'<p class="soft small">Held too long</p>{held}' if held else ""
    grows = draw_list(write_growing(each, unit).replace("`", "") + "." for each in report.grows)
    more += f'<p class="soft small">Grows with each step</p>{grows}' if report.grows else ""
    kind = {True: "plain fits", False: "plain fails", None: "plain"}[report.fits]
    question = "What holds the memory" if report.fits is None else "Does it fit"
    return draw_answer(question, write_verdict(report).replace("  ", ": ", 1), more, kind)


def _tiles(report: MemoryReport, unit: MemoryUnit) -> str:
    sizes = {share.name: share.bytes for share in report.categories}
    beyond = sizes.get("allocator", 0)
    tensors = report.peak_bytes - beyond - sizes.get("context", 0)
    tiles = [
        ("Peak", unit.of(report.peak_bytes), unit.name, _room(report, unit)),
        ("Tensors", unit.of(tensors), unit.name, _share(tensors, report)),
        ("Reserved beyond tensors", unit.of(beyond), unit.name, _share(beyond, report)),
    ]
    if report.largest_batch is not None:
        tiles.append(("Largest batch", f"{report.largest_batch:,}", "samples", _more(report)))
    return draw_tiles(tiles)


def _more(report: MemoryReport) -> str:
    return f"{report.largest_fitted:,} with --fit auto" if report.largest_fitted else "as it is"


def _room(report: MemoryReport, unit: MemoryUnit) -> str:
    if report.available_bytes is None:
        return "no device named"
    left = report.available_bytes - report.peak_bytes
    on = f" of {report.device}" if report.device else ""
    return f"{unit.full(abs(left))}{on} {'left' if left >= 0 else 'missing'}"


def _share(size: int, report: MemoryReport) -> str:
    return f"{100 * size / max(1, report.peak_bytes):.0f} % of the peak"


def _picture(report: MemoryReport, unit: MemoryUnit) -> StackedMemory:
    context = next((share.bytes for share in report.categories if share.name == "context"), 0)
    count = len(report.moments)
    sizes = {name: [moment.bytes[place] for moment in report.moments] for place, name in enumerate(report.drawn)}
    sizes["context"] = [context] * count
    lines = [("reserve", "taken of the device", [report.peak_bytes] * count)]
    available = report.available_bytes
    if available is not None and available <= _NEAR * report.peak_bytes:
        lines.append(("device", report.device or "device", [available] * count))
    peak = None
    if report.peak_frac is not None and count:
        place = min(range(count), key=lambda place: abs(report.moments[place].at_frac - (report.peak_frac or 0)))
        height = sum(report.moments[place].bytes) + context
        peak = (report.peak_frac, height, " · ".join(part for part in ("peak", report.module, report.line) if part))
    return StackedMemory(
        title="Memory over a step", about="over a step", unit=unit, at=[moment.at_frac for moment in report.moments],
        layers=[(_COLOURS[name], name, sizes[name]) for name in _COLOURS if name in sizes], peak=peak, lines=lines,
        spans=[PASSES.get(moment.phase, "") for moment in report.moments], overlays=_overlays(report, context),
    )  # fmt: skip


def _peak(report: MemoryReport, unit: MemoryUnit) -> str:
    sizes = {share.name: share.bytes for share in report.categories if share.bytes}
    shares = [(_COLOURS[name], name, sizes[name]) for name in _COLOURS if name in sizes]
    legend = draw_legend([(kind, f"{name} {unit.of(size)}") for kind, name, size in shares])
    return f'<div class="card">{draw_shares(shares, unit)}<div class="foot">{legend}</div></div>'


def _holders(report: MemoryReport, unit: MemoryUnit) -> str:
    cards = (
        draw_holders("Modules", report.modules, unit, "(outside of modules)"),
        draw_holders("Lines", report.lines, unit, "(not known)"),
    )
    return f'<div class="two">{"".join(cards)}</div>'


def draw_holders(title: str, shares: list[MemoryShare], unit: MemoryUnit, unnamed: str) -> str:
    """A card with the largest shares."""
    table = draw_table((unit.name, ""), share_rows(shares, unit, unnamed, _ROWS), numbers=(0,))
    return f'<div class="card"><h3>{title}</h3>{table}</div>'
