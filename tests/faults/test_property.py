"""Whatever the sampler, workers, deaths, ranks and points of resuming: each item once, in plain python's order."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from stoker.feed.loader.iterator import FedIterator
from stoker.feed.order.sampling import Cursor
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving
from stoker.run.settings import RunSettings
from tests.faults.data import Numbers, PrivateRng, Shards
from tests.faults.harness import workers_below

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MAX_EXAMPLES = 14


class Lazy:
    """A sampler of the user's own that draws as it goes, from the main random stream."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        for _ in range(len(self.dataset)):
            yield int(torch.randint(len(self.dataset), ()).item())

    def __len__(self) -> int:
        return len(self.dataset)


SAMPLERS: dict[str, Callable[[Any, int, int], Any]] = {
    "sequential": lambda data, rank, ranks: SequentialSampler(data),
    "random": lambda data, rank, ranks: RandomSampler(data),
    "replacement": lambda data, rank, ranks: RandomSampler(data, replacement=True, num_samples=2 * len(data)),
    "own generator": lambda data, rank, ranks: RandomSampler(data, generator=torch.Generator().manual_seed(4)),
    "subset": lambda data, rank, ranks: SubsetRandomSampler(range(0, len(data), 2)),
    "weighted": lambda data, rank, ranks: WeightedRandomSampler([1.0, 2.0, 3.0] * (len(data) // 3 + 1), len(data)),
    "distributed": lambda data, rank, ranks: DistributedSampler(data, ranks, rank, shuffle=True, seed=5),
    "lazy": lambda data, rank, ranks: Lazy(data),
}


@dataclass(frozen=True)
class Case:
    """One drawn run."""

    kind: str
    sampler: str
    length: int
    batch_size: int
    declared: int
    workers: int
    ranks: int
    rank: int
    drop_last: bool
    deaths: tuple[int, ...]
    """Steps before which a worker is killed."""
    stops: tuple[int, ...]
    """Steps before which the run ends, is saved, and is gone on with by another."""

    def loader(self) -> DataLoader[Any]:
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": self.declared,
            "drop_last": self.drop_last,
        }
        if self.kind == "shards":
            return DataLoader(Shards(self.length), **options)
        data = Numbers(self.length) if self.kind == "pure" else PrivateRng(self.length)
        return DataLoader(data, sampler=SAMPLERS[self.sampler](data, self.rank, self.ranks), **options)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(["pure", "pure", "pinned", "shards"]))
    ranks = draw(st.integers(1, 3))
    steps = st.lists(st.integers(0, 12), max_size=2, unique=True).map(lambda drawn: tuple(sorted(drawn)))
    return Case(
        kind=kind,
        sampler=draw(st.sampled_from(sorted(SAMPLERS))),
        length=draw(st.integers(1, 40)),
        batch_size=draw(st.integers(1, 5)),
        declared=draw(st.integers(1, 2)),
        workers=draw(st.integers(1, 3)),
        ranks=ranks,
        rank=draw(st.integers(0, ranks - 1)),
        drop_last=draw(st.booleans()),
        deaths=draw(steps),
        stops=draw(steps),
    )


def plainly(case: Case) -> list[Any]:
    torch.manual_seed(case.length)
    return list(case.loader())


def brokenly(case: Case) -> tuple[list[Any], int]:
    """The batches of a run that is killed, saved and resumed; and how many bytes the largest state had."""
    torch.manual_seed(case.length)
    found: list[Any] = []
    state: bytes | None = None
    stream = torch.get_rng_state()
    largest = 0
    stops = list(case.stops)
    while True:
        until = stops.pop(0) if stops else None
        if state is not None:
            torch.manual_seed(99)  # another process: its random streams are anywhere
        if state is not None and case.sampler == "lazy":
            torch.set_rng_state(stream)  # such a sampler draws on from the main stream, which programs save as well
        state = piece(case, state, until, found)
        stream = torch.get_rng_state()
        if state is None:
            return found, largest
        largest = max(largest, len(state))


def piece(case: Case, state: bytes | None, until: int | None, found: list[Any]) -> bytes | None:
    """One process's part of the run; the state it saved, or None at the end."""
    serving = Serving(RunSettings.of(workers=case.workers), [])
    patch.install(serving)
    try:
        loader = case.loader()
        cursor = msgspec.json.decode(state, type=Cursor) if state is not None else None
        iterator = cast(FedIterator, serving.iterate(loader, lambda: pytest.fail("left to torch's own loader"), cursor))
        while until is None or len(found) < until:
            if len(found) in case.deaths:
                for pid in workers_below(os.getpid())[:1]:
                    os.kill(pid, signal.SIGKILL)
            try:
                found.append(next(iterator))
            except StopIteration:
                return None
        return msgspec.json.encode(iterator.bookmark.cursor())
    finally:
        patch.remove()
        serving.close()


@pytest.mark.slow("a run for each example")
@given(cases())
@settings(max_examples=MAX_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_exactly_once_in_order(case: Case) -> None:
    expected = plainly(case)
    found, largest = brokenly(case)
    assert len(found) == len(expected), case
    for one, other in zip(found, expected, strict=True):
        if case.kind == "pinned" and case.stops:
            # A generator inside the dataset begins anew in the workers of another process, as with torch's own loader:
            # which samples is what is promised.
            assert one.diff().round().equal(other.diff().round()), case
        else:
            assert torch.equal(one, other), case
    assert largest < (1024 if case.sampler in ("sequential", "random", "replacement", "distributed") else 32 << 10)


@given(
    before=st.integers(1, 3),
    after=st.integers(1, 3),
    length=st.integers(4, 48),
    batch_size=st.integers(1, 4),
    taken=st.integers(0, 4),
)
@settings(max_examples=5)
def test_other_number_of_ranks(before: int, after: int, length: int, batch_size: int, taken: int) -> None:
    """All ranks stop after as many batches, and other ranks make the rest: no sample twice, none left out."""
    seen: list[float] = []

    def case(rank: int, ranks: int, stops: tuple[int, ...] = ()) -> Case:
        return Case("pure", "distributed", length, batch_size, 1, 1, ranks, rank, False, (), stops)

    taken = min(taken, length // before // batch_size)  # whole rounds of whole batches
    states: list[bytes] = []
    for rank in range(before):
        found: list[Any] = []
        torch.manual_seed(1)
        state = piece(case(rank, before), None, taken, found)
        assert state is not None
        states.append(state)
        seen += [float(row[0]) for batch in found for row in batch]
    assert len({msgspec.json.decode(state, type=Cursor).samples for state in states}) == 1
    rest: list[list[float]] = []
    for rank in range(after):
        found = []
        assert piece(case(rank, after), states[0], None, found) is None
        rest.append([float(row[0]) for batch in found for row in batch])
    everything = [float(Numbers(length)[number][0]) for number in range(length)]
    assert set(seen) | {value for part in rest for value in part} == set(everything)
    made = len(seen) + sum(map(len, rest))
    assert made <= length + before + after  # what DistributedSampler repeats to even out the ranks
