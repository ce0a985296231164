"""A model on an engine as text: cycles by layer, the room it takes, what a change costs."""

from __future__ import annotations

from stoker.records.deploy.engine import EngineSummary
from stoker.ui.blocks import join, titled
from stoker.ui.report_text import Style
from stoker.ui.tables import render_facts, render_table


def render_engine(found: EngineSummary, style: Style | None = None) -> str:
    """A model that was written, as a page of text."""
    style = style or Style()
    facts = [
        ("folder", found.folder),
        ("engine", f"an array of {found.lanes} x {found.lanes}, {found.multipliers:,} multipliers of 18 x 18 in all"),
        ("pace", f"{found.cycles:,} cycles a sample, by closed form"),
        ("change", f"{found.bytes:,} bytes, {found.update_cycles:,} cycles of the bus, while the old model answers"),
    ]
    rows = [
        [each.layer, each.kind, f"{each.instructions}", f"{each.cycles:,}", f"{100 * each.cycles / found.cycles:.0f} %",
         f"{100 * each.lanes_frac:.0f} %" if each.products else "-"]
        for each in found.layers
    ]  # fmt: skip
    room = [
        [name, f"{taken:,}", f"{there:,}", f"{100 * taken / there:.0f} %"]
        for name, (taken, there) in found.memories.items()
    ]  # fmt: skip
    head = ("result", "operation", "instructions", "cycles", "of all", "multipliers busy")
    blocks = (
        render_facts(facts, style),
        titled("Layers", render_table(head, rows, style, right=(2, 3, 4, 5)), style),
        titled("Memories", render_table(("memory", "words", "there", ""), room, style, right=(1, 2, 3)), style),
    )
    return join(blocks, style, "")
