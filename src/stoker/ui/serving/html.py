"""The report of a service as one page: latency, rate and batches over time."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from stoker.core.units import format_seconds
from stoker.records.runlog import Run
from stoker.ui.figures import write_clock, write_percent, write_rate
from stoker.ui.html_page import Figure, draw_figure, draw_header, draw_section, draw_table, draw_tiles, render_page
from stoker.ui.serving.figures import ServedPoint, ServedSummary
from stoker.ui.serving.text import write_served
from stoker.ui.svg import Pair, Plot, nice_ticks

_MS = 1e3


def render_served_html(run: Run, models: Sequence[ServedSummary]) -> str:
    """The page of a run that served."""
    program = shlex.join(run.header.argv) or run.header.run_id
    parts = [draw_header("stoker report", program, f"on {run.header.hostname}, {run.header.cores:g} cores")]
    parts += [_section(each) for each in models]
    return render_page(f"{program} · stoker report", "\n".join(parts))


def _section(summary: ServedSummary) -> str:
    versions = draw_table(
        ("version", "from", "one sample", "computed by", "source"),
        [
            (each.version, write_clock(each.t_s), format_seconds(each.costs[0][1]), each.platform, each.source)
            for each in summary.versions
        ],
        numbers=(2,),
    )
    figures = "".join(map(draw_figure, draw_served(summary)))
    card = f'<div class="card"><h3>Versions</h3>{versions}</div>'
    return draw_section(
        summary.model, f'{_tiles(summary)}<div class="grid">{figures}{card}</div>', write_served(summary)
    )


def _tiles(summary: ServedSummary) -> str:
    """What a person looks for first; nothing without requests."""
    total = sum(summary.outcomes.values())
    if not total:
        return ""
    answered = summary.outcomes.get("answered", 0)
    shed = sum(summary.outcomes.get(kind, 0) for kind in ("refused", "dropped"))
    p99_s = summary.p99_s if summary.all_p99_s is None else summary.all_p99_s
    middle, high = (
        ("–", "", "") if each is None else format_seconds(each).partition(" ") for each in (summary.p50_s, p99_s)
    )
    return draw_tiles(
        [
            ("Answered", f"{answered:,}", "requests", f"{write_percent(answered / total)} of all"),
            ("Shed", f"{shed:,}", "requests", "refused on arrival or dropped"),
            ("Median answer", middle[0], middle[2], "from arrival to answer"),
            (
                "99th percentile",
                high[0],
                high[2],
                "of the slowest second" if summary.all_p99_s is None else "of all answers",
            ),
        ]
    )


def draw_served(summary: ServedSummary) -> list[Figure]:
    """Plots over time; none without requests."""
    points = summary.points
    if not points:
        return []
    starts = [(each.t_s, f"{write_clock(each.t_s)}: version {each.version} is warm") for each in summary.versions[1:]]

    def latency(point: ServedPoint) -> str:
        if point.p50_s is None or point.p99_s is None:
            return "no answers"
        return f"p50 {format_seconds(point.p50_s)}, p99 {format_seconds(point.p99_s)}"

    return [
        _figure(
            points, starts, "Latency over time", "ms", latency,
            [
                ("s1", "99th percentile", lambda point: None if point.p99_s is None else _MS * point.p99_s),
                ("s2", "median", lambda point: None if point.p50_s is None else _MS * point.p50_s),
            ],
        ),
        _figure(
            points, starts, "Requests over time", "per second",
            lambda point: f"{write_rate(point.answers_per_s)} answered, {write_rate(point.shed_per_s)} shed",
            [
                ("s2", "answered", lambda point: point.answers_per_s),
                ("s1", "refused or dropped", lambda point: point.shed_per_s),
            ],
        ),
        _figure(
            points, starts, "Samples of a batch", "samples",
            lambda point: "no batch" if point.batch is None else f"{point.batch:.1f} samples",
            [("s2", "mean", lambda point: point.batch)],
        ),
    ]  # fmt: skip


_Series = tuple[str, str, Callable[[ServedPoint], float | None]]


def _figure(
    points: Sequence[ServedPoint], starts: Sequence[tuple[float, str]], title: str, unit: str,
    words: Callable[[ServedPoint], str], series: Sequence[_Series],
) -> Figure:  # fmt: skip
    tops = [value for point in points for _, _, of in series if (value := of(point)) is not None]
    plot = Plot(
        title=f"{title} in {unit}", begin_s=0.0, end_s=points[-1].to_s, ticks=nice_ticks(max(tops, default=1.0)),
        write_value=lambda value: f"{value:,.10g}", write_time=write_clock,
    )  # fmt: skip
    for kind, _, of in series:
        line: list[Pair] = [
            ((point.from_s + point.to_s) / 2, value) for point in points if (value := of(point)) is not None
        ]
        plot.line(line, kind)
    for point in points:
        plot.explain(point.from_s, point.to_s, f"{write_clock(point.to_s)}: {words(point)}")
    for at_s, text in starts:
        plot.mark(at_s, "change", text)
    return Figure(title=title, unit=unit, legend=[(kind, name) for kind, name, _ in series], drawing=plot.render())
