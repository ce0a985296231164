# (samplers are the user's or torch's untyped ones)
"""The order: which work items there are, drawn from the program's own sampler as torch draws them.

The order is decided in the training process alone. How far ahead it may be drawn is part of the contract: a sampler
that draws random numbers lazily gives other indices (and leaves the program other random numbers) if it is asked
earlier than torch would ask it, so only samplers known to be insensitive are drawn further ahead than torch's loader
would. The only state is the program's position: a ``cursor``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from stoker.feed.order.cursor import (
    DRAWS_NOTHING,
    STATE_FORMAT,
    Cursor,
    check_epoch,
    check_fits,
    get_state,
    indices_after,
    inner_sampler,
    length_of,
    own_generator,
)
from stoker.feed.program import WorkItem
from stoker.feed.streams import torch_state

_EAGER = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler, list, tuple, range)
"""Types that draw all they need at the first index, or nothing; RandomSampler draws from a private generator."""


def draws_lazily(index_sampler: Any) -> str:
    """Why a sampler must not be drawn further ahead than torch does, as half a sentence; empty if it may be."""
    sampler = inner_sampler(index_sampler)
    if type(sampler) is RandomSampler or type(sampler) in _EAGER:
        if getattr(sampler, "generator", None) is None:
            return ""
        return f"its {type(sampler).__name__} shares a generator with the program"
    return f"its {type(sampler).__name__} may draw random numbers lazily"


def num_free(index_sampler: Any) -> int | None:
    """Number of items of an iteration that may be drawn arbitrarily early; None for all.

    A permutation is drawn with its first index (which torch requests in ``iter`` as well), from a generator that may be
    the program's. That generator is touched again, at the earliest, when the last item is requested: by
    ``RandomSampler``, which draws once more after its last index, or by Accelerate's, which then counts its epoch.
    """
    if not draws_lazily(index_sampler):
        return None
    below = index_sampler.batch_sampler if _is_accelerates(index_sampler, "BatchSamplerShard") else index_sampler
    return max(0, length_of(index_sampler) - 1) if _permutes(inner_sampler(below)) else 0


def _permutes(sampler: Any) -> bool:
    if type(sampler) is RandomSampler or _is_accelerates(sampler, "SeedableRandomSampler"):
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    return type(sampler) in (SubsetRandomSampler, WeightedRandomSampler) or not draws_lazily(sampler)


def _is_accelerates(sampler: Any, name: str) -> bool:
    """Whether a sampler is of this class of Accelerate (as of 1.10 to 1.15), which need not be installed."""
    return (type(sampler).__module__, type(sampler).__qualname__) == ("accelerate.data_loader", name)


class Order:
    """Draws index batches one by one and records how to resume at any of them.

    Args:
        index_sampler: the loader's batch sampler, or its sampler without automatic batching.
        sampler_iter: a fresh iterator over it.
        auto_collation: whether an item is a batch of indices.
        cursor: where to resume; None at the start of an iteration.

    Raises:
        ResumeError: the cursor is of another sampler.

    Note: resuming from a cursor draws from the main random stream only what the uninterrupted iteration would draw.
    """

    def __init__(
        self, index_sampler: Any, sampler_iter: Iterator[Any], *, auto_collation: bool, cursor: Cursor | None = None
    ) -> None:
        self._index_sampler = index_sampler
        self._iterator = sampler_iter
        self._auto = auto_collation
        self._start = 0
        self._seed: int | None = None
        self._generator: bytes | None = None
        self._begun = False
        self._ends: deque[int] = deque()  # samples up to and including each item from `next_item` on
        self.drawn = 0
        """Items drawn from the sampler."""
        self.yielded = 0
        """Items that the program has taken."""
        self.next_item = 0
        """The first item that the program has not taken."""
        self.samples = 0
        """Samples before ``next_item``."""
        self.taken: set[int] = set()
        """Items taken beyond ``next_item``, if the program does not need the order."""
        self.made_by: Counter[int] = Counter()
        """Number of taken items by the id of their pinned worker, if the program does not need the order."""
        self.finished = False
        """The program has seen the end."""
        self.exhausted = False
        self.limit: int | None = None
        """Items that may be drawn for now; None for all."""
        if cursor is not None:
            self._resume(cursor)

    def _resume(self, cursor: Cursor) -> None:
        check_fits(self._index_sampler, cursor)
        check_epoch(self._index_sampler, cursor)
        if not cursor.drawn:
            return  # nothing was drawn: all is to come, from the streams as they are
        self._begun = True
        self._seed, self._generator = cursor.seed, cursor.generator
        self._iterator, self._start = indices_after(self._index_sampler, cursor)
        self.drawn = self.next_item = cursor.next_item
        self.yielded, self.samples, self.taken = cursor.yielded, self._start, set(cursor.taken)
        self.made_by = Counter(dict(enumerate(cursor.made_by)))

    def draw(self) -> WorkItem | None:
        """The next work item; None at the end, or at the limit. Raises what the sampler raises."""
        if self.exhausted or self.drawn == self.limit:
            return None
        if not self._begun:
            self._begun = True
            self._note_start()
        try:
            indices = next(self._iterator)
        except StopIteration:
            self.exhausted = True
            return None
        if self._auto and not hasattr(indices, "__len__"):
            indices = list(indices)  # torch takes any iterable of indices
        item = WorkItem(indices=indices, start=self._start)
        self.drawn += 1
        self._start += len(indices) if self._auto else 1
        self._ends.append(self._start)
        return item

    def stream_items(self, numbers: Iterable[int]) -> list[tuple[int, WorkItem]]:
        """The items of a stream with these numbers; the indices of a stream only say how many samples are wanted."""
        size = self._index_sampler.batch_size if self._auto else None
        indices = None if size is None else [None] * size
        return [(number, WorkItem(indices=indices, start=number * (size or 1))) for number in numbers]

    def owners(self, numbers: Sequence[int], num_workers: int) -> list[int]:
        """Ids of the workers that made the taken items of a stream with these numbers.

        If the program does not need the order, it is known how many each worker made, not which; in a stream they are
        alike. There may then be fewer ids than numbers: some numbers fell to shards that had ended.
        """
        if not self.made_by:
            return [number % num_workers for number in numbers]
        return sorted(self.made_by.elements())[: len(numbers)]

    def advance(self, next_item: int | None = None) -> None:
        """Records that the program took an item; the first not taken is now ``next_item``, by default one more."""
        self.yielded += 1
        target = self.next_item + 1 if next_item is None else next_item
        while self.next_item < target:
            self.next_item += 1
            self.samples = self._ends.popleft() if self._ends else self.samples

    def _note_start(self) -> None:
        """Records what the first draw will depend on."""
        sampler = inner_sampler(self._index_sampler)
        generator = own_generator(sampler)
        if type(sampler) is RandomSampler and generator is None:
            # RandomSampler draws one number from the main stream for its private generator: draw the same from a copy.
            copy = torch.Generator()
            copy.set_state(torch_state(torch.default_generator))
            self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=copy).item())
        elif type(sampler) not in DRAWS_NOTHING and type(sampler).__name__ != "_InfiniteConstantSampler":
            self._generator = get_state(generator or torch.default_generator)

    def note_stream(self, state: bytes) -> None:
        """Records the main stream's state before a stream of the training process was begun."""
        self._generator = state

    def cursor(self, *, iteration: int, base_seed: int, shards: int | None = None) -> Cursor:
        """The cursor of the program now; the arguments are as in :class:`Cursor`."""
        sampler = inner_sampler(self._index_sampler)
        found = blank_cursor(self._index_sampler, iteration)
        found.base_seed, found.yielded, found.samples = base_seed, self.yielded, self.samples
        found.next_item = self.next_item
        found.taken, found.drawn, found.shards = sorted(self.taken), self.drawn, shards
        found.exhausted, found.finished = self.exhausted, self.finished
        found.made_by = [self.made_by[worker] for worker in range(max(self.made_by, default=-1) + 1)]
        if self.finished:
            generator = own_generator(sampler)
            found.generator = get_state(generator) if generator is not None else None
        else:
            found.generator = self._generator
            found.seed = self._seed if self._seed is not None else found.seed
        return found


@dataclass(kw_only=True)
class Bookmark:
    """Where the program is in one iteration; outlives the iterator, so that a state can be taken after the loop."""

    order: Order
    iteration: int
    base_seed: int
    shards: int | None
    """Declared workers of an iterable dataset; None for others."""

    def cursor(self) -> Cursor:
        """The state to save now."""
        return self.order.cursor(iteration=self.iteration, base_seed=self.base_seed, shards=self.shards)


def blank_cursor(index_sampler: Any, iteration: int = -1) -> Cursor:
    """The cursor of a loader between two iterations; ``iteration`` is the one that is over."""
    sampler = inner_sampler(index_sampler)
    distributed = type(sampler) is DistributedSampler
    return Cursor(
        format=STATE_FORMAT,
        iteration=iteration,
        sampler=type(sampler).__name__,
        length=length_of(sampler),
        batch_size=index_sampler.batch_size if type(index_sampler) is BatchSampler else None,
        seed=sampler.seed if distributed else None,
        epoch=sampler.epoch if distributed else None,
        world_size=sampler.num_replicas if distributed else 1,
        finished=True,
    )
