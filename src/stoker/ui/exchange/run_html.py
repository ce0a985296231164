"""The exchanges of a run as a section of its page: bars of both steps, tables of layers and of doubts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stoker.core.units import format_seconds
from stoker.records.exchange import ExchangeRun
from stoker.ui.exchange.plan_text import METHOD_WORDS, shown_layers, write_ends, write_size
from stoker.ui.exchange.run_text import (
    FALLBACK_HEAD,
    STEP_HEAD,
    fallback_rows,
    step_rows,
    write_exchange_run,
    write_notes,
)
from stoker.ui.html_page import BarPart, draw_bar, draw_list, draw_section, draw_table


def draw_exchanges(runs: Sequence[ExchangeRun]) -> str:
    """A section with a card for each replicated module; nothing where there are none."""
    cards = "".join(f'<div class="card">{_drawn(run)}</div>' for run in runs)
    return draw_section("Exchange of gradients", cards, "Bytes and seconds of a step of one rank.") if cards else ""


def _drawn(run: ExchangeRun) -> str:
    report = run.agreed.report
    parts = [
        f"<p>{escape(f'{run.name}, {run.ranks} ranks: {write_exchange_run(run)}.')}</p>",
        _bars(run),
        draw_table(list(STEP_HEAD), step_rows(run), numbers=(1, 3, 4, 5)),
    ]
    if report is not None:
        parts.append(_layers(run))
    if run.counts:
        parts.append(draw_table(list(FALLBACK_HEAD), fallback_rows(run), numbers=(0, 1)))
    parts.append(draw_list(write_notes(run)))
    return "".join(parts)


def _bars(run: ExchangeRun) -> str:
    """Measured steps, without and with the plan, on one scale; nothing where one of them was not measured."""
    longest = max(run.plain_step_s, run.planned_step_s)
    if not run.plain_step_s or not run.planned_step_s:
        return ""
    rows = ""
    for name, seconds, kind in (("as torch does it", run.plain_step_s, "s1"), ("planned", run.planned_step_s, "s0")):
        text = format_seconds(seconds)
        bar = draw_bar([
            BarPart(frac=seconds / longest, text=text, title=f"{name}: {text}", kind=kind),
            BarPart(frac=1 - seconds / longest, text="", title="", kind="rest"),
        ])  # fmt: skip
        rows += f'<div class="soft small">{escape(name)}</div>{bar}'
    return f'<div class="bars">{rows}</div>'


def _layers(run: ExchangeRun) -> str:
    report = run.agreed.report
    assert report is not None
    rows = [
        [
            layer.module or "(outside of modules)", METHOD_WORDS[layer.method], write_size(layer.bytes),
            format_seconds(layer.seconds.likely), write_ends(layer.seconds),
            "; ".join(
                f"{METHOD_WORDS[each.method]} ({write_size(each.bytes)}, {format_seconds(each.seconds.likely)}): "
                f"{each.reason}"
                for each in layer.rejected
            ) or layer.why_not,
        ]
        for layer in shown_layers(report.layers)
    ]  # fmt: skip
    return draw_table(["layer", "method", "bytes", "seconds", "from … to", "not taken"], rows, numbers=(2, 3))
