"""Sentences about a search for a design, the same on a terminal and on a page."""

from __future__ import annotations

import shlex

from msgspec import structs

from stoker.core.units import format_seconds
from stoker.records.deploy.search import DesignRow, FamilyRow, LayerRow, SearchReport
from stoker.ui.deploy.activity_words import write_uncounted

RESOURCES = {"luts": "LUTs", "flip_flops": "flip-flops", "dsps": "DSPs", "block_rams": "block RAMs"}
FORMS = {"block": "block RAM", "distributed": "LUT RAM", "logic": "logic"}
FRONT_HEAD = (
    "design", "rate", "latency", "clock", "cycles", "LUTs", "flip-flops", "DSPs", "block RAMs", "share", "loss"
)  # fmt: skip
FRONT_NUMBERS = (*range(1, 9), 10)
"""Columns of the front with numbers."""
WEIGHTS = {"memories": "in memories", "any": "in memories or in the circuit", "": "-"}
FAMILY_HEAD = ("package", "structure", "weights", "scales by", "solved", "what became of it")
LAYER_HEAD = ("result", "unit", "results x channels x taps", "busy", "LUTs", "flip-flops", "DSPs", "block RAMs")
FORM_HEAD = (
    "result", "weights", "", "results x channels x taps", "cycles", "LUTs", "flip-flops", "DSPs", "block RAMs"
)  # fmt: skip
FORM_NUMBERS = tuple(range(4, 9))
TABLE_HEAD = (
    "result",
    "rows x numbers",
    "kbit",
    "on",
    "bytes a sample",
    "words x bits to the chip",
    "MB/s at its rate",
)
TABLE_NUMBERS = (1, 2, 4, 5, 6)
PROGRAM_HEAD = ("result", "part of the time", "cycles")
MEMORY_HEAD = ("result", "memory", "words x bits", "form", "cells")
_ROUNDED = 1e-9
"""A gap that is below this is one of floating point."""


def write_headline(report: SearchReport) -> str:
    """What to build, in a sentence."""
    pick, nearest = report.pick, report.nearest
    if pick is not None:
        return (
            f"Build {pick.package} as {write_structure(pick)} with {pick.multipliers:,} multipliers"
            f"{_write_places(pick)}: {write_figures(pick)} of {report.limits.device}."
        )
    assert nearest is not None, "what nothing fits has a nearest design"
    return (
        f"Nothing keeps the limits on {report.limits.device}. The nearest design, {nearest.package} as "
        f"{write_structure(nearest)}, has {'; '.join(report.misses)}."
    )


def _write_places(pick: DesignRow) -> str:
    """Weights in the circuit, results by thresholds and tables on the host, where there are some."""
    words = ""
    if count := len(pick.constant):
        words += f", the weights of {count} layer{'s' * (count > 1)} in the circuit"
    if count := len(pick.thresholds):
        words += f", the results of {count} layer{'s' * (count > 1)} by thresholds"
    if count := len(pick.host_tables):
        words += f", {count} table{'s' * (count > 1)} on the host"
    return words


def write_figures(row: DesignRow) -> str:
    """The pace, the latency and the share of a design."""
    share = f"{100 * row.share:.0f} % of the {RESOURCES[row.binding]}"
    if row.rate_per_s is None:
        return f"{row.cycles:,} cycles between samples, {write_latency(row)} a sample, {share}"
    return f"{row.rate_per_s:,.0f} samples/s, {write_latency(row)} a sample, {share}"


def write_latency(row: DesignRow) -> str:
    """The time of a sample through an empty design, in cycles where no clock is known."""
    return f"{row.latency_cycles:,} cycles" if row.latency_s is None else format_seconds(row.latency_s)


def write_structure(row: DesignRow) -> str:
    """The structure of a design, with the size of an engine."""
    return f"an engine of {row.engine['lanes']} lanes" if row.engine else row.structure


