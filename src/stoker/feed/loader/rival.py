"""Torch's own iterator over a part of the program's order, for a comparison: its processes, its queues, its seeds.

It is what the program would have without stoker, apart from where its indices come from and that it draws its base seed
from a generator of its own: the program's streams stay as they are.
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
    """What torch's iterator takes for the loader's sampler: dry until a round begins, and again when it is over."""

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
    """One iterator of torch's over a loader.

    Args:
        loader: the program's.
        base_seed: for its workers, as for ours.
        pin_memory: whether there is anything to pin for.

    Raises:
        OSError: no process could be started; and whatever else torch raises.
    """

    def __init__(self, loader: DataLoader[Any], base_seed: int, *, pin_memory: bool) -> None:
        self._source = _Source()
        self._stand_in = _stand_in(loader, self._source, base_seed, pin_memory)
        self._workers = loader.num_workers
        kind = WorkersIterator if self._workers else InProcessIterator
        with torchs_own():
            self._iterator: Any = kind(self._stand_in)

    def restart(self) -> None:
        """Persistent workers go on with another iteration."""
        self._source.draw = lambda: None
        self._source.drawn.clear()
        begin_again(self._iterator, self._stand_in)

    def begin(self, draw: Callable[[], WorkItem | None]) -> None:
        """A round begins: ``draw`` gives its items, None at its end. Nothing is open."""
        self._source.draw = draw
        for _ in range(self._workers * (self._stand_in.prefetch_factor or 0)):
            ask_for_batch(self._iterator)

    def next(self) -> tuple[WorkItem, Any]:
        """The next item and its batch; raises ``StopIteration`` where there is none, and what making it raises."""
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
        """Items drawn and not delivered."""
        return num_asked_for(self._iterator) if self._workers else 0

    @property
    def num_workers(self) -> int:
        """Data workers that it has; 0: it makes batches in the training process."""
        return self._workers

    def close(self) -> None:
        """Ends its workers."""
        if self._workers:
            end_workers(self._iterator)


def _stand_in(loader: DataLoader[Any], source: _Source, base_seed: int, pin_memory: bool) -> DataLoader[Any]:
    """The loader as it is, but for its sampler and its generator."""
    sampler = "batch_sampler" if collates(loader) else "sampler"
    generator = torch.Generator()
    generator.manual_seed(base_seed)
    own: dict[str, Any] = {sampler: source, "generator": generator, "pin_memory": pin_memory}
    return copy_without_iterator(loader, **own)
