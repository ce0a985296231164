"""What a data worker runs, taken from a loader: the user's dataset and functions, and the constants of an iteration.

Plain descriptions; nothing here starts or fetches anything.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from stoker.core import seeds


class Tier(enum.Enum):
    """How a loader's items are made (see the glossary in ``CONTRIBUTING.md``)."""

    ELASTIC = "elastic"
    """Any number of data workers, a seed per sample."""
    PINNED = "pinned"
    """As many workers as declared, item k on worker k modulo that number, torch's own seeds."""
    PROCESS = "process"
    """In the training process, as torch does without workers."""
    STOCK = "stock"
    """Left to torch altogether."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """The user's code and its arguments, as the loader declares them."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], None] | None
    is_iterable: bool
    auto_collation: bool
    drop_last: bool
    declared_workers: int


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """The constants of one pass over the loader."""

    ordinal: int
    """Number of this iteration of the loader, from 0."""
    base_seed: int
    tier: Tier
    worker_memory_bytes: int = 0
    """Private memory that an elastic worker may use; 0 for no limit."""
    seeds_generators: bool = False
    """Whether random generators held by the dataset and its functions are seeded for each sample as well."""

    def seed_of(self, seq: int) -> int:
        """Seed of a work item for the processing of its batch after collation."""
        return item_seed(self.base_seed, self.ordinal, seq)


def item_seed(base_seed: int, ordinal: int, seq: int) -> int:
    """Seed of work item ``seq`` of an iteration; differs from the seed of its collation."""
    return seeds.batch_seed(base_seed, ordinal, -1 - seq)


@dataclass(frozen=True, kw_only=True)
class WorkerIdentity:
    """The numbers that identify a data worker."""

    number: int
    """Unique in its crew."""
    worker_id: int
    """``get_worker_info().id``, in ``range(declared_workers)``."""
    board_slot: int
    """Row of the board in which it writes its current sample."""


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """One batch; in the elastic tier a pure function of these fields."""

    indices: Any
    """What the sampler gave: a list of indices, or a single index without automatic batching; None for a stream."""
    start: int
    """Samples before this item in the iteration."""
    skip: tuple[int, ...] = ()
    """Positions in the batch to leave out (quarantined samples)."""
    replace: tuple[int, ...] = ()
    """Positions in the batch to fill with the next good sample instead."""

    def num_samples(self, *, batched: bool) -> int:
        """Number of samples in the batch; 1 without automatic batching, whatever the index is."""
        return len(self.indices) - len(self.skip) if batched else 1

    @property
    def good(self) -> Any:
        """The indices that the batch is made of."""
        return [self.indices[k] for k in self.sources()] if self.skip or self.replace else self.indices

    def sources(self) -> list[int]:
        """The position in ``indices`` that each sample of the batch comes from."""
        count = len(self.indices)
        good = [k for k in range(count) if k not in self.skip and k not in self.replace]
        if not good:
            return []
        ring = {bad: next((k for k in good if k > bad), good[0]) for bad in self.replace}
        return [ring.get(k, k) for k in range(count) if k not in self.skip]
