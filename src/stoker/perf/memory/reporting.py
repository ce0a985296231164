"""Answers whether a program fits a device: its peak, what holds it, and what each remedy saves and costs."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stoker.perf.communication.blocks import units_of
from stoker.perf.communication.times import layers_of
from stoker.perf.features.lifetimes import CATEGORIES, MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.memory.arena import arena_sizes
from stoker.perf.memory.choosing import choose, costs_of
from stoker.perf.memory.largest import LargestBatch, SizedStep, largest_batch
from stoker.perf.memory.needs import CONTEXT_BYTES
from stoker.perf.memory.remedies import BlockSpan, deleted, one_by_one, recomputed, sharded, spans_of, with_copies
from stoker.perf.memory.reserve import Reserve, replay
from stoker.perf.memory.timeline import (
    MemoryPeak,
    by_category,
    by_line,
    by_module,
    kept_too_long,
    live_bytes,
    peak_before,
    step_peak,
)
from stoker.perf.strategy import DataParallel
from stoker.records.memory import HeldTooLong, MemoryMoment, MemoryPass, MemoryRemedy, MemoryReport, MemoryShare

_POINTS = 240
_LEAST_SAVED = 0.002
"""Share of the peak that a remedy must save to be shown (assumed)."""
_NO_EVALUATION = "no evaluation was seen: none came within seconds, or the program would have written a file before it"
_TRIES = 4
"""Choices of blocks: each after the first has less by what the one before was too much."""


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
    ranks: int = 1
    step_s: Callable[[DataParallel], float | None] = lambda _: None


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
    taken = _taken(question, base)
    places, shown = taken.peak, taken.timeline
    last = places.last
    phase = "start" if last is None else "evaluation" if shown is question.evaluation else last.phase
    largest = _largest(question, lambda timeline: timeline, expandable=False)
    recomputed_too = _largest(question, _all_recomputed, expandable=True)
    step = replay(base, workspace_bytes=base.workspace_bytes)
    return MemoryReport(
        name=question.features.name, device=question.device, available_bytes=question.available,
        ranks=question.ranks, batch_size=question.features.batch_size, peak_bytes=taken.total, fits=taken.fits,
        phase=phase, module=last.module if last else "", line=last.line if last else "",
        categories=_categories(taken),
        modules=[MemoryShare(*item) for item in by_module(shown, places).items()],
        lines=[MemoryShare(*item) for item in by_line(shown, places).items()], before_bytes=step.first,
        held=_held(base, taken), remedies=list(_remedies(question, base, taken)),
        largest_batch=largest.batch_size if largest else None,
        largest_recomputed=recomputed_too.batch_size if recomputed_too else None,
        largest_traced=all(each.is_traced for each in (largest, recomputed_too) if each is not None),
        passes=_passes(question, base),
        arena=arena_sizes(base, step, replay(base, expandable=True, workspace_bytes=base.workspace_bytes)),
        moments=_moments(base), drawn=list(CATEGORIES),
        peak_frac=_place_of(base, places) if shown is base else None,
        notes=[*question.features.assumptions, *_notes(question)],
    )  # fmt: skip


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


def _taken(question: MemoryQuestion, timeline: MemoryTimeline, *, expandable: bool = False) -> _Taken:
    """What a timeline of the step takes, and the evaluation, whichever takes more."""
    found = _taken_by(timeline, question.available, expandable=expandable)
    if question.evaluation is None:
        return found
    other = _taken_by(question.evaluation, question.available, expandable=expandable)
    fits = None if found.fits is None else bool(found.fits and other.fits)
    return replace(max((found, other), key=lambda taken: taken.total), fits=fits)


def _taken_by(timeline: MemoryTimeline, available: int | None, *, expandable: bool) -> _Taken:
    step, before = step_peak(timeline), peak_before(timeline)
    peak = step if step.bytes >= before.bytes else before
    found = replay(timeline, expandable=expandable, workspace_bytes=timeline.workspace_bytes)
    total = found.reserved + int(CONTEXT_BYTES)
    if available is None:
        return _Taken(peak, found, total, None, timeline)
    if total <= available:
        return _Taken(peak, found, total, True, timeline)
    # The allocator returns what it holds unused before it gives up.
    room = available - CONTEXT_BYTES
    within = None if found.requested > room else replay(
        timeline, expandable=expandable, limit=room, workspace_bytes=timeline.workspace_bytes
    )  # fmt: skip
    if within is None or within.full:
        return _Taken(peak, found, total, False, timeline)
    return _Taken(peak, within, within.reserved + int(CONTEXT_BYTES), True, timeline)


def _categories(taken: _Taken) -> list[MemoryShare]:
    tensors = by_category(taken.timeline, taken.peak)
    found = [MemoryShare(name, size) for name, size in tensors.items()]
    beyond = taken.reserve.reserved - taken.peak.bytes
    return [*found, MemoryShare("allocator", beyond), MemoryShare("context", int(CONTEXT_BYTES))]


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


def _remedies(question: MemoryQuestion, base: MemoryTimeline, before: _Taken) -> list[MemoryRemedy]:
    step_s = sum(call.seconds for call in base.calls)

    edges = _edges(base)

    def of(
        name: str, how: str, changed: MemoryTimeline, added_s: float, losses: str = "equal", *, expandable: bool = False
    ) -> MemoryRemedy:
        taken = _taken(question, changed, expandable=expandable)
        course = [] if changed is base else _course(base, changed, edges)
        return MemoryRemedy(
            name=name, how=how, saves_bytes=before.total - taken.total, peak_bytes=taken.total,
            step_frac=added_s / step_s if step_s else None, losses=losses, fits=taken.fits,
            course=course,
        )  # fmt: skip

    found = [
        of("expandable segments", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", base, 0.0, expandable=True)
    ]  # fmt: skip
    single, added_s = one_by_one(base)
    found.append(of("one parameter after another", "foreach=False of the optimizer", single, added_s))
    chosen = _chosen(question, base)
    if chosen is not None:
        spans, all_spans = chosen
        changed, added_s = recomputed(base, spans)
        name = f"recompute {_count(spans)} of {_count(all_spans)} blocks"
        found.append(of(name, "torch.utils.checkpoint.checkpoint", changed, added_s))
    found += _shared(question, of)
    least = _LEAST_SAVED * before.total
    return sorted((each for each in found if each.saves_bytes >= least), key=lambda each: each.saves_bytes)


def _count(spans: tuple[BlockSpan, ...]) -> int:
    return len({span.path for span in spans})


def _chosen(
    question: MemoryQuestion, timeline: MemoryTimeline
) -> tuple[tuple[BlockSpan, ...], tuple[BlockSpan, ...]] | None:
    """The blocks to recompute, and all: those that fit in the least time, or all if none do or no device is known."""
    available, spans = question.available, spans_of(timeline)
    if not spans:
        return None
    # With accumulation a block runs several times; its passes are alike and are recomputed together.
    first = [span for place, span in enumerate(spans) if span.path not in {each.path for each in spans[:place]}]
    if available is not None and len(first) == len(spans):
        costs, rest = costs_of(timeline, spans)
        budget = available - int(CONTEXT_BYTES) - 2 * timeline.workspace_bytes
        for _ in range(_TRIES):
            places = choose(costs, budget, rest=rest)
            if places is None:
                break
            picked = tuple(spans[place] for place in sorted(places))
            taken = _taken(question, recomputed(timeline, picked)[0])
            if taken.fits:
                return (picked, spans) if picked else None
            budget -= max(1, taken.total - available)
    return spans, spans


def _shared(question: MemoryQuestion, of: Callable[..., MemoryRemedy]) -> list[MemoryRemedy]:
    """What ranks can divide among them."""
    ranks = question.ranks
    if ranks == 1:
        return []
    plain, features = question.timeline, question.features
    layers = layers_of(features)
    units = [sum(_weight(layer) for layer in layers[unit.start : unit.stop]) for unit in units_of(layers)]
    buckets = features.weights.dense_gradient_bytes + features.weights.embedding_gradient_bytes
    zero = with_copies(sharded(plain, ranks, weights=False), buckets)
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
        found.append(of(name, how, changed, added_s, losses))
    return found


def _weight(layer: object) -> int:
    return getattr(layer, "dense_bytes", 0) + getattr(layer, "embedding_bytes", 0)


def _all_recomputed(timeline: MemoryTimeline) -> MemoryTimeline:
    return recomputed(timeline, spans_of(timeline))[0]


def _largest(
    question: MemoryQuestion, change: Callable[[MemoryTimeline], MemoryTimeline], *, expandable: bool
) -> LargestBatch | None:
    """The largest batch that fits with a change; None if no device was named or no second size could be traced."""
    larger, own, available = question.larger, question.timeline, question.available
    if larger is None or available is None or larger.batch_size <= own.batch_size:
        return None

    def step(timeline: MemoryTimeline) -> SizedStep:
        changed = change(_of_ranks(replace(question, timeline=timeline)))
        found = _taken_by(changed, available, expandable=expandable)
        whole = replay(changed, expandable=expandable, workspace_bytes=changed.workspace_bytes).reserved
        return SizedStep(timeline.batch_size, whole + int(CONTEXT_BYTES), bool(found.fits))

    def traced(size: int) -> SizedStep | None:
        found = question.traced(size)
        return None if found is None else step(found)

    return largest_batch({each.batch_size: step(each) for each in (own, larger)}, available, traced)


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
    notes = ["the allocator was replayed through the program's first step and repeated ones"]
    notes.append(f"the context of CUDA and its libraries was taken as {CONTEXT_BYTES / 1e9:.2f} GB")
    if question.available is not None and question.larger is None:
        notes.append("no largest batch: a second size of the batch could not be traced")
    if question.evaluates:
        notes.append("an evaluation was traced up to its second batch" if question.evaluation else _NO_EVALUATION)
    return notes
