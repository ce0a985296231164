# pyright: reportUnknownMemberType=false
# (samplers are the user's or torch's untyped ones)
"""The cursor: where a program is in an iteration, as a small plain value; and the indices that follow it.

Resuming from a cursor asks samplers for indices and generators for their states, never the dataset. The cursor holds
what the order was drawn from: the seed that a sampler drew, or, if nothing less will do, a generator's state.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from stoker.core.errors import ResumeError
from stoker.feed.streams import torch_state

STATE_FORMAT = 1
DRAWS_NOTHING = (SequentialSampler, DistributedSampler, list, tuple, range)
"""Types of samplers whose order depends on their fields alone, on no generator."""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class Cursor(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a program is in an iteration, and what it takes to return there without touching the dataset."""

    format: int
    iteration: Annotated[int, msgspec.Meta(ge=-1)]
    """Number of the iteration, from 0; -1 before the first."""
    base_seed: int = 0
    yielded: _Count = 0
    """Batches that the program has taken."""
    samples: _Count = 0
    """Samples before ``next_item``."""
    next_item: _Count = 0
    """The first work item not taken; beyond ``yielded`` where shards of a stream have ended."""
    taken: list[_Count] = []
    """Items taken beyond ``next_item``, if the program does not need the order."""
    made_by: list[_Count] = []
    """Number of taken items by the id of the pinned worker that made them, if the program does not need the order."""
    drawn: _Count = 0
    """Items drawn from the sampler."""
    exhausted: bool = False
    """The sampler was asked for one more, and had none."""
    sampler: str
    """Class name of the sampler of single indices, to refuse a state of another loader."""
    length: int
    """Length of that sampler; -1 if it has none."""
    batch_size: int | None = None
    seed: int | None = None
    """Seed that a RandomSampler without generator drew at its start, or that of a DistributedSampler."""
    epoch: int | None = None
    """Epoch of a DistributedSampler."""
    world_size: int = 1
    """Ranks that a DistributedSampler divides the order among."""
    shards: int | None = None
    """Declared workers of an iterable dataset, which each read a shard of it."""
    generator: bytes | None = None
    """State of the generator that the sampler draws from, at the start of the iteration (at the end, when finished),
    when nothing less will do."""
    finished: bool = False
    """The iteration is over, or none has begun: what follows is the next one."""


def inner_sampler(index_sampler: Any) -> Any:
    """The sampler of single indices below torch's own BatchSampler; any other sampler unchanged."""
    return index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler


