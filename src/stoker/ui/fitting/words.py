"""A plan that makes a program fit, in words: the same on the terminal, in reports and on pages."""

from __future__ import annotations

from stoker.core.units import format_count
from stoker.records.fitting import EQUAL, FitMeasure, FitPlan, FitRun
from stoker.ui.memory.words import MemoryUnit

KIND_WORDS = {
    "expandable": "expandable segments",
    "one_by_one": "one parameter after another in the optimizer",
    "used_up": "gradients used up in the backward pass",
    "recompute": "recomputation",
    "chunks": "chunks of samples",
    "zero1": "ZeRO-1",
    "fsdp2": "FSDP2",
}
"""Kinds of measures as they are named to people."""
OVER_FRAC = 0.05
"""Share of the predicted peak by which a counted one is said to be too much."""


def write_measure(measure: FitMeasure) -> str:
    """A measure, as a part of a sentence."""
    if measure.kind == "recompute":
        whose = "its" if len(measure.paths) == 1 else "their"
        kept = f", {whose} products kept" if measure.keeps == "products" else ""
        return f"{format_count(len(measure.paths), 'module')} recomputed{kept}"
    if measure.kind == "chunks":
        return f"the model called on {measure.number} chunks of samples"
    if measure.kind in ("zero1", "fsdp2"):
        kept = f", {format_count(len(measure.kept), 'unit')} of {len(measure.paths)} kept whole" if measure.kept else ""
        return f"{KIND_WORDS[measure.kind]} over {measure.number} ranks{kept}"
    return KIND_WORDS[measure.kind]


def write_plan(plan: FitPlan) -> str:
    """The plan in one line."""
    unit = MemoryUnit(max(plan.plain_bytes, plan.budget_bytes))
    budget = unit.full(plan.budget_bytes)
    if not plan.measures and plan.fits:
        return f"{unit.full(plan.plain_bytes)} fit {budget}: nothing is changed"
    parts = ", ".join(write_measure(each) for each in plan.measures)
    if not plan.fits:
        return (
            f"{unit.full(plan.plain_bytes)} do not fit {budget}; the nearest miss has {unit.full(plan.peak_bytes)}, "
            f"with {parts or 'nothing changed'}, and lacks {unit.full(plan.lacks_bytes)}"
        )
    return (
        f"{unit.full(plan.plain_bytes)} do not fit {budget}: {parts}, then {unit.full(plan.peak_bytes)}"
        f"{_cost(plan)}, losses {promise_of(plan)}"
    )


def promise_of(plan: FitPlan) -> str:
    """How far losses may differ with all measures."""
    return next((each.promise for each in plan.measures if each.promise != EQUAL), EQUAL)


def _cost(plan: FitPlan) -> str:
    if not plan.step_s or not plan.plain_step_s:
        return ""
    return f", step {100 * (plan.step_s / plan.plain_step_s - 1):+.0f} %"


def write_outcome(run: FitRun) -> str:
    """What was counted against what was predicted, in one line; empty if nothing was counted."""
    plan, counted = run.plan, run.counted_bytes
    if not counted:
        return ""
    unit = MemoryUnit(max(plan.plain_bytes, plan.budget_bytes))
    line = f"counted {unit.full(counted)} in the first steps, predicted {unit.of(plan.peak_bytes)}"
    if counted > (1 + OVER_FRAC) * plan.peak_bytes:
        names = ", ".join(dict.fromkeys(KIND_WORDS[each.kind] for each in plan.measures)) or "no remedy"
        line += f": {100 * (counted / plan.peak_bytes - 1):.0f} % more than predicted with {names}"
    if counted > plan.budget_bytes:
        line += f"; that is over the budget of {unit.full(plan.budget_bytes)}"
    return line
