"""A plan that makes a program fit, in words: the same on the terminal, in reports and on pages."""

from __future__ import annotations

from stoker.core.units import format_count
from stoker.records.fitting import EQUAL, FitAdvice, FitMeasure, FitPlan, FitRun
from stoker.ui.memory.words import MemoryUnit

KIND_WORDS = {
    "expandable": "expandable segments",
    "one_by_one": "one parameter after another in the optimizer",
    "used_up": "gradients used up in the backward pass",
    "recompute": "recomputation",
    "offload": "activations in host memory",
    "states_away": "states of the optimizer in host memory",
    "chunks": "chunks of samples",
    "zero1": "ZeRO-1",
    "fsdp2": "FSDP2",
    "stages": "a pipeline",
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
    if measure.kind == "offload":
        return f"what {format_count(len(measure.paths), 'module')} saved in host memory"
    if measure.kind == "chunks":
        return f"the model called on {measure.number} chunks of samples"
    if measure.kind in ("zero1", "fsdp2"):
        kept = f", {format_count(len(measure.kept), 'unit')} of {len(measure.paths)} kept whole" if measure.kept else ""
        return f"{KIND_WORDS[measure.kind]} over {measure.number} ranks{kept}"
    if measure.kind == "stages":
        return f"layers in {measure.number} stages, one a rank, cut at {', '.join(measure.paths)}"
    return KIND_WORDS[measure.kind]


def write_plan(plan: FitPlan) -> str:
    """The plan in one line."""
    unit = unit_of_plan(plan)
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


def write_verdict(plan: FitPlan) -> str:
    """What the plan comes to, in one sentence without its measures."""
    unit = unit_of_plan(plan)
    budget = unit.full(plan.budget_bytes)
    if plan.fits and not plan.measures:
        return f"{unit.full(plan.plain_bytes)} fit {budget}: nothing is changed."
    if not plan.fits:
        return f"Nothing fits {budget}: the nearest miss lacks {unit.full(plan.lacks_bytes)}."
    return (
        f"{unit.of(plan.peak_bytes)} instead of {unit.full(plan.plain_bytes)} fit {budget}{_cost(plan)}, "
        f"losses {promise_of(plan)}."
    )


def unit_of_plan(plan: FitPlan) -> MemoryUnit:
    """The unit in which all bytes of a plan are shown."""
    return MemoryUnit(max(plan.plain_bytes, plan.budget_bytes))


def promise_of(plan: FitPlan) -> str:
    """How far losses may differ with all measures."""
    return next((each.promise for each in plan.measures if each.promise != EQUAL), EQUAL)


def _cost(plan: FitPlan) -> str:
    share = write_step(plan, plan.step_s)
    return f", step {share}" if share else ""


def write_step(plan: FitPlan, step_s: float | None) -> str:
    """Seconds of a step as a change of the plain step's; empty where either is not known."""
    if not step_s or not plan.plain_step_s:
        return ""
    return f"{100 * (step_s / plan.plain_step_s - 1):+.0f} %"


def write_change(advice: FitAdvice) -> str:
    """A change to the program, as what its user would do."""
    at = f" of {advice.line}" if advice.line else ""
    match advice.kind:
        case "accumulate":
            return f"add up the gradients of {advice.number} batches of {advice.samples} samples for each step{at}"
        case "batch":
            return f"a batch of {advice.samples} samples from the loader{at}"
        case "bf16":
            return f"autocast to bf16 around the model's call{at}"
        case "zero_grad":
            return f"`zero_grad()`{at} right after the step of {advice.name}"
        case "delete":
            return f"`del {advice.name}` after {advice.line}"


def write_advice(plan: FitPlan, advice: FitAdvice) -> str:
    """A change to the program and what it comes to, as a part of a sentence."""
    unit = unit_of_plan(plan)
    share = write_step(plan, advice.step_s)
    fewer = ", of fewer samples" if share and advice.kind == "batch" else ""
    step = f", step {share}{fewer}" if share else ""
    lacks = advice.peak_bytes - plan.budget_bytes
    rest = f", lacks {unit.full(lacks)}" if lacks > 0 else ""
    more = f" with {format_count(advice.measures, 'measure')} of --fit" if advice.measures else ""
    return f"{write_change(advice)}: {unit.full(advice.peak_bytes)}{more}{step}{rest}"


def write_advice_lines(plan: FitPlan) -> list[str]:
    """A line for each change that is advised."""
    return [f"advised, not done: {write_advice(plan, each)}" for each in plan.advice]


def write_outcome(run: FitRun) -> str:
    """What was counted against what was predicted, in one line; empty if nothing was counted."""
    plan, counted = run.plan, run.counted_bytes
    if not counted:
        return ""
    unit = unit_of_plan(plan)
    predicted = run.predicted_bytes
    line = f"counted {unit.full(counted)} in the first steps, predicted {unit.of(predicted)}"
    if counted > (1 + OVER_FRAC) * predicted:
        names = ", ".join(dict.fromkeys(KIND_WORDS[each.kind] for each in plan.measures)) or "no remedy"
        line += f": {100 * (counted / predicted - 1):.0f} % more than predicted with {names}"
    if counted > plan.budget_bytes:
        line += f"; that is over the budget of {unit.full(plan.budget_bytes)}"
    return line
