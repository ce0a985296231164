"""The exchanges of a run as text: what was planned, what the steps took, what went another way, how the trial ended."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.units import format_count, format_seconds
from stoker.records.exchange import LOSSY, SPLITS, ExchangeRun, ExchangeRuns, SplitRun
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.exchange.plan_text import (
    METHOD_WORDS,
    STEP_HEAD,
    layer_lines,
    rejected_lines,
    shown_layers,
    step_row,
    write_size,
)
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

FALLBACK_HEAD = ("steps", "by all-reduce", "method", "weight", "why")
"""Head of :func:`fallback_rows`."""


def render_exchange_runs(runs: ExchangeRuns, style: Style | None = None) -> str:
    """All exchanges of a run, with a blank line between them; empty where there are none."""
    style = style or Style()
    notes = "".join(f"{line}\n" for note in runs.notes for line in wrap(f"{note}.", style))
    return "\n".join([*(render_exchange_run(run, style) for run in runs.replicas), *([notes] if notes else [])])


def write_exchange_lines(runs: ExchangeRuns) -> list[str]:
    """A line for each module, and for what was not exchanged."""
    return [*(f"exchange of {each.name}: {write_exchange_run(each)}" for each in runs.replicas), *runs.notes]


def render_exchange_run(run: ExchangeRun, style: Style | None = None) -> str:
    """Lines about one module's exchange, joined by newlines, the last one ended by one."""
    style = style or Style()
    report = run.agreed.report
    heading = f"Exchange of {run.name} · {format_count(run.ranks, 'rank')}"
    if report is not None:
        heading += f" · {report.backend} on {report.device} · plan {report.digest}"
    steps = render_table(list(STEP_HEAD), step_rows(run), style, right=(1, 3, 4, 5, 6))
    went = render_table(list(FALLBACK_HEAD), fallback_rows(run), style, right=(0, 1)) if run.counts else []
    shown = shown_layers(report.layers) if report is not None else []
    blocks = (
        [style.paint(style.cut(heading, style.width), 1)],
        wrap(write_exchange_run(run), style, 1),
        titled("The step", steps, style),
        layer_lines(report, shown, style) if report is not None else _given(run, style),
        titled("Layers that were gathered or compressed, step by step", went, style),
        titled(
            "Layers whose weights were split",
            [line for each in write_splits(run) for line in wrap(f"{each}.", style)],
            style,
        ),
        [line for note in write_notes(run) for line in wrap(note, style, 90)],
        rejected_lines(shown, style),
    )
    return join(blocks, style, "")


def write_exchange_run(run: ExchangeRun) -> str:
    """What the exchange of a module came to, as one sentence without its full stop."""
    agreed = run.agreed
    tried = next((each for each in run.splits if not each.kept and each.why), None)
    again = f"; layers that were split are whole again: {tried.why}" if tried is not None else ""
    if not agreed.methods:
        return f"The exchange is torch's own: {agreed.note or 'no layer got another method'}{again}"
    methods = ", ".join(sorted({METHOD_WORDS[each.method] for each in agreed.methods}))
    plan = (
        f"{format_count(len(agreed.methods), 'layer')} by {methods}, {write_size(run.planned_bytes)} a step of a rank "
        f"instead of {write_size(run.plain_bytes)}"
    )
    if any(each.method in LOSSY for each in agreed.methods):
        plan += "; sums were not exact, so losses differ from those of plain DDP"
    if any(each.method in SPLITS for each in agreed.methods):
        plan += ", with the activations of split layers"
    if run.gain is None:
        ended = "followed without a trial" if agreed.report is None else "the program ended during its trial"
        return f"{plan}; {ended}{again}"
    times = f"a step takes {format_seconds(run.planned_step_s)}, {format_seconds(run.plain_step_s)} without the plan"
    return f"{'Kept' if run.kept else 'Given up'} after the trial: {plan}; {times}{again}"


def write_splits(run: ExchangeRun) -> list[str]:
    """What splits that were carried out came to, as sentences without their full stops."""
    return [_split_words(each) for each in run.splits]


def _split_words(split: SplitRun) -> str:
    layers = ", ".join(f"`{name}` by {METHOD_WORDS[method]}" for name, method in split.layers.items())
    if not split.split_step_s:
        why = f"whole again, {split.why}" if split.why else "the program ended before the steps to judge by"
        return f"{layers}: {why}"
    predicted = f" ({format_seconds(split.predicted_step_s)} predicted)" if split.predicted_step_s else ""
    found = (
        f"a step took {format_seconds(split.plain_step_s)} before and {format_seconds(split.split_step_s)} after"
        f"{predicted}, and a rank sent {write_size(split.plain_bytes)} before "
        f"and {write_size(split.split_bytes)} after ({write_size(split.predicted_bytes)} predicted)"
    )
    since = f"split from exchange {split.step} on"
    return f"{layers}: {since}; {found}; {'kept' if split.kept else f'whole again, {split.why}'}"


def step_rows(run: ExchangeRun) -> list[list[str]]:
    """The step without and with the plan, as predicted and as measured, below :data:`STEP_HEAD`."""
    report = run.agreed.report
    rows = [step_row("as torch does it, predicted", report.before)] if report is not None else []
    rows.append(_measured("as torch does it, measured", run.plain_step_s, run.plain_bytes))
    if run.agreed.methods and report is not None:
        rows.append(step_row("with the plan, predicted", report.after))
    if run.agreed.methods and run.planned_step_s:
        rows.append(_measured("with the plan, measured", run.planned_step_s, run.planned_bytes))
    return rows


def fallback_rows(run: ExchangeRun) -> list[list[str]]:
    """How often layers went their planned way, and why not."""
    return [
        [
            f"{each.steps:,}", f"{sum(each.doubts.values()):,}", METHOD_WORDS[each.method], each.weight,
            "; ".join(
                [f"{count:,} x {reason}" for reason, count in each.doubts.items()]
                + ([f"left for good: {each.left}"] if each.left else [])
            ),
        ]
        for each in run.counts
    ]  # fmt: skip


def write_notes(run: ExchangeRun) -> list[str]:
    """What was said during the run, and repairs."""
    notes = [f"Said: {note}." for note in run.notes]
    if run.agreed.methods and run.agreed.note:
        notes.append(f"Note: {run.agreed.note}.")
    notes += [f"Note: {note}." for note in (run.agreed.report.notes if run.agreed.report is not None else [])]
    return notes


def _measured(name: str, seconds: float, sent: float) -> list[str]:
    return [name, format_seconds(seconds) if seconds else "", "", "", "", "", write_size(sent)]


def _given(run: ExchangeRun, style: Style) -> list[str]:
    rows: Sequence[list[str]] = [
        [METHOD_WORDS[each.method], f"{each.rows:,}" if each.rows else "", each.module] for each in run.agreed.methods
    ]
    lines = render_table(["method", "rows", "layer"], list(rows), style, right=(1,)) if rows else []
    return titled("Methods that the program gave", lines, style)
