"""The memory of a rank that keeps shares of weights and gradients: what is whole for a while, and what exchanges hold.

As torch's ``fully_shard`` does it (2.6 to 2.13, read and counted). A unit's weights are gathered into one buffer and
copied out of it. In the forward pass the buffer stays until the next unit's weights have been copied, next to them
and their own buffer; in the backward pass the next unit's buffer is filled during the one before. Behind that pass a
unit's weights are freed and its gradients copied into the input of their reduction. That stays until the next unit
reduces, on GPUs; on CPUs ``train`` frees it at once. What belongs to no unit is whole from the first pass to the end of
the last, and reduced there. Of several passes in a step only the last one is taken to reduce, as under ``no_sync``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec.structs

from stoker.perf.features.lifetimes import BufferLife, CallInTime, Category, MemoryTimeline
from stoker.perf.memory.remedies import part_of_rows, sharded
from stoker.perf.memory.timeline import stretched, with_lives

REST = 0
"""Number of what belongs to no unit; units are counted from 1."""
_TIMES = 4
_BEHIND, _GATHERED, _AHEAD = -3, -2, -1
"""What hooks do between two calls: what the last one's unit no longer needs goes, weights are gathered for the next
one, and the buffer of the unit behind it is filled. Each is an event of its own before the next call's."""


