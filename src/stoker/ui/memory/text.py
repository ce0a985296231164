"""A program's memory as text: the verdict, what holds the peak, and what each remedy saves and costs."""

from __future__ import annotations

from stoker.records.memory import MemoryReport
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.memory.words import (
    REMEDY_HEAD,
    MemoryUnit,
    remedy_rows,
    render_shares,
    write_arena,
    write_course,
    write_facts,
    write_growing,
    write_kept,
    write_largest,
    write_passes,
    write_shares,
    write_verdict,
)
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

_COURSE = 72
"""Characters of the step as one line."""


def render_memory(report: MemoryReport, style: Style | None = None, command: str = "", fitted: str = "") -> str:
    """The report, lines joined by newlines, the last one ended by one.

    Args:
        report: to show.
        style: what the terminal shows.
        command: to type next; empty for none.
        fitted: what ``--fit auto`` does, in words; empty for nothing.
    """
    style = style or Style()
    unit = MemoryUnit(report.peak_bytes)
    modules = render_shares(report.modules, unit, style, "(outside of modules)")
    lines = render_shares(report.lines, unit, style, "(not known)")
    grows = [line for each in report.grows for line in wrap(write_growing(each, unit), style)]
    arena = wrap(write_arena(report), style) if report.arena is not None else []
    held = [line for each in report.held for line in wrap(write_kept(each, unit), style)]
    blocks = (
        [style.paint(style.cut(f"stoker memory · {report.name}", style.width), 1), *wrap(write_facts(report), style)],
        wrap(write_verdict(report), style, 1) + wrap(write_shares(report.categories, unit), style, indent="  "),
        titled("The step, from nothing to its peak", write_course(report, min(style.width, _COURSE)), style),
        titled(f"Peaks ({unit.name}, tensors alone)", _passes(report, style), style),
        titled(f"Modules ({unit.name}, tensors alone)", modules, style),
        titled(f"Lines ({unit.name}, tensors alone)", lines, style),
        titled("Grows with each step", grows, style),
        titled("Held too long", held, style),
        titled("Largest batch", wrap(write_largest(report), style) if report.largest_batch is not None else [], style),
        titled(f"Reserved for a step ({unit.name}, without the context)", arena, style),
        titled(f"Remedies ({unit.name}), one at a time", _remedies(report, unit, style), style),
        titled("With --fit auto", wrap(fitted, style) if fitted else [], style),
        [line for note in report.notes for line in wrap(f"Note: {note}.", style, 90)],
    )
    return join(blocks, style, command)


def _passes(report: MemoryReport, style: Style) -> list[str]:
    return render_table(["peak", ""], write_passes(report), style, right=(0,)) if report.passes else []


def _remedies(report: MemoryReport, unit: MemoryUnit, style: Style) -> list[str]:
    rows = remedy_rows(report.remedies, unit)
    return render_table(REMEDY_HEAD, rows, style, right=(1, 2, 3)) if rows else []
