"""The plots of model averaging over the steps of a training; :mod:`stoker.ui.svg` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.records.events import ModelAveraged
from stoker.ui.exchange.averaging_text import AveragingSpan, spans_of
from stoker.ui.html_page import Figure
from stoker.ui.svg import Plot, count_ticks

_SPANS = 60


def draw_averaging(records: Sequence[ModelAveraged]) -> list[Figure]:
    """Agreement and period of one model; nothing where there are too few averages for a course."""
    spans = spans_of(records, _SPANS) if records else []
    if len(spans) < 2:
        return []
    top = count_ticks(max(1, max(round(span.period + 0.5) for span in spans)))
    agreement = _drawn(spans, "Agreement of the ranks", [0, 0.25, 0.5, 0.75, 1.0], lambda span: span.agreement, "s0")
    period = _drawn(spans, "Steps between averages", top, lambda span: span.period, "s2")
    return [
        Figure(title="Agreement", unit="1: alike, by step", legend=[], drawing=agreement),
        Figure(title="Period", unit="steps between averages, by step", legend=[], drawing=period),
    ]


def _drawn(
    spans: Sequence[AveragingSpan],
    title: str,
    ticks: list[float],
    value: Callable[[AveragingSpan], float | None],
    kind: str,
) -> str:
    last = float(spans[-1].last)
    plot = Plot(
        title=f"{title} over the steps", begin_s=float(spans[0].first), end_s=last, ticks=ticks,
        write_value=lambda number: f"{number:g}", write_time=lambda step: f"{step:.0f}",
        places=[count for count in count_ticks(int(last)) if count <= last],
    )  # fmt: skip
    points = [((span.first + span.last) / 2, found) for span in spans if (found := value(span)) is not None]
    plot.line(points, kind)
    for span in spans:
        found = value(span)
        if found is not None:
            plot.explain(span.first, span.last + 1, f"steps {span.first} to {span.last}: {found:.2f}")
    return plot.render()
