"""What made a run fit its memory, as a section of its page."""

from __future__ import annotations

from html import escape

from stoker.records.fitting import FitPlan, FitRun, FitRuns
from stoker.ui.fitting.text import (
    ADVICE_HEAD,
    MEASURE_HEAD,
    REJECTED_HEAD,
    advice_rows,
    measure_rows,
    rejected_rows,
    write_mode,
)
from stoker.ui.fitting.words import unit_of_plan, write_measure, write_verdict
from stoker.ui.html_page import BarPart, draw_bar, draw_list, draw_section, draw_table, draw_tiles
from stoker.ui.memory.words import MemoryUnit


def draw_fits(runs: FitRuns) -> str:
    """A section with a part for each plan; nothing where there is none."""
    return draw_section("Fit into memory", "".join(map(_drawn, runs.runs)), kind="fit") if runs.runs else ""


def _drawn(run: FitRun) -> str:
    plan, unit = run.plan, unit_of_plan(run.plan)
    facts = f"{plan.name} · {plan.device} · {write_mode(run)}"
    verdict = (
        f'<section class="card verdict {"compute" if plan.fits else "plain"}"><p class="soft small">{escape(facts)}</p>'
        f'<p class="text">{escape(write_verdict(plan))}</p></section>'
    )
    notes = [f"{text}." for text in (*run.left, *run.notes, *plan.notes)]
    return "".join((
        verdict,
        _tiles(run),
        _steps_down(plan),
        _card(f"Measures ({unit.name})", MEASURE_HEAD, measure_rows(plan), (1, 2)),
        _card(f"Changes to the program, advised ({unit.name})", ADVICE_HEAD, advice_rows(plan), (1, 2)),
        _card(f"Not taken ({unit.name})", REJECTED_HEAD, rejected_rows(plan), (1, 2)),
        f'<div class="card">{draw_list(notes)}</div>' if notes else "",
    ))  # fmt: skip


def _tiles(run: FitRun) -> str:
    plan, unit = run.plan, unit_of_plan(run.plan)
    counted = run.counted_bytes
    share = f"{100 * counted / run.predicted_bytes:.1f} % of the prediction" if counted else ""
    steps = ", ".join(unit.of(each.bytes) for each in run.counted)
    tiles = [
        ("As it is", unit.of(plan.plain_bytes), unit.name, "predicted peak"),
        ("Budget", unit.of(plan.budget_bytes), unit.name, plan.device),
        (
            "With the plan" if plan.fits else "Nearest miss", unit.of(plan.peak_bytes), unit.name,
            "the peak of its own trace" if plan.certified else "predicted peak",
        ),
        (
            "Counted", unit.of(counted) if counted else "–", unit.name if counted else "",
            f"{share}; steps: {steps}" if counted else "the program ran as it is",
        ),
    ]  # fmt: skip
    return draw_tiles(tiles)


def _steps_down(plan: FitPlan) -> str:
    """What is left of the peak after each measure, above the budget."""
    if not plan.measures:
        return ""
    unit, whole = unit_of_plan(plan), max(plan.plain_bytes, plan.budget_bytes)
    rows = [("as it is", plan.plain_bytes, 0)]
    for each in plan.measures:
        rows.append((write_measure(each), rows[-1][1] - each.saves_bytes, each.saves_bytes))
    bars = "".join(_bar(name, left, saved, whole, unit, "s1") for name, left, saved in rows)
    bars += _bar("budget", plan.budget_bytes, 0, whole, unit, "s2")
    title = f"The peak, measure by measure ({unit.name}; before the plan's own trace)"
    return f'<div class="card"><h3>{escape(title)}</h3><div class="bars">{bars}</div></div>'


def _bar(name: str, left: int, saved: int, whole: int, unit: MemoryUnit, kind: str) -> str:
    gone = max(0, saved)
    rest = max(0, whole - left - gone)
    parts = [
        BarPart(kind, max(0, left) / whole, f"{name}: {unit.full(left)}", unit.of(left)),
        BarPart("saved", gone / whole, f"{name}: saves {unit.full(gone)}", ""),
        BarPart("none", rest / whole, "", ""),
    ]
    return f'<div class="soft small">{escape(name)}</div>{draw_bar(parts)}'


def _card(title: str, head: tuple[str, ...], rows: list[list[str]], numbers: tuple[int, ...]) -> str:
    return (
        f'<div class="card"><h3>{escape(title)}</h3>{draw_table(list(head), rows, numbers=numbers)}</div>'
        if rows
        else ""
    )
