"""The drawings of a simulated cluster: completion times as curves, grants, GPUs and queues over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stoker.core.units import format_hours
from stoker.records.cluster import SimReport, UseSeries
from stoker.ui.html_page import Figure
from stoker.ui.svg import Plot, nice_ticks

_CLASSES = {
    "none": "call", "static": "c3", "greedy": "c0", "max-min": "c4", "jct": "c1", "jct-known": "c2", "unlimited": "c5",
}  # fmt: skip
"""Class of the line of each policy that is drawn; more would not be told apart."""


def policy_legend(report: SimReport) -> list[tuple[str, str]]:
    """Colour and name of each policy that is drawn."""
    return [(_CLASSES[row.name], row.name) for row in report.policies if row.name in _CLASSES]


def draw_jct_curves(report: SimReport) -> Figure:
    """How many jobs end within how long, by policy; time is logarithmic."""
    curves = [curve for curve in report.curves if curve.policy in _CLASSES]
    low = max(1.0, min(curve.jct_s[2] for curve in curves))
    high = max(curve.jct_s[-1] for curve in curves)
    first, last = math.log10(low), max(math.log10(high), math.log10(low) + 0.1)
    plot = Plot(
        title="Jobs that end within so long of their arrival, by policy",
        begin_s=first,
        end_s=last,
        ticks=[0, 0.25, 0.5, 0.75, 1.0],
        write_value=lambda value: f"{100 * value:.0f}",
        write_time=lambda power: _PLACES[round(10**power)],
        places=_ticks(first, last),
    )
    for curve in curves:
        points = [(math.log10(max(seconds, low)), percent / 100) for percent, seconds in enumerate(curve.jct_s)]
        plot.line(points, _CLASSES[curve.policy])
    steps = 40
    for number in range(steps):
        begin, end = (first + (last - first) * each / steps for each in (number, number + 1))
        within = 10 ** ((begin + end) / 2)
        words = ", ".join(f"{curve.policy} {_reached(curve.jct_s, within):.0f} %" for curve in curves)
        plot.explain(begin, end, f"jobs that end within {format_hours(within / 3600)}: {words}")
    return Figure(
        title="Jobs that have ended", unit="% of jobs, by time since arrival", legend=[], drawing=plot.render()
    )


_PLACES = {
    1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 10_800: "3 h", 36_000: "10 h", 86_400: "1 day",
    259_200: "3 days", 864_000: "10 days", 2_592_000: "30 days", 8_640_000: "100 days",
}  # fmt: skip
"""Labelled times, in seconds, and their labels."""
_LEAST_TICK_FRAC = 0.1
"""Labels stand at least so far apart."""


def _ticks(first: float, last: float) -> list[float]:
    """Powers of ten of labelled times, none too close to the one before."""
    kept: list[float] = []
    for place in map(math.log10, _PLACES):
        if first <= place <= last and (not kept or place - kept[-1] >= _LEAST_TICK_FRAC * (last - first)):
            kept.append(place)
    return kept


def _reached(jct_s: Sequence[float], within_s: float) -> float:
    """Percent of the jobs with at most this."""
    return float(sum(seconds <= within_s for seconds in jct_s) - 1)


def draw_grants(report: SimReport) -> list[Figure]:
    """CPUs at work and GPUs that compute, over time."""
    return [
        _over_time(report, "CPUs granted", "CPUs", lambda series: series.granted_cpus, report.cpus),
        _over_time(report, "GPUs that compute", "GPUs", lambda series: series.busy_gpus, report.gpus),
        _over_time(report, "GPUs that are held", "GPUs", lambda series: series.held_gpus, report.gpus),
    ]


def draw_queues(report: SimReport) -> Figure:
    """Jobs that wait, over time."""
    most = max((value for series in _drawn(report) for value in series.queued), default=1.0)
    return _over_time(report, "Jobs that wait", "jobs", lambda series: series.queued, most)


def _drawn(report: SimReport) -> list[UseSeries]:
    return [series for series in report.series if series.policy in _CLASSES]


def _over_time(
    report: SimReport, title: str, unit: str, values: Callable[[UseSeries], Sequence[float]], top: float
) -> Figure:
    drawn = [series for series in _drawn(report) if unit != "CPUs" or series.policy != "unlimited"]
    end_s = max((series.times_s[-1] for series in drawn), default=1.0)
    plot = Plot(
        title=f"{title} over time, by policy",
        begin_s=0.0,
        end_s=end_s,
        ticks=nice_ticks(max(1.0, top)),
        write_value=lambda value: f"{value:,.0f}",
        write_time=lambda seconds: format_hours(seconds / 3600) if seconds else "0",
        places=[3600 * hours for hours in nice_ticks(end_s / 3600, 4) if 3600 * hours <= end_s],
    )
    for series in drawn:
        points = _thinned(list(zip(series.times_s, values(series), strict=True)), 240)
        plot.line(_corners(points), _CLASSES[series.policy])
    return Figure(title=title, unit=unit, legend=[], drawing=plot.render())


def _thinned(points: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Means over equal numbers of points, where there are more than can be seen."""
    size = -(-len(points) // most)
    if size <= 1:
        return points
    parts = [points[begin : begin + size] for begin in range(0, len(points), size)]
    return [(part[0][0], sum(value for _, value in part) / len(part)) for part in parts]


def _corners(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A line that keeps each value until the next."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    return found
