"""Chooses what makes a program fit a budget in the least time, without a change of what it computes; pure."""

from __future__ import annotations

from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.memory.choosing import choose, costs_of
from stoker.perf.memory.remedies import recomputed, spans_of
from stoker.perf.memory.timeline import peak_before, step_peak
from stoker.records.fitting import FitMeasure, FitPlan, TracedModel


def plan_fit(
    features: StepFeatures, timeline: MemoryTimeline, model: TracedModel, budget: int, *, device: str, name: str
) -> FitPlan:
    """The plan; pure."""
    plain = max(step_peak(timeline).bytes, peak_before(timeline).bytes)
    step_s = sum(call.seconds for call in timeline.calls) or None
    base = FitPlan(
        name=name, budget_bytes=budget, device=device, model=model.model, num_parameters=model.num_parameters,
        plain_bytes=plain, plain_step_s=step_s, peak_bytes=plain, step_s=step_s,
    )  # fmt: skip
    if plain <= budget:
        return base
    spans = tuple(span for span in spans_of(timeline) if span.path not in model.kept_as_is)
    costs, rest = costs_of(timeline, spans)
    places = choose(costs, budget, rest=rest)
    picked = tuple(spans[place] for place in sorted(places if places is not None else range(len(spans))))
    changed, added_s = recomputed(timeline, picked)
    peak = step_peak(changed).bytes
    import msgspec.structs

    return msgspec.structs.replace(
        base,
        peak_bytes=peak,
        step_s=step_s + added_s if step_s else None,
        lacks_bytes=max(0, peak - budget),
        measures=(
            FitMeasure(
                kind="recompute", paths=tuple(s.path for s in picked), saves_bytes=plain - peak, added_s=added_s
            ),
        ),
    )
