"""A search for a design as text: what to build, by which proof, what else there is; and how good the model is."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stoker.records.deploy.search import CalibrationReport, SearchReport
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.deploy.hardware_text import render_activity
from stoker.ui.deploy.search_words import (
    FORM_HEAD,
    FORM_NUMBERS,
    FRONT_HEAD,
    FRONT_NUMBERS,
    LAYER_HEAD,
    PROGRAM_HEAD,
    RESOURCES,
    TABLE_HEAD,
    TABLE_NUMBERS,
    beaten_fronts,
    design_row,
    family_rows,
    form_rows,
    layer_row,
    program_row,
    table_rows,
    write_command,
    write_counting,
    write_family,
    write_headline,
    write_limiting,
    write_limits,
    write_proof,
)
from stoker.ui.report_text import Style
from stoker.ui.tables import render_facts, render_table


def render_search(report: SearchReport, style: Style | None = None, command: str = "") -> str:
    """A search as a page of text.

    Args:
        report: what was found.
        style: what the terminal shows.
        command: that shows more.
    """
    style = style or Style()
    facts = [("wanted", write_limits(report))]
    if shown := report.shown:
        resources = ", ".join(
            f"{getattr(shown, kind):,.0f} of {there:,} {RESOURCES[kind]}" for kind, there in report.there.items()
        )
        facts += [("takes", resources), ("limits", write_limiting(report))]
    if proof := write_proof(report):
        facts.append(("proof", proof))
    if report.command:
        facts.append(("build", write_command(report)))
    if counting := write_counting(report):
        facts.append(("changes", counting))
    facts += [("model", report.model), *(("note", note) for note in report.notes)]
    if shown and shown.engine:
        title = "Program"
        layers = render_table(PROGRAM_HEAD, [program_row(each) for each in report.layers[1:]], style, right=(1, 2))
    else:
        title = "Units"
        layers = render_table(LAYER_HEAD, [layer_row(each) for each in report.layers], style, right=(3, 4, 5, 6, 7))
    front, beaten = (
        render_table(FRONT_HEAD, [design_row(each, report) for each in rows], style, right=FRONT_NUMBERS)
        if rows
        else []
        for rows in (report.front, beaten_fronts(report))
    )
    forms, tables = (
        render_table(head, rows, style, right=numbers) if rows else []
        for head, rows, numbers in (
            (FORM_HEAD, form_rows(report), FORM_NUMBERS),
            (TABLE_HEAD, table_rows(report), TABLE_NUMBERS),
        )
    )
    families = [line for each in family_rows(report) for line in wrap(write_family(each), style, indent="    ")]
    blocks = (
        wrap(write_headline(report), style, 1),
        render_facts(facts, style),
        titled(title, layers, style),
        titled("Where weights may be, by layer, as fast as this design", forms, style),
        titled("Tables of embeddings", tables, style),
        [] if report.activity is None else render_activity(report.activity, style),
        titled("Front: designs that no other beats", front, style),
        titled("Structures with none of these: their own fronts", beaten, style),
        titled("Families", families, style),
    )
    return join(blocks, style, command)


def render_calibration(report: CalibrationReport, style: Style | None = None) -> str:
    """How far a model is from what it was fitted to, as a page of text."""
    style = style or Style()
    placed = any(each.clock_mhz for each in report.rows)
    rows: list[Sequence[str]] = [
        [f"{each.luts[0]:,}", f"{each.luts[1]:,.0f}", f"{each.flip_flops[0]:,}", f"{each.flip_flops[1]:,.0f}",
         f"{each.dsps[0]}", f"{each.dsps[1]}", f"{each.block_rams[0]}", f"{each.block_rams[1]}",
         *(f"{clock:.0f}" for clock in each.clock_mhz or ()), *(["-", "-"] if placed and not each.clock_mhz else []),
         each.name]
        for each in report.rows
    ]  # fmt: skip
    head = ["LUTs", "flip-flops", "DSPs", "block RAMs", *(["MHz"] if placed else [])]
    head = [*(name for kind in head for name in (kind, "model")), "design"]
    facts = [("model", report.obtained)]
    fitted = [("LUTs", "luts"), ("flip-flops", "flip_flops"), *([("clock", "clock_mhz")] if placed else [])]
    for name, kind in fitted:
        found = [pair for each in report.rows if (pair := getattr(each, kind)) is not None]
        errors = [abs(guessed / taken - 1) for taken, guessed in found]
        facts.append((name, f"median error {100 * median(errors):.1f} %, worst {100 * max(errors):.0f} %"))
    for name, kind in (("DSPs", "dsps"), ("block RAMs", "block_rams")):
        wrong = sum(getattr(each, kind)[0] != getattr(each, kind)[1] for each in report.rows)
        facts.append((name, f"{wrong} of {len(report.rows)} designs differ"))
    table = titled(
        "Found by the tools, and by the model",
        render_table(head, rows, style, right=tuple(range(len(head) - 1))),
        style,
    )
    return join((render_facts(facts, style), table), style, "")
