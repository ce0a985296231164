# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (the user's dataset is untyped)
"""Making one batch: runs the user's dataset and collate function under the seeds of a tier.

Does not know processes or slots: the same fetchers run in a data worker and, with no workers, in the training
process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Subset

from stoker.core import seeds
from stoker.core.places import call, standing_in
from stoker.feed import streams
from stoker.feed.program import Iteration, Program, Tier, WorkItem
from stoker.feed.torch_private import (
    IterableFetcher,
    MapFetcher,
    WorkerInfo,
    collating,
    numpy_seed,
    set_worker_info,
    worker_loop,
)

Progress = Callable[[int], None]
"""Called with the position in the batch before each sample, so that a death can be blamed on a sample."""


def _subscript(dataset: Any, index: Any) -> Any:
    return dataset[index]


def _take(stream: Any) -> Any:
    return next(stream)


def _open(dataset: Any) -> Any:
    return iter(dataset)


# User code is called as if from torch's lines, so that its warnings (`stacklevel=2`) name the same lines as there.
_get = standing_in(_subscript, MapFetcher.fetch, "self.dataset[idx]")
_get_one = standing_in(_subscript, MapFetcher.fetch, "self.dataset[possibly_batched_index]")
_get_batch = standing_in(call, MapFetcher.fetch, "self.dataset.__getitems__(")
collate = standing_in(call, MapFetcher.fetch, "self.collate_fn(")
"""Calls a ``collate_fn``."""
_begin = standing_in(_open, IterableFetcher.__init__, "iter(dataset)")
_next_one = standing_in(_take, IterableFetcher.fetch, "data = next(")
_next_of_batch = standing_in(_take, IterableFetcher.fetch, "data.append(next(")
_collate_stream = standing_in(call, IterableFetcher.fetch, "self.collate_fn(")
init_worker = standing_in(call, worker_loop, "init_fn(worker_id)")
"""Calls a ``worker_init_fn``."""


class ShardExhausted(Exception):
    """An iterable dataset's shard has no further batch."""


class SampleError(Exception):
    """User code raised: the cause is its exception; ``position`` is the sample's in the batch, -1 outside samples."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class Sink(Protocol):
    """Receives each sample as soon as it is made, for batches that are plain stacks of their samples."""

    def begin(self, count: int) -> None:
        """Announces up to ``count`` samples of one batch; discards those of an earlier attempt."""
        ...

    def keep(self, sample: Any) -> Any:
        """Stores a sample; returns it or an equal one."""
        ...


class _NoSink:
    def begin(self, count: int) -> None:
        pass

    def keep(self, sample: Any) -> Any:
        return sample


_NO_SINK = _NoSink()


class Fetcher(Protocol):
    """Makes the batches of one worker."""

    drew: bool
    """Whether any sample drew from the global random streams so far (elastic tier only)."""

    def fetch(self, seq: int, item: WorkItem, progress: Progress) -> Any:
        """One collated batch; raises :class:`SampleError` or :class:`ShardExhausted`."""
        ...


def create_fetcher(program: Program, iteration: Iteration, sink: Sink = _NO_SINK, *, drew: bool = False) -> Fetcher:
    """The fetcher for a tier; ``drew`` says that samples of an earlier iteration drew random numbers.

    Elastic samples go through ``sink`` if only torch's own collation follows. Others stay in a list, as in torch: a
    dataset that keeps returning the same buffer (which the probe refuses) gives the same result as there.
    """
    if program.is_iterable:
        return ShardFetcher(program)
    if iteration.tier is not Tier.ELASTIC:
        return PinnedFetcher(program)
    return ElasticFetcher(program, iteration, sink if moves_samples(program, iteration.tier) else _NO_SINK, drew=drew)


def moves_samples(program: Program, tier: Tier) -> bool:
    """Whether each sample is copied into the memory of its batch as soon as it is made."""
    plain = program.collate_fn is collating.default_collate
    return tier is Tier.ELASTIC and plain and makes_one_by_one(program)


def makes_one_by_one(program: Program) -> bool:
    """Whether the dataset makes samples, not whole batches."""
    return program.auto_collation and not program.is_iterable and not takes_whole_batches(program.dataset)


class PinnedFetcher:
    """Makes map-style batches as torch's fetcher does, with the worker's random streams in whatever state they are."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.drew = False

    def fetch(self, seq: int, item: WorkItem, progress: Progress) -> Any:
        """One batch."""
        return fetch_map_style(self._program, item, progress, _no_seed)


def _no_seed(position: int, index: object) -> None:
    pass


