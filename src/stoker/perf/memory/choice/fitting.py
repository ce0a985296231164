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

from stoker.perf.features.lifetimes import GrowingHolder, MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.memory.choice.offloading import HostLink, sent_away
from stoker.perf.memory.choice.options import (
    Options,
    has_foreach,
    why_not_used_up,
    why_states_stay,
    with_options,
)
from stoker.perf.memory.choice.tree_choice import StepPart, Way, choose_parts
from stoker.perf.memory.choice.unit_costs import parts_of
from stoker.perf.memory.choice.units import ModuleUnit, all_units, nested_units, repeated
from stoker.perf.memory.reserve import CONTEXT_BYTES, Reserve, replay
from stoker.perf.memory.timeline import growing, peak_before, step_peak
from stoker.records.fitting import FitMeasure, FitPlan, Keeps, MeasureKind, RejectedFit, TracedModel

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
        without: modules to which nothing can be done after all, with the reason.
        link: to host memory; None where nothing may lie there.
        host_is_last: whether host memory is taken only where nothing else fits: what leaves an emulated device stays in
            the memory of its machine.
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
    link: HostLink | None = None
    host_is_last: bool = False


@dataclass(frozen=True, slots=True)
class FitChoice:
    """Options and units, and what they come to.

    Attributes:
        options: for the whole program.
        keeps: what each repeated unit keeps, by its path.
        timeline: of the step in this form.
        peak: that it takes of the device.
        added_s: seconds that it adds to a step.
    """

    options: Options
    keeps: Mapping[str, Way]
    timeline: MemoryTimeline
    peak: int
    added_s: float

    @property
    def uses_host(self) -> bool:
        """Whether anything lies in host memory."""
        return self.options.states_away or "away" in self.keeps.values()


def plan_fit(question: FitQuestion, *, margin: int = 0, host: bool = True) -> FitPlan:
    """The plan for a question; one that does not fit has the nearest miss.

    Args:
        question: to answer.
        margin: bytes that the peak must stay below the budget besides its interval.
        host: whether anything may lie in host memory where the question allows it.
    """
    planner = FitPlanner(question)
    plain = taken_of(
        question.timeline, emulated=question.emulated, expandable=False, available=question.budget
    )  # fmt: skip
    step_s = sum(call.seconds for call in question.timeline.calls) or None
    base = FitPlan(
        name=question.name, budget_bytes=question.budget, device=question.device, model=question.model.model,
        num_parameters=question.model.num_parameters, passes_by_hand=question.model.passes_by_hand, plain_bytes=plain,
        plain_step_s=step_s, peak_bytes=plain, step_s=step_s,
        notes=tuple(map(_said_to_grow, growing(question.timeline))),
    )  # fmt: skip
    if plain <= question.budget:
        return base
    found, rejected = planner.choose(margin, host)
    measures = planner.measures(found)
    notes = base.notes + ((_priced(question.link),) if question.link is not None and found.uses_host else ())
    return msgspec.structs.replace(
        base, peak_bytes=found.peak, step_s=None if step_s is None else step_s + found.added_s, measures=measures,
        lacks_bytes=max(0, found.peak - question.budget), rejected=tuple(rejected), notes=notes,
    )  # fmt: skip


def _priced(link: HostLink) -> str:
    rate = f"{link.bytes_per_s / 1e9:.0f} GB/s"
    if link.overlaps:
        return f"copies to host memory were simulated to overlap with compute, at {rate} in each direction"
    return f"copies to host memory were priced at {rate} without overlap, as on an emulated device"


def taken_of(
    timeline: MemoryTimeline, *, emulated: bool, expandable: bool, available: int | None = None
) -> int:  # fmt: skip
    """What a timeline takes of the device: bytes of tensors, or with what the allocator reserves and the context.

    Args:
        timeline: of a program.
        emulated: whether bytes of tensors alone are counted.
        expandable: whether segments of the allocator grow.
        available: bytes of the device; where these are short, the allocator returns what it holds unused before it
            gives up.
    """
    found = reserve_of(timeline, emulated=emulated, expandable=expandable, available=available)
    return found.reserved + (0 if emulated else int(CONTEXT_BYTES))


