"""Cases on order: samplers, generators, batch sizes, lengths, lazy samplers, distributed sampling."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from .datasets import Keyed, Rows, as_is, first_of
from .registry import case
from .transcript import Transcript


def generator(seed: int = 11) -> torch.Generator:
    """A user's generator."""
    return torch.Generator().manual_seed(seed)


def both(t: Transcript, dataset: Any, *, num: int = 2, **options: Any) -> Transcript:
    """Two epochs of a fresh loader without workers, and of one with two, with a loop that draws."""
    for workers in (0, 2):
        t.event("workers", workers)
        t.epochs(DataLoader(dataset, num_workers=workers, **options), num=num, draw=True)
    return t


@case("order")
def sequential() -> Transcript:
    return both(Transcript(), Rows(), batch_size=4)


@case("order")
def sequential_drop_last() -> Transcript:
    return both(Transcript(), Rows(), batch_size=4, drop_last=True)


@case("order")
def shuffled() -> Transcript:
    return both(Transcript(), Rows(), batch_size=4, shuffle=True)


@case("order")
def shuffled_drop_last_three_workers() -> Transcript:
    t = Transcript()
    t.epochs(DataLoader(Rows(31), batch_size=3, shuffle=True, drop_last=True, num_workers=3), num=3)
    return t


@case("order")
def shuffled_user_generator() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        own = generator()
        loader = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=workers, generator=own)
        for _ in range(3):
            t.epoch(loader, own, draw=True)
    return t


@case("order")
def generator_shared_by_two_loaders() -> Transcript:
    t = Transcript()
    own = generator()
    loaders = [DataLoader(Rows(n), batch_size=3, shuffle=True, num_workers=2, generator=own) for n in (9, 14)]
    iterators = [t.open(loader, own) for loader in loaders]
    for _ in range(3):
        for iterator in iterators:
            t.take(iterator, own, stop=1)
    return t


@case("order")
def generator_reseeded_between_epochs() -> Transcript:
    t = Transcript()
    own = generator()
    loader = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2, generator=own)
    for epoch in range(3):
        own.manual_seed(epoch % 2)
        t.epoch(loader, own)
    return t


@case("order")
def batch_size_none() -> Transcript:
    return both(Transcript(), Rows(7), batch_size=None, shuffle=True)


@case("order")
def batch_size_none_with_sampler_of_lists() -> Transcript:
    """The program's own batching: the sampler yields lists of indices and the dataset takes them."""
    return both(Transcript(), Keyed(), batch_size=None, sampler=BatchSampler(range(10), 3, drop_last=False))


@case("order")
def batch_larger_than_dataset() -> Transcript:
    return both(Transcript(), Rows(3), batch_size=10, shuffle=True)


@case("order")
def single_sample() -> Transcript:
    return both(Transcript(), Rows(1), batch_size=1, shuffle=True)


@case("order")
def fewer_batches_than_workers() -> Transcript:
    t = Transcript()
    t.epochs(DataLoader(Rows(2), batch_size=1, num_workers=3), num=2)
    return t


@case("order")
def empty_dataset() -> Transcript:
    return both(Transcript(), Rows(0), batch_size=4)


@case("order")
def all_dropped() -> Transcript:
    return both(Transcript(), Rows(3), batch_size=4, drop_last=True)


@case("order")
def prefetch_factors() -> Transcript:
    t = Transcript()
    for factor in (1, 4):
        t.epochs(DataLoader(Rows(), batch_size=2, shuffle=True, num_workers=2, prefetch_factor=factor), draw=True)
    return t


@case("order")
def samplers_as_list_and_range() -> Transcript:
    t = both(Transcript(), Rows(), batch_size=2, sampler=[5, 3, 3, 1, 0])
    return both(t, Rows(), batch_size=2, sampler=range(20, 10, -1))


@case("order")
def batch_sampler_as_list() -> Transcript:
    return both(Transcript(), Rows(), batch_sampler=[[1, 2, 3], [4], [], [5, 6]], collate_fn=as_is)


@case("order")
def batch_sampler_of_torch() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        own = generator()
        batches = BatchSampler(RandomSampler(range(23), generator=own), 4, drop_last=True)
        t.epochs(DataLoader(Rows(), batch_sampler=batches, num_workers=workers), own, draw=True)
    return t