def write_limits(report: SearchReport) -> str:
    """What was asked for."""
    limits = report.limits
    words = [limits.device if limits.clock_mhz is None else f"{limits.device} at {limits.clock_mhz:g} MHz"]
    if limits.rate_per_s is not None:
        words.append(f"at least {limits.rate_per_s:,.0f} samples/s")
    if limits.latency_s is not None:
        words.append(f"at most {format_seconds(limits.latency_s)} a sample")
    if limits.loss_frac is not None:
        words.append(f"at most {100 * limits.loss_frac:.2f} % lost")
    return ", ".join(words) if len(words) > 1 else f"{words[0]}, the fastest that fits"


def write_proof(report: SearchReport) -> str:
    """What was proven of what was chosen; empty of an engine."""
    proof = report.proof
    if proof is None:
        return ""
    above = f"{proof.largest:.5f} ({100 * proof.gap:.2g} % above)" if proof.gap > _ROUNDED else "just that"
    cut = (
        f"; no other tables on the host let a design fit with fewer than {proof.more_bytes:,} bytes more a sample"
        if report.pick is not None and proof.more_bytes
        else ""
    )
    return (
        f"of {proof.combinations:,} combinations of foldings as fast, none takes less than {proof.bound:.5f} of its "
        f"scarcest resource in the model's terms; this one takes {above}, and with all shares added {proof.rest:.5f}, "
        f"where none as near takes less than {proof.rest_bound:.5f}{cut}"
    )


def form_rows(report: SearchReport) -> list[list[str]]:
    """Cells under :data:`FORM_HEAD`: each layer's unit with weights in memories and in the circuit."""
    rows: list[list[str]] = []
    last = ""
    for each in report.forms:
        name, last = "" if each.layer == last else each.layer, each.layer
        rows.append([
            name, f"in {'the circuit' if each.form == 'circuit' else 'memories'}", "taken" if each.taken else "",
            each.fold, f"{each.cycles:,}", f"{each.luts:,.0f}", f"{each.flip_flops:,.0f}", f"{each.dsps:,}",
            f"{each.block_rams:,}",
        ])  # fmt: skip
    return rows


def table_rows(report: SearchReport) -> list[list[str]]:
    """Cells under :data:`TABLE_HEAD`: tables of embeddings, where they are, and what goes to the chip for them."""
    shown = report.shown
    rate = shown.rate_per_s if shown else None
    return [
        [each.layer, f"{each.rows:,} x {each.size:,}", f"{each.bits / 1000:,.1f}", "host" if each.on_host else "chip",
         f"{each.sample_bytes:,}", f"{each.words:,} x {each.bus_bits}",
         "-" if rate is None else f"{each.sample_bytes * rate / 1e6:,.2f}"]
        for each in report.tables
    ]  # fmt: skip


def write_command(report: SearchReport) -> str:
    """The command that writes the shown design."""
    return f"`{report.command}` writes {'just this' if report.pick else 'the nearest design'}"


def write_counting(report: SearchReport) -> str:
    """What counts changes of bits in the shown design; empty where they were counted, and of engines."""
    if report.activity is not None or not report.design or report.shown is None:
        return ""
    words = ["stoker", "deploy", "verify", report.shown.package, "--design", "rtl", "--activity"]
    return write_uncounted(shlex.join(words)) + ", once it is written"


def write_limiting(report: SearchReport) -> str:
    """The unit that sets the pace, and the one that takes most of the scarcest resource."""
    shown = report.shown
    if shown is None or not report.layers:
        return ""
    if shown.engine:
        slowest = max(report.layers[1:], key=lambda each: each.cycles)
        return f"`{slowest.layer}` takes {slowest.cycles:,} of the {shown.cycles:,} cycles a sample"
    slowest = max(report.layers, key=lambda each: each.cycles)
    taken = max(report.layers, key=lambda each: getattr(each, shown.binding))
    return (
        f"`{slowest.layer}` sets the pace with {slowest.cycles:,} cycles a sample; `{taken.layer}` takes "
        f"{getattr(taken, shown.binding):,.0f} of the {getattr(shown, shown.binding):,.0f} {RESOURCES[shown.binding]}"
    )


