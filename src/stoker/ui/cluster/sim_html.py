"""A simulated cluster as one HTML page that needs nothing else: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.core.units import format_seconds
from stoker.records.cluster import GainCell, SimReport
from stoker.ui.cluster.sim_plots import draw_grants, draw_jct_curves, draw_queues, policy_legend
from stoker.ui.cluster.sim_words import (
    CAUSE_WORDS,
    find_policy,
    policy_cells,
    write_gain_factor,
    write_sim_facts,
    write_sim_findings,
    write_sim_headline,
)
from stoker.ui.fleet_style import FLEET_STYLE
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

_CAUSE_COLOURS = {"no GPU": "c5", "fragmentation": "c3", "CPUs short": "c0", "behind another": "even"}


def render_sim_page(report: SimReport) -> str:
    """The page."""
    body = "\n".join(part for part in _parts(report) if part)
    return render_page(f"{report.name} · stoker sim", body, FLEET_STYLE)


def _parts(report: SimReport) -> Iterable[str]:
    yield draw_header("stoker sim", report.name, " · ".join(write_sim_facts(report)))
    yield '<div class="card banner">Simulated: nothing of this ran.</div>'
    yield draw_answer(
        "What the allocator of CPUs gains", write_sim_headline(report), draw_list(write_sim_findings(report), "soft")
    )
    yield _tiles(report)
    yield _policies(report)
    yield _curves(report)
    yield _over_time(report)
    yield _waiting(report)
    yield _map(report)
    yield _bounds(report)
    yield draw_section("Assumed", f'<div class="card">{draw_list([f"{each}." for each in report.assumptions])}</div>')


def _tiles(report: SimReport) -> str:
    row, base = find_policy(report, report.focus), find_policy(report, report.baseline)
    if row is None or base is None:
        return ""
    return draw_tiles(
        [
            ("Completion time", write_gain_factor(row.jct_gain), "as fast", f"mean, over {report.baseline}"),
            ("GPUs that compute", f"{100 * row.utilisation_frac:.0f}", "%", f"instead of {base.utilisation_frac:.0%}"),
            ("GPUs that are held", f"{100 * row.allocation_frac:.0f}", "%", f"instead of {base.allocation_frac:.0%}"),
            (
                "Slowest 1 %",
                write_gain_factor(base.p99_jct_s / row.p99_jct_s),
                "as fast",
                format_seconds(row.p99_jct_s),
            ),
        ]
    )


def _policies(report: SimReport) -> str:
    head = ["policy", "mean", "p50", "p99", "gain", "makespan", "computing", "held", "moves a job"]
    rows = [[*cells, f"{row.moves:.1f}"] for cells, row in zip(policy_cells(report), report.policies, strict=True)]
    words = draw_facts((row.name, row.about) for row in report.policies)
    about = (
        f"Completion time is from arrival to end; the gain is over {report.baseline}. Computing and held: shares of "
        "the GPU time until the last arrival. All are medians over samples."
    )
    table = draw_table(head, rows, numbers=range(1, 9))
    body = f'<div class="card scroll">{table}</div><div class="card foot">{words}</div>'
    return draw_section("Policies side by side", body, about)


def _curves(report: SimReport) -> str:
    if not report.curves:
        return ""
    about = "Of the jobs of all samples, how many end within so long of their arrival. Point at a plot for its figures."
    body = f'{draw_legend(policy_legend(report))}<div class="curves">{draw_figure(draw_jct_curves(report))}</div>'
    return draw_section("Completion times", body, about)


def _over_time(report: SimReport) -> str:
    if not report.series:
        return ""
    figures = "".join(map(draw_figure, (*draw_grants(report), draw_queues(report))))
    body = f'{draw_legend(policy_legend(report))}<div class="grid curves">{figures}</div>'
    return draw_section("Over time", body, "The first sample.")


def _waiting(report: SimReport) -> str:
    rows = [row for row in report.policies if row.queueing_s >= 1.0 and sum(row.waiting.values()) > 0.0]
    if not rows:
        return ""
    bars = "".join(
        f'<div class="name"><b>{row.name}</b> · {format_seconds(row.queueing_s)}</div>'
        + draw_bar(
            BarPart(_CAUSE_COLOURS[cause], frac, f"{CAUSE_WORDS[cause]}: {frac:.0%}", f"{frac:.0%}")
            for cause, frac in row.waiting.items()
        )
        for row in rows
    )
    used = [cause for cause in CAUSE_WORDS if any(row.waiting.get(cause, 0.0) > 0.0 for row in rows)]
    legend = draw_legend([(_CAUSE_COLOURS[cause], CAUSE_WORDS[cause]) for cause in used])
    about = "Mean time that a job waits for its GPUs, and why."
    return draw_section("Waiting", f'<div class="card">{legend}<div class="bars">{bars}</div></div>', about)


def _map(report: SimReport) -> str:
    if not report.cells:
        return ""
    loads = sorted({cell.load for cell in report.cells})
    gains = {(cell.demand, cell.load): cell for cell in report.cells}
    top = max(cell.jct_gain for cell in report.cells)
    head = "".join(f'<th class="n">load {load:g}</th>' for load in loads)
    rows = "".join(
        f"<tr><td>{demand:g}</td>{_cells([gains.get((demand, load)) for load in loads], top)}</tr>"
        for demand in sorted({cell.demand for cell in report.cells})
    )
    table = f'<table class="heat"><thead><tr><th>demand / supply</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    about = (
        f"Mean completion time of {report.baseline} over that of {report.focus}. Demand over supply: CPUs that full "
        "speed of all GPUs would take, over those of their nodes."
    )
    return draw_section("Where there is something to gain", f'<div class="card scroll">{table}</div>', about)


def _cells(cells: Sequence[GainCell | None], top: float) -> str:
    """Cells, the darker the larger the gain."""
    span = max(top - 1.0, 1e-9)
    return "".join(
        '<td class="n">–</td>' if cell is None else
        f'<td class="n" style="--p:{65 * max(0.0, min(1.0, (cell.jct_gain - 1.0) / span)) ** 0.5:.0f}%">'
        f"{write_gain_factor(cell.jct_gain)}</td>"
        for cell in cells
    )  # fmt: skip


def _bounds(report: SimReport) -> str:
    facts = [(bound.name, f"{format_seconds(bound.mean_jct_s)}: {bound.note}") for bound in report.bounds]
    body = f'<div class="card">{draw_facts(facts)}{draw_list(report.notes, "soft")}</div>'
    return draw_section("Bounds", body, "Mean completion times that no policy can go below; bounds are not reached.")
