"""Chooses what makes a program fit a budget in the least time, without a change of what it computes; pure.

Options for the whole program are enumerated; for each, units to repeat are chosen exactly. The peak of a choice is that
of its steps by themselves: who applies the plan traces the chosen form from the start, and asks again with what
that trace was above.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec.structs

from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.memory.choice.options import Options, has_foreach, why_not_used_up, with_options
from stoker.perf.memory.choice.tree_choice import StepPart, choose_parts
from stoker.perf.memory.choice.unit_costs import parts_of
from stoker.perf.memory.choice.units import ModuleUnit, nested_units, repeated
from stoker.perf.memory.needs import CONTEXT_BYTES
from stoker.perf.memory.reserve import replay
from stoker.perf.memory.timeline import peak_before, step_peak
from stoker.records.fitting import FitMeasure, FitPlan, Keeps, RejectedFit, TracedModel

INTERVAL_FRAC = 0.005
"""Share of a predicted peak by which counted ones were above it: the budget is taken as less by so much."""
_TRIES = 6
"""Choices of units: each after the first has less by what the one before was too much."""
_PRECISION = 0.002
"""Share of the plain peak to which the least budget that fits is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuestion:
    """A program, and what it is to fit into.

    Attributes:
        name: of the program.
        features, timeline: of its step, with the seconds of its calls if they are known.
        model: what may be done to it.
        budget: bytes.
        device: what they are of.
        emulated: whether they are of tensors alone, counted while it runs on CPUs.
        barred: kinds of measures that turned out not to work, with the reason.
        without: modules that turned out not to be repeatable, with the reason.
    """

    name: str
    features: StepFeatures
    timeline: MemoryTimeline
    model: TracedModel
    budget: int
    device: str
    emulated: bool
    barred: Mapping[str, str] = field(default_factory=dict[str, str])
    without: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class _Choice:
    """Options and units, and what they come to."""

    options: Options
    keeps: Mapping[str, Keeps]
    peak: int
    added_s: float


def plan_fit(question: FitQuestion, *, margin: int = 0) -> FitPlan:
    """The plan for a question; one that does not fit has the nearest miss.

    Args:
        question: to answer.
        margin: bytes that the peak must stay below the budget besides its interval.
    """
    planner = _Planner(question)
    plain = taken_of(question.timeline, emulated=question.emulated, expandable=False)
    step_s = sum(call.seconds for call in question.timeline.calls) or None
    base = FitPlan(
        name=question.name, budget_bytes=question.budget, device=question.device, model=question.model.model,
        num_parameters=question.model.num_parameters, plain_bytes=plain, plain_step_s=step_s, peak_bytes=plain,
        step_s=step_s,
    )  # fmt: skip
    if plain <= question.budget:
        return base
    found, rejected = planner.choose(margin)
    measures = planner.measures(found)
    return msgspec.structs.replace(
        base, peak_bytes=found.peak, step_s=None if step_s is None else step_s + found.added_s, measures=measures,
        lacks_bytes=max(0, found.peak - question.budget), rejected=tuple(rejected),
    )  # fmt: skip


def taken_of(timeline: MemoryTimeline, *, emulated: bool, expandable: bool) -> int:
    """What a timeline takes of the device: bytes of tensors, or with what the allocator reserves and the context."""
    if emulated:
        return max(step_peak(timeline).bytes, peak_before(timeline).bytes)
    found = replay(timeline, expandable=expandable, workspace_bytes=timeline.workspace_bytes)
    return found.reserved + int(CONTEXT_BYTES)


def _steps_alone(timeline: MemoryTimeline) -> MemoryTimeline:
    """The timeline without what ran before its step, which measures would have changed as well."""
    past = timeline.begin - 1
    lives = tuple(
        msgspec.structs.replace(one, birth=max(0, one.birth - past), death=one.death - past)
        for one in timeline.buffers
        if one.death >= timeline.begin
    )
    calls = tuple(msgspec.structs.replace(call, at=call.at - past) for call in timeline.calls)
    return msgspec.structs.replace(timeline, begin=1, end=timeline.end - past, buffers=lives, calls=calls, held=())


