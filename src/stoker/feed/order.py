# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (samplers are the user's or torch's untyped ones)
"""The order: which work items there are, drawn from the program's own sampler as torch draws them; and the cursor.

The order is decided in the training process alone. How far ahead it may be drawn is part of the contract: a sampler
that draws random numbers lazily gives other indices (and leaves the program other random numbers) when it is asked
earlier than torch would ask it, so only samplers known not to care may be drawn further ahead than torch's loader
would. The cursor is the only state: how many items the program has taken, and the numbers that the order came from.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from stoker.core.errors import ResumeError
from stoker.feed.program import WorkItem

STATE_FORMAT = 1
_EAGER = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler, list, tuple, range)
"""Types that draw all they need at the first index, or nothing; RandomSampler draws from a private generator."""


def inner_sampler(index_sampler: Any) -> Any:
    """The sampler of single indices below torch's own BatchSampler, or the given one."""
    return index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler


def draws_lazily(index_sampler: Any) -> str:
    """Why a sampler must not be drawn further ahead than torch does, as half a sentence; empty when it may be."""
    sampler = inner_sampler(index_sampler)
    if type(sampler) is RandomSampler or type(sampler) in _EAGER:
        if getattr(sampler, "generator", None) is None:
            return ""
        return f"its {type(sampler).__name__} shares a generator with the program"
    return f"its {type(sampler).__name__} may draw random numbers lazily"


class Cursor(msgspec.Struct, kw_only=True):
    """Where a program is in an iteration, and what is needed to be there again without touching the dataset."""

    format: int = STATE_FORMAT
    iteration: int
    base_seed: int
    yielded: int
    """Batches that the program has taken."""
    samples: int
    """Samples in them (equal to ``yielded`` without automatic batching)."""
    sampler: str
    """Class name of the sampler of single indices, to refuse a state of another loader."""
    length: int
    """Its length, or -1 when it has none."""
    batch_size: int | None
    seed: int | None = None
    """What a RandomSampler without generator drew at its start."""
    epoch: int | None = None
    """Epoch of a DistributedSampler."""
    world_size: int = 1
    """Ranks that a DistributedSampler divides the order among."""
    generator: bytes | None = None
    """State, at the start of the iteration, of the generator that the sampler draws from, when nothing less will do."""
    taken: list[int] = []
    """Items taken beyond ``yielded`` where the program does not need the order."""
    finished: bool = False


class Order:
    """Draws index batches one by one and remembers how to begin again at any of them.

    Args:
        index_sampler: the loader's batch sampler, or its sampler without automatic batching.
        sampler_iter: an iterator over it that nothing was drawn from.
        auto_collation: whether an item is a batch of indices.
    """

    def __init__(self, index_sampler: Any, sampler_iter: Iterator[Any], *, auto_collation: bool) -> None:
        self._index_sampler = index_sampler
        self._iterator = sampler_iter
        self._auto = auto_collation
        self._start = 0
        self._seed: int | None = None
        self._generator: bytes | None = None
        self._begun = False
        self._ends: deque[int] = deque()  # samples up to and including each item drawn and not yet yielded
        self.yielded = 0
        """Items that the program has taken."""
        self.samples = 0
        """Samples in them."""
        self.exhausted = False

    def draw(self) -> WorkItem | None:
        """The next work item; None at the end. Raises what the sampler raises."""
        if self.exhausted:
            return None
        if not self._begun:
            self._begun = True
            self._note_start()
        try:
            indices = next(self._iterator)
        except StopIteration:
            self.exhausted = True
            return None
        item = WorkItem(indices=indices, start=self._start)
        self._start += len(indices) if self._auto else 1
        self._ends.append(self._start)
        return item

    def advance(self) -> None:
        """The program has taken another item."""
        self.yielded += 1
        if self._ends:
            self.samples = self._ends.popleft()

    def _note_start(self) -> None:
        """Keeps what the first draw will depend on."""
        sampler = inner_sampler(self._index_sampler)
        generator = getattr(sampler, "generator", None)
        if type(sampler) is RandomSampler and generator is None:
            # RandomSampler draws one number from the main stream for its private generator: draw the same from a copy.
            copy = torch.Generator()
            copy.set_state(torch.default_generator.get_state())
            self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=copy).item())
        elif type(sampler) not in (SequentialSampler, DistributedSampler, list, tuple, range):
            source = generator if isinstance(generator, torch.Generator) else torch.default_generator
            self._generator = source.get_state().numpy().tobytes()

    def cursor(self, *, iteration: int, base_seed: int, taken: list[int]) -> Cursor:
        """The state of the program now."""
        sampler = inner_sampler(self._index_sampler)
        distributed = type(sampler) is DistributedSampler
        return Cursor(
            iteration=iteration,
            base_seed=base_seed,
            yielded=self.yielded,
            samples=self.samples,
            sampler=type(sampler).__name__,
            length=_length(sampler),
            batch_size=getattr(self._index_sampler, "batch_size", None),
            seed=self._seed,
            epoch=sampler.epoch if distributed else None,
            world_size=sampler.num_replicas if distributed else 1,
            generator=self._generator,
            taken=taken,
        )

    @classmethod
    def resume(cls, index_sampler: Any, cursor: Cursor, *, auto_collation: bool) -> Order:
        """The order of a saved cursor, from the first item not taken; draws nothing from the main random stream.

        Raises:
            ResumeError: the cursor is of another sampler.
        """
        sampler = inner_sampler(index_sampler)
        _check(sampler, cursor)
        order = cls(index_sampler, iter(()), auto_collation=auto_collation)
        order._begun = True
        order._seed, order._generator = cursor.seed, cursor.generator
        order.yielded, order.samples = cursor.yielded, cursor.samples
        order._start = cursor.samples
        if type(index_sampler) is BatchSampler:
            skip = _local_offset(sampler, cursor)
            singles = _indices_from(sampler, cursor, skip)
            order._iterator = _batches(singles, index_sampler.batch_size, index_sampler.drop_last)
            if skip != cursor.samples:
                order._start = order.samples = skip
        else:
            with _GeneratorOf(sampler, cursor):
                order._iterator = itertools.islice(iter(index_sampler), cursor.yielded, None)
                order._iterator = _primed(order._iterator)
        return order


