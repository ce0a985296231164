"""Modules whose forward pass can be repeated, nested as in the model: what each keeps, and what repeating it takes.

Read off a timeline, without torch. A unit is a module that is called once before its backward pass. Repeated, it keeps
its inputs, or also results of products, and makes the rest again when its backward pass begins.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec.structs

from stoker.perf.features.lifetimes import BufferLife, CallInTime, MemoryTimeline
from stoker.perf.features.records import MATRIX_KINDS
from stoker.perf.memory.kernel_memory import is_workspace
from stoker.records.fitting import Keeps

LASTING = frozenset({"parameters", "gradients", "optimizer", "buffers"})
"""Categories of what no forward pass makes for its backward pass."""


@dataclass(frozen=True, slots=True)
class UnitPass:
    """One forward pass of a unit and its backward pass.

    Attributes:
        forward, backward: their first event, and the one that follows them.
        calls: places of the forward pass's calls, the last one excluded.
        stop: event at which a repetition has made all that the backward pass needs.
        made: places of buffers that the forward pass makes.
        products: those of them that are results of matrix products and convolutions.
        inputs: places of other buffers that it reads.
    """

    forward: tuple[int, int]
    backward: tuple[int, int]
    calls: tuple[int, int]
    stop: int
    made: tuple[int, ...]
    products: frozenset[int]
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModuleUnit:
    """A module and the units inside it.

    Attributes:
        path: of the module.
        passes: in the order in which they run; several with accumulation.
        seconds: of all repetitions in a step.
        product_seconds: of their products, which a unit that keeps them does not repeat.
        children: in the order of their forward passes.
    """

    path: str
    passes: tuple[UnitPass, ...]
    seconds: float
    product_seconds: float
    children: tuple[ModuleUnit, ...] = ()
    can_repeat: bool = True
    """Whether its forward pass may be repeated."""
    can_leave: bool = True
    """Whether what it saves may lie in host memory."""

    @property
    def has_products(self) -> bool:
        """Whether keeping products is another choice than keeping nothing."""
        return any(each.products for each in self.passes)


@dataclass(slots=True)
class _Node:
    """A path of the model while the tree is built."""

    path: str
    places: list[int] = field(default_factory=list[int])
    children: dict[str, _Node] = field(default_factory=dict[str, "_Node"])


def nested_units(
    timeline: MemoryTimeline, kept_as_is: Collection[str] = (), stay: Collection[str] | None = None
) -> tuple[ModuleUnit, ...]:
    """The outermost units, in the order of their forward passes, others inside of them.

    Args:
        timeline: with the uses of its buffers.
        kept_as_is: paths of modules that must not be repeated; modules inside of them may be.
        stay: paths of modules of which nothing may lie in host memory; None for all.
    """
    root = _Node("")
    for place, call in enumerate(timeline.calls):
        if call.phase == "optimizer":
            continue
        node = root
        for name in call.module.split(".") if call.module else ():
            path = f"{node.path}.{name}" if node.path else name
            node = node.children.setdefault(name, _Node(path))
            node.places.append(place)
    return _aligned(_Reading(timeline, kept_as_is, stay).units(root))


def all_units(units: Sequence[ModuleUnit]) -> list[ModuleUnit]:
    """Units at all depths, each before those inside of it."""
    return [each for unit in units for each in (unit, *all_units(unit.children))]


class _Reading:
    """The units of one timeline."""

    def __init__(self, timeline: MemoryTimeline, kept_as_is: Collection[str], stay: Collection[str] | None) -> None:
        self._timeline, self._kept, self._stay = timeline, kept_as_is, stay
        self._starts = [call.at for call in timeline.calls]
        self._births = [each.birth for each in timeline.buffers]
        self._readers: dict[int, list[int]] = {}
        """Buffers that each call uses."""
        for number, buffer in enumerate(timeline.buffers):
            for place in buffer.uses:
                self._readers.setdefault(place, []).append(number)

    def units(self, node: _Node) -> tuple[ModuleUnit, ...]:
        found: list[ModuleUnit] = []
        for child in node.children.values():
            inside = self.units(child)
            can_repeat = child.path not in self._kept
            can_leave = self._stay is not None and child.path not in self._stay
            passes = self._passes(child) if can_repeat or can_leave else ()
            if not passes:
                found += inside
            elif len(inside) == 1 and [p.calls for p in inside[0].passes] == [p.calls for p in passes]:
                found.append(inside[0])  # a wrapper that does nothing itself
            else:
                unit = self._unit(child.path, passes, inside)
                found.append(replace(unit, can_repeat=can_repeat, can_leave=can_leave))
        return tuple(sorted(found, key=lambda unit: unit.passes[0].forward))

    def _unit(self, path: str, passes: tuple[UnitPass, ...], inside: tuple[ModuleUnit, ...]) -> ModuleUnit:
        calls = self._timeline.calls
        repeated = [
            calls[place] for each in passes for place in range(*each.calls) if calls[place].at < each.stop
        ]  # fmt: skip
        products = sum(call.seconds for call in repeated if call.kind in MATRIX_KINDS)
        return ModuleUnit(path, passes, sum(call.seconds for call in repeated), products, inside)

    def _passes(self, node: _Node) -> tuple[UnitPass, ...]:
        """The passes of a module; none if they do not alternate, or keep nothing."""
        groups = [
            list(group)
            for _, group in itertools.groupby(node.places, lambda place: self._timeline.calls[place].phase)
        ]  # fmt: skip
        if not groups or self._timeline.calls[groups[0][0]].phase != "forward":
            return ()
        found: list[UnitPass] = []
        for ahead, back in zip(groups[::2], groups[1::2], strict=False):
            kept = [each for run in _runs(ahead) if (each := self._pass(run, back)) is not None]
            if len(kept) > 1:
                return ()
            found += kept
        return tuple(found)

    def _pass(self, ahead: tuple[int, int], back: Sequence[int]) -> UnitPass | None:
        """The pass of consecutive calls and of those of a backward pass; None if it keeps nothing that it made."""
        start, stop = self._starts[ahead[0]], self._end_of(ahead[1] - 1)
        first, last = bisect_left(self._births, start), bisect_left(self._births, stop)
        buffers, needed = self._timeline.buffers, set(back)
        made = tuple(
            number for number in range(first, last)
            if buffers[number].phase == "forward" and buffers[number].category not in LASTING
        )  # fmt: skip
        kept = [number for number in made if needed.intersection(buffers[number].uses)]
        if not kept:
            return None
        products: set[int] = set()
        inputs: set[int] = set()
        inside = set(made)
        for place in range(*ahead):
            call = self._timeline.calls[place]
            used = self._readers.get(place, ())
            inputs.update(number for number in used if number not in inside)
            if call.kind in MATRIX_KINDS:
                products.update(
                    number for number in used if self._starts[place] <= self._births[number] and number in inside
                )
        outer = tuple(number for number in sorted(inputs) if buffers[number].category not in LASTING)
        return UnitPass(
            (start, stop), (self._starts[back[0]], self._end_of(back[-1])), ahead,
            max(buffers[number].birth for number in kept) + 1, made, frozenset(products), outer,
        )  # fmt: skip

    def _end_of(self, place: int) -> int:
        return self._starts[place + 1] if place + 1 < len(self._starts) else self._timeline.end


def _runs(places: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Consecutive numbers, each as its first and the one after its last."""
    start = 0
    for at in range(1, len(places) + 1):
        if at == len(places) or places[at] != places[at - 1] + 1:
            yield places[start], places[at - 1] + 1
            start = at


