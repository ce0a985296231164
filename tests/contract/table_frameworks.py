"""Cases on loaders as frameworks use them: subclasses, wrappers, look-ahead in the program, private attributes."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import pickle
import random
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, get_worker_info
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from .datasets import EpochRows, Rows, Stream
from .registry import case
from .transcript import Transcript


class Doubling(DataLoader[Any]):
    """Overrides ``__iter__``."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for x, y in super().__iter__():
            yield x * 2, y


class Longer(DataLoader[Any]):
    """Overrides ``__len__``."""

    def __len__(self) -> int:
        return 3


class WithArguments(DataLoader[Any]):
    """Has a constructor of its own, and attributes set before the parent's."""

    def __init__(self, name: str, length: int) -> None:
        self.name = name
        super().__init__(Rows(length), batch_size=4, shuffle=True, num_workers=2)


@case("frameworks")
def subclasses() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        for kind in (Doubling, Longer):
            loader = kind(Rows(10), batch_size=2, shuffle=True, num_workers=workers)
            t.epochs(loader)
    loader = WithArguments("mine", 9)
    t.epochs(loader)
    t.event("name", loader.name)
    return t


class OwnIterator(DataLoader[Any]):
    """Makes torch's iterators itself, past ``_get_iterator``."""

    def __iter__(self) -> _BaseDataLoaderIter:
        return _MultiProcessingDataLoaderIter(self) if self.num_workers else _SingleProcessDataLoaderIter(self)


class OverridingGetIterator(DataLoader[Any]):
    """Overrides ``_get_iterator``, as StatefulDataLoader does."""

    def _get_iterator(self) -> Any:
        return iter([f"own {i}" for i in range(3)])


@case("frameworks", served=False)
def iterators_of_the_programs_own() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epochs(OwnIterator(Rows(10), batch_size=2, shuffle=True, num_workers=workers))
        t.epochs(OverridingGetIterator(Rows(10), batch_size=2, num_workers=workers))
    return t


class RepeatSampler:
    """Ultralytics' endless batch sampler."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader[Any]):
    """Ultralytics' loader: builds its iterator at once, keeps it for all epochs, resets and ends it by hand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for _ in range(len(self)):
            yield next(self.iterator)

    def __del__(self) -> None:
        try:
            if not hasattr(self.iterator, "_workers"):
                return
            for worker in self.iterator._workers:
                if worker.is_alive():
                    worker.terminate()
            self.iterator._shutdown_workers()
        except Exception:
            pass

    def reset(self) -> None:
        self.iterator = self._get_iterator()


@case("frameworks")
def infinite_loader() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        dataset = EpochRows(10)
        own = torch.Generator().manual_seed(6148914691236517205)
        loader = InfiniteDataLoader(dataset, batch_size=3, shuffle=True, num_workers=workers, generator=own)
        t.served(loader.iterator, loader)
        for epoch in range(4):
            dataset.set_epoch(epoch)
            if epoch == 2:
                loader.reset()
                t.served(loader.iterator, loader)
            t.epoch(loader, own, draw=True)
        del loader
        t.rng("deleted", own)
    return t


@case("frameworks")
def lightning_shutdown() -> Transcript:
    """Lightning ends workers through private methods, between epochs and in the middle of one."""
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader = DataLoader(Rows(12), batch_size=2, shuffle=True, **options)
        for stop in (-1, 2, -1):
            iterator = t.open(loader)
            t.take(iterator, stop=stop)
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
                iterator._shutdown_workers()
            loader._iterator = None
            t.rng("shut down")
    return t


class Shard(DataLoader[Any]):
    """Accelerate's loader: one batch ahead, and ``set_epoch`` on whatever has it."""

    iteration = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for owner in (self.sampler, self.dataset):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(self.iteration)
        iterator = super().__iter__()
        try:
            current = next(iterator)
        except StopIteration:
            return
        while True:
            try:
                following = next(iterator)
            except StopIteration:
                yield "last", current
                break
            yield "more", current
            current = following
        self.iteration += 1