@dataclass(frozen=True, slots=True)
class _Stay:
    """Calls of one unit, in a forward or backward pass.

    Attributes:
        unit: its number.
        start: events before the first call.
        after: events before the call that follows the last one.
    """

    unit: int
    start: int
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
        self._timeline, self._ranks = stretched(timeline, _TIMES), ranks
        self._frees_sums = timeline.target == "cpu"
        self._numbers = UnitNumbers(units)
        self._is_kept = {number: path in kept for number, path in enumerate(units, 1)} | {REST: True}
        # Gathered and reduced with empty rows, so that all ranks send alike.
        self._weights = [0] * (len(units) + 1)
        for each in timeline.buffers:
            if each.category == "parameters":
                padded = ranks * part_of_rows(each, ranks) if each.rows else each.bytes
                self._weights[self._numbers.of(each.module)] += padded
        calls = self._timeline.calls
        self._nexts = {id(call): after.at for call, after in pairwise(calls)}
        if calls:
            self._nexts[id(calls[-1])] = self._timeline.end
        self._lives: list[BufferLife] = []
        self._reduced: dict[int, int] = {}
        """Event at which the gradients of a unit are reduced."""

    def timeline(self) -> MemoryTimeline:
        """The changed one."""
        passes = _passes(self._timeline.calls)
        # The last pass in which a unit has gradients reduces them.
        last = {self._numbers.of(call.module): place for place, each in enumerate(passes) for call in each.back}
        last[REST] = max(last.values(), default=0)
        for place, each in enumerate(passes):
            self._gather(each, {unit for unit, number in last.items() if number == place})
        self._whole_at_first()
        changed = sharded(self._timeline, self._ranks, weights=True)
        lives = list(changed.buffers)
        for place, each in enumerate(self._timeline.buffers):
            if each.category == "gradients" and each.birth >= self._timeline.begin:
                lives[place] = self._unreduced(each)
        return with_lives(msgspec.structs.replace(changed, buffers=tuple(lives)), self._lives)

    def _whole_at_first(self) -> None:
        """All weights are whole before they are shared."""
        whole = [each for each in self._timeline.buffers if each.category == "parameters"]
        last = max((each.birth for each in whole), default=0)
        if last < self._timeline.begin:
            shared = sum(each.bytes - part_of_rows(each, self._ranks) for each in whole)
            self._hold(shared, last, last + 1, "parameters")

    def _hold(self, nbytes: int, birth: int, death: int, category: Category = "temporaries") -> None:
        if nbytes and death > max(0, birth):
            self._lives.append(BufferLife(nbytes, max(0, birth), death, -1, category, "backward", "(exchange)", ""))

    def _unreduced(self, each: BufferLife) -> BufferLife:
        """A gradient that is whole until it is reduced, and its share behind that."""
        until = self._reduced.get(self._numbers.of(each.module))
        if until is None or each.birth > until or each.death <= until + 1:
            return each
        self._hold(part_of_rows(each, self._ranks), until + 1, each.death, "gradients")
        return msgspec.structs.replace(each, death=until + 1)

    def _stays(self, calls: Sequence[CallInTime], *, at_once: bool) -> list[_Stay]:
        """What units are called, in order.

        Args:
            calls: of a pass.
            at_once: whether all calls of a unit count as one stay, with what is added to gradients behind them.
        """
        found: list[_Stay] = []
        places: dict[int, int] = {}
        last = REST
        for call in calls:
            unit = self._numbers.of(call.module)
            after = self._nexts[id(call)]
            if unit == REST:
                if at_once and last != REST and not call.module:
                    found[places[last]] = replace(found[places[last]], after=after)
                else:
                    last = REST if at_once else last
                continue
            if unit in places and (at_once or unit == last):
                found[places[unit]] = replace(found[places[unit]], after=after)
            else:
                places[unit] = len(found)
                found.append(_Stay(unit, call.at, after))
            last = unit
        return found

    def _gather(self, each: _Pass, reducing: Collection[int]) -> None:
        """What is whole in a pass, and buffers of its exchange."""
        inside = [call for call in each.ahead if call.module]
        if not inside:
            return
        ahead = self._stays(each.ahead, at_once=False)
        back = self._stays(each.back, at_once=True)
        end = self._nexts[id((each.back or each.ahead)[-1])] + _BEHIND
        self._ahead(ahead, inside[0].at, self._nexts[id(inside[-1])], back, end)
        if each.back:
            # What gets no gradient for its inputs is reduced at the end, as the rest is.
            first = ahead[0].unit if ahead and ahead[0].start == inside[0].at else REST
            self._back(ahead, back, first, each.back[0].at, end, reducing)

    def _ahead(self, stays: Sequence[_Stay], start: int, stop: int, back: Sequence[_Stay], end: int) -> None:
        nexts = [stay.start + _AHEAD for stay in stays[1:]] + [stop]
        rest = self._weights[REST]
        self._hold(rest, start + _GATHERED, stays[0].start + _AHEAD if stays else stop)
        self._hold(rest, start + _GATHERED, end, "parameters")
        released = {stay.unit: stay.after + _BEHIND for stay in back}
        whole: set[int] = set()
        for stay, following in zip(stays, nexts, strict=True):
            if stay.unit in whole:
                continue
            nbytes = self._weights[stay.unit]
            self._hold(nbytes, stay.start + _GATHERED, following)
            if self._is_kept[stay.unit]:
                whole.add(stay.unit)
                self._hold(nbytes, stay.start + _GATHERED, released.get(stay.unit, end), "parameters")
            else:
                self._hold(nbytes, stay.start + _GATHERED, stay.after + _BEHIND, "parameters")

    def _back(
        self, ahead: Sequence[_Stay], back: Sequence[_Stay], first: int, start: int, end: int, reducing: Collection[int]
    ) -> None:
        order = list(dict.fromkeys(stay.unit for stay in reversed(ahead)))
        begins = {stay.unit: stay.start for stay in back}
        # The last unit is gathered when the backward pass of the rest begins, others in that of the unit before.
        asked = dict(zip(order, [start if self._weights[REST] else None, *map(begins.get, order)], strict=False))
        reduced = [end if stay.unit == first else stay.after + _BEHIND for stay in back]
        for stay, at, following in zip(back, reduced, [*reduced[1:], end], strict=True):
            nbytes = self._weights[stay.unit]
            if not self._is_kept[stay.unit]:
                earlier = asked.get(stay.unit)
                begun = stay.start + _GATHERED
                self._hold(nbytes, begun if earlier is None else min(earlier + _AHEAD, begun), stay.start + _AHEAD)
                self._hold(nbytes, begun, at, "parameters")
            if stay.unit in reducing:
                self._hold(nbytes, at, following if following > at and not self._frees_sums else at + 1)
                self._reduced[stay.unit] = at
        if REST in reducing:
            self._hold(self._weights[REST], end, end + 1)
            self._reduced[REST] = end


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
