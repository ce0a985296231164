"""The differential probe on datasets of every temper, in forks of this process as in a run."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

import stoker
from stoker.feed import fetch, streams
from stoker.feed.program import Iteration, Program, Tier, WorkItem
from stoker.feed.purity.probe import Evidence, compare, run_apart, run_beside

ITERATION = Iteration(ordinal=1, base_seed=1234, tier=Tier.ELASTIC)
ITEM = WorkItem(indices=[5, 3, 8, 1, 9, 2], start=12)


class Data:
    """Twelve samples made by a function of the instance and the index."""

    def __init__(self, make: Callable[[Any, int], Any], **state: Any) -> None:
        self.make = make
        self.__dict__.update(state)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.make(self, index)


def program(dataset: Any, **changes: Any) -> Program:
    fields: dict[str, Any] = {
        "dataset": dataset,
        "collate_fn": default_collate,
        "worker_init_fn": None,
        "is_iterable": False,
        "auto_collation": True,
        "drop_last": False,
        "declared_workers": 2,
    }
    return Program(**(fields | changes))


def in_fork(make: Callable[[], Evidence]) -> Evidence:
    """What a function returns in a fork of this process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, pickle.dumps(make()))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


def probed(tested: Program, item: WorkItem = ITEM, other: WorkItem | None = None) -> tuple[str, bool]:
    """The reason found, and whether the samples draw."""

    def beside() -> Evidence:
        fetch.announce_worker(tested, 0, 1)
        fetcher = fetch.ElasticFetcher(tested, ITERATION)
        with contextlib.suppress(fetch.SampleError):
            fetcher.fetch(0, item, lambda position: None)
        return run_beside(tested, ITERATION, item, drew=fetcher.drew)

    def apart() -> Evidence:
        fetch.announce_worker(tested, 1, 1)
        return run_apart(tested, ITERATION, item, other)

    one, other = in_fork(beside), in_fork(apart)
    return compare(one, other), one.drew or other.drew


def counter(data: Any, index: int) -> torch.Tensor:
    data.n += 1
    return torch.tensor([index, data.n])


def remembered(data: Any, index: int) -> float:
    if index not in data.cache:
        data.cache[index] = random.random()
    return data.cache[index]


def previous(data: Any, index: int) -> int:
    data.last, last = index, data.last
    return last