class ElasticFetcher:
    """Makes map-style batches with a seed for each sample, so that every worker makes the same ones.

    While no sample draws random numbers, seeding each would be wasted (6 us a sample): the streams are seeded once
    and compared after each batch; the first batch that drew is remade with a seed for each sample.
    """

    def __init__(self, program: Program, iteration: Iteration, sink: Sink = _NO_SINK, *, drew: bool = False) -> None:
        self._program = program
        self._iteration = iteration
        self._sink = sink
        self.drew = drew
        self._picture: tuple[Any, ...] | None = None
        self._before: tuple[Any, ...] | None = None

    def fetch(self, seq: int, item: WorkItem, progress: Progress) -> Any:
        """One batch; the same bytes for the same item in any process."""
        if self.drew:
            return self._fetch_seeded(seq, item, progress)
        if self._picture is None:
            self._before = streams.save()
            streams.seed(seeds.batch_seed(self._iteration.base_seed, 0, 0))
            self._picture = streams.mark()
        batch, failure = None, None
        try:
            batch = fetch_map_style(self._program, item, progress, _no_seed, self._sink)
        except SampleError as error:
            failure = error  # may depend on a draw; if there was one, the batch is remade with seeds
        self.drew = streams.drawn_since(self._picture)
        if self.drew:
            return self._fetch_seeded(seq, item, progress)
        if failure is not None:
            raise failure
        return batch

    def give_up(self) -> bool:
        """Restores the random streams to their state before the first item; False if items have drawn from them."""
        if not self.drew and self._before is not None:
            streams.restore(self._before)
        return not self.drew

    def _fetch_seeded(self, seq: int, item: WorkItem, progress: Progress) -> Any:
        base, ordinal = self._iteration.base_seed, self._iteration.ordinal

        def seed(position: int, index: object) -> None:
            if position < 0:
                streams.seed(seeds.batch_seed(base, ordinal, seq))
            else:
                streams.seed(seeds.sample_seed(base, ordinal, item.start + position, index))

        return fetch_map_style(self._program, item, progress, seed, self._sink)


class ShardFetcher:
    """Makes the batches of one shard of an iterable dataset, as torch's fetcher does."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._stream = _begin(program.dataset)
        self._ended = False
        self.drew = False

    def fetch(self, seq: int, item: WorkItem, progress: Progress) -> Any:
        """The next batch of the shard."""
        if self._ended:
            raise ShardExhausted
        samples: Any = self._batch(len(item.indices), progress) if self._program.auto_collation else self._one(progress)
        progress(-1)
        return _guard(-1, _collate_stream, self._program.collate_fn, samples)

    def _one(self, progress: Progress) -> Any:
        progress(0)
        return _guard(0, self._next, _next_one)

    def _batch(self, size: int, progress: Progress) -> list[Any]:
        samples: list[Any] = []
        for position in range(size):
            progress(position)
            try:
                samples.append(_guard(position, self._next, _next_of_batch))
            except ShardExhausted:
                self._ended = True
                break
        if not samples or (self._program.drop_last and len(samples) < size):
            raise ShardExhausted
        return samples

    def _next(self, take: Callable[[Any], Any]) -> Any:
        try:
            return take(self._stream)
        except StopIteration:
            raise ShardExhausted from None


def fetch_map_style(
    program: Program, item: WorkItem, progress: Progress, seed: Callable[[int, object], None], sink: Sink = _NO_SINK
) -> Any:
    """A batch of a map-style dataset; ``seed(position, index)`` is called before each sample, with -1 for the batch."""
    samples = fetch_samples(program, item, progress, seed, sink)
    progress(-1)
    seed(-1, None)
    return _guard(-1, collate, program.collate_fn, samples)


def fetch_samples(
    program: Program, item: WorkItem, progress: Progress, seed: Callable[[int, object], None], sink: Sink = _NO_SINK
) -> Any:
    """The samples of a batch before collation (a single one without automatic batching)."""
    dataset, indices = program.dataset, item.indices
    if not program.auto_collation:
        progress(0)
        seed(0, indices)
        return _guard(0, _get_one, dataset, indices)
    if takes_whole_batches(dataset):
        progress(-1)
        seed(-1, None)
        return _guard(-1, _get_batch, dataset.__getitems__, item.good)
    samples: list[Any] = []
    order = range(len(indices)) if not (item.skip or item.replace) else item.sources()
    sink.begin(len(order))
    for position in order:
        progress(position)
        index = indices[position]
        seed(position, index)
        try:
            samples.append(sink.keep(_get(dataset, index)))
        except Exception as error:
            raise SampleError(position) from error
    return samples


def takes_whole_batches(dataset: Any) -> bool:
    """Whether a dataset makes whole batches; torch's ``Subset`` always seems to, so the dataset below it decides."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


def _guard(position: int, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ShardExhausted:
        raise
    except Exception as error:
        raise SampleError(position) from error


def seed_as_torch(base_seed: int, worker_id: int) -> None:
    """Seeds the random streams as torch seeds worker ``worker_id`` at its start."""
    value = base_seed + worker_id
    random.seed(value)
    torch.default_generator.manual_seed(value)  # torch.manual_seed also looks for accelerators: 20 ms the first time
    np.random.seed(numpy_seed(base_seed, worker_id))


def announce_worker(program: Program, worker_id: int, base_seed: int) -> None:
    """Makes ``get_worker_info()`` return what it returns in torch's worker; None without declared workers."""
    info = None
    if program.declared_workers > 0:
        info = WorkerInfo(
            id=worker_id, num_workers=program.declared_workers, seed=base_seed + worker_id, dataset=program.dataset
        )
    set_worker_info(info)
