"""Answers whether a program fits a device: its peak, what holds it, and what each remedy saves and costs."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stoker.core.units import format_count
from stoker.perf.communication.blocks import units_of
from stoker.perf.communication.times import layers_of
from stoker.perf.features.lifetimes import CATEGORIES, MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.memory.arena import arena_sizes
from stoker.perf.memory.choice.fitting import FitChoice, FitPlanner, FitQuestion, plan_fit, reserve_of, taken_of
from stoker.perf.memory.choice.offloading import HostLink
from stoker.perf.memory.choice.options import BY_HAND, Options
from stoker.perf.memory.choice.tree_choice import Way
from stoker.perf.memory.largest import LargestBatch, SizedStep, at_least, largest_batch
from stoker.perf.memory.remedies import deleted, sharded, with_copies
from stoker.perf.memory.reserve import CONTEXT_BYTES, Reserve
from stoker.perf.memory.timeline import (
    MemoryPeak,
    by_category,
    by_line,
    by_module,
    growing,
    kept_too_long,
    live_bytes,
    peak_before,
    step_peak,
)
from stoker.perf.memory.updates import may_cut
from stoker.perf.strategy import DataParallel
from stoker.records.fitting import FitPlan, MeasureKind, TracedModel
from stoker.records.memory import (
    GrowingMemory,
    HeldTooLong,
    MemoryMoment,
    MemoryPass,
    MemoryRemedy,
    MemoryReport,
    MemoryShare,
)

_POINTS = 240
_LEAST_SAVED = 0.002
"""Share of the peak that a remedy must save to be shown (assumed)."""
_NO_EVALUATION = "no evaluation was seen: none came within seconds, or the program would have written a file before it"
_OF_RANKS = {"used_up": "ranks exchange gradients before they are applied"}
_MEASURES: dict[MeasureKind, tuple[str, str]] = {
    "expandable": ("expandable segments", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    "one_by_one": ("one parameter after another", "foreach=False of the optimizer"),
    "used_up": ("gradients used up in the backward pass", "stoker run --fit auto"),
    "recompute": ("recompute", "torch.utils.checkpoint"),
    "states_away": ("optimizer states in host memory", "stoker run --fit auto"),
    "offload": ("activations in host memory", "stoker run --fit auto"),
}
"""Measures that are shown by themselves: what each is called, and what does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQuestion:
    """A program and where it is to fit.

    Attributes:
        features: of its step.
        timeline: of its memory, with the seconds of its calls if they are known.
        larger: of the same program with a larger batch; None if it could not be traced.
        evaluation: of the same program up to its first evaluation; None if none was seen.
        evaluates: whether it is a whole program, which was let go on to an evaluation.
        traced: the same program with another batch; None if it cannot be traced.
        device: name of the GPU; empty where a size or nothing was given.
        available: bytes of the device; None for no device.
        emulated: whether bytes of tensors are counted, as of a program on CPUs.
        model: what may be done to the program.
        link: to host memory; None where nothing may lie there.
        planned: the plan that ``--fit auto`` makes; by default without a trace of its form.
        ranks: GPUs that train together.
        step_s: seconds of a step with data parallelism of a kind; None if they cannot be predicted.
    """

    features: StepFeatures
    timeline: MemoryTimeline
    larger: MemoryTimeline | None = None
    evaluation: MemoryTimeline | None = None
    evaluates: bool = False
    traced: Callable[[int], MemoryTimeline | None] = lambda _: None
    device: str = ""
    available: int | None = None
    emulated: bool = False
    model: TracedModel = field(default_factory=TracedModel)
    link: HostLink | None = None
    planned: Callable[[FitQuestion], FitPlan] = plan_fit
    ranks: int = 1
    step_s: Callable[[DataParallel], float | None] = lambda _: None

    def fit(self, timeline: MemoryTimeline) -> FitQuestion:
        """What ``--fit`` is asked, for a timeline of the program."""
        return FitQuestion(
            name=self.features.name, features=self.features, timeline=timeline, model=self.model,
            budget=self.available or 0, device=self.device, emulated=self.emulated,
            barred=_OF_RANKS if self.ranks > 1 else {}, link=None if self.ranks > 1 else self.link,
            host_is_last=self.emulated,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a timeline takes of a device."""

    peak: MemoryPeak
    reserve: Reserve
    total: int
    fits: bool | None
    timeline: MemoryTimeline
    """That the peak is of: of the step, or of the evaluation if that takes more."""


def report(question: MemoryQuestion) -> MemoryReport:
    """The whole answer; pure, but for the traces that it asks for."""
    base = _of_ranks(question)
    evaluation = None if question.evaluation is None else _taken_by(question, question.evaluation)
    taken = _fuller(_taken_by(question, base), evaluation)
    places, shown = taken.peak, taken.timeline
    last = places.last
    phase = "start" if last is None else "evaluation" if shown is question.evaluation else last.phase
    largest, fitted = _largest(question)
    plan = _plan(question, base)
    remedies = _remedies(question, base, taken, evaluation, plan)
    useless = [each for each in remedies if each.saves_bytes < _LEAST_SAVED * taken.total]
    step = reserve_of(base, emulated=question.emulated)
    arena = None if question.emulated else arena_sizes(base, step, reserve_of(base, emulated=False, expandable=True))
    return MemoryReport(
        name=question.features.name, device=question.device, available_bytes=question.available,
        ranks=question.ranks, batch_size=question.features.batch_size, peak_bytes=taken.total, fits=taken.fits,
        phase=phase, module=last.module if last else "", line=last.line if last else "",
        categories=_categories(taken),
        modules=[MemoryShare(*item) for item in by_module(shown, places).items()],
        lines=[MemoryShare(*item) for item in by_line(shown, places).items()], before_bytes=step.first,
        held=_held(base, taken), grows=_grows(question, taken),
        remedies=[each for each in remedies if each not in useless], plan=plan,
        largest_batch=largest.batch_size if largest else None,
        largest_fitted=fitted.batch_size if fitted else None,
        largest_traced=all(each.is_traced for each in (largest, fitted) if each is not None),
        passes=_passes(question, base), arena=arena, moments=_moments(base), drawn=list(CATEGORIES),
        peak_frac=_place_of(base, places) if shown is base else None,
        notes=[*question.features.assumptions, *_notes(question), *_useless(useless)],
    )  # fmt: skip


def _plan(question: MemoryQuestion, base: MemoryTimeline) -> FitPlan | None:
    """What ``--fit auto`` does for the device; None without one, and for ranks, which choose by their links."""
    if question.available is None or question.ranks > 1:
        return None
    return question.planned(question.fit(base))


def _passes(question: MemoryQuestion, base: MemoryTimeline) -> list[MemoryPass]:
    # What is characterised by a function has no step before the traced one.
    before = [("first step", peak_before(base))] if question.evaluates else []
    peaks = [*before, ("later steps", step_peak(base))]
    if question.evaluation is not None:
        peaks.append(("evaluation", step_peak(question.evaluation)))
    return [
        MemoryPass(name=name, bytes=peak.bytes, line=peak.last.line if peak.last else "") for name, peak in peaks
    ]  # fmt: skip


def _of_ranks(question: MemoryQuestion) -> MemoryTimeline:
    """With several ranks, gradients lie in the buckets of the all-reduce a second time."""
    if question.ranks == 1:
        return question.timeline
    weights = question.features.weights
    return with_copies(question.timeline, weights.dense_gradient_bytes + weights.embedding_gradient_bytes)


def _fuller(found: _Taken, evaluation: _Taken | None) -> _Taken:
    """The step or the evaluation, whichever takes more."""
    if evaluation is None:
        return found
    fits = None if found.fits is None else bool(found.fits and evaluation.fits)
    return replace(max((found, evaluation), key=lambda taken: taken.total), fits=fits)


def _taken_by(question: MemoryQuestion, timeline: MemoryTimeline) -> _Taken:
    step, before = step_peak(timeline), peak_before(timeline)
    peak = step if step.bytes >= before.bytes else before
    found = reserve_of(timeline, emulated=question.emulated, available=question.available)
    total = found.reserved + (0 if question.emulated else int(CONTEXT_BYTES))
    return _Taken(peak, found, total, None if question.available is None else total <= question.available, timeline)


def _categories(taken: _Taken) -> list[MemoryShare]:
    tensors = by_category(taken.timeline, taken.peak)
    found = [MemoryShare(name, size) for name, size in tensors.items()]
    beyond = taken.reserve.reserved - taken.peak.bytes
    context = taken.total - taken.reserve.reserved
    return [*found, MemoryShare("allocator", beyond), MemoryShare("context", context)]


def _held(timeline: MemoryTimeline, taken: _Taken) -> list[HeldTooLong]:
    if taken.timeline is not timeline:
        return []
    return [
        HeldTooLong(
            variable=kept.name, bytes=kept.bytes, assigned=kept.assigned, last_used=kept.last_used,
            saves_bytes=taken.peak.bytes - step_peak(deleted(timeline, kept)).bytes,
        )
        for kept in kept_too_long(timeline, taken.peak)
    ]  # fmt: skip


def _grows(question: MemoryQuestion, taken: _Taken) -> list[GrowingMemory]:
    room = question.available - taken.total if question.available is not None and taken.fits else None
    return [
        GrowingMemory(
            variable=each.name, bytes=each.bytes, line=each.line, keeps_graph=each.keeps_graph,
            steps=None if room is None else max(0, room // each.bytes),
        )
        for each in growing(question.timeline)
    ]  # fmt: skip


def _remedies(
    question: MemoryQuestion, base: MemoryTimeline, before: _Taken, evaluation: _Taken | None, plan: FitPlan | None
) -> list[MemoryRemedy]:
    alone_s = sum(call.seconds for call in base.calls)
    # Ranks make a step with DDP's exchange, where it can be predicted: one step for all rows.
    step_s = alone_s if question.ranks == 1 else question.step_s("ddp") or alone_s
    edges = _edges(base)

    def of(
        name: str, how: str, choice: FitChoice, losses: str = "equal", certified: bool = False, timed: bool = True
    ) -> MemoryRemedy:
        fits = None if question.available is None else choice.peak <= question.available
        taken = _fuller(replace(before, total=choice.peak, fits=fits), evaluation)
        course = [] if choice.timeline is base else _course(base, choice.timeline, edges)
        return MemoryRemedy(
            name=name, how=how, saves_bytes=before.total - taken.total, peak_bytes=taken.total,
            step_frac=choice.added_s / step_s if timed and step_s else None, losses=losses, fits=taken.fits,
            certified=certified, course=course,
        )  # fmt: skip

    # Where it fits, and without a device, recomputation is shown at its least.
    budget = 0 if before.fits or question.available is None else question.available
    planner = FitPlanner(question.fit(base))
    found: list[MemoryRemedy] = []
    for kind, choice in planner.alone(budget):
        if kind in _MEASURES:
            found.append(_remedy(kind, choice, plan, of))
    found += _shared(question, planner, of)
    return sorted(found, key=lambda each: each.saves_bytes)


def _useless(found: Sequence[MemoryRemedy]) -> list[str]:
    """What was tried and is no remedy."""
    names = ", ".join(each.name for each in found)
    return [f"saves under {_LEAST_SAVED:.1%} of the peak here, or raises it: {names}"] if found else []


def _remedy(
    kind: MeasureKind, choice: FitChoice, plan: FitPlan | None, of: Callable[..., MemoryRemedy]
) -> MemoryRemedy:  # fmt: skip
    """A measure by itself, as it was traced if the plan is that measure alone."""
    if plan is None or not plan.certified or {each.kind for each in plan.measures} != {kind}:
        # Growing segments change no form: they are a replay of the program's own trace.
        return of(*_named(kind, choice), choice, certified=kind == "expandable")
    keeps: dict[str, Way] = {
        path: "away" if kind == "offload" else each.keeps for each in plan.measures for path in each.paths
    }
    added_s = sum(each.added_s or 0.0 for each in plan.measures)
    traced = replace(choice, keeps=keeps, peak=plan.peak_bytes, added_s=added_s)
    return of(*_named(kind, traced), traced, certified=True)


def _named(kind: MeasureKind, choice: FitChoice) -> tuple[str, str]:
    """What a measure is called, and what does it."""
    name, how = _MEASURES[kind]
    if kind != "recompute" or not choice.keeps:
        return name, how
    kept = list(choice.keeps.values()).count("products")
    products = f", products of {kept} kept" if kept else ""
    return f"{name} {format_count(len(choice.keeps), 'module')}{products}", how


def _shared(question: MemoryQuestion, planner: FitPlanner, of: Callable[..., MemoryRemedy]) -> list[MemoryRemedy]:
    """What ranks can divide among them."""
    ranks = question.ranks
    if ranks == 1 or question.model.passes_by_hand:  # both need an optimizer
        return []
    plain, features = question.timeline, question.features
    layers = layers_of(features)
    units = [sum(_weight(layer) for layer in layers[unit.start : unit.stop]) for unit in units_of(layers)]
    buckets = features.weights.dense_gradient_bytes + features.weights.embedding_gradient_bytes
    zero = with_copies(sharded(plain, ranks, weights=False, cut=may_cut(question.model.optimizers)), buckets)
    whole = sharded(plain, ranks, weights=True, gathered_bytes=3 * max(units, default=0))
    alone_s = question.step_s("ddp")
    kinds: tuple[tuple[DataParallel, str, str, MemoryTimeline], ...] = (
        ("zero1", "ZeroRedundancyOptimizer", f"ZeRO-1 over {ranks} ranks", zero),
        ("fsdp", "torch.distributed.fsdp.fully_shard", f"FSDP2 over {ranks} ranks", whole),
    )
    found: list[MemoryRemedy] = []
    for kind, how, name, changed in kinds:
        shared_s = question.step_s(kind)
        added_s = 0.0 if alone_s is None or shared_s is None else shared_s - alone_s
        losses = "equal" if kind == "zero1" else "within 1e-5"
        choice = FitChoice(Options(), {}, changed, planner.taken(changed, expandable=False), added_s)
        found.append(of(name, how, choice, losses, timed=alone_s is not None and shared_s is not None))
    return found


def _weight(layer: object) -> int:
    return getattr(layer, "dense_bytes", 0) + getattr(layer, "embedding_bytes", 0)


def _largest(question: MemoryQuestion) -> tuple[LargestBatch | None, LargestBatch | None]:
    """The largest batch that fits as it is, and with ``--fit auto``.

    None where no device was named, no second size could be traced, or bytes do not grow with the batch.
    """
    larger, own, available = question.larger, question.timeline, question.available
    if larger is None or available is None or larger.batch_size <= own.batch_size:
        return None, None
    timelines = {each.batch_size: each for each in (own, larger)}

    def traced(size: int) -> MemoryTimeline | None:
        found = question.traced(size)
        if found is not None:
            timelines[found.batch_size] = found
        return found

    def search(need: Callable[[MemoryTimeline], SizedStep]) -> LargestBatch | None:
        def step(size: int) -> SizedStep | None:
            found = traced(size)
            return None if found is None else need(found)

        return largest_batch({size: need(each) for size, each in timelines.items()}, available, step)

    def plain(timeline: MemoryTimeline) -> SizedStep:
        base = _of_ranks(replace(question, timeline=timeline))
        most = taken_of(base, emulated=question.emulated, expandable=False)
        return SizedStep(timeline.batch_size, most, bool(_taken_by(question, base).fits))

    def fitted(timeline: MemoryTimeline) -> SizedStep:
        # What fits is left as it is: no size that fits without measures is too large with them.
        alone = plain(timeline)
        least = FitPlanner(question.fit(_of_ranks(replace(question, timeline=timeline)))).least()
        return SizedStep(timeline.batch_size, min(alone.bytes, least), alone.fits or least <= available)

    first = search(plain)
    return first, at_least(search(fitted), first)


def _moments(timeline: MemoryTimeline) -> list[MemoryMoment]:
    """The step by category, each moment the fullest of its part of the step."""
    change = np.zeros((len(CATEGORIES), timeline.end + 1), dtype=np.int64)
    rows = {name: row for row, name in enumerate(CATEGORIES)}
    for each in timeline.buffers:
        change[rows[each.category], each.birth] += each.bytes
        change[rows[each.category], each.death] -= each.bytes
    live = np.cumsum(change[:, :-1], axis=1)[:, max(0, timeline.begin - 1) :]
    count, edges = live.shape[1], _edges(timeline)
    begin = max(0, timeline.begin - 1)
    calls = [call.at for call in timeline.calls]
    found: list[MemoryMoment] = []
    for start, stop in itertools.pairwise(edges):
        at = start + int(np.argmax(live[:, start:stop].sum(axis=0)))
        # A call of as many events before it has run once the next event happens.
        past = bisect_right(calls, begin + at + 1) - 1
        phase = timeline.calls[past].phase if past >= 0 else ""
        found.append(MemoryMoment(at / max(1, count - 1), [int(size) for size in live[:, at]], phase))
    return found


def _edges(timeline: MemoryTimeline) -> list[int]:
    """Where the parts of the step begin, in its events, and where the last one ends."""
    count = timeline.end - max(0, timeline.begin - 1)
    parts = min(_POINTS, count)
    return [count * part // parts for part in range(parts + 1)] if parts else [0]


def _course(base: MemoryTimeline, changed: MemoryTimeline, edges: Sequence[int]) -> list[int]:
    """Most bytes of a changed step in each part of the step: what it runs besides belongs to the call before it."""
    live = live_bytes(changed)
    first = max(0, base.begin - 1)
    begins = [call.at for call in base.calls]

    def moved(at: int) -> int:
        """The event of the changed step in place of one of the step."""
        call = bisect_right(begins, at) - 1
        if call < 0:
            return at + changed.begin - base.begin if at >= base.begin else at
        following = changed.calls[call + 1].at if call + 1 < len(begins) else changed.end
        return min(changed.calls[call].at + at - begins[call], following)

    places = [moved(first + edge) for edge in edges[:-1]] + [changed.end]
    return [
        int(live[start : max(stop, start + 1)].max()) if start < len(live) else 0
        for start, stop in itertools.pairwise(places)
    ]  # fmt: skip


def _place_of(timeline: MemoryTimeline, peak: MemoryPeak) -> float | None:
    begin = max(0, timeline.begin - 1)
    return (peak.at - begin) / max(1, timeline.end - begin - 1) if peak.at >= begin else None


def _notes(question: MemoryQuestion) -> list[str]:
    if question.emulated:
        notes = ["bytes of tensors alone were counted, as on CPUs"]
    else:
        notes = ["the allocator was replayed through the program's first step and repeated ones"]
        notes.append(f"the context of CUDA and its libraries was taken as {CONTEXT_BYTES / 1e9:.2f} GB")
    if question.available is not None and question.larger is None:
        notes.append("no largest batch: a second size of the batch could not be traced")
    if question.evaluates:
        notes.append("an evaluation was traced up to its second batch" if question.evaluation else _NO_EVALUATION)
    if question.ranks > 1 and question.model.passes_by_hand:
        notes.append(f"ZeRO-1 and FSDP2 are not shown: {BY_HAND}")
    return notes