PURE: dict[str, Callable[[], Any]] = {
    "plain": lambda: Data(lambda data, index: torch.arange(index, index + 3)),
    "dicts and strings": lambda: Data(lambda data, index: {"x": torch.ones(2) * index, "name": f"n{index}"}),
    "a cache of what follows from the index": lambda: Data(
        lambda data, index: data.cache.setdefault(index, torch.ones(2) * index), cache={}
    ),
    "a counter that nothing depends on": lambda: Data(lambda data, index: (counter(data, index), index)[1], n=0),
    "an exception, always the same": lambda: Data(lambda data, index: 1 // 0),
}
RANDOM: dict[str, Callable[[], Any]] = {
    "torch": lambda: Data(lambda data, index: torch.rand(3)),
    "python": lambda: Data(lambda data, index: random.random()),
    "numpy": lambda: Data(lambda data, index: np.random.rand(2)),
    "one sample in three": lambda: Data(lambda data, index: random.random() if index % 3 == 0 else float(index)),
}
IMPURE: dict[str, Callable[[], Any]] = {
    "a counter": lambda: Data(counter, n=0),
    "a private generator": lambda: Data(lambda data, index: data.rng.random(), rng=np.random.default_rng(3)),
    "a private torch generator": lambda: Data(
        lambda data, index: torch.rand(2, generator=data.rng), rng=torch.Generator().manual_seed(1)
    ),
    "a cache of random results": lambda: Data(remembered, cache={}),
    "the worker's number": lambda: Data(lambda data, index: (get_worker_info() or pytest.fail("worker")).id),
    "the process": lambda: Data(lambda data, index: os.getpid()),
    "the sample before": lambda: Data(previous, last=-1),
    "a real random number": lambda: Data(lambda data, index: int.from_bytes(os.urandom(4), "little")),
}


@pytest.mark.parametrize("name", PURE)
def test_pure(name: str) -> None:
    assert probed(program(PURE[name]())) == ("", False)


@pytest.mark.parametrize("name", RANDOM)
def test_random_transforms_are_pure_under_their_seeds_and_the_draw_is_reported(name: str) -> None:
    assert probed(program(RANDOM[name]())) == ("", True)


@pytest.mark.parametrize("name", IMPURE)
def test_impure(name: str) -> None:
    why, _ = probed(program(IMPURE[name]()))
    assert "differs when it is made again in another order and process" in why


def test_a_collate_function_with_a_memory() -> None:
    seen: list[int] = []

    def collate(samples: list[Any]) -> Any:
        seen.append(os.getpid())
        return samples, seen[-1]

    why, _ = probed(program(PURE["plain"](), collate_fn=collate))
    assert "`collate_fn` gives another batch" in why


def test_a_collate_function_that_draws() -> None:
    def collate(samples: list[Any]) -> Any:
        return random.sample(samples, len(samples))

    assert probed(program(PURE["plain"](), collate_fn=collate)) == ("", True)


def test_whole_batches() -> None:
    class Batched(Data):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    def numbered(data: Any, index: int) -> int:
        return index

    assert probed(program(Batched(numbered))) == ("", False)
    assert probed(program(Batched(counter, n=0)))[0]


def test_single_samples() -> None:
    single = WorkItem(indices=4, start=9)
    plain = program(PURE["plain"](), auto_collation=False, collate_fn=lambda sample: sample)
    assert probed(plain, single) == ("", False)
    counting = program(IMPURE["a counter"](), auto_collation=False, collate_fn=lambda sample: sample)
    assert probed(counting, single)[0]


def test_batches_of_one() -> None:
    one = WorkItem(indices=[7], start=0)
    assert probed(program(PURE["plain"]()), one) == ("", False)
    assert probed(program(RANDOM["torch"]()), one) == ("", True)
    for name in ("a counter", "a private generator", "a cache of random results", "the process"):
        assert probed(program(IMPURE[name]()), one)[0], name


@pytest.mark.parametrize("indices", [[7], [7, 4]], ids=["one", "two"])
def test_small_batches_are_told_by_another_between_them(indices: list[int]) -> None:
    item, other = WorkItem(indices=indices, start=0), WorkItem(indices=[2, 5], start=2)
    for name, make in PURE.items():
        assert probed(program(make()), item, other) == ("", False), name
    for name, make in RANDOM.items():
        assert probed(program(make()), item, other)[0] == "", name
    for name, make in IMPURE.items():
        assert probed(program(make()), item, other)[0], name


def test_a_unit_that_depends_on_the_one_before() -> None:
    class Batched(Data):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    other = WorkItem(indices=[2, 5], start=6)
    assert probed(program(Batched(previous, last=-1)), ITEM, other)[0]
    single = program(IMPURE["the sample before"](), auto_collation=False, collate_fn=lambda sample: sample)
    assert probed(single, WorkItem(indices=4, start=9), WorkItem(indices=6, start=10))[0]


@pytest.mark.integration
@pytest.mark.parametrize("batch_size", [1, 2, 4, None])
def test_in_a_run(batch_size: int | None) -> None:
    def tier_of(dataset: Any, **options: Any) -> str:
        loader = DataLoader(dataset, batch_size, shuffle=True, **options)
        list(loader)
        return stoker.explain(loader).tier

    with stoker.feeding(quiet=True, workers=2):
        for options in ({"num_workers": 2}, {"num_workers": 1, "prefetch_factor": 1}):
            assert tier_of(IMPURE["the sample before"](), **options) == "pinned"
            assert tier_of(PURE["plain"](), **options) == "elastic"


def test_the_worker_goes_on_with_its_streams_as_they_were() -> None:
    states = streams.save()
    try:
        picture = streams.mark()
        run_beside(program(RANDOM["torch"]()), ITERATION, ITEM, drew=False)
        assert not streams.drawn_since(picture)
    finally:
        streams.restore(states)


def test_another_number_of_samples() -> None:
    one, other = Evidence((b"a", b"b"), b"", drew=False), Evidence((b"a",), b"", drew=False)
    assert "the number of samples differs" in compare(one, other)
