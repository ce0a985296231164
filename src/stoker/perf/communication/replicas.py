"""Keeping replicas alike: what a micro-batch and a step exchange, and how much of it computation hides.

DDP's buckets: Li et al., "PyTorch Distributed" (arXiv 2006.15704), section 3.2.3, with its defaults: 25 MiB, the first
1 MiB, filled in the reverse order of the layers. FSDP: arXiv 2304.11277, section 3.3: each unit is gathered before its
forward and its backward pass, its gradients are scattered after it; the next unit is gathered during this one. ZeRO:
arXiv 1910.02054, section 7: stages 1 and 2 scatter gradients and gather weights, as many bytes as an all-reduce.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stoker.perf.communication.collectives import Group, all_gather, all_reduce, all_to_all, reduce_scatter
from stoker.perf.communication.cost import NOTHING, ExchangeCost, after
from stoker.perf.communication.overlap import Overlap, Task, Transfer, overlapped

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Layers of one GPU, in the order of the forward pass: what it computes and which weights it shares with others.

    Attributes:
        forward_s, backward_s: of each unit.
        weight_bytes: of each unit, as they are gathered.
        gradient_bytes: of each unit, as they are exchanged.
        row_bytes: gradients of all embeddings that are sent row by row.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_bytes: tuple[float, ...]
    gradient_bytes: tuple[float, ...]
    row_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a step's exchange adds to its computation.

    Attributes:
        overlap: most likely.
        low_s, high_s: ends of the interval of ``overlap.exposed_s``.
        cost: the exchange by itself.
    """

    overlap: Overlap
    low_s: float
    high_s: float
    cost: ExchangeCost


@dataclass(frozen=True, slots=True)
class Sent:
    """How the gradients of one unit get to the other replicas, in DDP's order of buckets.

    Attributes:
        reduced_bytes: bytes that are summed together with those of other units of the bucket.
        way: name of the collective that sums them.
        own: a transfer of the unit's own, such as that of factors; it goes before the sums of its bucket.
        work_s: computation that needs what was transferred, and follows the backward pass.
    """

    reduced_bytes: float
    way: str = "all_reduce"
    own: ExchangeCost = NOTHING
    work_s: float = 0.0


Ways = Mapping[str, Callable[[Group, float], ExchangeCost]]
"""What sums a bucket's gradients, by name."""
_WAYS: Ways = {"all_reduce": all_reduce}


@dataclass(frozen=True, slots=True)
class Events:
    """Computation and transfers of a mixed plan, in order.

    Attributes:
        tasks: the backward pass, then the work on what was transferred.
        costs: of each transfer. places: tasks that are done before it starts.
        work_s: seconds of the tasks that the plan adds.
    """

    tasks: Sequence[Task]
    costs: Sequence[ExchangeCost]
    places: Sequence[int]
    work_s: float

    def exposed_s(self, group: Group) -> float:
        """How much longer the most likely step is than the backward pass, added work included."""
        transfers = [Transfer(cost.seconds, place) for cost, place in zip(self.costs, self.places, strict=True)]
        return overlapped(self.tasks, transfers, group.fabric.slowdown).exposed_s + self.work_s

    def priced(self, group: Group) -> Exchange:
        """The exchange alone, with its interval."""
        return _priced(self.tasks, self.places, self.costs, group)


def ddp(shard: Shard, group: Group) -> Exchange:
    """The last micro-batch: all-reduces of buckets overlap with the backward pass; embedding rows follow."""
    return mixed(shard, group, [Sent(size) for size in shard.gradient_bytes]).priced(group)


def mixed(shard: Shard, group: Group, sent: Sequence[Sent], ways: Ways = _WAYS) -> Events:
    """DDP whose units are exchanged in different ways: buckets stay as they are, each is sent once it is full.

    Args:
        shard: what is computed and exchanged.
        group: of replicas.
        sent: of each unit of the shard.
        ways: what sums a bucket's gradients.
    """
    sizes, backward = tuple(reversed(shard.gradient_bytes)), shard.backward_s[::-1]
    units = tuple(reversed(sent))
    costs: list[ExchangeCost] = []
    places: list[int] = []
    work: list[Task] = []
    before = 0
    for _, place in buckets_of(sizes):
        sums: dict[str, float] = {}
        waiting: dict[str, float] = {}
        for unit in units[before:place]:
            if unit.own.seconds:
                costs.append(unit.own)
                places.append(place)
                if unit.work_s:
                    work.append(Task(unit.work_s, len(costs)))
            elif unit.work_s:
                waiting[unit.way] = waiting.get(unit.way, 0.0) + unit.work_s
            if unit.reduced_bytes:
                sums[unit.way] = sums.get(unit.way, 0.0) + unit.reduced_bytes
        for way, size in sums.items():
            costs.append(ways[way](group, size))
            places.append(place)
            if way in waiting:
                work.append(Task(waiting[way], len(costs)))
        before = place
    if shard.row_bytes:
        costs.append(all_gather(group, shard.row_bytes * group.size))
        places.append(len(backward))
    tasks, numbers = _ddp_tasks(backward, places)
    return Events([*tasks, *work], costs, numbers, sum(task.seconds for task in work))


