"""What lies in host memory for a part of the step: lives without it, and seconds of copies that nothing hides.

As :mod:`stoker.train.fitting.offloading` carries it out: what a unit saved leaves when the next of these units begins
its forward pass, the last one's at its own end; it comes back when the backward pass of that next unit begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec.structs
import numpy as np

from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.memory.choice.units import ModuleUnit, UnitPass
from stoker.records.fitting import LEAST_AWAY_BYTES


@dataclass(frozen=True, slots=True)
class HostLink:
    """What lies between a device and host memory.

    Attributes:
        bytes_per_s: in one direction.
        overlaps: whether copies overlap with compute.
    """

    bytes_per_s: float
    overlaps: bool

    def exposed(self, size: int, beside_s: float) -> float:
        """Seconds of a copy that are not hidden by as many seconds of compute."""
        seconds = size / self.bytes_per_s
        return max(0.0, seconds - beside_s) if self.overlaps else seconds


@dataclass(frozen=True, slots=True)
class SavedMemory:
    """What one pass of a unit saves for its backward pass.

    Attributes:
        gone: places of buffers that only the unit itself needs later, which may be away in between.
        bytes: of them.
        sent: bytes that are copied to host memory: with those that others need as well.
    """

    gone: tuple[int, ...]
    bytes: int
    sent: int


def saved_of(timeline: MemoryTimeline, each: UnitPass) -> SavedMemory:
    """What a pass of a unit saves."""
    gone: list[int] = []
    own = sent = 0
    for place in each.made:
        one = timeline.buffers[place]
        if one.bytes < LEAST_AWAY_BYTES or one.death <= each.backward[0]:
            continue
        starts = [timeline.calls[use].at for use in one.uses]
        if not any(each.backward[0] <= at < each.backward[1] for at in starts):
            continue
        sent += one.bytes
        inside = (each.forward, each.backward)
        if all(any(start <= at < stop for start, stop in inside) for at in starts):
            gone.append(place)
            own += one.bytes
    return SavedMemory(tuple(gone), own, sent)


@dataclass(slots=True)
class _Clock:
    """Seconds of compute before each call."""

    timeline: MemoryTimeline
    ends: list[float] = field(init=False)
    starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.starts = [call.at for call in self.timeline.calls]
        self.ends = [0.0, *np.cumsum([call.seconds for call in self.timeline.calls]).tolist()]

    def between(self, start: int, stop: int) -> float:
        """Seconds of the calls that begin between two events."""
        return self.ends[bisect_left(self.starts, stop)] - self.ends[bisect_left(self.starts, start)]


def sent_away(timeline: MemoryTimeline, units: Sequence[ModuleUnit], link: HostLink) -> tuple[MemoryTimeline, float]:
    """The timeline where some units save in host memory, and the added seconds.

    Args:
        timeline: of the step, with the seconds of its calls.
        units: in the order of their forward passes, none inside of another, all of as many passes.
        link: to host memory.
    """
    clock, lives = _Clock(timeline), list(timeline.buffers)
    back: list[BufferLife] = []
    added = 0.0
    for place, unit in enumerate(units):
        later = units[place + 1] if place + 1 < len(units) else None
        for number, each in enumerate(unit.passes):
            saved = saved_of(timeline, each)
            leaves = each.forward[1] if later is None else later.passes[number].forward[0]
            comes = each.backward[0] if later is None else later.passes[number].backward[0]
            for at in saved.gone:
                one = lives[at]
                lives[at] = msgspec.structs.replace(one, death=min(one.death, max(leaves, one.released)))
                back.append(msgspec.structs.replace(one, birth=comes, released=0))
            added += link.exposed(saved.sent, clock.between(each.forward[0], leaves))
            added += link.exposed(saved.bytes, clock.between(comes, each.backward[0]))
    return msgspec.structs.replace(timeline, buffers=(*lives, *back)), added
