"""Peaks of a program's memory, and what is alive at them: by category, module and line.

Pure arithmetic on :class:`~stoker.perf.features.lifetimes.MemoryTimeline`, which tracing writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec.structs
import numpy as np
from numpy.typing import NDArray

from stoker.perf.communication.times import PassTimes, layers_of
from stoker.perf.features.lifetimes import CATEGORIES, BufferLife, GrowingHolder, MemoryTimeline
from stoker.perf.features.records import StepFeatures, block_of

_LEAST_GROWN = 1e-4
"""Share of the peak from which what a step adds to is worth a line (assumed)."""
_LEAST_HELD = 0.01
"""Share of the peak from which a variable that holds memory too long is worth a line (assumed)."""


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """Most bytes that are alive at once.

    Attributes:
        at: number of the event that reaches it.
        bytes: alive.
        buffers: places of what is alive, in the order of their births.
        last: what that event allocates; None if the memory was alive before the step.
    """

    at: int
    bytes: int
    buffers: tuple[int, ...]
    last: BufferLife | None


def live_bytes(timeline: MemoryTimeline) -> NDArray[np.int64]:
    """Bytes that are alive after each event; shape (``end``,)."""
    change = np.zeros(timeline.end + 1, dtype=np.int64)
    for buffer in timeline.buffers:
        change[buffer.birth] += buffer.bytes
        change[buffer.death] -= buffer.bytes
    return np.cumsum(change[:-1])


def step_peak(timeline: MemoryTimeline) -> MemoryPeak:
    """The peak of the traced step, which starts from what was alive before it."""
    return _peak(timeline, max(0, timeline.begin - 1), timeline.end)


def peak_before(timeline: MemoryTimeline) -> MemoryPeak:
    """The peak of all that ran before the traced step: the program's start and its first step."""
    return _peak(timeline, 0, timeline.begin)


def _peak(timeline: MemoryTimeline, start: int, stop: int) -> MemoryPeak:
    live = live_bytes(timeline)[start:stop]
    if not len(live):
        return MemoryPeak(start, 0, (), None)
    at = start + int(np.argmax(live))
    alive = tuple(place for place, each in enumerate(timeline.buffers) if each.birth <= at < each.death)
    last = next((timeline.buffers[place] for place in reversed(alive) if timeline.buffers[place].birth == at), None)
    return MemoryPeak(at, int(live[at - start]), alive, last)


def stretched(timeline: MemoryTimeline, times: int) -> MemoryTimeline:
    """The timeline with room for ``times - 1`` further events before each of its events."""
    begin = times * (timeline.begin - 1) + 1 if timeline.begin else 0
    lives = tuple(
        msgspec.structs.replace(
            each, birth=times * each.birth, death=times * each.death, released=times * each.released,
            last_use=times * each.last_use if each.last_use >= 0 else -1,
        )
        for each in timeline.buffers
    )  # fmt: skip
    calls = tuple(msgspec.structs.replace(call, at=times * call.at) for call in timeline.calls)
    scratch = tuple(
        msgspec.structs.replace(each, at=times * each.at, num_late_outputs=times * each.num_late_outputs)
        for each in timeline.scratch
    )
    return msgspec.structs.replace(
        timeline, begin=begin, end=times * timeline.end, buffers=lives, calls=calls, scratch=scratch
    )


def with_lives(timeline: MemoryTimeline, lives: Iterable[BufferLife]) -> MemoryTimeline:
    """The timeline with further buffers, in the order of all births."""
    added = [each for each in lives if each.bytes and each.death > each.birth]
    every = sorted([*timeline.buffers, *added], key=lambda each: each.birth)
    places = {id(each): place for place, each in enumerate(every)}
    held = tuple(
        msgspec.structs.replace(each, buffer=places[id(timeline.buffers[each.buffer])]) for each in timeline.held
    )
    return msgspec.structs.replace(timeline, buffers=tuple(every), held=held)


def by_category(timeline: MemoryTimeline, peak: MemoryPeak) -> dict[str, int]:
    """Bytes at a peak by category, in their order; they sum to the peak."""
    sums = _sums(timeline, peak, lambda each: each.category)
    return {name: sums[name] for name in CATEGORIES if name in sums}


