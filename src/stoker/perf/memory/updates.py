"""The updates of an optimizer that goes from weight to weight, and what they hold on a rank that makes some of them.

ZeRO-1 deals out whole weights, so an update takes on its rank what it took before. What an update leaves behind until
the next one has it replaced, as Adam's denominator, waits for the next update *of that rank*: where small weights lay
between two large ones, two large temporaries may meet that met on no rank that updates all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import msgspec.structs

from stoker.core.placement.shares import BY_ELEMENT, cut_of, owners_of
from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.memory.timeline import live_bytes

_RANKS_LOOKED_AT = 16
"""The first ones are dealt the largest weights."""
_ELEMENT_BYTES = 4
"""Size of a weight's elements (assumed: single precision)."""


def may_cut(optimizers: Sequence[str]) -> bool:
    """Whether parts of a weight may be updated apart; without a name, as most optimizers allow it."""
    return all(name in BY_ELEMENT for name in optimizers)


def is_of_updates(each: BufferLife) -> bool:
    """Whether it is of the optimizer alone: a state, or a temporary of an update."""
    return each.category == "optimizer" or (each.category == "temporaries" and each.phase == "optimizer")


@dataclass(frozen=True, slots=True)
class _Update:
    """One weight's calls, from behind the update before it.

    Attributes:
        weight: place of its buffer.
        begin: events before its first call, which need not touch the weight.
        last: place of its last call.
        step: number of the optimizer's step that it is of, where a program has several.
    """

    weight: int
    begin: int
    last: int
    step: int


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of a step, one after another.

    Attributes:
        timeline: of a rank that makes all.
        updates: in their order.
        of_buffer: the update of each buffer that is of one, by place.
    """

    timeline: MemoryTimeline
    updates: tuple[_Update, ...]
    of_buffer: dict[int, int]

    @classmethod
    def of(cls, timeline: MemoryTimeline) -> Updates | None:
        """Those of a timeline; None if weights are updated together, or nothing shows which call updates which."""
        calls = timeline.calls
        found: list[tuple[int, int, int]] = []
        for place, each in enumerate(timeline.buffers):
            own = [use for use in each.uses if calls[use].phase == "optimizer"]
            if each.category == "parameters" and own:
                found.append((min(own), max(own), place))
        found.sort()
        if not found or any(before[1] >= after[0] for before, after in pairwise(found)):
            return None
        others = [place for place, call in enumerate(calls) if call.phase != "optimizer"]
        # Between two steps of optimizers something else is computed.
        steps = [bisect_left(others, first) for first, _, _ in found]
        begins: list[int] = []
        for number, step in enumerate(steps):
            is_first = not number or steps[number - 1] != step
            begins.append(calls[(others[step - 1] if step else -1) + 1 if is_first else found[number - 1][1] + 1].at)
        updates = tuple(
            _Update(place, begin, last, step)
            for (_, last, place), begin, step in zip(found, begins, steps, strict=True)
        )
        lasts = [each.last for each in updates]
        of_buffer: dict[int, int] = {}
        for place, each in enumerate(timeline.buffers):
            own = [use for use in each.uses if calls[use].phase == "optimizer"] if is_of_updates(each) else []
            if own and (number := bisect_left(lasts, min(own))) < len(updates):
                of_buffer[place] = number
        return cls(timeline, updates, of_buffer)

    def of_fullest(self, ranks: int, *, cut: bool = True) -> tuple[BufferLife, ...]:
        """The lives of all buffers on the rank whose updates hold most, where a weight may be cut or not.

        Which update a buffer is of is not known of each: the first step's temporaries are cut to an equal share.
        """
        buffers = self.timeline.buffers
        owners: list[int | None] = []
        for _, step in groupby(self.updates, key=lambda each: each.step):
            sizes = [buffers[each.weight].bytes for each in step]
            owners += owners_of(sizes, ranks, [cut] * len(sizes))
        places: list[list[int]] = [[] for _ in self.updates]
        for place, number in self.of_buffer.items():
            places[number].append(place)
        rest = {
            place: msgspec.structs.replace(each, bytes=-(-each.bytes // ranks))
            for place, each in enumerate(buffers)
            if place not in self.of_buffer and is_of_updates(each)
        }
        of_ranks = (self._of_rank(owners, rank, ranks, places) for rank in range(min(ranks, _RANKS_LOOKED_AT)))
        fullest = max(of_ranks, key=self._most)
        lives = {place: msgspec.structs.replace(buffers[place], bytes=0) for place in self.of_buffer} | rest | fullest
        return tuple(lives.get(place, each) for place, each in enumerate(buffers))

    def _most(self, lives: dict[int, BufferLife]) -> int:
        return int(live_bytes(msgspec.structs.replace(self.timeline, buffers=tuple(lives.values()))).max(initial=0))

    def _of_rank(
        self, owners: Sequence[int | None], rank: int, ranks: int, places: Sequence[Sequence[int]]
    ) -> dict[int, BufferLife]:
        """Lives of what a rank's updates hold, by place."""
        buffers = self.timeline.buffers
        own = [number for number, owner in enumerate(owners) if owner is None or owner == rank]
        found: dict[int, BufferLife] = {}
        for number, then in zip(own, [*own[1:], None], strict=True):
            for place in places[number]:
                each = buffers[place]
                if owners[number] is None:
                    start, stop = cut_of(each.bytes // _ELEMENT_BYTES, ranks, 0)
                    each = msgspec.structs.replace(each, bytes=(stop - start) * _ELEMENT_BYTES)
                found[place] = msgspec.structs.replace(each, death=self._death(each, number, then))
        return found

    def _death(self, each: BufferLife, number: int, then: int | None) -> int:
        """When a buffer is freed if the next update is another one; what the update after it leaves alone stays."""
        following = [each for each in self.updates[number + 1 : number + 3] if each.step == self.updates[number].step]
        begins = [*(each.begin for each in following), self.timeline.end]
        if not following or not begins[0] < each.death < begins[1]:
            return each.death
        if then is None or self.updates[then].step != self.updates[number].step:
            return max([each.death, *(self.timeline.buffers[place].death for place in self._left(number))])
        return self.updates[then].begin + each.death - begins[0]

    def _left(self, number: int) -> list[int]:
        """Places of temporaries that the last update of a step leaves, which are freed when it returns."""
        step = self.updates[number].step
        last = max(place for place, each in enumerate(self.updates) if each.step == step)
        after = next((each.begin for each in self.updates if each.step > step), self.timeline.end)
        return [
            place
            for place, number in self.of_buffer.items()
            if number == last and self.timeline.buffers[place].death < after
        ]
