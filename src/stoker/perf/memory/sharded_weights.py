"""The memory of a rank that keeps shares of weights and gradients: what is whole for a while, and what exchanges hold.

As torch's ``fully_shard`` does it (2.6 to 2.13, read and counted). A unit's weights are gathered into one buffer and
copied out of it; the buffer stays until the next unit of the forward pass is gathered. In the backward pass the next
unit's buffer is filled during the one before. Behind its backward pass a unit's gradients are copied into the input of
their reduction, which stays until the next unit reduces. What belongs to no unit is whole from the first pass to the
end of the last, and reduced there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec.structs

from stoker.perf.features.lifetimes import BufferLife, CallInTime, Category, MemoryTimeline
from stoker.perf.memory.remedies import sharded
from stoker.perf.memory.timeline import with_lives

REST = 0
"""Number of what belongs to no unit; units are counted from 1."""


@dataclass(frozen=True, slots=True)
class _Stay:
    """Calls of one unit, in a forward or backward pass.

    Attributes:
        unit: its number.
        start: events before the first call.
        last: events before the last one.
        after: events before the call that follows.
    """

    unit: int
    start: int
    last: int
    after: int


@dataclass(slots=True)
class _Pass:
    """A forward pass and its backward pass."""

    ahead: list[CallInTime] = field(default_factory=list[CallInTime])
    back: list[CallInTime] = field(default_factory=list[CallInTime])


class UnitNumbers:
    """The units of modules.

    Args:
        units: their paths.
    """

    def __init__(self, units: Sequence[str]) -> None:
        self._numbers = {path: number for number, path in enumerate(units, 1)}
        self._known: dict[str, int] = {}

    def of(self, module: str) -> int:
        """The number of the unit that a module is in; :data:`REST` for none."""
        found = self._known.get(module)
        if found is None:
            path = module
            while path and path not in self._numbers:
                path = path.rpartition(".")[0]
            found = self._known[module] = self._numbers.get(path, REST)
        return found


def with_shares(timeline: MemoryTimeline, units: Sequence[str], kept: Collection[str], ranks: int) -> MemoryTimeline:
    """The timeline of one rank of several that keep shares of weights, gradients and optimizer states.

    Args:
        timeline: of a rank that keeps everything.
        units: paths of modules whose weights are gathered together.
        kept: those of which weights stay whole from the forward to the backward pass.
        ranks: that share.
    """
    return _Sharing(timeline, units, kept, ranks).timeline()


class _Sharing:
    def __init__(self, timeline: MemoryTimeline, units: Sequence[str], kept: Collection[str], ranks: int) -> None:
        self._timeline, self._ranks = timeline, ranks
        self._numbers = UnitNumbers(units)
        self._is_kept = {number: path in kept for number, path in enumerate(units, 1)} | {REST: True}
        self._weights = [0] * (len(units) + 1)
        for each in timeline.buffers:
            if each.category == "parameters":
                self._weights[self._numbers.of(each.module)] += each.bytes
        self._ends = {call.at: after for call, after in _with_next(timeline)}
        self._lives: list[BufferLife] = []
        self._reduced: dict[int, int] = {}
        """Event at which the gradients of a unit are reduced the last time."""

    def timeline(self) -> MemoryTimeline:
        """The changed one."""
        for each in _passes(self._timeline.calls):
            self._gather(each)
        self._whole_at_first()
        changed = sharded(self._timeline, self._ranks, weights=True)
        lives = list(changed.buffers)
        for place, each in enumerate(self._timeline.buffers):
            if each.category == "gradients" and each.birth >= self._timeline.begin:
                lives[place] = self._unreduced(each)
        return with_lives(msgspec.structs.replace(changed, buffers=tuple(lives)), self._lives)

    def _whole_at_first(self) -> None:
        """All weights are whole before they are shared."""
        births = [each.birth for each in self._timeline.buffers if each.category == "parameters"]
        last = max(births, default=0)
        if last < self._timeline.begin:
            self._hold(sum(self._weights) - self._share(sum(self._weights)), last, last + 1, "parameters")

    def _share(self, nbytes: int) -> int:
        return -(-nbytes // self._ranks)

    def _hold(self, nbytes: int, birth: int, death: int, category: Category = "temporaries") -> None:
        if nbytes and death > max(0, birth):
            self._lives.append(BufferLife(nbytes, max(0, birth), death, -1, category, "backward", "(exchange)", ""))

    def _unreduced(self, each: BufferLife) -> BufferLife:
        """A gradient that is whole until it is reduced, and its share behind that."""
        until = self._reduced.get(self._numbers.of(each.module))
        if until is None or each.birth > until or each.death <= until + 1:
            return each
        self._hold(self._share(each.bytes), until + 1, each.death, "gradients")
        return msgspec.structs.replace(each, death=until + 1)

    def _stays(self, calls: Sequence[CallInTime], *, at_once: bool) -> list[_Stay]:
        """What units are called, in order.

        Args:
            calls: of a pass.
            at_once: whether all calls of a unit count as one stay.
        """
        found: list[_Stay] = []
        places: dict[int, int] = {}
        last = REST
        for call in calls:
            unit = self._numbers.of(call.module)
            if unit == REST:
                continue
            if unit in places and (at_once or unit == last):
                before = found[places[unit]]
                found[places[unit]] = _Stay(unit, before.start, call.at, self._ends[call.at])
            else:
                places[unit] = len(found)
                found.append(_Stay(unit, call.at, call.at, self._ends[call.at]))
            last = unit
        return found

    def _gather(self, each: _Pass) -> None:
        """What is whole in a pass, and buffers of its exchange."""
        inside = [call for call in each.ahead if call.module]
        if not inside:
            return
        ahead = self._stays(each.ahead, at_once=False)
        back = self._stays(each.back, at_once=True)
        last = (each.back or each.ahead)[-1].at
        end = max(last, self._ends[last] - 2)
        self._ahead(ahead, inside[0].at, self._ends[inside[-1].at], back, end)
        if each.back:
            # What gets no gradient for its inputs is reduced at the end, as the rest is.
            first = ahead[0].unit if ahead and ahead[0].start == inside[0].at else REST
            self._back(ahead, back, first, each.back[0].at, end)

    def _ahead(self, stays: Sequence[_Stay], start: int, stop: int, back: Sequence[_Stay], end: int) -> None:
        nexts = [stay.start for stay in stays[1:]] + [stop]
        rest = self._weights[REST]
        self._hold(rest, start - 1, stays[0].start if stays else stop)
        self._hold(rest, start, end, "parameters")
        released = {stay.unit: self._reducing(stay) for stay in back}
        whole: set[int] = set()
        for stay, following in zip(stays, nexts, strict=True):
            if stay.unit in whole:
                continue
            nbytes = self._weights[stay.unit]
            self._hold(nbytes, stay.start - 1, following)
            if self._is_kept[stay.unit]:
                whole.add(stay.unit)
                self._hold(nbytes, stay.start, released.get(stay.unit, end), "parameters")
            else:
                self._hold(nbytes, stay.start, max(stay.last + 1, stay.after - 1), "parameters")

    @staticmethod
    def _reducing(stay: _Stay) -> int:
        """Event behind the unit's backward pass, before that of the next one begins."""
        return max(stay.last, stay.after - 2)

    def _back(self, ahead: Sequence[_Stay], back: Sequence[_Stay], first: int, start: int, end: int) -> None:
        order = list(dict.fromkeys(stay.unit for stay in reversed(ahead)))
        begins = {stay.unit: stay.start for stay in back}
        # The last unit is gathered when the backward pass of the rest begins, others in that of the unit before.
        asked = dict(zip(order, [start + 1 if self._weights[REST] else None, *map(begins.get, order)], strict=False))
        reduced = [end if stay.unit == first else self._reducing(stay) for stay in back]
        for stay, at, following in zip(back, reduced, [*reduced[1:], end], strict=True):
            nbytes = self._weights[stay.unit]
            if not self._is_kept[stay.unit]:
                earlier = asked.get(stay.unit)
                begun = stay.start - 1 if earlier is None else min(earlier, stay.start - 1)
                self._hold(nbytes, begun, stay.start)
                self._hold(nbytes, stay.start - 1, at, "parameters")
            self._hold(nbytes, at, following if following > at else at + 1)
            self._reduced[stay.unit] = at
        self._hold(self._weights[REST], end, end + 1)
        self._reduced[REST] = end


def _with_next(timeline: MemoryTimeline) -> Iterator[tuple[CallInTime, int]]:
    """Calls, each with the events before the one that follows."""
    calls = timeline.calls
    for place, call in enumerate(calls):
        yield call, calls[place + 1].at if place + 1 < len(calls) else timeline.end


def _passes(calls: Sequence[CallInTime]) -> list[_Pass]:
    """Forward passes with the backward pass behind each, in order."""
    found: list[_Pass] = []
    for call in calls:
        if call.phase == "forward" and (not found or found[-1].back):
            found.append(_Pass())
        if call.phase == "forward":
            found[-1].ahead.append(call)
        elif call.phase == "backward" and found:
            found[-1].back.append(call)
    return found