def _aligned(units: tuple[ModuleUnit, ...]) -> tuple[ModuleUnit, ...]:
    """Units whose passes run as often as those of most others, each backward pass in the reverse order."""
    if not units:
        return ()
    counts = [len(each.passes) for each in units]
    usual = max(set(counts), key=lambda count: (counts.count(count), count))
    found: list[ModuleUnit] = []
    for unit in units:
        if len(unit.passes) != usual:
            continue
        if found and any(
            ours.forward[0] < before.forward[1] or ours.backward[1] > before.backward[0]
            for ours, before in zip(unit.passes, found[-1].passes, strict=True)
        ):
            continue
        found.append(replace(unit, children=_within(unit, _aligned(unit.children))))
    return tuple(found)


def _within(unit: ModuleUnit, children: tuple[ModuleUnit, ...]) -> tuple[ModuleUnit, ...]:
    """Those that run once in each pass of the unit."""
    return tuple(
        child for child in children
        if len(child.passes) == len(unit.passes)
        and all(
            whole.backward[0] <= part.backward[0] and part.backward[1] <= whole.backward[1]
            for part, whole in zip(child.passes, unit.passes, strict=True)
        )
    )  # fmt: skip


def repeated(timeline: MemoryTimeline, chosen: Collection[tuple[ModuleUnit, Keeps]]) -> tuple[MemoryTimeline, float]:
    """The timeline where some units repeat their forward passes, and the added seconds.

    The events of a forward pass are inserted before its backward pass. What it made ends when nothing else needs it,
    and is made again; what it reads lives until its backward pass is over (arXiv 1604.06174, section 4).

    Args:
        timeline: of the step.
        chosen: units, none inside of another, and what they keep.
    """
    order = sorted(((each, keeps) for unit, keeps in chosen for each in unit.passes), key=lambda item: item[0].backward)
    starts = [each.backward[0] for each, _ in order]
    shifts = [0]
    for each, _ in order:
        shifts.append(shifts[-1] + each.stop - each.forward[0])

    def moved(at: int) -> int:
        return at + shifts[bisect_right(starts, at)]

    born = {one.birth for one in timeline.buffers}

    def ended(at: int) -> int:
        """As above, of a death: where something else is born at that event, it is over before, as of an exchange."""
        return at + shifts[bisect_left(starts, at)] if at in born else moved(at)

    ends = call_ends(timeline)
    lives = [
        msgspec.structs.replace(
            one, birth=moved(one.birth), death=ended(one.death), released=moved(one.released) if one.released else 0
        )
        for one in timeline.buffers
    ]  # fmt: skip
    deaths = [one.death for one in timeline.buffers]
    again: list[BufferLife] = []
    for number, (each, keeps) in enumerate(order):
        begins = each.backward[0] + shifts[number] - each.forward[0]
        for place in each.made:
            one = timeline.buffers[place]
            if keeps == "products" and place in each.products:
                deaths[place] = max(deaths[place], each.backward[0] + 1)
                lives[place] = msgspec.structs.replace(lives[place], death=moved(deaths[place]))
                continue
            if one.birth >= each.stop:
                continue
            first = first_end(timeline, each, place, ends)
            if first < deaths[place]:
                deaths[place] = first
                lives[place] = msgspec.structs.replace(lives[place], death=moved(first))
                later = one.death > each.backward[0]
                death = moved(one.death) if later else begins + min(one.death, each.stop)
                again.append(msgspec.structs.replace(one, birth=begins + one.birth, death=death, released=0))
            elif one.death <= each.forward[1]:  # gone with the first forward pass: made and freed again
                again.append(
                    msgspec.structs.replace(
                        one, birth=begins + one.birth, death=begins + min(one.death, each.stop), released=0
                    )
                )
    for each, _ in order:
        for place in each.inputs:
            if deaths[place] < each.backward[1]:
                deaths[place] = each.backward[1]
                lives[place] = msgspec.structs.replace(lives[place], death=moved(each.backward[1]))
    changed = msgspec.structs.replace(
        timeline, begin=moved(timeline.begin), end=moved(timeline.end), buffers=(*lives, *again),
        calls=tuple(msgspec.structs.replace(call, at=moved(call.at)) for call in timeline.calls),
    )  # fmt: skip
    return changed, sum(seconds_of(unit, keeps) for unit, keeps in chosen)


