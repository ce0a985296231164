"""Model averaging as text: how far the ranks agreed, how long they trained apart, what it saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.core.units import format_bytes, format_count, format_seconds
from stoker.records.events import Event, ModelAveraged
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

_SPANS = 12
"""Rows of the course, each of as many steps."""
_BAR = 24
DIFFERS = "Losses differ from those of DDP: ranks train apart between averages."


@dataclass(frozen=True, slots=True)
class AveragingSpan:
    """Averages of a span of steps."""

    first: int
    last: int
    """Steps, both included."""
    averages: int
    period: float
    """Steps between two averages, the mean."""
    agreement: float | None
    """Mean; None where nothing changed."""
    exchange_frac: float
    """Share of the time that went to averages."""


def averages_of(events: Sequence[Event]) -> list[list[ModelAveraged]]:
    """The averages of each model of a run, in the order of first averages."""
    found: dict[str, list[ModelAveraged]] = {}
    for event in events:
        if isinstance(event, ModelAveraged):
            found.setdefault(event.model, []).append(event)
    return list(found.values())


def render_averaging(records: Sequence[ModelAveraged], style: Style | None = None) -> str:
    """Lines about one model's averages, joined by newlines, the last one ended by one; empty without records."""
    if not records:
        return ""
    style = style or Style()
    last = records[-1]
    heading = [style.paint(style.clean(f"Model averaging · {last.model} · {format_count(last.ranks, 'rank')}"), 1)]
    return join((heading, wrap(write_averaging(records), style), _course(records, style)), style, "")


def write_averaging(records: Sequence[ModelAveraged]) -> str:
    """What happened, in sentences."""
    last = records[-1]
    reasons = dict.fromkeys(record.reason for record in records)
    counts = ", ".join(f"{sum(r.reason == reason for r in records)} {_because(reason)}" for reason in reasons)
    mean_s = sum(record.exchange_s for record in records) / len(records)
    return (
        f"{DIFFERS} {format_count(len(records), 'average')} in {last.step} steps ({counts}), the last period "
        f"{format_count(last.period, 'step')}. An average took {format_seconds(mean_s)} and carried "
        f"{format_bytes(last.bytes)} of weights, running statistics and optimizer state."
    )


def _because(reason: str) -> str:
    return {"warm-up": "in the warm-up", "period": "by period"}.get(reason, reason)


def spans_of(records: Sequence[ModelAveraged], most: int = _SPANS) -> list[AveragingSpan]:
    """The course of agreement and period, in spans of equal length; spans without an average are left out."""
    begin = records[0].step - records[0].steps_since
    length = max(1, -(-(records[-1].step - begin) // most))
    found: dict[int, list[ModelAveraged]] = {}
    for record in records:
        found.setdefault((record.step - begin - 1) // length, []).append(record)
    return [_span(begin + place * length, length, own) for place, own in sorted(found.items())]


def _span(begin: int, length: int, records: Sequence[ModelAveraged]) -> AveragingSpan:
    agreements = [record.agreement for record in records if record.agreement is not None]
    exchange_s = sum(record.exchange_s for record in records)
    compute_s = sum(record.compute_s * record.steps_since for record in records)
    return AveragingSpan(
        first=begin + 1,
        last=begin + length,
        averages=len(records),
        period=sum(record.steps_since for record in records) / len(records),
        agreement=sum(agreements) / len(agreements) if agreements else None,
        exchange_frac=exchange_s / (exchange_s + compute_s) if exchange_s + compute_s > 0 else 0.0,
    )


def _course(records: Sequence[ModelAveraged], style: Style) -> list[str]:
    rows = [
        [
            f"{span.first}-{min(span.last, records[-1].step)}",
            f"{span.averages}",
            f"{span.period:.1f}",
            f"{100 * span.exchange_frac:.0f} %",
            "" if span.agreement is None else f"{span.agreement:.2f}",
            "=" * round(_BAR * (span.agreement or 0.0)),
        ]
        for span in spans_of(records)
    ]
    head = ["steps", "averages", "period", "exchange", "agreement", ""]
    lines = render_table(head, rows, style, right=(0, 1, 2, 3, 4))
    unrelated = (
        f"Agreement is 1 where all ranks change their weights alike and {1 / records[-1].ranks:.2f} where their "
        "changes are unrelated; below it they undo each other."
    )
    return titled("Agreement and period", [*lines, *wrap(unrelated, style, 90)], style)