def design_row(row: DesignRow, report: SearchReport) -> list[str]:
    """Cells under :data:`FRONT_HEAD`."""
    return [
        write_design(row, report), "-" if row.rate_per_s is None else f"{row.rate_per_s:,.0f}/s", write_latency(row),
        "-" if row.clock_mhz is None else f"{row.clock_mhz:.0f} MHz", f"{row.cycles:,}", f"{row.luts:,.0f}",
        f"{row.flip_flops:,.0f}", f"{row.dsps:,}", f"{row.block_rams:,}",
        f"{100 * row.share:.0f} % {RESOURCES[row.binding]}",
        "-" if row.loss_frac is None else f"{100 * row.loss_frac:.2f} %",
    ]  # fmt: skip


def write_design(row: DesignRow, report: SearchReport) -> str:
    """The structure of a design, its layers in other forms and tables on the host, its package if there are several."""
    several = len({each.package for each in report.families}) > 1
    size = f", {row.engine['lanes']} lanes" if row.engine else ""
    size += f", {len(row.constant)} in the circuit" if row.constant else ""
    size += f", {len(row.thresholds)} by thresholds" if row.thresholds else ""
    size += f", {len(row.host_tables)} on the host" if row.host_tables else ""
    return f"{row.package}, {row.structure}{size}" if several else f"{row.structure}{size}"


def write_family(row: FamilyRow) -> str:
    """What became of a family, in a sentence."""
    how = f", results scaled by {row.requantiser}; {row.tried} designs solved for" if row.tried else ""
    structure = "an engine" if row.structure == "engine" else row.structure
    structure += f", weights {WEIGHTS[row.weights]}" if row.weights else ""
    return f"{row.package} as {structure}{how}: {row.why or 'picked'}"


def family_row(row: FamilyRow) -> list[str]:
    """Cells under :data:`FAMILY_HEAD`."""
    tried = f"{row.tried}" if row.tried else "-"
    return [row.package, row.structure, WEIGHTS[row.weights], row.requantiser or "-", tried, row.why or "picked"]


def family_rows(report: SearchReport) -> list[FamilyRow]:
    """What became of each family; packages that a structure refuses for one reason are one row."""
    found: dict[tuple[str, ...], list[FamilyRow]] = {}
    for each in report.families:
        key = (each.package, each.structure, each.weights) if each.tried else ("", each.structure, each.why)
        found.setdefault(key, []).append(each)
    return [
        structs.replace(first, package=f"{first.package} and {len(others)} more") if others else first
        for first, *others in found.values()
    ]


def beaten_fronts(report: SearchReport) -> list[DesignRow]:
    """Designs of structures that have none in the whole front: those that no other of their own package beats."""
    ahead = {row.structure for row in report.front}
    return [row for each in report.families if each.structure not in ahead for row in each.front]


def layer_row(row: LayerRow) -> list[str]:
    """Cells under :data:`LAYER_HEAD`."""
    return [
        row.layer, row.kind, row.fold, f"{100 * row.busy_frac:.0f} %", f"{row.luts:,.0f}", f"{row.flip_flops:,.0f}",
        f"{row.dsps:,}", f"{row.block_rams:,}",
    ]  # fmt: skip


def program_row(row: LayerRow) -> list[str]:
    """Cells under :data:`PROGRAM_HEAD`."""
    return [row.layer, f"{100 * row.busy_frac:.1f} %", f"{row.cycles:,}"]


def memory_rows(report: SearchReport) -> list[list[str]]:
    """Cells under :data:`MEMORY_HEAD`; equal memories of a unit are one row, and its name comes once."""
    rows: list[list[str]] = []
    last = ""
    for layer in report.layers:
        for memory in dict.fromkeys(layer.memories):
            count = layer.memories.count(memory)
            times = f"{count} x " if count > 1 else ""
            cells = f"{count * memory.cells:,}" if memory.cells else "-"
            name = "" if rows and layer.layer == last else layer.layer
            last = layer.layer
            rows.append([name, f"{times}{memory.use}", f"{memory.words:,} x {memory.bits}", FORMS[memory.form], cells])
    return rows