@case("frameworks")
def accelerate_one_ahead() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        dataset = EpochRows(11)
        sampler = DistributedSampler(dataset, num_replicas=2, rank=0)
        t.epochs(Shard(dataset, batch_size=2, sampler=sampler, **options), num=3, draw=True)
        t.epochs(Shard(Rows(7), batch_size=2, shuffle=True, **options), num=2, draw=True)
    return t


class BatchSamplerShard:
    """Accelerate's split of a batch sampler over processes: this one takes every second batch."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __len__(self) -> int:
        return len(self.batch_sampler) // 2

    def __iter__(self) -> Iterator[Any]:
        yield from itertools.islice(self.batch_sampler, 1, None, 2)


@case("frameworks")
def accelerate_sharded_batches() -> Transcript:
    t = Transcript()
    own = torch.Generator().manual_seed(2)
    plain = DataLoader(Rows(24), batch_size=3, sampler=RandomSampler(range(24), generator=own))
    loader = DataLoader(Rows(24), batch_sampler=BatchSamplerShard(plain.batch_sampler), num_workers=2)
    t.epochs(loader, own, num=2)
    return t


@case("frameworks")
def trainer_takes_several_ahead() -> Transcript:
    """Hugging Face Trainer takes as many batches as it accumulates, then trains on them."""
    t = Transcript()
    loader = DataLoader(Rows(22), batch_size=2, shuffle=True, num_workers=2)
    for _ in range(2):
        iterator = t.open(loader)
        while taken := list(itertools.islice(iterator, 4)):
            t.event("taken", taken)
            t.rng("taken")
            t.event("loop", torch.rand(1))
    return t


class Wrapper:
    """timm's loader: an object around a loader that hands attributes through."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        first, held = True, None
        for x, y in self.loader:
            x = x.float().sub_(1.0).div_(2.0)
            if not first:
                yield held
            first, held = False, (x, y)
        yield held

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sampler(self) -> Any:
        return self.loader.sampler


@case("frameworks")
def wrapped_loader() -> Transcript:
    t = Transcript()
    loader = Wrapper(DataLoader(Rows(9), batch_size=2, shuffle=True, num_workers=2))
    t.epochs(loader, draw=True)
    t.event("sampler", type(loader.sampler).__name__)
    return t


@case("frameworks")
def combined_loaders() -> Transcript:
    """The longest of several, the shorter ones started again, as Lightning combines them."""
    t = Transcript()
    long = DataLoader(Rows(12), batch_size=2, shuffle=True, num_workers=2)
    short = DataLoader(Rows(5), batch_size=2, shuffle=True, num_workers=1)
    stream = DataLoader(Stream(stop=40), batch_size=2)
    for a, b, c in zip(long, itertools.cycle(short), stream, strict=False):
        t.event("batches", [a, b, c])
        t.rng("step")
    return t


@case("frameworks")
def copied_and_pickled_loaders() -> Transcript:
    t = Transcript()
    loader = DataLoader(Rows(9), batch_size=2, shuffle=True, num_workers=2)
    t.epoch(loader)
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        t.event("type", type(other).__qualname__)
        t.epoch(other)
    t.epoch(loader)
    return t


@case("frameworks")
def iterator_is_not_picklable() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        iterator = iter(DataLoader(Rows(4), num_workers=workers))
        try:
            pickle.dumps(iterator)
        except Exception as error:
            t.event("refused", type(error).__name__ in {"NotImplementedError", "TypeError"})
        t.event("own iterator", iter(iterator) is iterator)
    return t


@case("frameworks")
def loader_in_a_thread() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader = DataLoader(Rows(9), batch_size=2, shuffle=True, **options)
        for _ in range(2):
            thread = threading.Thread(target=t.epoch, args=(loader,))
            thread.start()
            thread.join()
        t.epoch(loader)
    return t


@case("frameworks")
def made_here_taken_in_a_thread() -> Transcript:
    """A prefetching thread of the program's own takes from an iterator that the main thread made."""
    t = Transcript()
    iterator = t.open(DataLoader(Rows(9), batch_size=2, shuffle=True, num_workers=2))
    thread = threading.Thread(target=t.take, args=(iterator,), kwargs={"stop": 3})
    thread.start()
    thread.join()
    t.take(iterator)
    return t


