"""Cases on iterable datasets: shards, lengths, chains, errors; shards keep stock's seeds, so values are equal too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info

from .datasets import SizedStream, Stream, draw_all
from .registry import case
from .transcript import Transcript


def each(dataset: Any, **options: Any) -> Transcript:
    """Two epochs for 0, 2 and 3 workers."""
    t = Transcript()
    for workers in (0, 2, 3):
        t.event("workers", workers)
        t.epochs(DataLoader(dataset, num_workers=workers, **options), draw=workers == 2)
    return t


@case("iterable")
def sharded_stream() -> Transcript:
    return each(Stream(), batch_size=3)


@case("iterable")
def sharded_stream_drop_last() -> Transcript:
    return each(Stream(stop=20), batch_size=3, drop_last=True)


@case("iterable")
def unsharded_stream_duplicates() -> Transcript:
    return each(Stream(stop=5, shard=False), batch_size=2)


@case("iterable")
def stream_without_batches() -> Transcript:
    return each(Stream(stop=7), batch_size=None)


@case("iterable")
def empty_stream() -> Transcript:
    return each(Stream(stop=0), batch_size=2)


class Uneven(IterableDataset[Any]):
    """Worker i has i * 5 items: one shard is empty."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        shard = 1 if info is None else info.id
        for i in range(shard * 5):
            yield {"shard": shard, "x": torch.full((2,), float(i))}


@case("iterable")
def uneven_shards() -> Transcript:
    return each(Uneven(), batch_size=2)


@case("iterable")
def stream_with_right_length() -> Transcript:
    return each(SizedStream(11, 11), batch_size=2)


@case("iterable")
def stream_longer_than_declared() -> Transcript:
    return each(SizedStream(6, 11), batch_size=2)


@case("iterable")
def duplicates_longer_than_declared() -> Transcript:
    return each(SizedStream(4, 4, shard=False), batch_size=None)


@case("iterable")
def stream_shorter_than_declared() -> Transcript:
    return each(SizedStream(30, 11), batch_size=2)


class RandomStream(IterableDataset[Any]):
    """Random values and a shuffle buffer, from the worker's own streams."""

    def __iter__(self) -> Iterator[Any]:
        buffer: list[int] = []
        for i in range(12):
            buffer.append(i)
            if len(buffer) > 4:
                yield buffer.pop(random.randrange(len(buffer))), torch.tensor(draw_all())
        random.shuffle(buffer)
        for i in buffer:
            yield i, torch.tensor(draw_all())


@case("iterable")
def random_stream() -> Transcript:
    return each(RandomStream(), batch_size=3)


@case("iterable")
def random_stream_of_user_generator() -> Transcript:
    t = Transcript()
    own = torch.Generator().manual_seed(6)
    t.epochs(DataLoader(RandomStream(), batch_size=3, num_workers=2, generator=own), own, num=3)
    return t


@case("iterable")
def random_stream_persistent() -> Transcript:
    t = Transcript()
    loader = DataLoader(RandomStream(), batch_size=3, num_workers=2, persistent_workers=True)
    t.epochs(loader, num=3, draw=True)
    return t


class Counting(IterableDataset[Any]):
    """Remembers how often it was iterated: a persistent worker's copy lives on."""

    def __init__(self) -> None:
        self.iterated = 0

    def __iter__(self) -> Iterator[Any]:
        self.iterated += 1
        yield from (self.iterated * 100 + i for i in range(4))


@case("iterable")
def stream_with_memory() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        dataset = Counting()
        t.epochs(DataLoader(dataset, batch_size=2, **options), num=3)
        t.event("iterated in the main process", dataset.iterated)
    return t