@case("order")
def random_sampler_with_replacement() -> Transcript:
    sampler = RandomSampler(range(23), replacement=True, num_samples=75)
    return both(Transcript(), Rows(), batch_size=4, sampler=sampler)


@case("order")
def random_sampler_with_replacement_and_generator() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        own = generator()
        sampler = RandomSampler(range(23), replacement=True, num_samples=75, generator=own)
        t.epochs(DataLoader(Rows(), batch_size=4, sampler=sampler, num_workers=workers), own, draw=True)
    return t


@case("order")
def random_sampler_more_than_dataset() -> Transcript:
    return both(Transcript(), Rows(), batch_size=7, sampler=RandomSampler(range(23), num_samples=60))


@case("order")
def random_sampler_fewer_than_dataset() -> Transcript:
    return both(Transcript(), Rows(), batch_size=3, sampler=RandomSampler(range(23), num_samples=8))


@case("order")
def subset_random_sampler() -> Transcript:
    t = both(Transcript(), Rows(), batch_size=3, sampler=SubsetRandomSampler([1, 4, 9, 16, 2, 8, 20]))
    own = generator()
    sampler = SubsetRandomSampler(range(0, 20, 2), generator=own)
    t.epochs(DataLoader(Rows(), batch_size=3, sampler=sampler, num_workers=2), own)
    return t


@case("order")
def weighted_random_sampler() -> Transcript:
    weights = torch.linspace(0.1, 2.0, 23).tolist()
    t = both(Transcript(), Rows(), batch_size=4, sampler=WeightedRandomSampler(weights, 40))
    own = generator()
    sampler = WeightedRandomSampler(weights, 12, replacement=False, generator=own)
    t.epochs(DataLoader(Rows(), batch_size=5, sampler=sampler, num_workers=2), own)
    return t


@case("order")
def distributed_sampler() -> Transcript:
    t = Transcript()
    for options in ({"shuffle": True}, {"shuffle": False, "drop_last": True}, {"shuffle": True, "seed": 9}):
        sampler = DistributedSampler(Rows(21), num_replicas=2, rank=1, **options)
        for workers in (0, 2):
            loader = DataLoader(Rows(21), batch_size=3, sampler=sampler, num_workers=workers)
            for epoch in range(2):
                loader.sampler.set_epoch(epoch)
                t.epoch(loader)
    return t


@case("order")
def subset_concat_stack_split() -> Transcript:
    t = Transcript()
    train, valid = random_split(Rows(20), [0.7, 0.3])
    t.rng("split")
    both(t, train, batch_size=4, shuffle=True, num=1)
    both(t, valid, batch_size=4, num=1)
    both(t, ConcatDataset([Rows(4), Subset(Rows(30), [29, 3, 17])]), batch_size=2, shuffle=True, num=1)
    both(t, StackDataset(first=Rows(6), second=Rows(6, 5)), batch_size=4, num=1)
    return both(t, TensorDataset(torch.arange(14).reshape(7, 2), torch.arange(7)), batch_size=3, shuffle=True, num=1)