def reserve_of(
    timeline: MemoryTimeline, *, emulated: bool, expandable: bool = False, available: int | None = None
) -> Reserve:  # fmt: skip
    """What is reserved for a timeline, without a context; arguments as those of :func:`taken_of`."""
    if emulated:
        before = peak_before(timeline).bytes
        most = max(step_peak(timeline).bytes, before)
        return Reserve(most, most, before)
    found = replay(timeline, expandable=expandable, workspace_bytes=timeline.workspace_bytes)
    room = None if available is None else available - int(CONTEXT_BYTES)
    if room is None or found.reserved <= room or found.requested > room:
        return found
    within = replay(timeline, expandable=expandable, limit=room, workspace_bytes=timeline.workspace_bytes)
    return found if within.full else within


def _steps_alone(timeline: MemoryTimeline) -> MemoryTimeline:
    """The timeline without what ran before its step, which measures would have changed as well."""
    past = timeline.begin - 1
    lives = tuple(
        msgspec.structs.replace(
            one, birth=max(0, one.birth - past), death=one.death - past, released=max(0, one.released - past)
        )
        for one in timeline.buffers
        if one.death >= timeline.begin
    )
    calls = tuple(msgspec.structs.replace(call, at=call.at - past) for call in timeline.calls)
    return msgspec.structs.replace(timeline, begin=1, end=timeline.end - past, buffers=lives, calls=calls, held=())