@case("frameworks")
def two_threads_at_once() -> Transcript:
    """Each thread has its loader; the sums are what each program checks, main streams are shared and not recorded."""
    t = Transcript()
    sums = [0.0, 0.0]

    def consume(which: int) -> None:
        own = torch.Generator().manual_seed(which)
        loader = DataLoader(Rows(40), batch_size=3, shuffle=True, num_workers=1, generator=own)
        for number, (x, _) in enumerate(loader):
            sums[which] += float(x.sum()) * (number + 1)

    threads = [threading.Thread(target=consume, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    t.event("sums", sums)
    return t


@case("frameworks")
def foreign_fork_in_mid_epoch() -> Transcript:
    """The program forks for its own purposes while an iterator is alive; the child just ends."""
    t = Transcript()
    iterator = t.open(DataLoader(Rows(12), batch_size=2, shuffle=True, num_workers=2))
    t.take(iterator, stop=2)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    t.take(iterator)
    return t


def epochs_in_child(connection: Any) -> None:
    """A child process with a loader of its own; a daemonic one may not have workers. Python reseeds it at the fork."""
    random.seed(3)
    t = Transcript()
    for workers in (0, 2):
        t.attempt(
            lambda workers=workers: t.epochs(DataLoader(Rows(6), batch_size=2, shuffle=True, num_workers=workers))
        )
    connection.send(t.events)


@case("frameworks", served=False)
def loader_in_a_child_process() -> Transcript:
    """Not all served by stoker: it stays out of processes that the program forks."""
    t = Transcript()
    loader = DataLoader(Rows(6), batch_size=2, num_workers=2)
    t.epoch(loader)
    for daemon in (False, True):
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=epochs_in_child, args=(there,), daemon=daemon)
        process.start()
        t.events += here.recv()
        process.join()
    t.epoch(loader)
    return t


class StandIn(IterableDataset[Any]):
    """What fastai makes torch's iterators over: loader and dataset at once, with no class of torch's loader."""

    _IterableDataset_len_called, _auto_collation, drop_last = None, False, False
    _index_sampler, generator, prefetch_factor, in_order = itertools.count(), None, 2, True
    dataset_kind = _dataset_kind = 1
    timeout, persistent_workers, pin_memory, pin_memory_device = 0, False, False, ""

    def __init__(self, rows: list[int], num_workers: int) -> None:
        self.dataset, self.rows, self.num_workers = self, rows, num_workers

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def worker_init_fn(_: int) -> None:
        """fastai seeds here."""

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        return batch

    @property
    def multiprocessing_context(self) -> Any:
        return multiprocessing if self.num_workers else None

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info is not None else (0, 1)
        return (torch.tensor([row]) for row in self.rows[number::count])


@case("frameworks")
def iterators_made_by_their_class() -> Transcript:
    """As fastai makes them, over a stand-in for a loader."""
    t = Transcript()
    for workers, kind in ((2, _MultiProcessingDataLoaderIter), (0, _SingleProcessDataLoaderIter)):
        stand_in: Any = StandIn(list(range(7)), workers)
        for _ in range(2):
            iterator = kind(stand_in)
            t.served(iterator, stand_in)
            t.take(iterator)
    return t


@case("frameworks")
def handles_of_workers() -> Transcript:
    """Programs look at them during an iteration and after it."""
    t = Transcript()
    for persistent in (False, True):
        loader = DataLoader(Rows(8), batch_size=2, num_workers=2, persistent_workers=persistent)
        iterator: Any = iter(loader)
        t.take(iterator, stop=1)
        t.event("during", [(worker.is_alive(), worker.exitcode) for worker in iterator._workers])
        t.take(iterator)
        t.event("number after", len(iterator._workers))
        if not persistent:
            for worker in iterator._workers:
                worker.join()
            t.event("after", [(worker.is_alive(), worker.exitcode) for worker in iterator._workers])
    return t