class Drawing(Sampler[int]):
    """Draws each index as it is asked for, from one of the main streams."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        for _ in range(20):
            if self.stream == "torch":
                yield int(torch.randint(23, ()))
            elif self.stream == "random":
                yield random.randrange(23)
            else:
                yield int(np.random.randint(23))


def lazily(stream: str) -> Transcript:
    """A lazily drawing sampler and a loop that draws from the same streams: look-ahead becomes visible."""
    t = Transcript()
    loaders = [
        DataLoader(Rows(), batch_size=2, sampler=Drawing(stream)),
        DataLoader(Rows(), batch_size=2, sampler=Drawing(stream), num_workers=2),
        DataLoader(Rows(), batch_size=2, sampler=Drawing(stream), num_workers=2, prefetch_factor=4),
        DataLoader(Rows(), batch_size=None, sampler=Drawing(stream), num_workers=1, prefetch_factor=1),
    ]
    for loader in loaders:
        t.epochs(loader, draw=True)
    return t


@case("lazy")
def lazy_sampler_torch() -> Transcript:
    return lazily("torch")


@case("lazy")
def lazy_sampler_random() -> Transcript:
    return lazily("random")


@case("lazy")
def lazy_sampler_numpy() -> Transcript:
    return lazily("numpy")


@case("lazy")
def lazy_sampler_persistent() -> Transcript:
    t = Transcript()
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    t.epochs(DataLoader(Rows(), batch_size=3, sampler=Drawing("torch"), **options), num=3, draw=True)
    return t


class Bucketed(Sampler[list[int]]):
    """A batch sampler that shuffles its batches by ``random`` when iterated, and looks at what the loop has set."""

    def __init__(self) -> None:
        self.limit = 5

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[i, i + 1] for i in range(0, 20, 2)]
        random.shuffle(batches)
        for batch in batches[: self.limit]:
            yield batch * self.limit


@case("lazy")
def batch_sampler_without_length() -> Transcript:
    return both(Transcript(), Rows(), batch_sampler=Bucketed())


@case("lazy")
def batches_without_length() -> Transcript:
    """Torch asks no more of a batch than to be iterable."""
    t = Transcript()
    batches: list[Any] = [map(int, "123"), iter([4]), (n for n in (5, 6))]
    t.epochs(DataLoader(Rows(), batch_sampler=batches, collate_fn=as_is), num=1, draw=True)
    pickled: list[Any] = [map(int, "123"), iter([4])]
    t.epochs(DataLoader(Rows(), batch_sampler=pickled, num_workers=2), num=1, draw=True)
    return t


@case("lazy")
def batch_sampler_changed_in_mid_epoch() -> Transcript:
    """A curriculum: the loop changes the sampler, later batches follow at stock's look-ahead."""
    t = Transcript()
    for workers in (0, 2):
        sampler = Bucketed()
        sampler.limit = 6
        iterator = t.open(DataLoader(Rows(), batch_sampler=sampler, num_workers=workers))
        for step in range(6):
            t.take(iterator, stop=1)
            sampler.limit = 6 - step % 3
    return t


class OtherKeys(Sampler[Any]):
    """Yields keys that are not ints."""

    def __iter__(self) -> Iterator[Any]:
        yield from ("name", (3, "large"), np.int64(4), torch.tensor(5), None, 2.5)


@case("lazy")
def sampler_of_other_keys() -> Transcript:
    t = both(Transcript(), Keyed(), batch_size=2, sampler=OtherKeys(), collate_fn=as_is)
    return both(t, Keyed(), batch_size=1, sampler=OtherKeys(), collate_fn=first_of)


def generated(length: int) -> Iterator[int]:
    """A generator function's result as a sampler: it has one epoch."""
    yield from range(length)


@case("lazy")
def sampler_is_a_generator() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epochs(DataLoader(Rows(), batch_size=3, sampler=generated(10), num_workers=workers))
    return t


@case("lazy")
def sampler_list_changed_between_epochs() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        order = [4, 2, 0]
        loader = DataLoader(Rows(), batch_size=2, sampler=order, num_workers=workers)
        for epoch in range(3):
            t.epoch(loader)
            order.append(epoch + 10)
    return t


@case("lazy")
def endless_sampler() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        iterator = t.open(DataLoader(Rows(5), batch_size=2, sampler=Endless(), num_workers=workers))
        t.take(iterator, stop=40, draw=True)
    return t


class Endless(Sampler[int]):
    """Never ends: permutation after permutation of the global stream."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(5).tolist()


@case("lazy")
def sampler_sees_its_positions() -> Transcript:
    """How far a sampler is ahead of the program is stock's look-ahead, at every step."""
    t = Transcript()
    options: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 3, "prefetch_factor": 1}]
    for workers in options:
        pulled: list[int] = []
        loader = DataLoader(Rows(20), batch_size=2, sampler=Watched(pulled), **workers)
        iterator = t.open(loader)
        t.event("pulled", len(pulled))
        for _ in range(12):
            t.take(iterator, stop=1)
            t.event("pulled", len(pulled))
    return t


class Watched(SequentialSampler):
    """A subclass of a torch sampler with an effect of its own."""

    def __init__(self, pulled: list[int]) -> None:
        super().__init__(range(20))
        self.pulled = pulled

    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            self.pulled.append(index)
            yield index
