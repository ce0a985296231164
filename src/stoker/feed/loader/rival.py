"""Torch's own iterator over a part of the program's order, for a comparison: its processes, its queues, its seeds.

It is what the program would have without stoker, except that its indices come from our order and its base seed from a
private generator: the program's random streams stay untouched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.feed.loader.stock import torchs_own
from stoker.feed.program import WorkItem
from stoker.feed.torch_private import (
    InProcessIterator,
    WorkersIterator,
    ask_for_batch,
    begin_again,
    collates,
    copy_without_iterator,
    end_workers,
    num_asked_for,
)


class _Source:
    """Poses as the loader's sampler to torch's iterator: empty before and after a round."""

    def __init__(self) -> None:
        self.draw: Callable[[], WorkItem | None] = lambda: None
        self.drawn: deque[WorkItem] = deque()

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> Any:
        work = self.draw()
        if work is None:
            raise StopIteration
        self.drawn.append(work)
        return work.good


class Rival:
    """One of torch's iterators over a loader.

    Args:
        loader: the program's.
        base_seed: the same for its workers as for ours.
        pin_memory: whether batches are pinned.

    Raises:
        OSError: no process could be started. Torch may raise other errors.
    """

    def __init__(self, loader: DataLoader[Any], base_seed: int, *, pin_memory: bool) -> None:
        self._source = _Source()
        self._stand_in = _stand_in(loader, self._source, base_seed, pin_memory)
        self._workers = loader.num_workers
        kind = WorkersIterator if self._workers else InProcessIterator
        with torchs_own():
            self._iterator: Any = kind(self._stand_in)

    def restart(self) -> None:
        """Begins another iteration with the same, persistent workers."""
        self._source.draw = lambda: None
        self._source.drawn.clear()
        begin_again(self._iterator, self._stand_in)

    def begin(self, draw: Callable[[], WorkItem | None]) -> None:
        """Begins a round: ``draw`` returns its items, then None. No earlier item may be open."""
        self._source.draw = draw
        for _ in range(self._workers * (self._stand_in.prefetch_factor or 0)):
            ask_for_batch(self._iterator)

    def next(self) -> tuple[WorkItem, Any]:
        """The next item and its batch; raises ``StopIteration`` if there is none, and any error of making it."""
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise
        except BaseException:
            self._forget_delivered()
            raise
        work = self._source.drawn[0]
        self._forget_delivered()
        return work, batch

    def _forget_delivered(self) -> None:
        while len(self._source.drawn) > self.num_open:
            self._source.drawn.popleft()

    @property
    def num_open(self) -> int:
        """Items drawn but not delivered."""
        return num_asked_for(self._iterator) if self._workers else 0

    @property
    def num_workers(self) -> int:
        """Number of its data workers; 0 if it makes batches in the training process."""
        return self._workers

    def close(self) -> None:
        """Ends its workers."""
        if self._workers:
            end_workers(self._iterator)


def _stand_in(loader: DataLoader[Any], source: _Source, base_seed: int, pin_memory: bool) -> DataLoader[Any]:
    """A copy of the loader with another sampler, generator and choice of pinning."""
    sampler = "batch_sampler" if collates(loader) else "sampler"
    generator = torch.Generator()
    generator.manual_seed(base_seed)
    own: dict[str, Any] = {sampler: source, "generator": generator, "pin_memory": pin_memory}
    return copy_without_iterator(loader, **own)
