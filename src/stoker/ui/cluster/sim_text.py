"""A simulated cluster as text: assumptions first, then policies side by side."""

from __future__ import annotations

from stoker.core.units import format_seconds
from stoker.records.cluster import GainCell, SimReport
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.cluster.sim_words import (
    CAUSE_WORDS,
    policy_cells,
    write_gain_factor,
    write_short_times,
    write_sim_facts,
    write_sim_findings,
    write_sim_headline,
)
from stoker.ui.report_text import Style
from stoker.ui.tables import render_facts, render_table


def render_sim(report: SimReport, style: Style | None = None, command: str = "") -> str:
    """The report, lines joined by newlines, the last one ended by one.

    Args:
        report: what was simulated.
        style: what the terminal shows.
        command: that shows more, if there is one.
    """
    style = style or Style()
    blocks = (
        _heading(report, style),
        _verdict(report, style),
        _policies(report, style),
        _waiting(report, style),
        titled("The policies", render_facts([(row.name, row.about) for row in report.policies], style), style),
        _bounds(report, style),
        _map(report, style),
        _assumptions(report, style),
    )
    return join(blocks, style, command)


def _heading(report: SimReport, style: Style) -> list[str]:
    lines = [style.paint(style.cut(f"stoker sim · {report.name}", style.width), 1)]
    lines += [style.cut(" · ".join(write_sim_facts(report)), style.width)]
    lines += [style.paint(style.clean("─" * style.width), 90)]
    return [*lines, style.paint("Simulated: nothing of this ran.", 33)]


def _verdict(report: SimReport, style: Style) -> list[str]:
    lines = wrap(write_sim_headline(report), style, 1)
    return lines + [line for finding in write_sim_findings(report) for line in wrap(finding, style)]


def _policies(report: SimReport, style: Style) -> list[str]:
    head = ["policy", "mean JCT", "p50", "p99", "gain", "makespan", "computing", "held"]
    rows = policy_cells(report)
    title = f"Completion times (arrival to end), gain over {report.baseline}; GPU time until the last arrival"
    return titled(title, render_table(head, rows, style, right=range(1, 8)), style)


def _waiting(report: SimReport, style: Style) -> list[str]:
    causes = [cause for cause in CAUSE_WORDS if any(row.waiting.get(cause, 0.0) > 0.005 for row in report.policies)]
    if not causes:
        return []
    waits = write_short_times([row.queueing_s for row in report.policies])
    rows = [
        [row.name, wait, *(f"{row.waiting.get(cause, 0.0):.0%}" for cause in causes)]
        for row, wait in zip(report.policies, waits, strict=True)
    ]
    head = ["policy", "mean wait", *causes]
    words = [line for cause in causes for line in wrap(f"{cause}: {CAUSE_WORDS[cause]}", style, 90)]
    table = render_table(head, rows, style, right=range(1, len(head)))
    return titled("Why jobs wait for their GPUs", [*table, *words], style)


def _bounds(report: SimReport, style: Style) -> list[str]:
    facts = [(bound.name, f"{format_seconds(bound.mean_jct_s)} ({bound.note})") for bound in report.bounds]
    lines = render_facts(facts, style)
    lines += [line for note in report.notes for line in wrap(f"Note: {note}.", style, 33)]
    return titled("No policy can have a lower mean completion time than", lines, style)


def _map(report: SimReport, style: Style) -> list[str]:
    if not report.cells:
        return []
    loads = sorted({cell.load for cell in report.cells})
    demands = sorted({cell.demand for cell in report.cells})
    gains = {(cell.demand, cell.load): cell for cell in report.cells}
    rows = [[f"{demand:g}", *(_cell(gains.get((demand, load))) for load in loads)] for demand in demands]
    head = ["demand / supply", *(f"load {load:g}" for load in loads)]
    title = f"Gain of {report.focus} over {report.baseline}, by CPUs wanted over those of the nodes, and load"
    return titled(title, render_table(head, rows, style, right=range(1, len(head))), style)


def _cell(cell: GainCell | None) -> str:
    return "-" if cell is None else write_gain_factor(cell.jct_gain)


def _assumptions(report: SimReport, style: Style) -> list[str]:
    lines: list[str] = []
    for text in report.assumptions:
        lines += style.wrap(f"{text}.", style.width, initial="- ", indent="  ")
    return titled("Assumed", lines, style)
