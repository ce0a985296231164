"""A memory snapshot of torch as text: what held the peak by line, what was unusable, what other settings take."""

from __future__ import annotations

from stoker.records.memory import SnapshotReport
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.memory.words import MemoryUnit, render_shares, write_shares
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

UNKNOWN_LINE = "(line not known)"


def render_snapshot(report: SnapshotReport, style: Style | None = None, command: str = "") -> str:
    """The report, lines joined by newlines, the last one ended by one.

    Args:
        report: to show.
        style: what the terminal shows.
        command: to type next; empty for none.
    """
    style = style or Style()
    unit = MemoryUnit(report.most_reserved_bytes)
    blocks = (
        [
            style.paint(style.cut(f"stoker memory · {report.name}", style.width), 1),
            *wrap(write_snapshot_facts(report), style),
        ],
        wrap(write_snapshot_verdict(report), style, 1) + wrap(write_shares(report.parts, unit), style, indent="  "),
        titled(f"Lines ({unit.name}, as requested)", render_shares(report.lines, unit, style, UNKNOWN_LINE), style),
        titled(f"Most that the allocator has of the device ({unit.name})", _choices(report, unit, style), style),
        [line for note in report.notes for line in wrap(f"Note: {note}.", style, 90)],
    )
    return join(blocks, style, command)


def write_snapshot_facts(report: SnapshotReport) -> str:
    """Where the snapshot is from, and how much it holds."""
    settings = "expandable segments" if report.expandable else "fixed segments"
    return f"device {report.device} · {report.events:,} recorded events · {settings}"


def write_snapshot_verdict(report: SnapshotReport) -> str:
    """What happened, in one sentence."""
    unit = MemoryUnit(report.most_reserved_bytes)
    held = f"{unit.full(report.peak_bytes)} requested, {unit.of(report.reserved_bytes)} reserved"
    if report.asked_bytes is None:
        what = "peak" if report.events else "at the end"
        return f"{what} {held}{f': {report.line}' if report.line else ''}"
    asker = f" {report.asked_line}" if report.asked_line else ""
    free = "" if report.free_bytes is None else f", with {unit.of(report.free_bytes)} of the device free"
    return f"OUT OF MEMORY {asker} asked for {unit.full(report.asked_bytes)}{free}; {held}"


def choice_rows(report: SnapshotReport, unit: MemoryUnit) -> list[list[str]]:
    """Name, figure and difference of what the allocator would have had."""
    recorded = report.choices[0].bytes
    return [
        [unit.of(each.bytes), f"{100 * (each.bytes / recorded - 1):+.1f} %" if place and recorded else "", each.name]
        for place, each in enumerate(report.choices)
    ]


def _choices(report: SnapshotReport, unit: MemoryUnit, style: Style) -> list[str]:
    if len(report.choices) < 2:
        return []
    return render_table(["most", "", ""], choice_rows(report, unit), style, right=(0, 1))