def scattered(shard: Shard, group: Group) -> Exchange:
    """ZeRO-1 and -2 up to the optimizer: scattering gradients, bucket by bucket, overlaps with the backward pass."""
    buckets = list(buckets_of(tuple(reversed(shard.gradient_bytes))))
    costs = _each(reduce_scatter, group, [size for size, _ in buckets])
    return _priced(*_ddp_tasks(shard.backward_s[::-1], [place for _, place in buckets]), costs, group)


def gathered(shard: Shard, group: Group) -> Exchange:
    """ZeRO-1 and -2 after the optimizer: nothing overlaps."""
    return exposed(all_gather(group, sum(shard.weight_bytes)))


def fsdp(shard: Shard, group: Group, kept: Collection[int] = ()) -> Exchange:
    """One micro-batch, forward and backward.

    Args:
        shard: of one GPU.
        group: of all.
        kept: units whose weights stay whole from the forward pass to the backward pass.
    """
    units = len(shard.forward_s)
    gathers = _each(all_gather, group, shard.weight_bytes)
    scatters = _each(reduce_scatter, group, shard.gradient_bytes)
    costs: list[ExchangeCost] = []
    places: list[int] = []
    needs = [0] * (2 * units)

    def issue(cost: ExchangeCost, place: int) -> None:
        costs.append(cost)
        places.append(place)

    for unit in range(units):
        issue(gathers[unit], max(0, unit - 1))
        needs[unit] = len(costs)
    for step in range(units):  # unit ``units - 1 - step`` goes backward
        if units - 1 - step not in kept:
            issue(gathers[units - 1 - step], units + max(0, step - 1))
        needs[units + step] = len(costs)
        if step:
            issue(scatters[units - step], units + step)
    issue(scatters[0], 2 * units)
    seconds = (*shard.forward_s, *reversed(shard.backward_s))
    tasks = [Task(each, need) for each, need in zip(seconds, needs, strict=True)]
    return _priced(tasks, places, costs, group)


def pearl(shard: Shard, group: Group, touched_bytes: float, count: int) -> Exchange:
    """Dense gradients as in DDP; in each of ``count`` micro-batches rows of partitioned embeddings, and gradients back.

    Source: arXiv 1910.05930, recalled; neither is anything hidden there, nor here of the rows.
    """
    dense = ddp(shard, group)
    rows = exposed(all_to_all(group, touched_bytes).times(2.0 * count))
    return together(dense, rows)


def exposed(cost: ExchangeCost) -> Exchange:
    """Nothing overlaps."""
    return Exchange(Overlap(cost.seconds, 0.0), cost.low, cost.high, cost)


def together(*exchanges: Exchange) -> Exchange:
    """One after another."""
    overlap = Overlap(sum(e.overlap.exposed_s for e in exchanges), sum(e.overlap.hidden_s for e in exchanges))
    low, high = sum(e.low_s for e in exchanges), sum(e.high_s for e in exchanges)
    return Exchange(overlap, low, high, after(e.cost for e in exchanges))


def times(exchange: Exchange, count: float) -> Exchange:
    """``count`` such exchanges."""
    overlap = Overlap(exchange.overlap.exposed_s * count, exchange.overlap.hidden_s * count)
    return Exchange(overlap, exchange.low_s * count, exchange.high_s * count, exchange.cost.times(count))


def buckets_of(sizes: Sequence[float]) -> Iterator[tuple[float, int]]:
    """Buckets, and how many layers must be done before each, for gradients in the order in which they are ready.

    A bucket is closed by the layer that fills it; a layer is never cut.
    """
    limit, held, last = FIRST_BUCKET_BYTES, 0.0, 0
    for place, size in enumerate(sizes):
        if size > 0:
            held, last = held + size, place + 1
        if held >= limit:
            yield held, last
            limit, held = BUCKET_BYTES, 0.0
    if held > 0:
        yield held, last


def _each(
    collective: Callable[[Group, float], ExchangeCost], group: Group, sizes: Sequence[float]
) -> list[ExchangeCost]:
    """The cost of each size, computed once for equal sizes, as most are."""
    known = {size: collective(group, size) for size in set(sizes)}
    return [known[size] for size in sizes]


def _ddp_tasks(seconds: Sequence[float], places: Sequence[int]) -> tuple[list[Task], list[int]]:
    """Tasks, merged between each two buckets, and the buckets' places among them."""
    cuts = sorted({0, *places, len(seconds)})
    number = {cut: place for place, cut in enumerate(cuts)}
    tasks = [Task(sum(seconds[start:stop])) for start, stop in itertools.pairwise(cuts)]
    return tasks, [number[place] for place in places]


def _priced(tasks: Sequence[Task], places: Sequence[int], costs: Sequence[ExchangeCost], group: Group) -> Exchange:
    """The same order of events with likely, low and high costs."""

    def run(seconds: Callable[[ExchangeCost], float]) -> Overlap:
        transfers = [Transfer(seconds(cost), place) for cost, place in zip(costs, places, strict=True)]
        return overlapped(tasks, transfers, group.fabric.slowdown)

    likely = run(lambda cost: cost.seconds)
    low = min(run(lambda cost: cost.low).exposed_s, likely.exposed_s)
    high = max(run(lambda cost: cost.high).exposed_s, likely.exposed_s)
    return Exchange(likely, low, high, after(costs))
