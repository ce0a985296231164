"""A memory snapshot of torch as one HTML page: its history by line as a picture, the unusable part of the reserve."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.records.memory import SnapshotReport
from stoker.ui.fleet_style import FLEET_STYLE
from stoker.ui.html_page import (
    draw_answer,
    draw_header,
    draw_legend,
    draw_list,
    draw_section,
    draw_table,
    draw_tiles,
    render_page,
)
from stoker.ui.memory.html import draw_holders, draw_tall
from stoker.ui.memory.plots import StackedMemory, draw_memory, draw_shares
from stoker.ui.memory.snapshot_text import UNKNOWN_LINE, choice_rows, write_snapshot_facts, write_snapshot_verdict
from stoker.ui.memory.style import MEMORY_STYLE
from stoker.ui.memory.words import MemoryUnit

_LINES = ("c5", "c0", "c3", "c4", "c7", "c1")
"""Classes of lines, the largest first."""
_PARTS = {"tensors": "c5", "rounding": "c7", "free between tensors": "c0", "unused segments": "even"}


def render_snapshot_page(report: SnapshotReport) -> str:
    """The page."""
    body = "\n".join(part for part in _parts(report) if part)
    return render_page(f"{report.name} · stoker memory", body, FLEET_STYLE + MEMORY_STYLE)


def _parts(report: SnapshotReport) -> Iterable[str]:
    unit = MemoryUnit(report.most_reserved_bytes)
    ran_out = report.asked_bytes is not None
    yield draw_header("stoker memory", report.name, write_snapshot_facts(report))
    yield draw_answer(
        "What happened" if ran_out else "What held the memory", write_snapshot_verdict(report).replace("  ", ": ", 1),
        "", "plain fails" if ran_out else "plain",
    )  # fmt: skip
    yield draw_tiles(_tiles(report, unit))
    if len(report.moments) > 1:
        yield draw_section("The recorded history", draw_tall(draw_memory(_picture(report, unit))), _ABOUT_HISTORY)
    yield draw_section("The reserve at that moment", _reserve(report, unit))
    lines = draw_holders("Lines, as requested", report.lines, unit, UNKNOWN_LINE)
    choices = draw_table((f"most {unit.name}", "", ""), choice_rows(report, unit), numbers=(0, 1))
    if len(report.choices) > 1:
        lines += f'<div class="card"><h3>What the allocator has of the device</h3>{choices}</div>'
    yield draw_section("Who holds it", f'<div class="two">{lines}</div>')
    yield draw_section("Notes", draw_list(f"{note}." for note in report.notes)) if report.notes else ""


_ABOUT_HISTORY = (
    "From left to right: recorded events, not seconds. Colours are the lines with most memory at the marked moment; "
    "the dashed line is what the allocator had from the device."
)


def _tiles(report: SnapshotReport, unit: MemoryUnit) -> list[tuple[str, str, str, str]]:
    idle = report.reserved_bytes - report.peak_bytes
    share = f"{100 * idle / max(1, report.reserved_bytes):.1f} % of the reserve"
    tiles = [
        ("Requested", unit.of(report.peak_bytes), unit.name, "by tensors, at the marked moment"),
        ("Reserved", unit.of(report.reserved_bytes), unit.name, f"at most {unit.full(report.most_reserved_bytes)}"),
        ("Reserved beyond tensors", unit.of(idle), unit.name, share),
    ]
    if report.asked_bytes is not None:
        tiles.append(("Asked for", unit.of(report.asked_bytes), unit.name, report.asked_line))
    return tiles


def _picture(report: SnapshotReport, unit: MemoryUnit) -> StackedMemory:
    moments = report.moments
    layers = [
        (_LINES[place], name or UNKNOWN_LINE, [moment.bytes[place] for moment in moments])
        for place, name in enumerate(report.shown)
    ]
    layers.append(("even", "other lines", [moment.bytes[-1] for moment in moments]))
    at = report.at / max(1, report.events)
    words = "out of memory" if report.asked_bytes is not None else "peak"
    asker = report.asked_line if report.asked_bytes is not None else report.line
    return StackedMemory(
        title="Memory over the recorded history", about="over the recorded events", unit=unit,
        at=[moment.at_frac for moment in moments], layers=layers,
        peak=(at, report.peak_bytes, f"{words} · {asker}" if asker else words),
        lines=[("reserve", "reserved", [moment.reserved_bytes for moment in moments])],
    )  # fmt: skip


def _reserve(report: SnapshotReport, unit: MemoryUnit) -> str:
    shares = [(_PARTS[part.name], part.name, part.bytes) for part in report.parts if part.bytes]
    legend = draw_legend([(kind, f"{name} {unit.of(size)}") for kind, name, size in shares])
    return f'<div class="card">{draw_shares(shares, unit)}<div class="foot">{legend}</div></div>'