def seconds_of(unit: ModuleUnit, keeps: Keeps) -> float:
    """What a unit's repetition adds to a step."""
    return unit.seconds - (unit.product_seconds if keeps == "products" else 0.0)


def call_ends(timeline: MemoryTimeline) -> list[int]:
    """For each call, the event by which what it alone has read is gone: the next allocation that is not of its results.

    What its kernels take while they run is no such allocation: they read what they were given.

    Args:
        timeline: of the step.
    """
    others = (place for place, one in enumerate(timeline.buffers) if not is_workspace(one))
    order = sorted(others, key=lambda place: timeline.buffers[place].birth)
    births = [timeline.buffers[place].birth for place in order]
    found: list[int] = []
    for number, call in enumerate(timeline.calls):
        at = bisect_left(births, call.at)
        while at < len(births) and number in timeline.buffers[order[at]].uses:
            at += 1
        found.append(births[at] if at < len(births) else timeline.end)
    return found


def first_end(timeline: MemoryTimeline, each: UnitPass, place: int, ends: Sequence[int]) -> int:
    """Event by which a buffer of a repeated pass is not needed any more, until it is made again.

    It is gone after the last call of the first pass that reads it, since nothing is saved there. A module that was
    given it holds it until its forward pass is over. What a variable of a forward pass holds longer is not known.

    Args:
        timeline: of the step.
        each: the pass.
        place: of the buffer.
        ends: of the timeline, by :func:`call_ends`.
    """
    one, calls = timeline.buffers[place], timeline.calls
    others = [use for use in one.uses if not each.backward[0] <= calls[use].at < each.backward[1]]
    if one.death <= each.forward[1] or len(others) == len(one.uses) or any(h.buffer == place for h in timeline.held):
        return one.death  # its own backward pass is not what keeps it
    last = max(others, default=-1)
    if last < 0:
        return min(one.death, max(each.forward[1], one.released))
    if calls[last].at >= each.backward[0]:
        return one.death
    if last < each.calls[1]:
        last = _handed_over(calls, one.module, last, each.calls[1])
    return min(one.death, max(one.released, ends[last]))


def _handed_over(calls: Sequence[CallInTime], maker: str, last: int, stop: int) -> int:
    """The last call, before a place, of the outermost module that was given what a call reads and another one made."""
    readers = itertools.accumulate(calls[last].module.split("."), lambda path, name: f"{path}.{name}")
    holder = next((path for path in readers if not f"{maker}.".startswith(f"{path}.")), None)
    if holder is None:
        return last
    while last + 1 < stop and f"{calls[last + 1].module}.".startswith(f"{holder}."):
        last += 1
    return last
