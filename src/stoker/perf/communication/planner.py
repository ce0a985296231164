"""Picks for each layer how its gradients are exchanged, by the time of the whole step: a transfer that hides is free.

The plan that counts is judged by simulation (:func:`~stoker.perf.communication.replicas.mixed`). Candidates come from a
dynamic program over the layers in the order of the backward pass, whose states are when the link is free and when the
added work would be done, and from each single method; the best is then improved layer by layer. So a plan is never
worse than any single method, and no other choice for one layer is cheaper, as far as :data:`_EVENTS` allows to try.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stoker.perf.communication.collectives import Group
from stoker.perf.communication.cost import NOTHING, ExchangeCost, after
from stoker.perf.communication.methods import METHODS, WAYS, GradientLayer, Method, MethodOption, Terms, options
from stoker.perf.communication.replicas import Events, Exchange, Shard, buckets_of, mixed

_STATES = 8_000
"""States of the dynamic program over all layers: within these 1,000 layers take a fraction of a second."""
_EVENTS = 60_000
"""Layers times simulations that improve a plan."""
_TIE = 1e-6
"""Share of a step below which methods count as equal: the plainer one is taken."""
_EXACT_SUMS: tuple[Method, ...] = ("all_reduce", "ring", "islands")

Choice = tuple[int, ...]
"""For each layer the place of its option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedOption:
    """A method that a layer could have, and does not.

    Attributes:
        reason: why not, as a part of a sentence.
    """

    option: MethodOption
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """What was chosen for a layer.

    Attributes:
        bytes: that a rank sends for it. seconds: that this takes alone, with the work it adds, and its interval.
    """

    layer: GradientLayer
    chosen: MethodOption
    bytes: float
    seconds: ExchangeCost
    rejected: tuple[RejectedOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan:
    """How a step's gradients are exchanged.

    Attributes:
        layers: those that exchange something, in the order of the forward pass.
        before, after: the exchange by the backend alone, and as planned; ``after`` with activations of splits.
        work_s: computation that the plan adds. memory_bytes: that gathered factors take on a rank.
    """

    layers: tuple[LayerPlan, ...]
    before: Exchange
    after: Exchange
    work_s: float
    memory_bytes: float

    @property
    def added_s(self) -> float:
        """How much longer a step is than its computation."""
        return self.after.overlap.exposed_s + self.work_s


class Planner:
    """A step whose plans can be compared.

    Args:
        shard: computation and gradients of a rank, by layer.
        layers: of the shard.
        terms: that hold for all layers.
        methods: to consider.
        events: layers times simulations that may improve a plan.
    """

    def __init__(
        self, shard: Shard, layers: Sequence[GradientLayer], terms: Terms, methods: Iterable[Method] = METHODS,
        *, events: int = _EVENTS,
    ) -> None:  # fmt: skip
        if len(layers) != len(shard.backward_s):
            raise ValueError(f"`layers` must be the shard's {len(shard.backward_s)}, got {len(layers)}")
        self.terms, self.layers = terms, tuple(layers)
        self.shard = replace(shard, gradient_bytes=tuple(layer.bytes for layer in layers))
        wanted = {"all_reduce", *methods}
        self.every = [[each for each in options(layer, terms) if each.method in wanted] for layer in layers]
        self._free = [
            [place for place, each in enumerate(own) if not each.barred and (layer.bytes or place == 0)]
            for own, layer in zip(self.every, layers, strict=True)
        ]
        """Options of each layer that may be taken."""
        self._open = [place for place, free in enumerate(self._free) if len(free) > 1]
        self._tries = max(1, events // (len(layers) + 10))
        self._known: dict[Choice, float] = {}
        self._ways = {name: _remembered(sums) for name, sums in WAYS.items()}

    @property
    def plain(self) -> Choice:
        """The backend's all-reduce for all layers."""
        return (0,) * len(self.layers)

    @property
    def num_options(self) -> tuple[int, ...]:
        """Options of each layer that may be taken."""
        return tuple(map(len, self._free))

    def choices(self) -> Iterator[Choice]:
        """All that may be taken: as many as the product of the layers' options."""
        return itertools.product(*self._free)

    def single(self, method: Method) -> Choice:
        """One method wherever it may be taken, the backend's all-reduce elsewhere."""
        return tuple(
            next((place for place in free if own[place].method == method), 0)
            for own, free in zip(self.every, self._free, strict=True)
        )

    def added_s(self, choice: Choice) -> float:
        """How much longer a step is than its computation; infinite if its factors do not fit the memory."""
        if choice not in self._known:
            taken = self._taken(choice)
            if sum(each.memory_bytes for each in taken) > self.terms.memory_bytes:
                self._known[choice] = float("inf")
            else:
                events = self._events(taken)
                self._known[choice] = events.exposed_s(self.terms.group) + self._activations(taken).seconds
        return self._known[choice]

    def best(self) -> Choice:
        """The choice with the shortest step that is found; the plainest of those that are equal."""
        if self.terms.group.size == 1 or not self._open:
            return self.plain
        starts = [self.plain, *map(self._fitting, (*map(self.single, METHODS), *self._passed()))]
        starts = sorted(set(starts), key=lambda choice: (self.added_s(choice), choice))
        improved = [self._improved(start) for start in starts[: max(1, min(3, self._tries // 200))]]
        return self._plainer(min(improved, key=lambda choice: (self.added_s(choice), choice)))

    def _fitting(self, choice: Choice) -> Choice:
        """The choice without the factors that gain least for the memory they take, as far as there is too little."""
        taken = dict(enumerate(self._taken(choice)))
        needed = sum(each.memory_bytes for each in taken.values())
        if needed <= self.terms.memory_bytes:
            return choice
        found = list(choice)

        def gain(place: int) -> float:
            return (self.every[place][0].seconds - taken[place].seconds) / taken[place].memory_bytes

        for place in sorted((place for place, each in taken.items() if each.memory_bytes), key=gain):
            if needed <= self.terms.memory_bytes:
                break
            needed -= taken[place].memory_bytes
            found[place] = 0
        return tuple(found)

    def plan(self, choice: Choice | None = None) -> ExchangePlan:
        """A choice as a plan, by default the best one."""
        choice = self.best() if choice is None else choice
        group, taken = self.terms.group, self._taken(choice)
        events, turned = self._events(taken), self._turned(taken)
        found, moved = events.priced(group), self._activations(taken)
        overlap = replace(found.overlap, exposed_s=found.overlap.exposed_s + moved.seconds)
        return ExchangePlan(
            layers=tuple(
                _layer_plan(layer, own, at, turned.get(place, (NOTHING, 0.0)))
                for place, (layer, own, at) in enumerate(zip(self.layers, self.every, choice, strict=True))
                if layer.bytes
            ),
            before=self._events(self._taken(self.plain)).priced(group),
            after=Exchange(overlap, found.low_s + moved.low, found.high_s + moved.high, after((found.cost, moved))),
            work_s=events.work_s,
            memory_bytes=sum(each.memory_bytes for each in taken),
        )

    def _taken(self, choice: Choice) -> list[MethodOption]:
        return [own[at] for own, at in zip(self.every, choice, strict=True)]

    def _events(self, taken: Sequence[MethodOption]) -> Events:
        return mixed(self.shard, self.terms.group, [each.sent for each in taken], self._ways)

    def _activations(self, taken: Sequence[MethodOption]) -> ExchangeCost:
        """Exchanges of split layers, which nothing hides."""
        moved = self._turned(taken)
        costs = [each.activations for each in taken if each.activations.seconds]
        return after((*costs, *(cost for cost, _ in moved.values()))) if costs else NOTHING

    def _turned(self, taken: Sequence[MethodOption]) -> dict[int, tuple[ExchangeCost, float]]:
        """Cost and bytes of turning samples into columns or back; what goes between split layers needs neither."""
        split = {place: each.method for place, each in enumerate(taken) if each.method in ("column", "row")}
        joined = {
            (self.layers[place].fed_by, place)
            for place, behind in split.items()
            if self.terms.stays(split.get(self.layers[place].fed_by, "column"), behind)
        }
        feeding = {before for before, _ in joined}
        found: dict[int, tuple[ExchangeCost, float]] = {}
        for place, method in split.items():
            each, before = taken[place], self.layers[place].fed_by
            if method == "column" and place not in feeding:
                found[place] = each.leave, each.leave_bytes
            if method == "row" and (before not in split or (before, place) not in joined):
                found[place] = each.enter, each.enter_bytes
        return found

    def _improved(self, choice: Choice) -> Choice:
        """The choice after changes of one layer, or of the sums of a bucket, as long as these make the step shorter."""
        best, left = choice, self._tries
        is_better = True
        while is_better:
            is_better = False
            for changed in self._changes():
                other = changed(best)
                if other == best:
                    continue
                if left <= 0:
                    return best
                left -= 1
                if self.added_s(other) < self.added_s(best) * (1 - 1e-9):
                    best, is_better = other, True
        return best

    def _changes(self) -> Iterator[Callable[[Choice], Choice]]:
        """Every option of one layer; then another sum for all from one layer on, as only a whole bucket gains by it."""
        for place in self._open:
            for at in self._free[place]:
                yield lambda choice, place=place, at=at: (*choice[:place], at, *choice[place + 1 :])
        for method in _EXACT_SUMS:
            whole = self.single(method)
            for first in self._open:
                yield lambda choice, whole=whole, first=first: tuple(
                    alike if place >= first and own[at].method in _EXACT_SUMS else at
                    for place, (own, at, alike) in enumerate(zip(self.every, choice, whole, strict=True))
                )

    def _plainer(self, choice: Choice) -> Choice:
        """The choice with the backend's all-reduce wherever it makes no difference."""
        limit = self.added_s(choice) + _TIE * sum(self.shard.backward_s)
        for place in [place for place in self._open if choice[place]][: self._tries]:
            other = (*choice[:place], 0, *choice[place + 1 :])
            if self.added_s(other) <= limit:
                choice = other
        return choice

    def _passed(self) -> list[Choice]:
        """Choices of the dynamic program, which neglects that latencies are shared in a bucket."""
        ready = _ready_s(self.shard)
        rates = self._rates()
        whole = sum(self.shard.backward_s)
        slow = self.terms.group.fabric.slowdown
        lost = slow / (1 + slow)  # of computation, during a transfer that it hides
        width = max(4, min(64, _STATES // len(self.layers)))
        fed = {layer.fed_by: place for place, layer in enumerate(self.layers) if layer.fed_by >= 0}
        states = [_State(done_s=whole)]
        for place in reversed(range(len(self.layers))):
            own, free = self.every[place], self._free[place]
            if not self.layers[place].bytes:
                states = [replace(state, at=0, before=state) for state in states]
                continue
            sums = [at for at in free if own[at].method in _EXACT_SUMS]
            kept = min(sums, key=lambda at: (rates[own[at].method][place], at))
            tried = [at for at in free if at == kept or at not in sums]
            hidden = lost if ready[place] < whole else 0.0
            found = [
                state.then(
                    own[at], at, ready[place], rates[own[at].sent.way][place],
                    feeds=place in fed, is_fed=self.layers[place].fed_by >= 0, hidden=hidden, stays=self.terms.stays,
                )
                for state in states for at in tried
            ]  # fmt: skip
            states = _front(found, width)
        return [state.choice() for state in sorted(states, key=_State.rank)[:8]]

    def _rates(self) -> dict[str, list[float]]:
        """Seconds for each byte that a layer adds to the sums of its bucket, by method and layer."""
        group, last = self.terms.group, len(self.layers)
        found: dict[str, list[float]] = {}
        buckets = list(buckets_of(self.shard.gradient_bytes[::-1]))
        for way, sums in self._ways.items():
            rates = [0.0] * last
            before = 0
            for size, place in buckets:
                rate = sums(group, size).seconds / size
                rates[last - place : last - before] = [rate] * (place - before)
                before = place
            found[way] = rates
        return found


def _remembered(sums: Callable[[Group, float], ExchangeCost]) -> Callable[[Group, float], ExchangeCost]:
    """The same for one group, each size computed once: most buckets are alike in all plans."""
    known: dict[float, ExchangeCost] = {}

    def found(group: Group, size_bytes: float) -> ExchangeCost:
        if size_bytes not in known:
            known[size_bytes] = sums(group, size_bytes)
        return known[size_bytes]

    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The layers from the last to one, decided: when the link is free, when added work is done, what comes on top.

    Attributes:
        at: place of the layer's option. before: the state that it was added to; None for the first.
        split: method of the layer, if it is split. enter_s: what the layer that feeds it pays, unless it is split too.
    """

    free_s: float = 0.0
    done_s: float
    top_s: float = 0.0
    at: int = 0
    before: _State | None = None
    split: str = ""
    enter_s: float = 0.0

    def rank(self) -> float:
        """The end of the step, as far as it is decided."""
        return max(self.free_s, self.done_s) + self.top_s

    def choice(self) -> Choice:
        """Places of options in the order of the forward pass: the layer decided last is the first."""
        found: list[int] = []
        state = self
        while state.before is not None:
            found.append(state.at)
            state = state.before
        return tuple(found)

    def then(
        self, option: MethodOption, at: int, ready_s: float, rate: float, *, feeds: bool, is_fed: bool, hidden: float,
        stays: Callable[[str, str], bool],
    ) -> _State:  # fmt: skip
        """The state after one more layer.

        Args:
            option: of the layer.
            at: its place among the layer's options.
            ready_s: when its bucket is full.
            rate: seconds for each byte of its that is summed.
            feeds: whether it feeds the layer that was decided before it.
            is_fed: whether another layer feeds it, which pays for the way if it is not split.
            hidden: share of a hidden transfer by which it delays computation.
            stays: whether nothing is exchanged between two splits.
        """
        sent, free, done = option.sent, self.free_s, self.done_s
        behind = self.split if feeds else ""
        top = option.activations.seconds
        is_split = option.method in ("column", "row")
        is_joined = bool(behind) and is_split and stays(option.method, behind)
        if option.method == "column" and not is_joined:
            top += option.leave.seconds
        if behind == "row" and not is_joined:
            top += self.enter_s
        begun = max(free, ready_s)
        if sent.own.seconds:
            free = begun + sent.own.seconds
            done = max(done, free) + sent.work_s
        if sent.reduced_bytes:
            free = max(free, ready_s) + sent.reduced_bytes * rate
        if sent.work_s and not sent.own.seconds:
            done = max(done, free) + sent.work_s
        top += hidden * (max(begun, free) - begun)
        enter = option.enter.seconds if option.method == "row" else 0.0
        top += 0.0 if is_fed else enter
        return _State(
            free_s=free, done_s=done, top_s=self.top_s + top, at=at, before=self,
            split=option.method if is_split else "", enter_s=enter,
        )  # fmt: skip


def _ready_s(shard: Shard) -> list[float]:
    """When the bucket of each layer is full, in seconds of the backward pass."""
    last = len(shard.backward_s)
    done = [0.0, *itertools.accumulate(reversed(shard.backward_s))]
    ready = [done[-1]] * last
    before = 0
    for _, place in buckets_of(shard.gradient_bytes[::-1]):
        ready[last - place : last - before] = [done[place]] * (place - before)
        before = place
    return ready


def _front(states: Sequence[_State], width: int) -> list[_State]:
    """States that no other beats in link and work alike, at most ``width``, spread over the front, by what follows."""
    kept: list[_State] = []
    for split in sorted({state.split for state in states}):
        own = sorted(
            (state for state in states if state.split == split),
            key=lambda state: (state.free_s + state.top_s, state.done_s + state.top_s),
        )
        front: list[_State] = []
        for state in own:
            if not front or state.done_s + state.top_s < front[-1].done_s + front[-1].top_s:
                front.append(state)
        if len(front) > width:
            last = len(front) - 1
            front = [front[round(place * last / (width - 1))] for place in range(width)]
        kept += front
    return kept


def _layer_plan(
    layer: GradientLayer, own: Sequence[MethodOption], at: int, turned: tuple[ExchangeCost, float]
) -> LayerPlan:
    chosen, (cost, more) = own[at], turned
    whole, work = after((chosen.transfer, cost)), chosen.work_s
    seconds = ExchangeCost(whole.seconds + work, whole.low + work, whole.high + work, whole.basis, whole.note)
    return LayerPlan(
        layer=layer, chosen=chosen, bytes=chosen.bytes + more, seconds=seconds, rejected=tuple(_rejected(own, at))
    )  # fmt: skip


def _rejected(own: Sequence[MethodOption], at: int) -> Iterator[RejectedOption]:
    """The other options of a layer, each with its reason."""
    chosen = own[at]
    for place, other in enumerate(own):
        if place != at:
            yield RejectedOption(option=other, reason=other.barred or _why_not(other, chosen))


def _why_not(other: MethodOption, chosen: MethodOption) -> str:
    if other.bytes > chosen.bytes * 1.0001:
        return "more bytes"
    if other.work_s > chosen.work_s and other.seconds > chosen.seconds:
        return "slower product" if other.method in ("late", "power") else "slower for its work"
    if other.seconds > chosen.seconds * (1 + _TIE):
        return "slower"
    return "no shorter step: what it saves is hidden, or costs another call"
