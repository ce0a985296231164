"""The plan of an exchange as text: the step before and after, what each layer sends, and what was not taken."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from stoker.core.units import format_count, format_seconds
from stoker.records.exchange import ExchangedLayer, ExchangedStep, ExchangeReport
from stoker.records.plan import Span
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

_SHOWN = 16
"""Layers that are shown one by one: those that are not all-reduced, then those that send most."""
METHOD_WORDS = {
    "all_reduce": "all-reduce",
    "ring": "own ring",
    "islands": "by islands",
    "late": "late-multiply",
    "rows": "rows",
    "column": "column split",
    "row": "row split",
    "table": "table split",
    "half": "16 bits",
    "power": "PowerSGD",
}
STEP_HEAD = ("", "step", "from … to", "exposed", "hidden", "added work", "bytes")
"""Head of :func:`step_row`."""


def render_exchange(report: ExchangeReport, style: Style | None = None) -> str:
    """The report, lines joined by newlines, the last one ended by one."""
    style = style or Style()
    shown = shown_layers(report.layers) if report.ranks > 1 else []
    blocks = (
        _heading(report, style),
        wrap(write_headline(report), style, 1),
        layer_lines(report, shown, style),
        _steps(report, style),
        rejected_lines(shown, style),
        _notes(report, style),
    )
    return join(blocks, style, "")


def write_headline(report: ExchangeReport) -> str:
    """The answer in one sentence."""
    before, after = report.before, report.after
    changed = [layer for layer in report.layers if layer.method != "all_reduce"]
    if not changed:
        said = "nothing is exchanged" if report.ranks == 1 else "no other method makes its step shorter"
        return f"Leave the exchange to {report.backend}: {said} ({format_seconds(before.step_s.likely)})."
    times = before.step_s.likely / after.step_s.likely
    return (
        f"A step takes {format_seconds(after.step_s.likely)} instead of {format_seconds(before.step_s.likely)} "
        f"({times:.2f}x): {format_count(len(changed), 'layer')} of {len(report.layers)} leave the backend's "
        f"all-reduce, and a rank sends {write_size(after.bytes)} instead of {write_size(before.bytes)}."
    )


def _heading(report: ExchangeReport, style: Style) -> list[str]:
    rate = report.rate_bytes_per_s * 8
    link = f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"
    facts = [
        f"{format_count(report.ranks, 'rank')} on {format_count(report.hosts, 'host')}",
        f"{link} and {format_seconds(report.latency_s)} between them",
        f"{report.backend} on {report.device}",
        "exact methods only" if not report.allowed else f"also {' and '.join(report.allowed)}",
    ]
    return [
        style.paint(style.cut(f"stoker exchange · {report.name}", style.width), 1),
        *wrap(" · ".join(facts), style),
        style.paint(style.cut(f"plan {report.digest}; nothing is exchanged by this command", style.width), 90),
        style.paint(style.clean("─" * style.width), 90),
    ]


def shown_layers(layers: Sequence[ExchangedLayer]) -> list[ExchangedLayer]:
    """The layers worth a line, in the order of the model."""
    order = sorted(layers, key=lambda layer: (layer.method == "all_reduce", -layer.gradient_bytes))
    chosen = {id(layer) for layer in order[:_SHOWN]}
    return [layer for layer in layers if id(layer) in chosen]


def layer_lines(report: ExchangeReport, shown: Sequence[ExchangedLayer], style: Style) -> list[str]:
    """What each shown layer sends, as a table under its title."""
    head = ["bytes", "seconds", "from … to", "rows", "shape", "method", "layer"]
    rows = [
        [
            write_size(layer.bytes),
            format_seconds(layer.seconds.likely),
            write_ends(layer.seconds),
            f"{layer.rows:,}" if layer.rows else "",
            " x ".join(map(str, layer.shape)),
            METHOD_WORDS[layer.method],
            layer.module or "(outside of modules)",
        ]
        for layer in shown
    ]
    lines = render_table(head, rows, style, right=(0, 1, 3)) if rows else []
    left = len(report.layers) - len(shown)
    if left and shown:
        sent = sum(layer.bytes for layer in report.layers) - sum(layer.bytes for layer in shown)
        lines.append(style.paint(f"and {format_count(left, 'layer')} that send less: {write_size(sent)}", 90))
    return titled("Sent by a rank in a step", lines, style)


def _steps(report: ExchangeReport, style: Style) -> list[str]:
    rows = [step_row(f"{report.backend} alone", report.before), step_row("as planned", report.after)]
    lines = render_table(list(STEP_HEAD), rows, style, right=(1, 3, 4, 5, 6))
    if report.memory_bytes:
        lines.append(style.clean(f"What other ranks send takes {write_size(report.memory_bytes)} of a rank's memory."))
    return titled(f"The step ({100 * report.share:.0f} % intervals of the computation)", lines, style)


def step_row(name: str, step: ExchangedStep) -> list[str]:
    """Cells of a predicted step below :data:`STEP_HEAD`."""
    times = (step.exposed_s, step.hidden_s, step.work_s)
    likely = format_seconds(step.step_s.likely)
    return [name, likely, write_ends(step.step_s), *map(format_seconds, times), write_size(step.bytes)]


Refused = tuple[str, str]
"""A method that a layer does not get, and why."""


def common_refusals(shown: Sequence[ExchangedLayer]) -> list[Refused]:
    """What holds for all layers, in the order of methods; nothing for a single layer."""
    every = [{(each.method, each.reason) for each in layer.rejected} for layer in shown]
    common = set[Refused].intersection(*every) if len(every) > 1 else set[Refused]()
    return sorted(common, key=lambda each: list(METHOD_WORDS).index(each[0]))


def own_refusals(layer: ExchangedLayer, common: Collection[Refused]) -> Iterator[str]:
    """Each method that a layer alone does not get, with its figures and the reason."""
    if layer.why_not:
        yield f"late-multiply, rows: {layer.why_not}"
    for each in layer.rejected:
        if (each.method, each.reason) not in common:
            found = f"{write_size(each.bytes)}, {format_seconds(each.seconds.likely)}"
            yield f"{METHOD_WORDS[each.method]} ({found}): {each.reason}"


def rejected_lines(shown: Sequence[ExchangedLayer], style: Style) -> list[str]:
    """Why the other methods are not taken; what holds for all layers is said once, without figures."""
    common = common_refusals(shown)
    lines: list[str] = []
    if common:
        lines.append(style.paint("all layers", 1))
        for method, reason in common:
            lines += wrap(f"  {METHOD_WORDS[method]}: {reason}", style, indent="    ")
    for layer in shown:
        reasons = list(own_refusals(layer, common))
        if reasons:
            lines += wrap(layer.module or "(outside of modules)", style, 1)
            lines += [line for reason in reasons for line in wrap(f"  {reason}", style, indent="    ")]
    return titled("Not taken, and why", lines, style)


def _notes(report: ExchangeReport, style: Style) -> list[str]:
    return [line for note in report.notes for line in wrap(f"Note: {note}.", style, 90)]


def write_ends(span: Span) -> str:
    """An interval of seconds."""
    return f"{format_seconds(span.low)} … {format_seconds(span.high)}"


def write_size(num_bytes: float) -> str:
    """Decimal units, as links are rated: ``1.57 kB``, ``23.5 MB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"
