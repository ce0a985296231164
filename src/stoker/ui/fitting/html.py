"""What made a run fit its memory, as a section of its page."""

from __future__ import annotations

from html import escape

from stoker.records.fitting import FitRun, FitRuns
from stoker.ui.fitting.text import (
    COUNTED_HEAD,
    MEASURE_HEAD,
    REJECTED_HEAD,
    counted_rows,
    measure_rows,
    rejected_rows,
    unit_of,
    write_mode,
)
from stoker.ui.fitting.words import write_outcome, write_plan
from stoker.ui.html_page import draw_list, draw_section, draw_table


def draw_fits(runs: FitRuns) -> str:
    """A section with a part for each plan; nothing where there is none."""
    return draw_section("Fit into memory", "".join(map(_drawn, runs.runs)), kind="fit") if runs.runs else ""


def _drawn(run: FitRun) -> str:
    plan, unit = run.plan, unit_of(run.plan)
    facts = f"{plan.name} · {plan.device} · {write_mode(run)}"
    outcome = f'<p class="soft small">{escape(write_outcome(run))}</p>' if run.counted_bytes else ""
    verdict = (
        f'<section class="card verdict {"compute" if plan.fits else "plain"}"><div>'
        f'<p class="soft small">{escape(facts)}</p><p class="text">{escape(write_plan(plan))}.</p>{outcome}'
        "</div></section>"
    )
    notes = [f"{text}." for text in (*run.left, *run.notes, *plan.notes)]
    return "".join((
        verdict,
        _card(f"Measures ({unit.name})", MEASURE_HEAD, measure_rows(plan), (1, 2)),
        _card(f"First steps ({unit.name})", COUNTED_HEAD, counted_rows(run), (0, 1, 2)),
        _card(f"Not taken ({unit.name})", REJECTED_HEAD, rejected_rows(plan), (1, 2)),
        f'<div class="card">{draw_list(notes)}</div>' if notes else "",
    ))  # fmt: skip


def _card(title: str, head: tuple[str, ...], rows: list[list[str]], numbers: tuple[int, ...]) -> str:
    return (
        f'<div class="card"><h3>{escape(title)}</h3>{draw_table(list(head), rows, numbers=numbers)}</div>'
        if rows
        else ""
    )
