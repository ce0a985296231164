"""What made a run fit its memory, as text: the plan, its price, what was not taken, what was counted."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.records.fitting import FitPlan, FitRun, FitRuns
from stoker.ui.blocks import join, titled, wrap
from stoker.ui.fitting.words import write_measure, write_outcome, write_plan
from stoker.ui.memory.words import MemoryUnit
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

MEASURE_HEAD = ("", "saves", "step", "losses", "of")
"""Head of :func:`measure_rows`."""
REJECTED_HEAD = ("not taken", "peak", "step", "why")
"""Head of :func:`rejected_rows`."""
COUNTED_HEAD = ("step", "counted", "of predicted")
"""Head of :func:`counted_rows`."""
_SHOWN_PATHS = 3


def render_fits(runs: FitRuns, style: Style | None = None) -> str:
    """All plans of a run, with a blank line between them; empty where there are none."""
    return "\n".join(_render(run, style or Style()) for run in runs.runs)


def write_fit_lines(runs: FitRuns) -> list[str]:
    """The plan and its outcome, a line each."""
    lines = [line for run in runs.runs for line in (write_plan(run.plan), write_outcome(run), *run.left, *run.notes)]
    return [f"fit: {line}" for line in lines if line]


def _render(run: FitRun, style: Style) -> str:
    unit = unit_of(run.plan)
    heading = f"Fit of {run.plan.name} · {run.plan.device} · {write_mode(run)}"
    measures = measure_rows(run.plan)
    rejected, counted = rejected_rows(run.plan), counted_rows(run)
    blocks = (
        [style.paint(style.cut(heading, style.width), 1)],
        wrap(write_plan(run.plan), style, 1),
        wrap(write_outcome(run), style) if run.counted_bytes else [],
        titled(f"Measures ({unit.name})", _table(MEASURE_HEAD, measures, style, (1, 2)), style),
        titled(f"First steps ({unit.name})", _table(COUNTED_HEAD, counted, style, (0, 1, 2)), style),
        titled(f"Not taken ({unit.name})", _table(REJECTED_HEAD, rejected, style, (1, 2)), style),
        [line for text in (*run.left, *run.notes, *run.plan.notes) for line in wrap(f"Note: {text}.", style, 90)],
    )
    return join(blocks, style, "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style, right: Sequence[int]) -> list[str]:
    return render_table(list(head), [list(row) for row in rows], style, right=tuple(right)) if rows else []


def unit_of(plan: FitPlan) -> MemoryUnit:
    """The unit in which all bytes of a plan are shown."""
    return MemoryUnit(max(plan.plain_bytes, plan.budget_bytes))


def write_mode(run: FitRun) -> str:
    """Whether the plan was carried out."""
    if not run.plan.changes:
        return "nothing changed"
    return "carried out" if run.mode == "auto" else "reported, not carried out"


def measure_rows(plan: FitPlan) -> list[list[str]]:
    """Each measure in the columns of :data:`MEASURE_HEAD`."""
    unit = unit_of(plan)
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
    unit = unit_of(plan)
    return [
        [
            each.name, "" if each.peak_bytes is None else unit.of(each.peak_bytes),
            "" if each.step_s is None else write_share(plan, each.step_s - (plan.plain_step_s or 0.0)), each.reason,
        ]
        for each in plan.rejected
    ]  # fmt: skip


def counted_rows(run: FitRun) -> list[list[str]]:
    """Counted steps, in the columns of :data:`COUNTED_HEAD`."""
    unit, predicted = unit_of(run.plan), run.plan.peak_bytes
    return [
        [f"{each.step:,}", unit.of(each.bytes), f"{100 * each.bytes / predicted:.1f} %"] for each in run.counted
    ]  # fmt: skip