class Raising(IterableDataset[Any]):
    """A shard that fails on the way."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for i in range(6):
            if i == 3 and (info is None or info.id == 1):
                raise LookupError(f"no record {i}")
            yield i


@case("iterable")
def raising_shard() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        iterator = t.open(DataLoader(Raising(), batch_size=2, num_workers=workers))
        for _ in range(8):
            t.take(iterator, stop=1)
    return t


class RaisingAtStart(IterableDataset[Any]):
    """Cannot even start."""

    def __iter__(self) -> Iterator[Any]:
        raise PermissionError("no access")


@case("iterable")
def stream_raising_at_start() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epoch(DataLoader(RaisingAtStart(), batch_size=2, num_workers=workers))
    return t


@case("iterable")
def chained_streams() -> Transcript:
    return each(ChainDataset([Stream(stop=4), Stream(10, 15)]), batch_size=2)


def shard_by_init(worker_id: int) -> None:
    """The recipe of torch's documentation: the init function cuts the worker's copy."""
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    dataset.start, dataset.stop = worker_id * 6, worker_id * 6 + 4


@case("iterable")
def stream_sharded_by_worker_init() -> Transcript:
    t = Transcript()
    dataset = Stream(shard=False)
    t.epochs(DataLoader(dataset, batch_size=2, num_workers=2, worker_init_fn=shard_by_init))
    t.event("range in the main process", [dataset.start, dataset.stop])
    return t


class StreamFacts(IterableDataset[Any]):
    """What a shard sees of its worker."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        seen = None
        if info is not None:
            seen = [info.id, info.num_workers, str(info.seed - info.id), torch.initial_seed() == info.seed]
        for i in range(3):
            yield [i, seen]


@case("iterable")
def stream_worker_facts() -> Transcript:
    return each(StreamFacts(), batch_size=2, collate_fn=list)


class EndlessStream(IterableDataset[Any]):
    """Never ends."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number = 0 if info is None else info.id * 1000
        while True:
            yield number
            number += 1


@case("iterable")
def endless_stream_with_break() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader = DataLoader(EndlessStream(), batch_size=2, **options)
        for _ in range(3):
            t.epoch(loader, stop=7)
    return t


@case("iterable", equal="unordered")
def stream_out_of_order() -> Transcript:
    t = Transcript()
    t.epoch(DataLoader(Stream(stop=40), batch_size=2, num_workers=2, in_order=False))
    return t


@case("iterable")
def stream_prefetch_factors() -> Transcript:
    t = Transcript()
    for factor in (1, 5):
        t.epochs(DataLoader(Uneven(), batch_size=2, num_workers=3, prefetch_factor=factor), draw=True)
    return t


@case("iterable")
def stream_changed_between_epochs() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        dataset = Stream(stop=6)
        loader = DataLoader(dataset, batch_size=2, **options)
        for epoch in range(3):
            dataset.stop = 6 + epoch * 2
            t.epoch(loader)
    return t


class GeneratorInDataset(IterableDataset[Any]):
    """Its stream is a generator that it holds: one pass for W = 0, one pass per copy in workers."""

    def __init__(self) -> None:
        self.source = iter(range(9))

    def __iter__(self) -> Iterator[Any]:
        return self.source


@case("iterable")
def stream_that_ends_for_good() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epochs(DataLoader(GeneratorInDataset(), batch_size=2, num_workers=workers))
    return t


@case("iterable")
def stream_constructor_errors() -> Transcript:
    t = Transcript()
    for options in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}):
        t.attempt(lambda options=options: DataLoader(Stream(), **options))
    return t


@case("datapipes", warnings=False, served=False)
def iter_datapipe() -> Transcript:
    """Warnings are not compared: torch's datapipe modules warn once per process that they are deprecated."""
    t = Transcript()
    try:
        from torch.utils.data.datapipes.iter import IterableWrapper
    except ImportError:
        t.event("available", False)
        return t
    for workers in (0, 2):
        pipe = IterableWrapper(list(range(12))).shuffle().sharding_filter()
        t.epochs(DataLoader(pipe, batch_size=2, shuffle=True, num_workers=workers), draw=True)
    pipe = IterableWrapper(list(range(10)), deepcopy=False).shuffle().sharding_filter().batch(2)
    loader = DataLoader(pipe, batch_size=None, num_workers=2, persistent_workers=True)
    t.epochs(loader, num=3)
    return t


@case("datapipes", warnings=False, served=False)
def map_datapipe() -> Transcript:
    t = Transcript()
    try:
        from torch.utils.data.datapipes.map import SequenceWrapper
    except ImportError:
        t.event("available", False)
        return t
    for workers in (0, 2):
        t.epochs(DataLoader(SequenceWrapper(range(9)), batch_size=2, shuffle=True, num_workers=workers), draw=True)
    return t
