"""What each unit of a timeline saves and takes, as parts of the choice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.memory.choice.offloading import HostLink, saved_of
from stoker.perf.memory.choice.tree_choice import Repeat, StepPart
from stoker.perf.memory.choice.units import ModuleUnit, UnitPass, call_ends, first_end, seconds_of
from stoker.perf.memory.timeline import live_bytes
from stoker.records.fitting import Keeps

_LEAST_SAVED = 0.0005
"""Share of the peak that repeating a unit must save to be a choice (assumed)."""
REPEAT_S = 5e-5
"""Time of the host for each repetition, besides its operations (measured 40-60 us on one core of a server)."""

Span = tuple[int, int]


def parts_of(
    timeline: MemoryTimeline, units: Sequence[ModuleUnit], *, products: bool = True, repeats: bool = True,
    link: HostLink | None = None,
) -> tuple[StepPart, ...]:  # fmt: skip
    """The order of a step: its units and what runs between them; what is alive outside of them is a part as well.

    Args:
        timeline: with no unit repeated.
        units: of it, as :func:`~stoker.perf.memory.choice.units.nested_units` gives.
        products: whether keeping results of products is a choice.
        repeats: whether units may be repeated at all.
        link: to host memory, where that is a choice.
    """
    costs = _Costs(timeline, products, repeats, link)
    whole = (max(0, timeline.begin - 1), timeline.end)
    if not units:
        return (StepPart("", costs.most([whole])),)
    passes = [unit.passes for unit in units]
    count = len(passes[0])
    # Before the first unit of each pass nothing is saved, and neither is after its backward pass.
    bounds = [whole[0], *(passes[0][at].backward[1] for at in range(count))]
    outside = [(bounds[at], passes[0][at].forward[0]) for at in range(count)] + [(bounds[-1], whole[1])]
    return (StepPart("", costs.most(outside)), *costs.sequence(units), costs.after(units[-1]))


class _Costs:
    def __init__(self, timeline: MemoryTimeline, products: bool, repeats: bool, link: HostLink | None) -> None:
        self._timeline, self._products, self._repeats, self._link = timeline, products, repeats, link
        self._live: NDArray[np.int64] = live_bytes(timeline)
        self._starts = [call.at for call in timeline.calls]
        self._ends = call_ends(timeline)
        self._least = _LEAST_SAVED * float(self._live.max(initial=0))

    def most(self, spans: Sequence[Span]) -> int:
        """Most bytes that are alive in some spans, each from what is alive when it begins."""
        return max(
            (int(self._live[max(0, start - 1) : stop].max()) for start, stop in spans if stop >= start), default=0
        )

    def sequence(self, units: Sequence[ModuleUnit]) -> list[StepPart]:
        """Units of one level, and what runs between them in either pass."""
        found: list[StepPart] = []
        for place, unit in enumerate(units):
            if place:
                found.append(self._between(units[place - 1], unit))
            found.append(self._unit(unit))
        return found

    def _between(self, before: ModuleUnit, unit: ModuleUnit) -> StepPart:
        spans: list[Span] = []
        for first, second in zip(before.passes, unit.passes, strict=True):
            spans += [(first.forward[1], second.forward[0]), (second.backward[1], first.backward[0])]
        return StepPart("", self.most(spans))

    def after(self, last: ModuleUnit) -> StepPart:
        """What runs between the passes of the last unit."""
        return StepPart("", self.most([(each.forward[1], each.backward[0]) for each in last.passes]))

    def _unit(self, unit: ModuleUnit) -> StepPart:
        spans = [span for each in unit.passes for span in (each.forward, each.backward)]
        need = self.most(spans)
        ways: tuple[Keeps, ...] = ("nothing", "products") if self._products and unit.has_products else ("nothing",)
        found = [self._repeat(unit, keeps) for keeps in ways if self._repeats and unit.can_repeat]
        if self._link is not None and unit.can_leave:
            found.append(self._away(unit, need, self._link))
        return StepPart(unit.path, need, tuple(way for way in found if way is not None), self._inside(unit))

    def _away(self, unit: ModuleUnit, need: int, link: HostLink) -> Repeat | None:
        """The unit with what it saves in host memory: bounds of what the whole choice comes to, which is simulated.

        Of units that are alike, the one before comes back while this one's backward pass runs, which hides the copy.
        """
        saved = [saved_of(self._timeline, each) for each in unit.passes]
        saves = min(each.bytes for each in saved)
        if saves < self._least:
            return None
        seconds = sum(
            link.exposed(each.sent, self._seconds(one.forward)) + link.exposed(each.bytes, self._seconds(one.backward))
            for each, one in zip(saved, unit.passes, strict=True)
        )
        return Repeat("away", saves, seconds + REPEAT_S * len(unit.passes), need + saves)

    def _seconds(self, span: Span) -> float:
        first, last = bisect_left(self._starts, span[0]), bisect_left(self._starts, span[1])
        return sum(call.seconds for call in self._timeline.calls[first:last])

    def _inside(self, unit: ModuleUnit) -> tuple[StepPart, ...]:
        if not unit.children:
            return ()
        first, last = unit.children[0], unit.children[-1]
        pairs = list(zip(unit.passes, first.passes, last.passes, strict=True))
        begin = [span for own, one, _ in pairs for span in (
            (own.forward[0], one.forward[0]), (one.backward[1], own.backward[1])
        )]  # fmt: skip
        end = [span for own, _, one in pairs for span in (
            (one.forward[1], own.forward[1]), (own.backward[0], one.backward[0])
        )]  # fmt: skip
        return (StepPart("", self.most(begin)), *self.sequence(unit.children), StepPart("", self.most(end)))

    def _repeat(self, unit: ModuleUnit, keeps: Keeps) -> Repeat | None:
        saves = min(self._saves(each, keeps) for each in unit.passes)
        if saves < self._least:
            return None
        again = max(self._again(each, keeps, saves) for each in unit.passes)
        seconds = seconds_of(unit, keeps) + REPEAT_S * len(unit.passes)
        first = max(self._first(each, keeps) for each in unit.passes)
        need = max(first, again, self.most([each.backward for each in unit.passes]))
        return Repeat(keeps, saves, seconds, need)

    def _saves(self, each: UnitPass, keeps: Keeps) -> int:
        """Bytes that are missing when the backward pass of later units runs."""
        buffers, start = self._timeline.buffers, each.backward[0]
        saved = 0
        for place in each.made:
            one = buffers[place]
            if keeps == "products" and place in each.products:
                saved -= one.bytes if one.death <= start else 0
            elif one.death > start and first_end(self._timeline, each, place, self._ends) <= start:
                saved += one.bytes
        return saved - sum(buffers[place].bytes for place in each.inputs if buffers[place].death <= start)

    def _first(self, each: UnitPass, keeps: Keeps) -> int:
        """Most bytes that are alive in the first forward pass, which saves nothing but what it keeps."""
        begin, stop = max(0, each.forward[0] - 1), each.forward[1]
        live = self._live[begin:stop].copy()
        for place in each.made:
            one = self._timeline.buffers[place]
            first = first_end(self._timeline, each, place, self._ends)
            if first < min(one.death, stop) and not (keeps == "products" and place in each.products):
                live[first - begin : one.death - begin] -= one.bytes
        return int(live.max(initial=0))

    def _again(self, each: UnitPass, keeps: Keeps, saves: int) -> int:
        """Most bytes that are alive while the forward pass is repeated."""
        before = int(self._live[each.forward[0] - 1]) if each.forward[0] else 0
        grown = int(self._live[max(0, each.forward[0] - 1) : each.stop].max()) - before
        if keeps == "products":
            grown -= sum(self._timeline.buffers[place].bytes for place in each.products)
        return int(self._live[max(0, each.backward[0] - 1)]) - saves + max(0, grown)