def own_generator(sampler: Any) -> torch.Generator | None:
    """The program's generator that a sampler draws from, if it has one."""
    generator: Any = getattr(sampler, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


def length_of(sampler: Any) -> int:
    """A sampler's length; -1 if it has none."""
    try:
        return len(sampler)
    except (TypeError, AttributeError, NotImplementedError):
        return -1


def check_fits(index_sampler: Any, cursor: Cursor) -> None:
    """Raises ``ResumeError`` for a cursor of another loader."""
    sampler = inner_sampler(index_sampler)
    if cursor.format != STATE_FORMAT:
        raise ResumeError(f"`state` must have format {STATE_FORMAT}, got {cursor.format}; use the stoker that saved it")
    name, length = type(sampler).__name__, length_of(sampler)
    if name != cursor.sampler:
        raise ResumeError(
            f"`state` must be of a loader with {name}, got one of {cursor.sampler}; load it where it was saved"
        )
    if type(sampler) is not DistributedSampler and length != cursor.length:
        raise ResumeError(
            f"`state` must be of a sampler of length {length}, got {cursor.length}; the dataset has another length now"
        )


def check_epoch(index_sampler: Any, cursor: Cursor) -> None:
    """Raises ``ResumeError`` when a DistributedSampler is not at the cursor's epoch (set just before an iteration)."""
    sampler = inner_sampler(index_sampler)
    if type(sampler) is not DistributedSampler or cursor.finished:
        return
    if sampler.epoch != cursor.epoch:
        raise ResumeError(
            f"`state` must be of the sampler's epoch {sampler.epoch}, got {cursor.epoch}; call "
            f"`sampler.set_epoch({cursor.epoch})` before `iter(loader)`"
        )
    if sampler.seed != cursor.seed:
        raise ResumeError(f"`state` must be of a DistributedSampler with seed {sampler.seed}, got {cursor.seed}")


def indices_after(index_sampler: Any, cursor: Cursor) -> tuple[Iterator[Any], int]:
    """What the index sampler gives from ``cursor.next_item`` on, and the number of samples before it.

    Draws from the main random stream only what the uninterrupted iteration would draw after the cursor.
    """
    ahead = max(0, cursor.drawn - cursor.next_item)
    if type(index_sampler) is not BatchSampler:
        ahead = sys.maxsize if cursor.exhausted else ahead
        return _drawn_after(index_sampler, cursor, cursor.next_item, ahead), cursor.samples
    sampler, batch_size = index_sampler.sampler, index_sampler.batch_size
    start = samples_before(sampler, cursor)
    singles = _drawn_after(sampler, cursor, start, sys.maxsize if cursor.exhausted else ahead * batch_size)
    return _batches(singles, batch_size, index_sampler.drop_last), start


def samples_before(sampler: Any, cursor: Cursor) -> int:
    """Number of samples of this rank's share that were taken; the number of ranks may have changed since."""
    if type(sampler) is not DistributedSampler or sampler.num_replicas == cursor.world_size:
        return cursor.samples
    taken = cursor.samples * cursor.world_size  # ranks advance in step, interleaved: positions below this are done
    return max(0, -(-(taken - sampler.rank) // sampler.num_replicas))


def _drawn_after(sampler: Any, cursor: Cursor, skip: int, ahead: int) -> Iterator[Any]:
    """What a sampler gives after ``skip`` draws; ``ahead`` more are drawn at once, as before the interruption."""
    if type(sampler) is SequentialSampler:
        return iter(range(skip, len(sampler.data_source)))
    if type(sampler) is RandomSampler and sampler.generator is None and cursor.seed is not None:
        return _random_after(sampler, cursor.seed, skip)
    with _GeneratorOf(sampler, cursor):
        drawn = iter(sampler)
        next(itertools.islice(drawn, skip, skip), None)
        return itertools.chain(list(itertools.islice(drawn, ahead)), drawn)


def _random_after(sampler: RandomSampler, seed: int, skip: int) -> Iterator[int]:
    """What ``RandomSampler.__iter__`` gives after ``skip`` indices, without making lists of the skipped ones."""
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
        yield from block[skip:].tolist()
        skip = max(0, skip - len(block))
        if left == 0:
            return


def _batches(singles: Iterator[Any], batch_size: int, drop_last: bool) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(singles, batch_size)):
        if len(batch) < batch_size and drop_last:
            return
        yield batch


class _GeneratorOf:
    """Rewinds the generator that a sampler draws from to the start of the iteration while indices are replayed.

    The program's own generator stays where the replay leaves it, as in the uninterrupted run; the main stream is
    put back, since resuming it is up to the program.
    """

    def __init__(self, sampler: Any, cursor: Cursor) -> None:
        own = own_generator(sampler)
        self._own = own is not None
        self._generator: Any = own if own is not None else torch.default_generator
        self._state = cursor.generator

    def __enter__(self) -> None:
        self._before = torch_state(self._generator)
        if self._state is not None:
            set_state(self._generator, self._state)

    def __exit__(self, *_: object) -> None:
        if not self._own:
            self._generator.set_state(self._before)


def get_state(generator: torch.Generator) -> bytes:
    """The state of a generator as bytes."""
    return torch_state(generator).numpy().tobytes()


def set_state(generator: torch.Generator, state: bytes) -> None:
    """Puts a generator back to a state from :func:`get_state`; raises ``ResumeError`` for other bytes."""
    try:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ResumeError(f"`state` must hold a generator's state, got {len(state)} bytes: {error}") from error