def by_module(timeline: MemoryTimeline, peak: MemoryPeak) -> dict[str, int]:
    """Bytes at a peak by the block or module that made them, the largest first; they sum to the peak."""
    return _largest_first(_sums(timeline, peak, lambda each: block_of(each.module) or each.module))


def by_line(timeline: MemoryTimeline, peak: MemoryPeak) -> dict[str, int]:
    """Bytes at a peak by the line of the program that made them, the largest first; they sum to the peak."""
    return _largest_first(_sums(timeline, peak, lambda each: each.line))


def _sums(timeline: MemoryTimeline, peak: MemoryPeak, key: Callable[[BufferLife], str]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for place in peak.buffers:
        each = timeline.buffers[place]
        sums[key(each)] = sums.get(key(each), 0) + each.bytes
    return sums


def _largest_first(sums: dict[str, int]) -> dict[str, int]:
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class KeptTooLong:
    """A variable whose memory no call needs any more at the peak.

    Attributes:
        name: of the variable.
        bytes: that it holds at the peak, and nothing else does.
        assigned: line that assigns it.
        last_used: line after which it can be deleted.
        buffers: places of its memory.
    """

    name: str
    bytes: int
    assigned: str
    last_used: str
    buffers: tuple[int, ...]


def kept_too_long(timeline: MemoryTimeline, peak: MemoryPeak) -> tuple[KeptTooLong, ...]:
    """Variables that hold memory at the peak although no later call of the step reads it, the largest first.

    What autograd saves does not count: the backward pass reads it.
    """
    alive = frozenset(peak.buffers)
    found: dict[tuple[str, str, str], list[int]] = {}
    for held in timeline.held:
        buffer = timeline.buffers[held.buffer]
        is_needed = buffer.last_use < 0 or buffer.last_use > peak.at or buffer.category in ("parameters", "buffers")
        if held.buffer in alive and not is_needed and held.last_used:
            found.setdefault((held.name, held.assigned, held.last_used), []).append(held.buffer)
    kept = [
        KeptTooLong(name, _bytes(timeline, places), assigned, last_used, tuple(places))
        for (name, assigned, last_used), places in found.items()
    ]
    return tuple(sorted((k for k in kept if k.bytes >= _LEAST_HELD * peak.bytes), key=lambda k: -k.bytes))


def growing(timeline: MemoryTimeline) -> tuple[GrowingHolder, ...]:
    """Containers that hold more after each step, if that is worth a line: 1,000 steps add a tenth of the peak."""
    least = max(1.0, _LEAST_GROWN * step_peak(timeline).bytes)
    return tuple(each for each in timeline.grows if each.bytes >= least)


def _bytes(timeline: MemoryTimeline, places: Iterable[int]) -> int:
    return sum(timeline.buffers[place].bytes for place in places)


def with_seconds(timeline: MemoryTimeline, features: StepFeatures, times: PassTimes) -> MemoryTimeline:
    """The timeline with the predicted seconds of its calls.

    The seconds of a layer's pass are divided among its calls by the bytes that they move.

    Args:
        timeline: of the step.
        features: of the same step.
        times: of the layers of the features.
    """
    layers = layers_of(features)
    known = {layer.module for layer in layers}
    whole = {("optimizer", ""): times.optimizer_s}
    for layer, forward_s, backward_s in zip(layers, times.forward_s, times.backward_s, strict=True):
        whole["forward", layer.module], whole["backward", layer.module] = forward_s, backward_s

    def key(phase: str, module: str) -> tuple[str, str]:
        return (phase, "" if phase == "optimizer" else module if module in known else layers[0].module)

    moved: dict[tuple[str, str], float] = {}
    for call in timeline.calls:
        place = key(call.phase, call.module)
        moved[place] = moved.get(place, 0.0) + call.bytes
    calls = tuple(
        msgspec.structs.replace(call, seconds=whole[place] * call.bytes / moved[place] if moved[place] else 0.0)
        for call in timeline.calls
        for place in (key(call.phase, call.module),)
    )
    return msgspec.structs.replace(timeline, calls=calls)
