"""Advice in addition to a plan: what would change the meaning of a step is traced as well, and said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec.structs

from stoker.core.errors import TracingError
from stoker.perf.catalogue import catalogue, gpu_named
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.memory.choice.advice import (
    ChangedProgram,
    accumulated,
    advice_on,
    has_autocast,
    in_text,
    smaller_sizes,
    worth_saying,
)
from stoker.perf.memory.choice.fitting import FitQuestion
from stoker.records.fitting import EQUAL, FitAdvice, FitPlan
from stoker.run.fitting.devices import FitDevice
from stoker.run.fitting.pricing import priced
from stoker.run.fitting.tracing import trace_changed

_Traced = tuple[StepFeatures, MemoryTimeline]


def advised(program: Sequence[str], device: FitDevice, question: FitQuestion, plan: FitPlan) -> FitPlan:
    """The plan with advice; other batches and precisions are traced only where nothing equal fits.

    Args:
        program: as for :func:`~stoker.run.fitting.tracing.trace`.
        device: to fit into.
        question: that the plan answers.
        plan: to advise on.
    """
    if plan.fits and not plan.measures:
        return plan
    found = [advice_on(question, each) for each in in_text(question)]
    if not plan.fits or any(each.promise != EQUAL for each in plan.measures):
        found += _in_half(program, device, question)
        found += _in_parts(program, device, question)
    return msgspec.structs.replace(plan, advice=worth_saying(plan, found))


def _in_half(program: Sequence[str], device: FitDevice, question: FitQuestion) -> Iterable[FitAdvice]:
    """The forward pass in bf16, where the program has no half precision and the device computes in it."""
    card = gpu_named(device.name, catalogue())
    computes = device.emulated or not card or "bf16" in catalogue()[card].rates
    if not computes or has_autocast(question.features):
        return
    traced = _traced(program, device, autocast=True)
    if traced is not None:
        line = question.model.lines.get("model", "")
        yield advice_on(question, ChangedProgram(kind="bf16", line=line, features=traced[0], timeline=traced[1]))


def _in_parts(program: Sequence[str], device: FitDevice, question: FitQuestion) -> Iterable[FitAdvice]:
    """The largest smaller batch that fits, added up to the program's own and by itself; else the smallest traced."""
    lines, samples = question.model.lines, question.features.batch_size
    found: list[FitAdvice] = []
    for number in smaller_sizes(samples):
        traced = _traced(program, device, batch_times=1 / number)
        if traced is None or traced[0].batch_size >= samples:
            break
        features, timeline = traced
        size = features.batch_size
        found = [
            advice_on(question, ChangedProgram(
                kind="accumulate", line=lines.get("step", ""), number=number, samples=size, features=features,
                timeline=accumulated(timeline, number),
            )),
            advice_on(question, ChangedProgram(
                kind="batch", line=lines.get("loader", ""), samples=size, features=features, timeline=timeline,
            )),
        ]  # fmt: skip
        if found[0].peak_bytes <= question.budget:
            break
    return found


def _traced(
    program: Sequence[str], device: FitDevice, *, batch_times: float = 1, autocast: bool = False
) -> _Traced | None:
    """A changed program with seconds; None where it does not run so."""
    try:
        features, timeline = trace_changed(program, device.target, batch_times=batch_times, autocast=autocast)
    except TracingError:
        return None
    return features, priced(features, timeline, device)
