"""The plots of a loader over time: data and labels; :mod:`stoker.ui.svg` draws them."""

from __future__ import annotations

from collections.abc import Callable

from stoker.core.units import format_count
from stoker.records.events import WorkerLost
from stoker.records.parts import REPORTED
from stoker.records.runlog import Run
from stoker.ui.figures import write_clock, write_percent, write_rate
from stoker.ui.html_page import Figure
from stoker.ui.loaders import LoaderSummary
from stoker.ui.series import Point, pieces, worker_steps
from stoker.ui.svg import Pair, Plot, count_ticks, nice_ticks

MIN_POINTS = 4
"""Fewer spans than this are no course."""


def draw_loader(run: Run, loader: LoaderSummary, end_s: float) -> list[Figure]:
    """The plots of one loader; none where its records show no course."""
    stretches = pieces(run, loader.loader)
    if sum(len(stretch) for stretch in stretches) < MIN_POINTS:
        return []
    figures = [_throughput(stretches, end_s), _split(stretches, end_s)]
    if loader.workers_max:
        # A loader in the training process has neither workers nor a queue.
        figures += [_workers(run, loader, stretches, end_s), _queue(stretches, end_s)]
    return figures


def has_gaps(run: Run, loader: LoaderSummary) -> bool:
    """Whether the program left the loader alone for a while, so that its plots are broken."""
    return len(pieces(run, loader.loader)) > 1


def _plot(title: str, end_s: float, ticks: list[float], percent: bool = False) -> Plot:
    def write_value(value: float) -> str:
        return f"{100 * value:.0f}" if percent else f"{value:,.10g}"

    return Plot(title=title, begin_s=0.0, end_s=end_s, ticks=ticks, write_value=write_value, write_time=write_clock)


def _rate(point: Point) -> float:
    return point.window.samples_per_s or point.window.batches_per_s


def _throughput(stretches: list[list[Point]], end_s: float) -> Figure:
    unit = "samples/s" if stretches[0][0].window.samples_per_s else "batches/s"
    top = max(_rate(point) for stretch in stretches for point in stretch)
    plot = _plot(f"Throughput over time in {unit}", end_s, nice_ticks(top))
    for stretch in stretches:
        # The mean of a span holds for all of it: drawn from edge to edge, so that stretches have their true length.
        points = _edges(stretch, _rate)
        plot.area(points, "s2 faint")
        plot.line(points, "s2")
        for point in stretch:
            plot.explain(point.from_s, point.to_s, f"{_span(point)}: {write_rate(_rate(point))} {unit}")
    return Figure(title="Throughput", unit=unit, legend=[], drawing=plot.render())


def _edges(stretch: list[Point], value: Callable[[Point], float]) -> list[Pair]:
    inner = [(point.middle_s, value(point)) for point in stretch]
    return [(stretch[0].from_s, inner[0][1]), *inner, (stretch[-1].to_s, inner[-1][1])]


def _split(stretches: list[list[Point]], end_s: float) -> Figure:
    plot = _plot("Shares of the step time over time in percent", end_s, [0, 0.25, 0.5, 0.75, 1.0], percent=True)
    for stretch in stretches:
        lower = _edges(stretch, lambda _: 0.0)
        for number in range(len(REPORTED)):
            upper = _edges(stretch, _share_up_to(number))
            plot.band(lower, upper, f"s{number}")
            lower = upper
        for point in stretch:
            parts = zip(REPORTED, point.window.split.parts(), strict=True)
            words = ", ".join(f"{name} {write_percent(part)}" for name, part in parts)
            plot.explain(point.from_s, point.to_s, f"{_span(point)}: {words}")
    legend = [(f"s{number}", name) for number, name in enumerate(REPORTED)]
    return Figure(title="Where a step's time goes", unit="% of step time", legend=legend, drawing=plot.render())


def _share_up_to(number: int) -> Callable[[Point], float]:
    return lambda point: sum(point.window.split.parts()[: number + 1])


def _workers(run: Run, loader: LoaderSummary, stretches: list[list[Point]], end_s: float) -> Figure:
    steps = worker_steps(run, loader.loader)
    top = max([loader.workers_max, *(step.workers for step in steps)])
    plot = _plot("Data workers over time", end_s, count_ticks(top))
    plot.steps([(step.t_s, float(step.workers)) for step in steps], "s1")
    for stretch in stretches:
        for point in stretch:
            plot.explain(point.from_s, point.to_s, f"{_span(point)}: {format_count(point.workers, 'worker')}")
    for step in steps:
        if step.reason:
            text = f"{write_clock(step.t_s)}: {format_count(step.workers, 'worker')}, because {step.reason}"
            plot.mark(step.t_s, "change", text)
    lost = [event for event in run.events if isinstance(event, WorkerLost) and event.loader == loader.loader]
    # A burst of losses would cover the plot; the table below counts them all.
    for event in lost[:50]:
        plot.mark(event.t_s, "lost", f"{write_clock(event.t_s)}: worker {event.worker} lost, {event.cause}")
    legend = [("m-change", "decision of the policy")] if any(step.reason for step in steps) else []
    legend += [("m-lost", "worker lost")] if lost else []
    return Figure(title="Data workers", unit="workers", legend=legend, drawing=plot.render())


def _queue(stretches: list[list[Point]], end_s: float) -> Figure:
    top = max(point.capacity for stretch in stretches for point in stretch)
    plot = _plot("Batches ready in the queue over time, and its capacity", end_s, count_ticks(top))
    for stretch in stretches:
        ready = _edges(stretch, lambda point: float(point.ready))
        plot.area(ready, "s1 faint")
        plot.line(ready, "s1")
        plot.line(_edges(stretch, lambda point: float(point.capacity)), "limit")
        for point in stretch:
            plot.explain(point.from_s, point.to_s, f"{_span(point)}: {point.ready} of {point.capacity} ready")
    legend = [("s1", "ready"), ("limit", "capacity")]
    return Figure(title="Queue", unit="batches", legend=legend, drawing=plot.render())


def _span(point: Point) -> str:
    return f"{write_clock(point.from_s)} to {write_clock(point.to_s)}"
