"""A fleet's report as one HTML page that needs nothing else: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from stoker.records.fleet import OUTCOMES, FleetReport, Port, PortedJob
from stoker.ui.figures import write_count, write_percent
from stoker.ui.fleet_plots import (
    COLOURS,
    curve_legend,
    draw_columns,
    draw_curves,
    draw_sensitivities,
    draw_stack,
    draw_upgrades,
)
from stoker.ui.fleet_style import FLEET_STYLE
from stoker.ui.fleet_words import (
    ALL,
    GAINS,
    PORTS,
    SYNTHETIC,
    best_port,
    best_upgrade,
    find_all,
    largest_groups,
    summed,
    write_facts,
    write_findings,
    write_gain,
    write_headline,
    write_weighting,
)
from stoker.ui.html_page import (
    BarPart,
    draw_answer,
    draw_bar,
    draw_facts,
    draw_figure,
    draw_header,
    draw_legend,
    draw_list,
    draw_section,
    draw_table,
    draw_tiles,
    render_page,
)

_OUTCOME_COLOURS = {"gains": "c1", "too large": "c2", "fewer GPUs": "c4", "input contends": "c0", "slower": "c3"}


def render_fleet_page(report: FleetReport) -> str:
    """The page."""
    body = "\n".join(part for part in _parts(report) if part)
    return render_page(f"{report.name} · stoker fleet", body, FLEET_STYLE)


def _parts(report: FleetReport) -> Iterable[str]:
    yield _header(report)
    if report.synthetic:
        yield f'<div class="card banner">{escape(SYNTHETIC)}</div>'
    yield _verdict(report)
    yield _tiles(report)
    yield _shares(report)
    yield _curves(report)
    yield _bottlenecks(report)
    yield _ports(report)
    yield _upgrades(report)
    yield _sensitivities(report)
    yield _groups(report)
    yield _published(report)
    yield _missing(report)
    yield _constants(report)


def _header(report: FleetReport) -> str:
    return draw_header("stoker fleet", report.name, " · ".join([*write_facts(report), report.form]))


def _verdict(report: FleetReport) -> str:
    lines = [*write_findings(report), *(f"{note[:1].upper()}{note[1:]}." for note in report.notes)]
    return draw_answer("Where the time of the fleet goes", write_headline(report), draw_list(lines, "soft"))


def _tiles(report: FleetReport) -> str:
    whole = find_all(report.shares)
    if whole is None:
        return ""
    sums = summed(whole.at_gpu)
    largest = max(sums, key=lambda name: sums[name])
    jobs = summed(whole.at_job)[largest]
    tiles = [
        (largest.capitalize(), f"{100 * sums[largest]:.0f}", "% of GPU time", f"{write_percent(jobs)} at job level"),
        ("Jobs", write_count(report.jobs), "", f"on {write_count(report.gpus)} GPUs"),
    ]
    if (upgrade := best_upgrade(report)) is not None:
        saved = f"{100 * upgrade.gpu_time_saved_frac:.0f}"
        tiles.append(
            (
                f"{upgrade.resource} to {upgrade.after}{upgrade.mark}",
                saved,
                "% of GPU time saved",
                "best single upgrade",
            )
        )
    if (best := best_port(report)) is not None:
        count = best.outcomes[GAINS]
        share = f"of {write_count(best.jobs)} {best.source} jobs"
        tiles.append((f"Faster as {best.target}", write_count(count), "jobs", share))
    return draw_tiles(tiles)


def _shares(report: FleetReport) -> str:
    if not report.shares:
        return ""
    fracs = {group.name: (group.job_frac, group.gpu_frac) for group in report.groups}
    columns: list[str] = []
    for place, title in enumerate(("At job level", "At GPU level")):
        bars = "".join(
            _named_bar(
                each.group,
                fracs.get(each.group, (1.0, 1.0))[place],
                draw_stack(each.at_gpu if place else each.at_job, report.part_names),
            )
            for each in report.shares
        )
        columns.append(f'<div><h3 class="level">{title}</h3><div class="bars">{bars}</div></div>')
    legend = draw_legend([(COLOURS[part], report.part_names[part]) for part in report.parts])
    body = f'<div class="card">{legend}<div class="pair">{"".join(columns)}</div>{_share_table(report)}</div>'
    return draw_section("Where the time of a step goes", body, f"Mean shares: {write_weighting(report)}.")


def _named_bar(name: str, frac: float, bar: str) -> str:
    share = "" if name == ALL else f" · {write_percent(frac)}"
    return f'<div class="name"><b>{escape(name)}</b>{share}</div>{bar}'


def _share_table(report: FleetReport) -> str:
    names = [report.part_names[part] for part in report.parts]
    rows = [
        [f"{each.group}, {level}", *(write_percent(values[part]) for part in report.parts)]
        for level in ("job level", "GPU level")
        for each in report.shares
        for values in [each.at_job if level == "job level" else each.at_gpu]
    ]
    return _folded("figures", draw_table(["", *names], rows, numbers=range(1, len(names) + 1)))


def _folded(title: str, body: str) -> str:
    return f'<details class="more"><summary>{title}</summary><div class="scroll">{body}</div></details>'


def _curves(report: FleetReport) -> str:
    if not report.curves:
        return ""
    figures = "".join(map(draw_figure, draw_curves(report.curves, report.part_names)))
    legend = draw_legend(curve_legend(report.curves))
    about = (
        "Of each class, how many jobs spend at most so much of their time on a part. Point at a plot for its figures."
    )
    return draw_section("How differently jobs spend it", f'{legend}<div class="grid curves">{figures}</div>', about)


def _bottlenecks(report: FleetReport) -> str:
    if not report.bottlenecks or list(report.bottlenecks[0].at_job) == report.parts:
        return ""
    names = list(report.bottlenecks[0].at_job)
    columns = [
        f'<div><h3 class="level">{title}</h3><div class="bars">{bars}</div></div>'
        for title, bars in (
            ("Share of the jobs", "".join(_bare_bar(each.group, each.at_job, report) for each in report.bottlenecks)),
            ("Share of the GPUs", "".join(_bare_bar(each.group, each.at_gpu, report) for each in report.bottlenecks)),
        )
    ]
    legend = draw_legend([(COLOURS[name], report.resource_names[name]) for name in names])
    body = f'<div class="card">{legend}<div class="pair">{"".join(columns)}</div></div>'
    return draw_section(
        "What takes longest", body, "The resource or link that a step needs for the longest time, by class."
    )


def _bare_bar(name: str, fracs: dict[str, float], report: FleetReport) -> str:
    return f'<div class="name"><b>{escape(name)}</b></div>{draw_stack(fracs, report.resource_names)}'


def _ports(report: FleetReport) -> str:
    if not report.ports:
        return ""
    cards = "".join(_port(port) for port in report.ports)
    words = [word for word in OUTCOMES if any(word in port.outcomes for port in report.ports)]
    facts = draw_facts((word, OUTCOMES[word]) for word in words)
    about = f"Gain of a job's throughput on another architecture, its work and its traffic per GPU unchanged. {PORTS}"
    return draw_section(
        "Who gains from porting", f'<div class="grid">{cards}</div><div class="card foot">{facts}</div>', about
    )


def _port(port: Port) -> str:
    outcomes = {word: port.outcomes[word] / port.jobs for word in OUTCOMES if word in port.outcomes}
    bar = draw_bar(
        (
            BarPart(_OUTCOME_COLOURS[word], frac, f"{word} {write_percent(frac)}", word)
            for word, frac in outcomes.items()
        ),
        labelled_frac=0.2,
    )
    legend = draw_legend([(_OUTCOME_COLOURS[word], f"{word} {write_count(port.outcomes[word])}") for word in outcomes])
    figures = "".join(
        f"<dt>{name}</dt><dd><b>{write_percent(gain.faster_frac)}</b> faster, <b>{write_gain(gain.median)}</b> "
        "in the median</dd>"
        for name, gain in (("as a job", port.whole), ("per GPU", port.per_gpu))
    )
    examples = draw_table(
        ["job", "GPUs", "per GPU", "job", "outcome"],
        [_example(each) for each in [*port.best, *port.worst]],
        numbers=(1, 2, 3),
    )
    return (
        f'<div class="card"><h3>{escape(port.source)} → {escape(port.target)} '
        f'<span class="unit small">{write_count(port.jobs)} jobs</span></h3><dl class="figures">{figures}</dl>'
        f"{draw_columns(port)}{bar}{legend}"
        f"{_folded('the largest gains and losses', examples)}</div>"
    )


def _example(job: PortedJob) -> list[str]:
    gpus = f"{job.gpus_before} → {job.gpus_after}" if job.gpus_before != job.gpus_after else str(job.gpus_before)
    return [job.job, gpus, write_gain(job.per_gpu), write_gain(job.whole), job.outcome]


def _upgrades(report: FleetReport) -> str:
    if not report.upgrades:
        return ""
    body = f'<div class="card">{draw_upgrades(report.upgrades, largest_groups(report))}</div>'
    about = (
        "One resource at another rate, all else unchanged: share of the GPUs' time saved, and mean speed-up of jobs."
    )
    return draw_section("What an upgrade buys", body, about)


def _sensitivities(report: FleetReport) -> str:
    if not report.sensitivities:
        return ""
    table = draw_sensitivities(report.sensitivities, list(report.resource_names.values()))
    body = f'<div class="card scroll">{table}</div>'
    about = "Mean speed-up of a class's jobs when one resource is twice as fast; the most telling in bold."
    return draw_section("What each class is most sensitive to", body, about)


def _groups(report: FleetReport) -> str:
    rows = [
        [
            group.name,
            write_count(group.jobs),
            write_percent(group.job_frac),
            write_count(group.gpus),
            write_percent(group.gpu_frac),
        ]
        for group in report.groups
    ]
    head = ["class", "jobs", "of all", "GPUs", f"of all {report.weighting}"]
    return draw_section(
        "Jobs by class", f'<div class="card scroll">{draw_table(head, rows, numbers=range(1, len(head)))}</div>'
    )


def _published(report: FleetReport) -> str:
    if not report.comparisons:
        return ""
    rows = [
        [each.what + each.mark, each.published, each.found, f"{each.off_points:.1f}"] for each in report.comparisons
    ]
    table = draw_table(["figure", "published", "here", "points off"], rows, numbers=(1, 2, 3))
    about = "Sources of the synthetic jobs. Unverified figures are recalled, not checked against the study."
    return draw_section("Compared with the published figures", f'<div class="card scroll">{table}</div>', about)


def _missing(report: FleetReport) -> str:
    if not report.missing:
        return ""
    facts = draw_facts((each.what, f"needs {each.needs}") for each in report.missing)
    return draw_section("Omitted: missing columns", f'<div class="card">{facts}</div>')


def _constants(report: FleetReport) -> str:
    if not report.constants:
        return ""
    rows = [[each.name, each.value + each.mark, each.where] for each in report.constants]
    table = draw_table(["", "value", "source"], rows)
    return draw_section("Assumed hardware", f'<div class="card scroll">{table}</div>')
