"""Divides the spans of a traced step into seconds by label: nested operators, communication and device kernels.

On the CPU the operators are the kernels: each instant of the training thread belongs to the innermost operator. With a
device, each instant belongs to the device's work, or while it is idle to the host's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from stoker.records.parts import PARTS

NEXT, STEP, OPTIMIZER, CLOSURE = "stoker::next", "stoker::step", "stoker::optimizer", "stoker::closure"
"""Names of the ranges that we put into the trace: waiting for a batch, the end of a step (an instant), an optimizer's
step, what an optimizer calls to have the loss computed again."""
MODULE = "stoker::module::"
"""Prefix of a module's forward pass; its path follows."""
_STEPS = (OPTIMIZER, "Optimizer.step#")
_OPTIMIZER = (*_STEPS, "Optimizer.zero_grad#")
_BACKWARD = "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True)
class TracedRange:
    """One traced range.

    Attributes:
        start, end: nanoseconds.
        label: what its own time is spent on; None for a range around others.
        sequence: links a forward operator with its node of the backward pass; -1 for none.
        number: links an operator with the device's kernels that it started; 0 for none.
    """

    name: str
    start: int
    end: int
    label: str | None = None
    sequence: int = -1
    number: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the training thread with one label.

    Attributes:
        covered: whether a range of the trace covers it; waiting for an exchange leaves none.
        begins: whether the range begins here; others continue after a nested call.
    """

    start: int
    end: int
    label: str
    module: str
    name: str
    covered: bool
    begins: bool = False

    @property
    def length(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class _Open:
    span: TracedRange
    region: str
    module: str
    label: str


def flatten(spans: Iterable[TracedRange]) -> list[Segment]:
    """The training thread as contiguous stretches, each of its innermost range, from its first range to its last.

    Waiting for a batch and the optimizer include everything inside. Time without a range is the host's, or, from the
    end of an optimizer's step to the next request for a batch, other.
    """
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    if not ordered:
        return []
    modules = modules_by_sequence(ordered)
    segments: list[Segment] = []
    stack: list[_Open] = []
    cursor = ordered[0].start
    idle = "host"

    def advance(until: int) -> None:
        nonlocal cursor, idle
        while stack and stack[-1].span.end <= until:
            top = stack.pop()
            emit(top, top.span.end)
            if top.span.name.startswith(_STEPS) or top.span.name == STEP:
                idle = "other"
        emit(stack[-1] if stack else None, until)

    def emit(top: _Open | None, until: int) -> None:
        nonlocal cursor
        if until > cursor:
            covered = top is not None
            found = top or _Open(ordered[0], "", "", idle)
            name = found.span.name if covered else ""
            begins = covered and found.span.start == cursor
            segments.append(Segment(cursor, until, found.label, found.module, name, covered, begins))
            cursor = until

    for span in ordered:
        advance(span.start)
        outer = stack[-1] if stack else None
        if span.name == NEXT:
            idle = "host"
        stack.append(_opened(span, outer, modules))
    advance(max(span.end for span in ordered))
    return segments


def _opened(span: TracedRange, outer: _Open | None, modules: dict[int, str]) -> _Open:
    region = outer.region if outer else ""
    if span.name == NEXT:
        region = "input"
    elif span.name.startswith(_OPTIMIZER) and region != "input":
        region = "optimizer"
    elif span.name == CLOSURE:
        region = ""
    elif span.label == "communication" and not region:
        region = "communication"
    module = outer.module if outer else ""
    if span.name.startswith(MODULE):
        module = span.name.removeprefix(MODULE)
    elif span.name.startswith(_BACKWARD):
        module = modules.get(span.sequence, "")
    # A range around others is dispatch or the engine of the backward pass: the host's.
    return _Open(span, region, module, region or span.label or "host")


def contexts(spans: Iterable[TracedRange], modules: dict[int, str]) -> dict[int, tuple[str, str, str]]:
    """Region, module and name of each operator of a thread that may have started kernels, by its number.

    Args:
        spans: of one thread.
        modules: of forward operators by sequence: those of the thread that runs the forward pass.
    """
    found: dict[int, tuple[str, str, str]] = {}
    stack: list[_Open] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        while stack and stack[-1].span.end <= span.start:
            stack.pop()
        opened = _opened(span, stack[-1] if stack else None, modules)
        stack.append(opened)
        if span.number:
            found[span.number] = (opened.region, opened.module, span.name)
    return found


def modules_by_sequence(ordered: Sequence[TracedRange]) -> dict[int, str]:
    """Module of each forward operator that has a node of the backward pass."""
    found: dict[int, str] = {}
    stack: list[tuple[int, str]] = []
    for span in ordered:
        while stack and stack[-1][0] <= span.start:
            stack.pop()
        if span.name.startswith(MODULE):
            stack.append((span.end, span.name.removeprefix(MODULE)))
        elif span.sequence >= 0 and stack and not span.name.startswith(_BACKWARD):
            found.setdefault(span.sequence, stack[-1][1])
    return found


def cut(segments: Iterable[Segment], start: int, end: int) -> list[Segment]:
    """The parts of segments between two instants."""
    return [
        Segment(max(s.start, start), min(s.end, end), s.label, s.module, s.name, s.covered, s.begins)
        for s in segments
        if s.start < end and s.end > start
    ]


def on_host(segments: Sequence[Segment], exchanges: Sequence[tuple[int, int]]) -> tuple[dict[str, float], float]:
    """Nanoseconds of a step on the CPU by label, and of exchange that is hidden.

    Args:
        segments: of the step.
        exchanges: when an exchange between ranks was under way, in other threads.
    """
    busy = Busy(exchanges)
    seconds = dict.fromkeys(PARTS, 0.0)
    exposed = 0.0
    for segment in segments:
        # Waiting for an exchange leaves no range: the thread is in none while the exchange is under way.
        may_wait = not segment.covered and segment.label in ("host", "other")
        during = busy.within(segment.start, segment.end) if may_wait or segment.label == "communication" else 0.0
        exposed += during
        seconds[segment.label] += segment.length - (during if may_wait else 0.0)
        seconds["communication"] += during if may_wait else 0.0
    start, end = (segments[0].start, segments[-1].end) if segments else (0, 0)
    return seconds, max(0.0, busy.within(start, end) - exposed)


def on_device(segments: Sequence[Segment], kernels: Iterable[tuple[int, int, str]]) -> tuple[dict[str, float], float]:
    """Nanoseconds of a step with a device by label, and of exchange that is hidden.

    Computation comes first: an exchange or a copy counts only where no computation hides it.

    Args:
        segments: of the training thread in the step: what the host does while the device is idle.
        kernels: start, end and label of what the device did, on all its streams.
    """
    seconds = dict.fromkeys(PARTS, 0.0)
    if not segments:
        return seconds, 0.0
    start, end = segments[0].start, segments[-1].end
    by_label: dict[str, list[tuple[int, int]]] = {}
    for begin, stop, label in kernels:
        if begin < end and stop > start:
            by_label.setdefault(label, []).append((max(begin, start), min(stop, end)))
    exchange = Busy(by_label.get("communication", [])).total
    taken = Busy([])
    for label in ("compute", "memory", "optimizer", "copy", "communication"):
        with_it = Busy([*taken.intervals, *by_label.get(label, [])])
        seconds[label] = with_it.total - taken.total
        taken = with_it
    for segment in segments:
        idle = segment.length - taken.within(segment.start, segment.end)
        seconds[segment.label if segment.label in ("input", "other") else "host"] += idle
    return seconds, exchange - seconds["communication"]


def union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same instants as disjoint intervals in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


class Busy:
    """When something was under way, and for how much of a stretch."""

    def __init__(self, intervals: Iterable[tuple[int, int]]) -> None:
        self.intervals = union(intervals)
        self._starts = [start for start, _ in self.intervals]
        self._sums = [0, *accumulate(end - start for start, end in self.intervals)]

    @property
    def total(self) -> float:
        """The whole time."""
        return float(self._sums[-1])

    def within(self, start: int, end: int) -> float:
        """Nanoseconds of a stretch."""
        return self._before(end) - self._before(start)

    def _before(self, instant: int) -> float:
        at = bisect_right(self._starts, instant)
        return self._sums[at] - (max(0, self.intervals[at - 1][1] - instant) if at else 0)
