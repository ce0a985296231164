"""A program's memory as text: the verdict, what holds the peak, and what each remedy saves and costs."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.records.memory import HeldTooLong, MemoryRemedy, MemoryReport
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.memory.figures import MemoryUnit, render_shares, write_shares
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

_PASSES = {"forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer's step", "start": "start"}


def render_memory(report: MemoryReport, style: Style | None = None, command: str = "") -> str:
    """The report, lines joined by newlines, the last one ended by one.

    Args:
        report: to show.
        style: what the terminal shows.
        command: to type next; empty for none.
    """
    style = style or Style()
    unit = MemoryUnit(report.peak_bytes)
    modules = render_shares(report.modules, unit, style, "(outside of modules)")
    lines = render_shares(report.lines, unit, style, "(not known)")
    held = [line for each in report.held for line in wrap(_kept(each, unit), style)]
    blocks = (
        [style.paint(style.cut(f"stoker memory · {report.name}", style.width), 1), *wrap(_facts(report), style)],
        wrap(write_verdict(report), style, 1) + wrap(write_shares(report.categories, unit), style, indent="  "),
        titled(f"Modules ({unit.name}, tensors alone)", modules, style),
        titled(f"Lines ({unit.name}, tensors alone)", lines, style),
        titled("Held too long", held, style),
        titled("Largest batch", wrap(_largest(report), style) if report.largest_batch is not None else [], style),
        titled(f"Remedies ({unit.name})", _remedies(report.remedies, unit, style), style),
        [line for note in report.notes for line in wrap(f"Note: {note}.", style, 90)],
    )
    return join(blocks, style, command)


def write_verdict(report: MemoryReport) -> str:
    """The answer in one sentence."""
    unit = MemoryUnit(report.peak_bytes)
    where = f"{_PASSES[report.phase]}{f' of {report.module}' if report.module else ''}"
    peak = f"peak {unit.of(report.peak_bytes)} {unit.name}"
    if report.available_bytes is not None:
        verdict = "FITS" if report.fits else "DOES NOT FIT"
        on = f" on {report.device}" if report.device else ""
        peak = f"{verdict}  peak {unit.of(report.peak_bytes)} of {unit.of(report.available_bytes)} {unit.name}{on}"
    return f"{peak}: {where}{f', {report.line}' if report.line else ''}"


def _facts(report: MemoryReport) -> str:
    ranks = f" · {report.ranks} ranks" if report.ranks > 1 else ""
    return f"batch of {report.batch_size:,}{ranks} · predicted, nothing was computed"


def _kept(held: HeldTooLong, unit: MemoryUnit) -> str:
    where = f" ({held.assigned})" if held.assigned else ""
    line = held.last_used.rpartition(":")[2]
    saves = f"lowers the peak by {unit.of(held.saves_bytes)} {unit.name}" if held.saves_bytes else "the peak stays"
    return (
        f"`{held.variable}`{where} keeps {unit.of(held.bytes)} {unit.name} that nothing reads any more: "
        f"`del {held.variable}` after line {line} {saves}"
    )


def _largest(report: MemoryReport) -> str:
    recomputed = report.largest_recomputed
    more = f", {recomputed:,} with expandable segments and every block recomputed" if recomputed else ""
    return f"{report.largest_batch:,} as it is{more} (both sizes by the peaks of two traced ones)"


def _remedies(remedies: Sequence[MemoryRemedy], unit: MemoryUnit, style: Style) -> list[str]:
    if not remedies:
        return []
    rows = [
        [
            remedy.name, unit.of(remedy.saves_bytes), unit.of(remedy.peak_bytes),
            "" if remedy.step_frac is None else f"{100 * remedy.step_frac:+.0f} %", remedy.losses,
            {True: "yes", False: "no", None: ""}[remedy.fits], remedy.how,
        ]
        for remedy in remedies
    ]  # fmt: skip
    return render_table(["", "saves", "peak", "step", "losses", "fits", "by"], rows, style, right=(1, 2, 3))
