"""Divides a trace of several consecutive steps into seconds by label, module and operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from stoker.perf.diagnosis.kernels import label_of_kernel
from stoker.perf.diagnosis.timeline import (
    STEP,
    TracedRange,
    contexts,
    cut,
    flatten,
    modules_by_sequence,
    on_device,
    on_host,
)
from stoker.records.profile import ModuleTime, OperatorTime, SampledStep

NS = 1e-9
_OPERATORS_KEPT = 200
_OURS = ("stoker::", "Optimizer.")
"""Ranges that are not operators; their own time is Python's."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What a device did.

    Attributes:
        start, end: nanoseconds, of the clock of the spans.
        operator: number of the operator that started it; 0 if not known.
    """

    name: str
    start: int
    end: int
    operator: int


@dataclass(frozen=True, kw_only=True)
class ProfilerTrace:
    """What torch's profiler recorded in a few steps.

    Attributes:
        main: ranges of the training thread.
        threads: ranges of other threads, that of the backward pass with a device.
        exchanges: when an exchange between ranks was under way on the host, start and end.
        kernels: of the device; none on a CPU.
    """

    main: Sequence[TracedRange]
    threads: Sequence[Sequence[TracedRange]] = ()
    exchanges: Sequence[tuple[int, int]] = ()
    kernels: Sequence[Kernel] = ()


@dataclass
class Sampled:
    """What sampled steps show."""

    steps: list[SampledStep] = field(default_factory=list[SampledStep])
    modules: list[ModuleTime] = field(default_factory=list[ModuleTime])
    operators: list[OperatorTime] = field(default_factory=list[OperatorTime])


def analyse(trace: ProfilerTrace, *, first: int) -> Sampled:
    """The complete steps of a trace, except the first, in which the profiler settles.

    Args:
        trace: of consecutive steps.
        first: number of the step that follows the first end of one in the trace.
    """
    ends = [span.start for span in sorted(trace.main, key=lambda span: span.start) if span.name == STEP]
    if len(ends) < 3:
        return Sampled()
    segments = flatten(span for span in trace.main if span.start <= ends[-1])
    begin, end = ends[1], ends[-1]
    has_device = bool(trace.kernels)
    labelled = _labelled(trace) if has_device else []
    found = Sampled()
    for number, (start, stop) in enumerate(pairwise(ends[1:])):
        own = cut(segments, start, stop)
        if has_device:
            near = [(k.start, k.end, label) for k, label, _, _ in labelled if k.start < stop and k.end > start]
            seconds, hidden = on_device(own, near)
        else:
            seconds, hidden = on_host(own, trace.exchanges)
        found.steps.append(
            SampledStep(
                number=first + 1 + number,
                period_s=(stop - start) * NS,
                seconds={label: value * NS for label, value in seconds.items()},
                hidden_s=hidden * NS,
                ranges=sum(segment.begins for segment in own),
            )
        )
    if has_device:
        pieces = [
            TimedStretch(k.end - k.start, label, module, name, True)
            for k, label, module, name in labelled
            if begin <= k.start < end
        ]
    else:
        pieces = [
            TimedStretch(s.length, s.label, s.module, s.name, s.begins) for s in cut(segments, begin, end) if s.covered
        ]
    found.modules = _modules(pieces, len(found.steps))
    found.operators = _operators(pieces, len(found.steps))
    return found


def _labelled(trace: ProfilerTrace) -> list[tuple[Kernel, str, str, str]]:
    """Each kernel with its label, and the module and operator that it belongs to."""
    modules = modules_by_sequence(sorted(trace.main, key=lambda span: (span.start, -span.end)))
    known: dict[int, tuple[str, str, str]] = {}
    for thread in (trace.main, *trace.threads):
        known.update(contexts(thread, modules))
    found: list[tuple[Kernel, str, str, str]] = []
    for kernel in trace.kernels:
        region, module, operator = known.get(kernel.operator, ("", "", ""))
        label = label_of_kernel(kernel.name, operator)
        if region == "optimizer" and label in ("compute", "memory"):
            label = "optimizer"
        found.append((kernel, label, module, operator or kernel.name))
    return found


class TimedStretch(NamedTuple):
    """A stretch of time of an operator, or of one of its kernels.

    Attributes:
        length: nanoseconds.
        begins: whether it is the operator's first.
    """

    length: int
    label: str
    module: str
    operator: str
    begins: bool


def _modules(pieces: Iterable[TimedStretch], steps: int) -> list[ModuleTime]:
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for piece in pieces:
        if piece.label in ("compute", "memory"):
            sums[piece.module][piece.label == "memory"] += piece.length * NS / steps
    found = [ModuleTime(path=path, compute_s=both[0], memory_s=both[1]) for path, both in sums.items()]
    return sorted(found, key=lambda module: -module.total_s)


def _operators(pieces: Iterable[TimedStretch], steps: int) -> list[OperatorTime]:
    sums: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0])
    for piece in pieces:
        if piece.label in ("compute", "memory", "optimizer") and not piece.operator.startswith(_OURS):
            found = sums[piece.operator, piece.label]
            found[0] += piece.length * NS / steps
            found[1] += piece.begins / steps
    times = [
        OperatorTime(name=name, label=label, seconds=seconds, calls=calls)
        for (name, label), (seconds, calls) in sums.items()
    ]
    return sorted(times, key=lambda each: -each.seconds)[:_OPERATORS_KEPT]


def rescaled(
    found: Sampled, sampled: Mapping[str, float], shown: Mapping[str, float]
) -> tuple[list[ModuleTime], list[OperatorTime]]:
    """Times of modules and operators on the scale of the parts that are shown; none sums to more than its part.

    Sampling slows steps down, and kernels on several streams at once take more time than passes.

    Args:
        found: as sampled.
        sampled: seconds by label in sampled steps.
        shown: the same parts as they are shown.
    """
    operators: defaultdict[str, float] = defaultdict(float)
    for operator in found.operators:
        operators[operator.label] += operator.seconds
    modules = {
        "compute": sum(module.compute_s for module in found.modules),
        "memory": sum(module.memory_s for module in found.modules),
    }

    def factor(label: str, summed_s: float) -> float:
        most_s = max(summed_s, sampled.get(label, 0.0))
        return shown.get(label, 0.0) / most_s if most_s else 0.0

    compute, memory = (factor(label, modules[label]) for label in ("compute", "memory"))
    return [
        ModuleTime(path=module.path, compute_s=compute * module.compute_s, memory_s=memory * module.memory_s)
        for module in found.modules
    ], [
        replace(operator, seconds=operator.seconds * factor(operator.label, operators[operator.label]))
        for operator in found.operators
    ]
