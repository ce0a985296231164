"""Sentences and figures that the text and the page of a simulated cluster share."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.units import format_count, format_seconds
from stoker.records.cluster import PolicyRow, SimReport

CAUSE_WORDS = {
    "no GPU": "no GPU is free",
    "fragmentation": "GPUs are free, but not together",
    "CPUs short": "GPUs are free, but their CPUs are taken",
    "behind another": "another job goes first",
}
"""Why jobs wait."""


def write_gain_factor(gain: float) -> str:
    """A gain as a factor: ``3.18×``, ``0.37×``, ``12×``."""
    return f"{gain:.0f}×" if gain >= 9.95 else f"{gain:.2f}×"


def write_short_times(seconds: Sequence[float]) -> list[str]:
    """Durations of a column in the unit of the shortest, so that they compare: ``31.8 h``, ``52.8 h``.

    Each has its own unit where the longest would have four digits.
    """
    unit = _unit(min(seconds, default=0.0))
    if max(seconds, default=0.0) >= 1000 * _UNITS[unit][0]:
        return [_written(each, _unit(each)) for each in seconds]
    return [_written(each, unit) for each in seconds]


_UNITS = {"s": (1, 0), "min": (60, 0), "h": (3600, 1), "d": (86400, 1)}
"""Seconds and decimals of each."""


def _unit(seconds: float) -> str:
    return "s" if seconds < 120 else "min" if seconds < 7200 else "h" if seconds < 172800 else "d"


def _written(seconds: float, unit: str) -> str:
    size, decimals = _UNITS[unit]
    return f"{seconds / size:.{decimals}f} {unit}"


def policy_cells(report: SimReport) -> list[list[str]]:
    """A row of figures for each policy: name, completion times, gain, makespan, shares of the GPU time."""
    rows = report.policies
    columns = [
        [row.name for row in rows],
        write_short_times([row.mean_jct_s for row in rows]),
        write_short_times([row.p50_jct_s for row in rows]),
        write_short_times([row.p99_jct_s for row in rows]),
        [write_gain_factor(row.jct_gain) for row in rows],
        write_short_times([row.makespan_s for row in rows]),
        [f"{row.utilisation_frac:.0%}" for row in rows],
        [f"{row.allocation_frac:.0%}" for row in rows],
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def find_policy(report: SimReport, name: str) -> PolicyRow | None:
    """A policy's row; None if it was not simulated."""
    return next((row for row in report.policies if row.name == name), None)


def write_sim_facts(report: SimReport) -> list[str]:
    """What was simulated, shortly."""
    added = f", {report.added_cpus:,} of them on nodes without GPUs" if report.added_cpus else ""
    return [
        f"{report.gpus:,} GPUs",
        f"{report.cpus:,} CPUs{added}",
        f"{format_count(report.jobs, 'job')}" + (f" in each of {report.samples} samples" if report.samples > 1 else ""),
    ]


def write_sim_headline(report: SimReport) -> str:
    """The answer in a sentence: what the policy in focus gains over the baseline."""
    row, base = find_policy(report, report.focus), find_policy(report, report.baseline)
    if row is None or base is None or row is base:
        best = min(report.policies, key=lambda each: each.mean_jct_s)
        return f"{best.name}: {format_seconds(best.mean_jct_s)} from arrival to end, on average."
    return (
        f"Jobs end {write_gain_factor(row.jct_gain)} as fast with the allocator: {format_seconds(row.mean_jct_s)} from "
        f"arrival to end on average, instead of {format_seconds(base.mean_jct_s)}. "
        f"{row.utilisation_frac:.0%} of the GPU time computes, instead of {base.utilisation_frac:.0%}."
    )


def write_sim_findings(report: SimReport) -> list[str]:
    """What else the figures say."""
    lines: list[str] = []
    row, most = find_policy(report, report.focus), find_policy(report, "unlimited")
    if row is not None and most is not None and row is not most:
        lines.append(
            f"With CPUs without limit it would be {write_gain_factor(most.jct_gain)}: "
            f"{row.jct_gain / most.jct_gain:.0%} of that is reached."
        )
    if report.samples > 1 and row is not None:
        lines.append(
            f"Single samples range from {write_gain_factor(row.jct_gain_low)} to "
            f"{write_gain_factor(row.jct_gain_high)}: figures are medians."
        )
    static = find_policy(report, "static")
    if static is not None and static.waiting.get("CPUs short", 0.0) > 0.005:
        lines.append(
            f"With CPUs requested with the GPUs, {static.waiting['CPUs short']:.0%} of the waiting is for CPUs "
            f"while GPUs are free, and {static.allocation_frac:.0%} of the GPU time is held."
        )
    if report.cells:
        least = min(report.cells, key=lambda each: each.jct_gain)
        top = max(report.cells, key=lambda each: each.jct_gain)
        lines.append(
            f"Over demand and load the gain goes from {write_gain_factor(least.jct_gain)} to "
            f"{write_gain_factor(top.jct_gain)}: it is the scenario's, not the policy's alone."
        )
    return lines
