"""What made a run fit its memory, as text: the plan, its price, what was not taken, what was counted."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.units import format_count
from stoker.records.fitting import FitPlan, FitRun, FitRuns
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.fitting.words import (
    unit_of_plan,
    write_advice_lines,
    write_change,
    write_measure,
    write_outcome,
    write_plan,
    write_step,
)
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

MEASURE_HEAD = ("measure", "saves", "step", "losses", "modules")
"""Head of :func:`measure_rows`."""
REJECTED_HEAD = ("kind", "peak", "step", "why")
"""Head of :func:`rejected_rows`."""
COUNTED_HEAD = ("step", "counted", "of predicted")
"""Head of :func:`counted_rows`."""
ADVICE_HEAD = ("change", "peak", "step", "")
"""Head of :func:`advice_rows`."""
_SHOWN_PATHS = 3


def render_fits(runs: FitRuns, style: Style | None = None) -> str:
    """All plans of a run, with a blank line between them; empty where there are none."""
    return "\n".join(_render(run, style or Style()) for run in runs.runs)


def write_fit_lines(runs: FitRuns) -> list[str]:
    """The plan and its outcome, a line each."""
    lines = [
        line
        for run in runs.runs
        for line in (
            write_plan(run.plan), write_outcome(run), *write_advice_lines(run.plan), *run.left, *run.notes,
            *run.plan.notes,
        )
    ]  # fmt: skip
    return [f"fit: {line}" for line in lines if line]


def _render(run: FitRun, style: Style) -> str:
    unit = unit_of_plan(run.plan)
    heading = f"Fit of {run.plan.name} · {run.plan.device} · {write_mode(run)}"
    measures = measure_rows(run.plan)
    rejected, counted = rejected_rows(run.plan), counted_rows(run)
    blocks = (
        [style.paint(style.cut(heading, style.width), 1)],
        wrap(write_plan(run.plan), style, 1),
        wrap(write_outcome(run), style) if run.counted_bytes else [],
        titled(f"Measures ({unit.name})", _table(MEASURE_HEAD, measures, style, (1, 2)), style),
        titled(f"First steps ({unit.name})", _table(COUNTED_HEAD, counted, style, (0, 1, 2)), style),
        titled(
            f"Changes to the program, advised ({unit.name})",
            _table(ADVICE_HEAD, advice_rows(run.plan), style, (1, 2)),
            style,
        ),
        titled(f"Not taken ({unit.name})", _table(REJECTED_HEAD, rejected, style, (1, 2)), style),
        [line for text in (*run.left, *run.notes, *run.plan.notes) for line in wrap(f"Note: {text}.", style, 90)],
    )
    return join(blocks, style, "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style, right: Sequence[int]) -> list[str]:
    return render_table(list(head), [list(row) for row in rows], style, right=tuple(right)) if rows else []


def write_mode(run: FitRun) -> str:
    """Whether the plan was carried out."""
    if not run.plan.changes:
        return "nothing changed"
    return "carried out" if run.mode == "auto" else "reported, not carried out"


def measure_rows(plan: FitPlan) -> list[list[str]]:
    """Each measure in the columns of :data:`MEASURE_HEAD`."""
    unit = unit_of_plan(plan)
    return [
        [
            write_measure(each), unit.of(each.saves_bytes), write_share(plan, each.added_s), each.promise,
            _paths(each.paths),
        ]
        for each in plan.measures
    ]  # fmt: skip


def write_share(plan: FitPlan, added_s: float | None) -> str:
    """Added seconds as a share of the plain step; empty where either is not known."""
    if added_s is None or not plan.plain_step_s:
        return ""
    return f"{100 * added_s / plan.plain_step_s:+.1f} %"


def _paths(paths: Sequence[str]) -> str:
    more = len(paths) - _SHOWN_PATHS
    return ", ".join(paths[:_SHOWN_PATHS]) + (f" and {more} more" if more > 0 else "")


def rejected_rows(plan: FitPlan) -> list[list[str]]:
    """What is not in the plan, in the columns of :data:`REJECTED_HEAD`."""
    unit = unit_of_plan(plan)
    return [
        [
            each.name, "" if each.peak_bytes is None else unit.of(each.peak_bytes),
            "" if each.step_s is None else write_share(plan, each.step_s - (plan.plain_step_s or 0.0)), each.reason,
        ]
        for each in plan.rejected
    ]  # fmt: skip


def advice_rows(plan: FitPlan) -> list[list[str]]:
    """Changes to the program, in the columns of :data:`ADVICE_HEAD`."""
    unit, found = unit_of_plan(plan), list[list[str]]()
    for each in plan.advice:
        lacks = each.peak_bytes - plan.budget_bytes
        more = f"with {format_count(each.measures, 'measure')} of --fit" if each.measures else ""
        rest = f"lacks {unit.full(lacks)}" if lacks > 0 else ""
        fewer = "a step of fewer samples" if each.kind == "batch" else ""
        found.append([
            write_change(each), unit.of(each.peak_bytes), write_step(plan, each.step_s),
            ", ".join(filter(None, (more, fewer, rest))),
        ])  # fmt: skip
    return found


def counted_rows(run: FitRun) -> list[list[str]]:
    """Counted steps, in the columns of :data:`COUNTED_HEAD`."""
    unit, predicted = unit_of_plan(run.plan), run.plan.peak_bytes
    return [
        [f"{each.step:,}", unit.of(each.bytes), f"{100 * each.bytes / predicted:.1f} %"] for each in run.counted
    ]  # fmt: skip
