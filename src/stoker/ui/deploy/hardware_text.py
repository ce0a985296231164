"""A design as text: its units, whether its outputs are the law's, and what it takes of an FPGA."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.units import format_seconds
from stoker.records.deploy.hardware import (
    UNPLACED,
    DesignActivity,
    DesignSummary,
    FittedDesign,
    VerifiedDesign,
    VerifiedNetlist,
    VerifiedUpdates,
    VerifiedWay,
)
from stoker.ui.blocks import join, titled
from stoker.ui.deploy.activity_words import ACTIVITY_HEAD, activity_rows, write_activity, write_uncounted
from stoker.ui.report_text import Style
from stoker.ui.tables import render_facts, render_table


def render_design(found: DesignSummary, style: Style | None = None) -> str:
    """A design that was written, as a page of text."""
    style = style or Style()
    facts = [
        ("folder", found.folder),
        ("pace", f"{found.cycles:,} cycles a sample in a full pipeline, by closed form"),
        ("multipliers", f"{found.multipliers:,}"),
        ("memories", f"{found.memory_bits / 1000:,.1f} kbit of weights, biases, multipliers and tables"),
        ("FIFOs", ", ".join(f"{name} {depth:,}" for name, depth in found.fifos.items()) or "none: no branches meet"),
    ]
    if (size := found.update_bytes) is not None:
        facts.append(("update", f"{size:,} bytes in {size // 4:,} cycles; memories have two banks"))
    if away := [each for each in found.tables if each.on_host]:
        kbit = sum(each.bits for each in away) / 1000
        facts.append(("on the host", f"{len(away)} of {len(found.tables)} tables: {kbit:,.1f} kbit less on the chip"))
        if found.whole_cycles is not None:
            facts.append(("", f"with these on the chip, a sample takes {found.whole_cycles:,} cycles"))
    rows = [
        [each.layer, each.kind, each.fold, f"{each.multipliers:,}", f"{each.cycles:,}",
         f"{100 * each.cycles / found.cycles:.0f} %"]
        for each in found.layers
    ]  # fmt: skip
    head = ("result", "unit", "results x channels x taps", "multipliers", "cycles", "busy")
    blocks = [render_facts(facts, style), titled("Units", render_table(head, rows, style, right=(3, 4, 5)), style)]
    if found.tables:
        blocks.append(titled("Tables", _tables(found, style), style))
    return join(blocks, style, "")


def _tables(found: DesignSummary, style: Style) -> list[str]:
    rows = [
        [each.layer, f"{each.rows:,} x {each.size:,}", f"{each.bits / 1000:,.1f}",
         "host" if each.on_host else "chip", f"{each.sample_bytes:,}"]
        for each in found.tables
    ]  # fmt: skip
    head = ("result", "rows x numbers", "kbit", "on", "bytes a sample sends")
    return render_table(head, rows, style, right=(1, 2, 4))


def render_verification(found: VerifiedDesign, style: Style | None = None) -> str:
    """What the simulator gave against the law, as a page of text."""
    style = style or Style()
    verdict = "every output is the law's" if found.equal else "outputs are NOT the law's"
    facts = [("verdict", verdict), ("pace", f"{found.cycles:,} cycles a sample by closed form; measured below")]
    ways = [*found.ways, *(found.updates.ways if found.updates is not None else ())]
    if (cells := found.netlist) is not None:
        ways += [*cells.ways, *(way for unit in cells.units for way in unit.ways)]
    facts += [("problem", f"{each.way}: {each.problem}") for each in ways if each.problem]
    blocks = [titled("Simulated by Verilator", _ways(found.ways, style), style)]
    if found.updates is not None:
        blocks.append(_updates(found.updates, style))
    if cells is not None:
        blocks.append(_netlist(cells, style))
    if found.activity is not None:
        blocks.append(render_activity(found.activity, style))
    return join((render_facts(facts, style), *blocks), style, "")


def _ways(found: Sequence[VerifiedWay], style: Style) -> list[str]:
    rows = [
        [each.way, f"{each.samples:,}", f"{each.outputs:,}", f"{each.differing:,}",
         f"{each.interval:,.1f}" if each.interval else "too few", f"{each.latency:,}"]
        for each in found
    ]  # fmt: skip
    head = ("sent", "samples", "outputs", "differ", "cycles a sample", "of the first")
    return render_table(head, rows, style, right=(1, 2, 3, 4, 5))


def _netlist(found: VerifiedNetlist, style: Style) -> list[str]:
    if found.ways:
        return titled(f"Cells of {found.device}, as yosys made them, simulated", _ways(found.ways, style), style)
    rows = [
        [
            unit.layer,
            unit.kind,
            f"{unit.luts:,}",
            each.way,
            f"{each.samples:,}",
            f"{each.outputs:,}",
            f"{each.differing:,}",
        ]
        for unit in found.units
        for each in unit.ways
    ]
    head = ("result", "unit", "LUTs", "sent", "samples", "outputs", "differ")
    table = render_table(head, rows, style, right=(2, 4, 5, 6))
    return titled(f"Cells of {found.device}, as yosys made them of each unit, simulated", table, style)


def render_activity(found: DesignActivity, style: Style) -> list[str]:
    """Changes of bits by unit, as a block with a title."""
    table = render_table(ACTIVITY_HEAD, activity_rows(found), style, right=(2, 3))
    return titled(write_activity(found), table, style)


def _updates(found: VerifiedUpdates, style: Style) -> list[str]:
    rows = [
        [each.way, f"{each.updates:,}", f"{each.outputs:,}", f"{each.differing:,}", f"{each.mixed:,}",
         f"{each.load_cycles:,}", f"{each.until_next_cycles:,}"]
        for each in found.ways
    ]  # fmt: skip
    head = ("sent", "updates", "outputs", "differ", "samples mixed", "cycles to load", "to the next")
    sizes = f"{found.bytes:,} bytes " + ("each time" if found.bytes_back is None else f"and {found.bytes_back:,} back")
    title = f"The model changes in mid-stream, {sizes}"
    return titled(title, render_table(head, rows, style, right=(1, 2, 3, 4, 5, 6)), style)


def render_fit(found: FittedDesign, style: Style | None = None, counting: str = "") -> str:
    """What a design takes of an FPGA, as a page of text.

    Args:
        found: what is shown.
        style: what the terminal shows.
        counting: the command that counts changes of bits; empty of a design in which they can't be.
    """
    style = style or Style()
    estimate = "an estimate of open tools, no board was there"
    if found.clock_mhz is None or found.latency_s is None or found.rate_per_s is None:
        facts = [
            ("device", f"{found.device}, {UNPLACED}; {estimate}"),
            ("latency", f"{found.latency_cycles:,} cycles, simulated"),
            ("rate", f"a sample in {found.cycles:,} cycles"),
        ]
    else:
        facts = [
            ("device", f"{found.device}, placed and routed: {estimate}"),
            ("clock", f"{found.clock_mhz:.1f} MHz"),
            ("latency", f"{format_seconds(found.latency_s)} ({found.latency_cycles:,} cycles, simulated)"),
            ("rate", f"{found.rate_per_s:,.0f} samples/s ({found.cycles:,} cycles a sample)"),
        ]
    kinds = {"LUTs": found.luts, "flip-flops": found.flip_flops, "DSPs": found.dsps, "block RAMs": found.block_rams}
    rows = [[kind, f"{taken:,}", f"{there:,}", f"{100 * taken / there:.0f} %" if there else "-"]
            for kind, (taken, there) in kinds.items()]  # fmt: skip
    if found.activity is None and counting:
        facts.append(("changes", write_uncounted(counting)))
    table = titled("Resources", render_table(("kind", "taken", "there", ""), rows, style, right=(1, 2, 3)), style)
    counted = [] if found.activity is None else render_activity(found.activity, style)
    return join((render_facts(facts, style), table, counted), style, "")