def _length(sampler: Any) -> int:
    try:
        return len(sampler)
    except TypeError:
        return -1


def _check(sampler: Any, cursor: Cursor) -> None:
    if cursor.format != STATE_FORMAT:
        raise ResumeError(f"`state` must have format {STATE_FORMAT}, got {cursor.format}; use the stoker that saved it")
    name = type(sampler).__name__
    if name != cursor.sampler:
        raise ResumeError(f"`state` is of a loader with {cursor.sampler}, this loader has {name}")
    distributed = type(sampler) is DistributedSampler
    length = _length(sampler)
    if not distributed and length != cursor.length:
        raise ResumeError(f"`state` is of a sampler of length {cursor.length}, this one has {length}")
    if distributed and sampler.epoch != cursor.epoch:
        raise ResumeError(
            f"`state` is of epoch {cursor.epoch}, the sampler is at {sampler.epoch}; call sampler.set_epoch first"
        )


def _local_offset(sampler: Any, cursor: Cursor) -> int:
    """Samples of this rank's share that were taken, where the number of ranks may have changed."""
    if type(sampler) is not DistributedSampler or sampler.num_replicas == cursor.world_size:
        return cursor.samples
    taken = cursor.samples * cursor.world_size  # ranks take in step, interleaved: positions below this are done
    return max(0, -(-(taken - sampler.rank) // sampler.num_replicas))


def _indices_from(sampler: Any, cursor: Cursor, skip: int) -> Iterator[Any]:
    if type(sampler) is SequentialSampler:
        return iter(range(skip, len(sampler.data_source)))
    if type(sampler) is RandomSampler and sampler.generator is None:
        assert cursor.seed is not None
        return _random_from(sampler, cursor.seed, skip)
    with _GeneratorOf(sampler, cursor):
        return _primed(itertools.islice(iter(sampler), skip, None))


def _random_from(sampler: RandomSampler, seed: int, skip: int) -> Iterator[int]:
    """What ``RandomSampler.__iter__`` gives after ``skip`` indices, without making lists of those."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    n, total = len(sampler.data_source), sampler.num_samples
    if sampler.replacement:
        blocks = [32] * (total // 32) + [total % 32]
        draws = (torch.randint(n, (size,), dtype=torch.int64, generator=generator) for size in blocks)
    else:
        draws = (torch.randperm(n, generator=generator) for _ in range(total // n + 1))
    left = total
    for block in draws:
        block = block[:left]
        left -= len(block)
        if skip >= len(block):
            skip -= len(block)
            if left == 0:
                return
            continue
        yield from block[skip:].tolist()
        skip = 0
        if left == 0:
            return


def _batches(singles: Iterator[Any], batch_size: int, drop_last: bool) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(singles, batch_size)):
        if len(batch) < batch_size and drop_last:
            return
        yield batch


class _GeneratorOf:
    """Puts the generator that a sampler draws from back to the start of the iteration while indices are replayed.

    A generator of the program's own is left where the replay leaves it, as in the uninterrupted run; the main stream
    is put back, since the program restores it itself.
    """

    def __init__(self, sampler: Any, cursor: Cursor) -> None:
        own: Any = getattr(sampler, "generator", None)
        self._own = isinstance(own, torch.Generator)
        self._generator: Any = own if self._own else torch.default_generator
        self._state = cursor.generator

    def __enter__(self) -> None:
        self._before = self._generator.get_state()
        if self._state is not None:
            self._generator.set_state(torch.frombuffer(bytearray(self._state), dtype=torch.uint8))

    def __exit__(self, *_: object) -> None:
        if not self._own:
            self._generator.set_state(self._before)


def _primed(iterator: Iterator[Any]) -> Iterator[Any]:
    """The iterator with its first item drawn now, while the generator is where it has to be."""
    first = list(itertools.islice(iterator, 1))
    return itertools.chain(first, iterator)