class FitPlanner:
    """Choices for a question.

    Args:
        question: to answer.
        units: of its timeline, where they are known.
    """

    def __init__(self, question: FitQuestion, units: tuple[ModuleUnit, ...] | None = None) -> None:
        self._question = question
        self._step_s = sum(call.seconds for call in question.timeline.calls)
        self._expandable = not question.emulated and "expandable" not in question.barred
        self._why_not_expandable = ""
        if self._expandable:
            plain, grown = (self.taken(question.timeline, expandable=each) for each in (False, True))
            if grown >= plain:
                self._expandable = False
                self._why_not_expandable = f"{grown / 1e6:,.1f} MB with them, {plain / 1e6:,.1f} without"
        self._repeats = "recompute" not in question.barred
        model, barred = question.model, question.barred
        kept = {**model.kept_as_is, **question.without}
        stay = {*model.class_stays, *question.without, ""}
        self._units: tuple[ModuleUnit, ...] = units or ()
        if units is None and not model.compiled and (self._repeats or "offload" not in barred):
            self._units = nested_units(
                question.timeline, kept.keys(), None if question.link is None or "offload" in barred else stay
            )
        self._by_path = {unit.path: unit for unit in all_units(self._units)}
        self._order = {path: place for place, path in enumerate(self._by_path)}

    def taken(self, timeline: MemoryTimeline, *, expandable: bool) -> int:
        """What repeated steps of a timeline take of the device."""
        return taken_of(_steps_alone(timeline), emulated=self._question.emulated, expandable=expandable)

    def alone(self, budget: int) -> list[tuple[MeasureKind, FitChoice]]:
        """Each kind of measure by itself: units that make it fit in the least time, or with the least peak."""
        plain, link = self._question.timeline, self._question.link
        found: list[tuple[MeasureKind, FitChoice]] = []
        if self._expandable:
            found.append(("expandable", self._tried(plain, Options(), {}, 0.0)))
        before, self._expandable = self._expandable, False
        for options in self._options(link):
            kinds: list[tuple[MeasureKind, bool]] = [
                ("one_by_one", options.one_by_one), ("used_up", options.used_up), ("states_away", options.states_away),
            ]  # fmt: skip
            chosen: list[MeasureKind] = [kind for kind, is_on in kinds if is_on]
            if len(chosen) == 1:
                timeline, added_s = with_options(plain, options, link)
                found.append((chosen[0], self._tried(timeline, options, {}, added_s)))
        if self._units and self._repeats:
            found.append(("recompute", self._of(Options(), budget, None)))
        every: dict[str, Way] = {unit.path: "away" for unit in self._units if link is not None and unit.can_leave}
        if every:
            found.append(("offload", self._tried(plain, Options(), every, 0.0)))
        self._expandable = before
        return found

    def least(self) -> int:
        """About the least that the program can be made to take."""
        link = self._question.link
        return min(self._of(options, 0, link).peak for options in self._options(link))

    def choose(self, margin: int, host: bool = True) -> tuple[FitChoice, list[RejectedFit]]:
        """The quickest that fits, or the one with the least peak, and why others are not it."""
        best, candidates = self.best(margin, host)
        return best, self._rejected(best, candidates)

    def best(self, margin: int = 0, host: bool = True) -> tuple[FitChoice, list[FitChoice]]:
        """The quickest that fits, or the one with the least peak, and all that it was chosen from."""
        budget = int(self._question.budget * (1 - INTERVAL_FRAC)) - margin
        is_last, link = self._question.host_is_last, self._question.link if host else None
        candidates = self._candidates(budget, None if is_last else link)
        fitting = self._fitting_of(candidates, budget, margin)
        if not fitting and is_last and link is not None:
            others = self._candidates(budget, link)
            candidates = [*candidates, *others]
            fitting = self._fitting_of(others, budget, margin)
        if fitting:
            # Of equal times, the one that does least to the program.
            best = min(fitting, key=lambda each: (each.added_s, _weight(each)))
        else:
            best = min(candidates, key=lambda each: (each.peak, each.added_s))
        return best, candidates

    def _candidates(self, budget: int, link: HostLink | None) -> list[FitChoice]:
        return [self._of(options, budget, link) for options in self._options(link)]

    def _fitting_of(self, candidates: Sequence[FitChoice], budget: int, margin: int) -> list[FitChoice]:
        found = [each for each in candidates if each.peak <= budget]
        # Without room for the interval, rather than not at all.
        return found or [each for each in candidates if each.peak <= self._question.budget - margin]

    def _options(self, link: HostLink | None) -> list[Options]:
        question = self._question
        by_hand = bool(question.model.passes_by_hand)  # there is no optimizer to change
        foreach = has_foreach(question.timeline) and not by_hand and "one_by_one" not in question.barred
        self.why_not_used_up = question.barred.get("used_up") or why_not_used_up(
            question.features, question.timeline, question.model
        )
        single = (False, True) if foreach else (False,)
        used = (False,) if self.why_not_used_up else (False, True)
        self.why_states_stay = question.barred.get("states_away") or why_states_stay(question.timeline, question.model)
        away = (False,) if link is None or self.why_states_stay else (False, True)
        # Gradients that are used up one by one leave nothing to update together; neither do states that are away.
        return [Options(*each) for each in itertools.product(single, used, away) if not (each[0] and any(each[1:]))]

    def _of(self, options: Options, budget: int, link: HostLink | None) -> FitChoice:
        """The quickest choice of units with some options that fits; without one, that of the least peak."""
        timeline, added_s = with_options(self._question.timeline, options, link)
        parts = parts_of(
            timeline, self._units, products="products" not in self._question.barred,
            repeats=self._repeats, link=link,
        )  # fmt: skip
        found = self._fitting(timeline, parts, options, added_s, budget)
        if found is not None:
            return found
        # The least peak of parts need not be that of their sum: all units may be less than those that seem to matter.
        every: dict[str, Way] = {unit.path: "nothing" for unit in self._units if unit.can_repeat and self._repeats}
        least = self._least(parts, self.taken(timeline, expandable=self._expandable))
        # Both may be more than none: a repeated unit keeps its inputs, which may be freed otherwise.
        tried = [self._tried(timeline, options, keeps, added_s) for keeps in ({}, least, every)]
        return min(tried, key=lambda each: (each.peak, each.added_s))

    def _fitting(
        self, timeline: MemoryTimeline, parts: Sequence[StepPart], options: Options, added_s: float, budget: int
    ) -> FitChoice | None:
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

    def _least(self, parts: Sequence[StepPart], high: int) -> dict[str, Way]:
        """The choice with about the least peak, by halving."""
        low, found = 0, dict[str, Way]()
        step = max(1, int(_PRECISION * high))
        while high - low > step:
            middle = (low + high) // 2
            keeps = choose_parts(parts, middle)
            if keeps is None:
                low = middle
            else:
                high, found = middle, keeps
        return found

    def _tried(self, timeline: MemoryTimeline, options: Options, keeps: Mapping[str, Way], added_s: float) -> FitChoice:
        changed, seconds = self._changed(timeline, keeps)
        peak = self.taken(changed, expandable=self._expandable)
        return FitChoice(options, keeps, changed, peak, added_s + seconds)

    def _changed(self, timeline: MemoryTimeline, keeps: Mapping[str, Way]) -> tuple[MemoryTimeline, float]:
        """The timeline with a choice of units, and the added seconds."""
        added = 0.0
        if away := self._in_order(keeps, "away"):
            assert self._question.link is not None
            timeline, added = sent_away(timeline, [self._by_path[path] for path in away], self._question.link)
        again: list[tuple[ModuleUnit, Keeps]] = [
            (self._by_path[path], each) for path, each in keeps.items() if each != "away"
        ]
        timeline, seconds = repeated(timeline, again)
        return timeline, added + seconds

    def _in_order(self, keeps: Mapping[str, Way], way: Way) -> list[str]:
        """Paths of units of one way, in the order of their forward passes."""
        return sorted((path for path, each in keeps.items() if each == way), key=self._order.__getitem__)

    def measures(self, found: FitChoice) -> tuple[FitMeasure, ...]:
        """The choice as measures, each with what it saves after those before it."""
        question = self._question
        made: list[FitMeasure] = []
        start = timeline = question.timeline
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
        if found.options.states_away:
            changed, seconds = with_options(start, found.options, question.link)
            add(FitMeasure(kind="states_away"), changed, seconds - sum(each.added_s or 0.0 for each in made))
        start, spent = timeline, 0.0
        chosen: dict[str, Way] = {}
        ways: tuple[Way, ...] = ("away", "products", "nothing")
        for way in ways:
            paths = self._in_order(found.keeps, way)
            if not paths:
                continue
            chosen |= dict.fromkeys(paths, way)
            changed, seconds = self._changed(start, chosen)
            if way == "away":
                measure = FitMeasure(kind="offload", paths=tuple(paths))
            else:
                measure = FitMeasure(kind="recompute", paths=tuple(paths), keeps=way)
            add(measure, changed, seconds - spent)
            spent = seconds
        return tuple(made)

    def _rejected(self, best: FitChoice, candidates: Sequence[FitChoice]) -> list[RejectedFit]:
        """Kinds that are not in the choice, what they would have come to, and why they are not."""
        question, found = self._question, list[RejectedFit]()
        plain = self._tried(question.timeline, Options(), {}, 0.0)
        changed, added_s = with_options(question.timeline, best.options, question.link)
        without = self._tried(changed, best.options, {}, added_s)

        def priced(each: FitChoice, beside: FitChoice, units: str = "") -> None:
            step_s = self._step_s + each.added_s if self._step_s else None
            reason = self._why_not(each, best) if each.peak < beside.peak else _saves_nothing(each, beside)
            found.append(RejectedFit(name=_named(each, units), peak_bytes=each.peak, step_s=step_s, reason=reason))

        for each in candidates:
            if each.options != best.options and (each.options != plain.options or each.keeps):
                priced(each, plain)
        ways: list[tuple[Keeps, str]] = [("nothing", _EVERY), ("products", f"{_EVERY}, products kept")]
        for keeps, name in ways:
            every: dict[str, Way] = {
                unit.path: keeps
                for unit in self._units
                if self._repeats and unit.can_repeat and (keeps == "nothing" or unit.has_products)
            }
            if every and every != best.keeps:
                priced(self._tried(changed, best.options, every, added_s), without, name)
        every = {unit.path: "away" for unit in self._units if question.link is not None and unit.can_leave}
        if every and "away" not in best.keeps.values():
            priced(self._tried(changed, best.options, every, added_s), without, _SIMULATED)
        if self._why_not_expandable:
            found.append(_refused("expandable segments", self._why_not_expandable))
        if question.link is not None and self.why_states_stay:
            found.append(_refused("states of the optimizer in host memory", self.why_states_stay))
        if self.why_not_used_up:
            found.append(_refused("gradients used up in the backward pass", self.why_not_used_up))
        for kind, reason in question.barred.items():
            if kind not in ("used_up", "states_away"):
                found.append(_refused(kind, reason))
        if question.model.compiled:
            found.append(_refused("recomputation", "the program compiles its model, and torch chooses what is kept"))
        for path, reason in itertools.islice({**question.model.kept_as_is, **question.without}.items(), 20):
            if reason != UNCALLED:
                found.append(_refused(f"recomputation of `{path}`" if path else "recomputation of all of it", reason))
        return list(dict.fromkeys(found))

    def _why_not(self, each: FitChoice, best: FitChoice) -> str:
        """Why something that saves is not the choice."""
        if each.peak > self._question.budget:
            return "it does not fit"
        if each.added_s >= best.added_s:
            return "it is slower"
        if self._question.host_is_last and each.uses_host:
            return "what leaves an emulated device stays in this machine's memory"
        return "it does more to the program"


