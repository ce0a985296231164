"""What would make a program smaller but changes what a step means, or the program's text: said, never done; pure.

Each change is another timeline: of the program traced with it, or of the same trace with other lives. What it comes to
is what the choice makes of that timeline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec.structs

from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit
from stoker.perf.memory.remedies import deleted
from stoker.perf.memory.timeline import kept_too_long, step_peak
from stoker.records.fitting import AdviceKind, FitAdvice, FitPlan

_LEAST_GAIN = 0.01
"""Share of the peak, or of the step's seconds, that a change must gain to be said (assumed)."""
_ADDED_UP = "several backward passes add to them"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedProgram:
    """A program with one change.

    Attributes:
        kind: of the change.
        line, name, number, samples: as of :class:`~stoker.records.fitting.FitAdvice`.
        features, timeline: of its step, with the seconds of its calls.
    """

    kind: AdviceKind
    line: str
    name: str = ""
    number: int = 0
    samples: int = 0
    features: StepFeatures
    timeline: MemoryTimeline


def advice_on(question: FitQuestion, changed: ChangedProgram) -> FitAdvice:
    """What a change comes to, with the measures that the program needs besides.

    Args:
        question: of the program as it is.
        changed: the same with a change.
    """
    barred = dict(question.barred)
    if changed.kind == "accumulate":
        barred.setdefault("used_up", _ADDED_UP)
    plan = plan_fit(replace(question, features=changed.features, timeline=changed.timeline, barred=barred))
    return FitAdvice(
        kind=changed.kind, line=changed.line, name=changed.name, number=changed.number, samples=changed.samples,
        peak_bytes=plan.peak_bytes, step_s=plan.step_s, measures=len(plan.measures),
    )  # fmt: skip


def worth_saying(plan: FitPlan, advice: Iterable[FitAdvice]) -> tuple[FitAdvice, ...]:
    """Advice that beats a plan: the quickest that fits first, then the smallest.

    Args:
        plan: of the program as it is.
        advice: on changes to it.
    """

    def gains(each: FitAdvice) -> bool:
        if not plan.fits:
            return each.peak_bytes < (1 - _LEAST_GAIN) * plan.peak_bytes
        fits = each.peak_bytes <= plan.budget_bytes
        is_quicker = plan.step_s is not None and each.step_s is not None
        return fits and is_quicker and (each.step_s or 0.0) < (1 - _LEAST_GAIN) * (plan.step_s or 0.0)

    def order(each: FitAdvice) -> tuple[bool, float]:
        misses = each.peak_bytes > plan.budget_bytes
        return misses, each.peak_bytes if misses or each.step_s is None else each.step_s

    return tuple(sorted(filter(gains, advice), key=order))


def in_text(question: FitQuestion) -> tuple[ChangedProgram, ...]:
    """Changes that move a line of the program or add one: read off its own timeline.

    Args:
        question: of the program as it is.
    """
    timeline, lines = question.timeline, question.model.lines
    found = [
        ChangedProgram(
            kind="delete", line=each.last_used, name=each.name, features=question.features,
            timeline=deleted(timeline, each),
        )
        for each in kept_too_long(timeline, step_peak(timeline))
    ]  # fmt: skip
    earlier = dropped_earlier(timeline)
    if earlier is not None and "zero_grad" in lines and "step" in lines:
        found.append(
            ChangedProgram(
                kind="zero_grad", line=lines["zero_grad"], name=lines["step"], features=question.features,
                timeline=earlier,
            )
        )  # fmt: skip
    return tuple(found)


def dropped_earlier(timeline: MemoryTimeline) -> MemoryTimeline | None:
    """The timeline where gradients of the step before are gone when the forward pass begins; None if they are already.

    Those that a backward pass adds to stay: they are one sum.
    """
    first = next((call.at for call in timeline.calls if call.phase == "forward"), timeline.end)
    lives, moved = list(timeline.buffers), False
    for place, one in enumerate(timeline.buffers):
        is_old = one.category == "gradients" and one.birth < timeline.begin
        if is_old and first < one.death < timeline.end and not one.uses:
            lives[place] = msgspec.structs.replace(one, death=timeline.begin)
            moved = True
    return msgspec.structs.replace(timeline, buffers=tuple(lives)) if moved else None


def accumulated(timeline: MemoryTimeline, number: int) -> MemoryTimeline:
    """The timeline of a batch as that of several, whose gradients are added up.

    From the second on, sums of all gradients are alive while a batch's own come and go; its passes take their seconds
    as often as there are batches.

    Args:
        timeline: of one smaller batch, with the seconds of its calls.
        number: of batches in a step.
    """
    past = max(0, timeline.begin - 1)
    summed = 0
    lives: list[BufferLife] = []
    for one in timeline.buffers:
        if one.category == "gradients" and one.birth >= timeline.begin:
            summed += one.bytes
            one = msgspec.structs.replace(one, death=min(one.death, one.birth + 1))
        elif one.category == "gradients":  # of the step before: dropped before the second batch begins
            one = msgspec.structs.replace(one, death=min(one.death, max(one.birth, past)), uses=())
        lives.append(one)
    sums = BufferLife(summed, 0, timeline.end, -1, "gradients", "backward", "", "")
    calls = tuple(
        call if call.phase == "optimizer" else msgspec.structs.replace(call, seconds=number * call.seconds)
        for call in timeline.calls
    )
    held = tuple(msgspec.structs.replace(each, buffer=each.buffer + 1) for each in timeline.held)
    return msgspec.structs.replace(timeline, buffers=(sums, *lives), calls=calls, held=held)


def has_autocast(features: StepFeatures) -> bool:
    """Whether products of the step are computed in a half precision already."""
    return any(
        operation.dtype in ("bfloat16", "float16") and operation.kind in MATRIX_KINDS
        for operation in features.operations
    )


def smaller_sizes(samples: int) -> tuple[int, ...]:
    """Numbers of batches that a batch may be taken apart into, the fewest first."""
    return tuple(number for number in (2, 4, 8, 16) if number <= samples)