class _Planner:
    def __init__(self, question: FitQuestion) -> None:
        self._question = question
        self._step_s = sum(call.seconds for call in question.timeline.calls)
        self._expandable = not question.emulated and "expandable" not in question.barred
        kept = {**question.model.kept_as_is, **question.without}
        barred = question.model.compiled or "recompute" in question.barred
        self._units: tuple[ModuleUnit, ...] = () if barred else nested_units(question.timeline, kept.keys())
        self._by_path = {unit.path: unit for unit in _all(self._units)}

    def taken(self, timeline: MemoryTimeline, *, expandable: bool) -> int:
        """What repeated steps of a timeline take of the device."""
        return taken_of(_steps_alone(timeline), emulated=self._question.emulated, expandable=expandable)

    def choose(self, margin: int) -> tuple[_Choice, list[RejectedFit]]:
        """The quickest that fits, or the one with the least peak, and why others are not it."""
        budget = int(self._question.budget * (1 - INTERVAL_FRAC)) - margin
        candidates = [found for options in self._options() for found in self._of(options, budget)]
        fitting = [each for each in candidates if each.peak <= budget]
        if not fitting:  # without room for the interval, rather than not at all
            fitting = [each for each in candidates if each.peak <= self._question.budget - margin]
        if fitting:
            # Of equal times, the one that does least to the program.
            best = min(fitting, key=lambda each: (each.added_s, _weight(each)))
        else:
            best = min(candidates, key=lambda each: (each.peak, each.added_s))
        return best, self._rejected(best, candidates)

    def _options(self) -> list[Options]:
        question = self._question
        foreach = has_foreach(question.timeline) and "one_by_one" not in question.barred
        self.why_not_used_up = question.barred.get("used_up") or why_not_used_up(
            question.features, question.timeline, question.model
        )
        single = (False, True) if foreach else (False,)
        used = (False,) if self.why_not_used_up else (False, True)
        # Gradients that are used up one by one leave nothing to update together.
        return [Options(*each) for each in itertools.product(single, used) if not all(each)]

    def _of(self, options: Options, budget: int) -> list[_Choice]:
        """The quickest choice of units with some options that fits; without one, that of the least peak."""
        timeline, added_s = with_options(self._question.timeline, options)
        parts = parts_of(timeline, self._units, products="products" not in self._question.barred)
        found = self._fitting(timeline, parts, options, added_s, budget)
        if found is not None:
            return [found]
        high = self.taken(timeline, expandable=self._expandable)
        # The least peak of parts need not be that of their sum: all units may be less than those that seem to matter.
        every: dict[str, Keeps] = {unit.path: "nothing" for unit in self._units}
        return [self._tried(timeline, options, keeps, added_s) for keeps in (self._least(parts, high), every)]

    def _fitting(
        self, timeline: MemoryTimeline, parts: Sequence[StepPart], options: Options, added_s: float, budget: int
    ) -> _Choice | None:
        room = budget - self._beside(timeline)
        for _ in range(_TRIES):
            keeps = choose_parts(parts, room)
            if keeps is None:
                return None
            found = self._tried(timeline, options, keeps, added_s)
            if found.peak <= budget:
                return found
            room -= max(1, found.peak - budget)
        return None

    def _beside(self, timeline: MemoryTimeline) -> int:
        """What the device holds besides tensors, taken as the same under all choices until one is replayed."""
        if self._question.emulated:
            return 0
        return self.taken(timeline, expandable=True) - step_peak(timeline).bytes

    def _least(self, parts: Sequence[StepPart], high: int) -> dict[str, Keeps]:
        """The choice with about the least peak, by halving."""
        low, found = 0, dict[str, Keeps]()
        step = max(1, int(_PRECISION * high))
        while high - low > step:
            middle = (low + high) // 2
            keeps = choose_parts(parts, middle)
            if keeps is None:
                low = middle
            else:
                high, found = middle, keeps
        return found

    def _tried(self, timeline: MemoryTimeline, options: Options, keeps: Mapping[str, Keeps], added_s: float) -> _Choice:
        changed, seconds = repeated(timeline, [(self._by_path[path], each) for path, each in keeps.items()])
        return _Choice(options, keeps, self.taken(changed, expandable=self._expandable), added_s + seconds)

    def measures(self, found: _Choice) -> tuple[FitMeasure, ...]:
        """The choice as measures, each with what it saves after those before it."""
        question = self._question
        made: list[FitMeasure] = []
        timeline = question.timeline
        before = self.taken(timeline, expandable=False)

        def add(measure: FitMeasure, changed: MemoryTimeline, seconds: float) -> None:
            nonlocal before, timeline
            timeline = changed
            after = self.taken(changed, expandable=self._expandable)
            added_s = seconds if self._step_s else None
            made.append(msgspec.structs.replace(measure, saves_bytes=before - after, added_s=added_s))
            before = after

        if self._expandable:
            add(FitMeasure(kind="expandable"), timeline, 0.0)
        if found.options.one_by_one:
            add(FitMeasure(kind="one_by_one"), *with_options(timeline, Options(one_by_one=True)))
        if found.options.used_up:
            add(FitMeasure(kind="used_up"), *with_options(timeline, Options(used_up=True)))
        chosen: list[tuple[ModuleUnit, Keeps]] = []
        start, spent = timeline, 0.0
        kinds: tuple[Keeps, ...] = ("products", "nothing")
        for keeps in kinds:
            paths = [path for path in self._by_path if found.keeps.get(path) == keeps]
            if paths:
                chosen.extend((self._by_path[path], keeps) for path in paths)
                changed, seconds = repeated(start, chosen)
                add(FitMeasure(kind="recompute", paths=tuple(paths), keeps=keeps), changed, seconds - spent)
                spent = seconds
        return tuple(made)

    def _rejected(self, best: _Choice, candidates: Sequence[_Choice]) -> list[RejectedFit]:
        """Kinds that are not in the choice, what they would have come to, and why they are not."""
        question, found = self._question, list[RejectedFit]()

        def priced(name: str, each: _Choice, reason: str = "") -> None:
            step_s = self._step_s + each.added_s if self._step_s else None
            slower = "it is slower" if each.added_s >= best.added_s else "it does more to the program"
            reason = reason or (slower if each.peak <= question.budget else "it does not fit")
            found.append(RejectedFit(name=name, peak_bytes=each.peak, step_s=step_s, reason=reason))

        for each in candidates:
            if each.options != best.options:
                priced(_named(each), each)
        ways: tuple[Keeps, ...] = ("nothing", "products")
        for keeps in ways:
            every: dict[str, Keeps] = {
                unit.path: keeps for unit in self._units if keeps == "nothing" or unit.has_products
            }
            if every and every != best.keeps:
                timeline, added_s = with_options(question.timeline, best.options)
                name = f"every outermost module recomputed{', products kept' if keeps == 'products' else ''}"
                priced(name, self._tried(timeline, best.options, every, added_s))
        if self.why_not_used_up:
            found.append(_refused("gradients used up in the backward pass", self.why_not_used_up))
        for kind, reason in question.barred.items():
            if kind != "used_up":
                found.append(_refused(kind, reason))
        if question.model.compiled:
            found.append(_refused("recomputation", "the program compiles its model, and torch chooses what is kept"))
        for path, reason in itertools.islice({**question.model.kept_as_is, **question.without}.items(), 20):
            if reason != UNCALLED:
                found.append(_refused(f"recomputation of `{path}`", reason))
        return found


UNCALLED = "its forward pass is never called"
"""Reason of modules that only hold others."""


def _refused(name: str, reason: str) -> RejectedFit:
    return RejectedFit(name=name, peak_bytes=None, step_s=None, reason=reason)


def _named(choice: _Choice) -> str:
    parts = [name for name, is_on in (
        ("one parameter after another", choice.options.one_by_one),
        ("gradients used up in the backward pass", choice.options.used_up),
        ("recomputation", bool(choice.keeps)),
    ) if is_on]  # fmt: skip
    return " and ".join(parts) or "as it is"


def _weight(choice: _Choice) -> tuple[int, int]:
    options = choice.options
    return options.one_by_one + options.used_up, len(choice.keeps)


def _all(units: Sequence[ModuleUnit]) -> list[ModuleUnit]:
    return [each for unit in units for each in (unit, *_all(unit.children))]