def _said_to_grow(each: GrowingHolder) -> str:
    at = f" ({each.line})" if each.line else ""
    return f"`{each.name}`{at} keeps {each.bytes / 1e6:,.1f} MB more after each step, which no measure lowers"


_EVERY = "every outermost module recomputed"
_SIMULATED = "activations of every outermost module in host memory (simulated)"
UNCALLED = "its forward pass is never called"
"""Reason of modules that only hold others."""


def _refused(name: str, reason: str) -> RejectedFit:
    return RejectedFit(name=name, peak_bytes=None, step_s=None, reason=reason)


def _saves_nothing(each: FitChoice, beside: FitChoice) -> str:
    """Why the peak is not lower than without a kind of measure."""
    if each.peak <= beside.peak:
        return "it saves nothing of what the peak holds"
    if any(way != "away" for way in each.keeps.values()):
        return "it raises the peak: modules that are repeated keep what they read, which is more than what they save"
    return "it raises the peak"


def _named(choice: FitChoice, units: str = "") -> str:
    """What a choice is called.

    Args:
        choice: to name.
        units: what is done to all its units; empty where it was chosen for each.
    """
    parts = [name for name, is_on in (
        ("one parameter after another", choice.options.one_by_one),
        ("gradients used up in the backward pass", choice.options.used_up),
        ("states in host memory", choice.options.states_away),
        (units, bool(units)),
        ("recomputation", not units and any(way != "away" for way in choice.keeps.values())),
        ("activations in host memory", not units and "away" in choice.keeps.values()),
    ) if is_on]  # fmt: skip
    return " and ".join(parts)


def _weight(choice: FitChoice) -> tuple[int, int]:
    options = choice.options
    return options.one_by_one + options.used_up + 2 * options.states_away, len(choice.keeps)
