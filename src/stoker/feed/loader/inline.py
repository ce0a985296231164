"""Makes items in the training process: workers are not declared, not wanted or not available."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from stoker.feed import fetch, streams
from stoker.feed.program import Iteration, Program, WorkItem
from stoker.feed.purity import tiers
from stoker.feed.shell.outcome import IterationEnd
from stoker.feed.torch_private import set_worker_info, worker_info


class InlineMaker:
    """Makes the batches that a data worker would make, without touching the program's random streams."""

    def __init__(self, program: Program, iteration: Iteration) -> None:
        self._program = program
        self._iteration = iteration
        self._fetcher = fetch.ElasticFetcher(program, iteration)
        self._seeds: tuple[Any, ...] | None = None
        self._generators = tiers.generators_of(program) if iteration.seeds_generators else ()

    def make(self, seq: int, work: WorkItem) -> Any:
        """One batch; raises user exceptions unchanged, with a note that names the sample."""
        info = worker_info()
        adopted = streams.adopt(self._generators)
        states = streams.save()
        try:
            fetch.announce_worker(self._program, 0, self._iteration.base_seed)
            if self._seeds is None:
                fetch.seed_as_torch(self._iteration.base_seed, 0)
                if self._program.worker_init_fn is not None:
                    fetch.init_worker(self._program.worker_init_fn, 0)
            else:
                streams.restore(self._seeds)
            batch = self._fetcher.fetch(seq, work, lambda position: None)
            self._seeds = streams.save()
            return batch
        except fetch.SampleError as error:
            cause = error.__cause__
            assert cause is not None
            raise cause from None
        finally:
            streams.restore(states)
            streams.adopt(adopted)
            set_worker_info(info)


class InProcess:
    """The rest of an iteration, made in this process from the same order.

    Args:
        make: makes the batch of an item, given its number and the item.
        works: items already drawn.
        draw: returns the next item, or None.
        seq: number of the first item.
        ahead: how many items torch would draw beyond the delivered one: the sampler draws from the program's random
            streams too, and must do so at the same points.
    """

    def __init__(
        self,
        make: Callable[[int, WorkItem], Any],
        works: Sequence[WorkItem],
        draw: Callable[[], WorkItem | None],
        seq: int,
        ahead: int,
    ) -> None:
        self._make = make
        self._works = deque(works)
        self._draw = draw
        self._ahead = ahead
        self.seq = seq
        """Number of the next item."""
        while len(self._works) < ahead and self._draw_ahead():
            pass

    def next(self) -> tuple[WorkItem, Any]:
        """The next item and its batch; raises :class:`IterationEnd` at the end, and any error of making it."""
        work = self._works.popleft() if self._works else self._draw()
        if work is None:
            raise IterationEnd
        if len(self._works) < self._ahead:
            self._draw_ahead()
        seq, self.seq = self.seq, self.seq + 1
        return work, self._make(seq, work)

    def _draw_ahead(self) -> bool:
        work = self._draw()
        if work is not None:
            self._works.append(work)
        return work is not None
