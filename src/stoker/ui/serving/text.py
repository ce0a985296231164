"""The report of a service as text."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.units import format_count, format_seconds
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.figures import write_clock, write_percent, write_rate
from stoker.ui.report_text import Style
from stoker.ui.serving.figures import ServedPoint, ServedSummary
from stoker.ui.tables import render_table


def render_served(models: Sequence[ServedSummary], style: Style | None = None) -> str:
    """The report, lines joined by newlines, the last one ended by one; empty without models."""
    style = style or Style()
    return "\n".join(_model(each, style) for each in models)


def write_served(summary: ServedSummary) -> str:
    """What happened, in sentences."""
    total = sum(summary.outcomes.values())
    if not total:
        return "No request came."
    text = f"{format_count(total, 'request')}: " + ", ".join(
        f"{count:,} {outcome} ({write_percent(count / total)})" for outcome, count in sorted(summary.outcomes.items())
    )
    text += "."
    if summary.p50_s is not None and summary.p99_s is not None:
        text += f" Answers took {format_seconds(summary.p50_s)} in the middle"
        if summary.all_p99_s is not None:
            text += f", 99 % of them at most {format_seconds(summary.all_p99_s)}"
        text += f"; the 99th percentile of the slowest second was {format_seconds(summary.p99_s)}."
    if summary.retries:
        text += f" {format_count(summary.retries, 'request')} lost an engine and ran again."
    return text


def _model(summary: ServedSummary, style: Style) -> str:
    heading = [style.paint(style.clean(f"stoker serve · {summary.model}"), 1)]
    versions = render_table(
        ("version", "from", "one sample", "largest batch", "computed by", "source"),
        [
            (
                each.version, write_clock(each.t_s), format_seconds(each.costs[0][1]),
                f"{each.costs[-1][0]} in {format_seconds(each.costs[-1][1])}", each.platform, each.source,
            )
            for each in summary.versions
        ],
        style,
        right=(2,),
    )  # fmt: skip
    blocks = [heading, wrap(write_served(summary), style), titled("Versions", versions, style)]
    return join([*blocks, titled("Over time", _course(summary, style), style)], style, "")


def _course(summary: ServedSummary, style: Style) -> list[str]:
    if not summary.rows:
        return []
    rows = [_row(each) for each in summary.rows]
    high = "p99" if summary.all_p99_s is not None else "worst p99"  # earlier records have that of each second alone
    return render_table(("time", "answers/s", "shed/s", "p50", high, "batch"), rows, style, right=(1, 2, 3, 4, 5))


def _row(point: ServedPoint) -> tuple[str, ...]:
    return (
        f"{write_clock(point.from_s)} to {write_clock(point.to_s)}",
        write_rate(point.answers_per_s),
        write_rate(point.shed_per_s),
        "" if point.p50_s is None else format_seconds(point.p50_s),
        "" if point.p99_s is None else format_seconds(point.p99_s),
        "" if point.batch is None else f"{point.batch:.1f}",
    )
