"""A fleet's report as text: tables, each under the question that it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.records.fleet import OUTCOMES, FleetReport, Port, Shares
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.figures import write_count
from stoker.ui.fleet_words import (
    ALL,
    PORTS,
    SYNTHETIC,
    largest_groups,
    write_facts,
    write_findings,
    write_gain,
    write_headline,
    write_weighting,
)
from stoker.ui.report_text import Style
from stoker.ui.tables import render_facts, render_table

_SHORT = {
    "compute": "compute",
    "memory": "memory",
    "pcie": "PCIe",
    "nvlink": "NVLink",
    "ethernet": "Ethernet",
}
"""Heads of narrow columns, by part or resource."""


def render_fleet(report: FleetReport, style: Style | None = None, command: str = "") -> str:
    """The report, lines joined by newlines, the last one ended by one.

    Args:
        report: what was found.
        style: what the terminal shows.
        command: that shows more, if there is one.
    """
    style = style or Style()
    blocks = (
        _heading(report, style),
        _verdict(report, style),
        _groups(report, style),
        _shares(report, style),
        _bottlenecks(report, style),
        _ports(report, style),
        _upgrades(report, style),
        _sensitivities(report, style),
        _published(report, style),
        _missing(report, style),
        _constants(report, style),
    )
    return join(blocks, style, command)


def _heading(report: FleetReport, style: Style) -> list[str]:
    lines = [style.paint(style.cut(f"stoker fleet · {report.name}", style.width), 1)]
    lines += [style.cut(" · ".join(write_facts(report)), style.width), style.paint(style.clean("─" * style.width), 90)]
    if report.synthetic:
        lines.append(style.paint(style.clean(SYNTHETIC), 33))
    lines += wrap(f"Read as {report.form}.", style, 90)
    return lines + [line for note in report.notes for line in wrap(f"Note: {note}.", style, 33)]


def _verdict(report: FleetReport, style: Style) -> list[str]:
    lines = wrap(write_headline(report), style, 1)
    return lines + [line for finding in write_findings(report) for line in wrap(finding, style)]


def _groups(report: FleetReport, style: Style) -> list[str]:
    rows = [
        [
            group.name,
            write_count(group.jobs),
            _percent(group.job_frac),
            write_count(group.gpus),
            _percent(group.gpu_frac),
        ]
        for group in report.groups
    ]
    weighting = "" if report.weighting == "GPUs" else f"% of {report.weighting}"
    head = ["class", "jobs", "%", "GPUs", weighting or "%"]
    return titled("Jobs by class", render_table(head, rows, style, right=(1, 2, 3, 4)), style)


def _percent(frac: float) -> str:
    return f"{100 * frac:.1f}"


def _shares(report: FleetReport, style: Style) -> list[str]:
    if not report.shares:
        return []
    head = ["class", *(_SHORT.get(part, part) for part in report.parts)]
    right = tuple(range(1, len(head)))

    def rows(at_gpu: bool) -> list[list[str]]:
        return [_share_row(shares, at_gpu, report.parts) for shares in report.shares]

    title = f"Where the time of a step goes, in %: {write_weighting(report)}"
    job = render_table(["at job level", *head[1:]], rows(False), style, right=right)
    gpu = render_table(["at GPU level", *head[1:]], rows(True), style, right=right)
    return titled(title, [*job, "", *gpu], style)


def _share_row(shares: Shares, at_gpu: bool, parts: Sequence[str]) -> list[str]:
    values = shares.at_gpu if at_gpu else shares.at_job
    return [shares.group, *(_percent(values[part]) if values[part] else "-" for part in parts)]


def _bottlenecks(report: FleetReport, style: Style) -> list[str]:
    names = list(report.bottlenecks[0].at_job) if report.bottlenecks else []
    if names == report.parts:
        # If stages overlap, the longest one is the whole step: the table above shows it.
        return []
    rows = [[each.group, *_cells(each.at_job, names)] for each in report.bottlenecks]
    rows[-1][0] = ALL
    whole = report.bottlenecks[-1]
    rows.append(["at GPU level", *_cells(whole.at_gpu, names)])
    lines = render_table(["class", *(_SHORT.get(name, name) for name in names)], rows, style, right=_after_first(names))
    return titled("What takes longest in a step, in % of the jobs", lines, style)


def _cells(values: Mapping[str, float], names: Sequence[str]) -> list[str]:
    return [_percent(values[name]) if values[name] else "-" for name in names]


def _after_first(names: Sequence[str]) -> tuple[int, ...]:
    return tuple(range(1, len(names) + 1))


def _ports(report: FleetReport, style: Style) -> list[str]:
    if not report.ports:
        return []
    head = ["port", "jobs", "per GPU", "% faster", "as a job", "% faster", "10 % of jobs … 90 %"]
    rows = [
        [
            f"{port.source} → {port.target}",
            write_count(port.jobs),
            write_gain(port.per_gpu.median),
            _percent(port.per_gpu.faster_frac),
            write_gain(port.whole.median),
            _percent(port.whole.faster_frac),
            f"{write_gain(port.whole.p10)} … {write_gain(port.whole.p90)}",
        ]
        for port in report.ports
    ]
    gains = render_table(head, rows, style, right=tuple(range(1, 7)))
    return titled(
        "Who gains from porting (median gain of one GPU's step, and of the job)",
        [*wrap(PORTS, style, 90), *gains, "", *_outcomes(report.ports, style)],
        style,
    )


def _outcomes(ports: Sequence[Port], style: Style) -> list[str]:
    """What becomes of the jobs, and what the words mean."""
    words = [word for word in OUTCOMES if any(word in port.outcomes for port in ports)]
    rows = [
        [f"{port.source} → {port.target}", *(write_count(port.outcomes.get(word, 0)) for word in words)]
        for port in ports
    ]
    table = render_table(["jobs by outcome", *words], rows, style, right=_after_first(words))
    return table + [style.paint(style.cut(f"{word}: {OUTCOMES[word]}", style.width), 90) for word in words]


def _upgrades(report: FleetReport, style: Style) -> list[str]:
    if not report.upgrades:
        return []
    groups = largest_groups(report)
    head = ["resource", "now → then", "% time saved", "% jobs gain", "all", *groups]
    rows = [
        [
            upgrade.resource,
            f"{upgrade.before} → {upgrade.after}" + upgrade.mark.replace("(unverified)", "*"),
            _percent(upgrade.gpu_time_saved_frac),
            _percent(upgrade.faster_frac),
            *(write_gain(upgrade.speedup[name]) for name in (ALL, *groups)),
        ]
        for upgrade in report.upgrades
    ]
    lines = render_table(head, rows, style, right=tuple(range(2, len(head))))
    if any(upgrade.mark for upgrade in report.upgrades):
        lines.append(
            style.paint(
                style.clean(
                    "* unverified: this step of the grid is recalled from the study; a job gains by 5 % or more"
                ),
                90,
            )
        )
    return titled("What an upgrade of one resource buys (mean speed-up)", lines, style)


def _sensitivities(report: FleetReport, style: Style) -> list[str]:
    if not report.sensitivities:
        return []
    rows = [
        [each.group, ", ".join(f"{name} {write_gain(gain)}" for name, gain in each.speedup if gain > 1.0005)]
        for each in report.sensitivities
    ]
    lines = render_facts([(name, text) for name, text in rows], style)
    return titled("Most telling resource first: mean speed-up when it is twice as fast", lines, style)


def _published(report: FleetReport, style: Style) -> list[str]:
    if not report.comparisons:
        return []
    rows = [
        [each.what + each.mark, each.published, each.found, f"{each.off_points:.1f}"] for each in report.comparisons
    ]
    lines = render_table(["figure", "published", "here", "points off"], rows, style, right=(1, 2, 3))
    return titled("Compared with the published figures", lines, style)


def _missing(report: FleetReport, style: Style) -> list[str]:
    lines = [line for each in report.missing for line in wrap(f"{each.what}: needs {each.needs}", style)]
    return titled("Omitted: missing columns", lines, style)


def _constants(report: FleetReport, style: Style) -> list[str]:
    *facts, paths = [(each.name, each.value + each.mark) for each in report.constants] or [("", "")]
    if not facts:
        return []
    lines = [*render_facts(facts, style), *wrap(": ".join(paths), style)]
    return titled("Assumed hardware (--hardware changes it)", lines, style)
