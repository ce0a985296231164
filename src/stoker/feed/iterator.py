# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (subclasses torch's private iterator so that every draw is torch's own)
"""The iterators that a program's ``for`` loop drives, in place of torch's.

They subclass torch's base iterator, whose constructor makes the draws of an iteration exactly as the installed torch
makes them.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_data
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from stoker.core.errors import DifferentResultError, WorkerStartError
from stoker.feed import streams, tiers
from stoker.feed.engine import Engine, FailedItem
from stoker.feed.inline import InlineMaker
from stoker.feed.loader import LoaderFeed
from stoker.feed.order import Cursor, Order
from stoker.feed.pack import digest
from stoker.feed.program import Iteration, Tier, WorkItem

_RECHECK_EVERY = 64
"""A loader that declares no workers has one batch in so many made again in the training process and compared."""


class Pace(Protocol):
    """Is told when the program asks for a batch and when it gets it, on every loader."""

    def begun(self, feed: LoaderFeed) -> None:
        """The program asked for an iterator."""
        ...

    def asked(self, feed: LoaderFeed, now_s: float) -> None:
        """The program called ``next``."""
        ...

    def delivered(self, feed: LoaderFeed, now_s: float) -> None:
        """The program gets a batch."""
        ...


class FedIterator(_BaseDataLoaderIter):
    """Serves one iteration from data workers (elastic or pinned tier), or hands it to this process where it must.

    Args:
        loader: the program's loader.
        feed: what stoker keeps for it.
        pace: told about each step.
        cursor: where to resume; None at the start of an iteration.
    """

    def __init__(self, loader: DataLoader[Any], feed: LoaderFeed, pace: Pace, cursor: Cursor | None = None) -> None:
        begun = time.monotonic()
        generators = [g for g in (loader.generator, torch.default_generator) if g is not None]
        before = [generator.get_state() for generator in generators] if cursor is not None else []
        super().__init__(loader)
        for generator, state in zip(generators, before, strict=False):
            generator.set_state(state)  # a resumed iteration has made its draws before it was saved
        self._loader = loader
        self._feed = feed
        self._pace = pace
        self._pid = os.getpid()
        self._program = feed.program_of(loader)
        self._engine: Engine | None = None
        self._pinner: _Pinner | None = None
        self._in_process: _InProcess | None = None
        self._unmoved = loader.num_workers == 0
        """No workers declared: the first batch is made here as well, and compared."""
        self._first_digest = b""
        self._watch = _ChangeWatch(self._program) if self._unmoved else None
        self._ended = False
        if cursor is not None:
            self._base_seed = cursor.base_seed
        self._begin(cursor)
        pace.begun(feed)
        feed.listener.iterating(feed.ordinal, len(self._crew_members()), time.monotonic() - begun)
        _open_iterators.add(self)

    def _begin(self, cursor: Cursor | None) -> None:
        loader = self._loader
        if cursor is None:
            drawn: Any = self._sampler_iter
            self._order = Order(self._index_sampler, drawn, auto_collation=self._auto_collation)
        else:
            self._order = Order.resume(self._index_sampler, cursor, auto_collation=self._auto_collation)
        self._sampler_iter = self._order  # what torch's base class would draw from is ours to draw
        self._ended = False
        self._settled = False
        if self._engine is not None:  # persistent: the same workers go on
            self._engine = self._feed.continue_engine(loader, self._engine, self._base_seed, self._order)
        else:
            self._engine = self._feed.open(loader, self._base_seed, self._order, cursor)
        self._settled = self._feed.choice is not None and not self._feed.choice.candidate
        if self._pin_memory and self._pinner is None:
            self._pinner = _Pinner(self._pin_memory_device)
        if not self._unmoved:
            self._engine.fill()  # torch draws ahead inside iter() where there are workers, at the first next otherwise

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """A persistent loader begins its next iteration."""
        if self._engine is not None and not self._ended:
            self._engine.abort()
        super()._reset(loader, first_iter)
        self._begin(None)

    # -- the step ----------------------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        self._pace.asked(self._feed, time.monotonic())
        batch = super().__next__()
        self._pace.delivered(self._feed, time.monotonic())
        return batch

    def _next_data(self) -> Any:
        if self._pid != os.getpid():
            raise RuntimeError("a DataLoader iterator does not work in a forked child; call iter(loader) there")
        if self._ended:
            raise StopIteration
        try:
            batch = self._next_batch()
        except StopIteration:
            self._finish()
            raise
        self._order.advance()
        return batch

    @property
    def yielded(self) -> int:
        """Batches that the program has taken in this iteration."""
        return self._order.yielded

    def _next_batch(self) -> Any:
        if self._in_process is not None:
            return self._in_process.next()
        assert self._engine is not None
        if self._unmoved and self._watch is not None:
            if self.yielded == 0 and not self._settled:
                return self._first_here()
            self._before_moved()
            if self._in_process is not None:
                return self._in_process.next()
        if not self._settled:
            self._settle()
            if self._in_process is not None:
                return self._in_process.next()
        return self._take()

    def _take(self) -> Any:
        assert self._engine is not None
        pinner = self._pinner
        if pinner is not None and pinner.pending:
            batch = pinner.result()
            self._engine.pump()
            self._engine.fill()
        else:
            batch = self._build(self._payload())
            if pinner is not None:
                batch = pinner.pin(batch)
        if pinner is not None and self._engine.has_ready_head:
            result = self._payload(refill=False)
            pinner.submit(lambda: self._build(result))
        return batch

    def _build(self, result: Any) -> Any:
        assert self._engine is not None
        if isinstance(result, FailedItem):
            result.reraise(self._dataset)
        return self._engine.build(result)

    def _payload(self, *, refill: bool = True) -> Any:
        assert self._engine is not None
        for attempt in (0, 1):
            try:
                return self._engine.next_item(refill=refill)
            except WorkerStartError as error:
                if attempt:
                    raise
                self._replace_crew(error)
        raise AssertionError("unreachable")

    def _replace_crew(self, error: WorkerStartError) -> None:
        """The template died: a new one is made from the dataset as it is now."""
        assert self._engine is not None
        self._feed.listener.notice(f"{error.args[0]}; started anew, no sample lost")
        self._engine.crew.close()
        self._engine.restaff(self._feed.new_crew(self._loader, self._engine.iteration))

    # -- settling the tier -------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Before the first delivery: the probe's verdict, and another tier if it says so."""
        assert self._engine is not None
        self._settled = True
        elastic = self._feed.settle(self._engine, self._loader)
        if elastic and self._feed.services.config.workers != 0:
            return
        first, iteration = self._engine.cursor, self._engine.iteration
        works = self._engine.abort()
        self._engine.crew.close()
        if elastic:
            maker = InlineMaker(self._program, iteration)
            self._in_process = _InProcess(lambda seq, work: self._pin(maker.make(seq, work)), works, self._order, first)
            self._engine = None
        elif self._program.declared_workers == 0:
            self._stay_here(works)
        else:
            pinned = Iteration(ordinal=iteration.ordinal, base_seed=iteration.base_seed, tier=Tier.PINNED)
            self._engine = self._feed.start_engine(self._loader, pinned, self._order, first=first, adopt=works)
            self._engine.fill()

    # -- loaders that declare no workers -----------------------------------------------------------------------------

    def _first_here(self) -> Any:
        """The first batch, made here as torch makes it, while workers make it as well."""
        assert self._engine is not None
        self._engine.fill()
        work = self._engine.first_work()
        if work is None:
            raise StopIteration
        picture = streams.mark()
        batch = self._make_as_torch(0, work)
        self._drew_here = streams.drawn_since(picture)
        try:
            self._first_digest = digest(batch)
        except Exception:  # can't travel, so it can't be moved
            self._first_digest = b""
        return self._pin(batch)

    def _before_moved(self) -> None:
        """Before each further batch: is what workers make still what would be made here?"""
        assert self._engine is not None
        assert self._watch is not None
        if not self._settled:
            self._settle_moved()
        elif self.yielded == 0:
            self._engine.fill()
        elif not self._watch.unchanged(self.yielded):
            works = self._engine.abort()
            self._engine.crew.close()
            self._feed.listener.notice(
                "what the dataset refers to has changed during the iteration; from here on batches are made in the "
                "training process"
            )
            self._stay_here(works)

    def _settle_moved(self) -> None:
        assert self._engine is not None
        self._settled = True
        keep = self._feed.services.config.random == "keep"
        same = self._feed.settle(self._engine, self._loader)
        first = self._payload(refill=False)
        if same:
            made = b"" if isinstance(first, FailedItem) else digest(self._engine.build(first))
            if made != self._first_digest and not (self._drew_here and not keep):
                self._feed.refuse(self._loader, "its first batch came out different in a data worker")
                same = False
        if not same:
            works = self._engine.abort()
            self._engine.crew.close()
            self._stay_here(works)

    def _stay_here(self, works: list[WorkItem]) -> None:
        self._engine = None
        self._in_process = _InProcess(self._make_as_torch_pinned, works, self._order, self.yielded)

    def _make_as_torch(self, seq: int, work: WorkItem) -> Any:
        fetcher = torch_data.fetch._MapDatasetFetcher(
            self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        )
        return fetcher.fetch(work.indices)

    def _make_as_torch_pinned(self, seq: int, work: WorkItem) -> Any:
        return self._pin(self._make_as_torch(seq, work))

    def _pin(self, batch: Any) -> Any:
        if self._pin_memory:
            return torch_data.pin_memory.pin_memory(batch, self._pin_memory_device)
        return batch

    # -- ends --------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._ended = True
        self._in_process = None
        if self._engine is not None and not self._persistent_workers:
            self._let_go()

    def _let_go(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.abort()
        if self._pinner is not None:
            self._pinner.close()
        if engine.iteration.tier is Tier.ELASTIC and not self._unmoved:
            self._feed.park(engine.crew)
        else:
            engine.crew.close()

    def _shutdown_workers(self) -> None:
        """What torch's iterator offers: ends the workers (Lightning and others call it)."""
        if self._pid == os.getpid():
            self._ended = True
            self._let_go()

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None and self._pid == os.getpid():
            self._shutdown_workers()

    def _crew_members(self) -> list[Any]:
        return list(self._engine.crew.members.values()) if self._engine is not None else []

    @property
    def _workers(self) -> list[_WorkerHandle]:
        """Handles with the methods of processes, for programs that end or count torch's workers."""
        return [_WorkerHandle(self, member.pid) for member in self._crew_members()]

    def cursor(self) -> Cursor:
        """Where the program is."""
        taken = sorted(self._engine.taken_ahead) if self._engine is not None else []
        return self._order.cursor(
            iteration=self._feed.ordinal,
            base_seed=self._base_seed,
            taken=taken,
        )


class _WorkerHandle:
    """Looks like the process of one data worker."""

    def __init__(self, owner: FedIterator, pid: int) -> None:
        self._owner = weakref.ref(owner)
        self.pid = pid

    def is_alive(self) -> bool:
        owner = self._owner()
        return owner is not None and any(m.pid == self.pid for m in owner._crew_members())

    def terminate(self) -> None:
        owner = self._owner()
        if owner is not None:
            owner._shutdown_workers()

    kill = terminate

    def join(self, timeout: float | None = None) -> None:
        """Workers end with the iterator; there is nothing to wait for."""


class _InProcess:
    """The rest of an iteration, made in this process from the same order."""

    def __init__(self, make: Callable[[int, WorkItem], Any], works: list[WorkItem], order: Order, seq: int) -> None:
        self._make = make
        self._works = deque(works)
        self._order = order
        self._seq = seq

    def next(self) -> Any:
        work = self._works.popleft() if self._works else self._order.draw()
        if work is None:
            raise StopIteration
        seq, self._seq = self._seq, self._seq + 1
        return self._make(seq, work)


class _ChangeWatch:
    """Surveys what a moved dataset refers to, often enough to notice a change, rarely enough to cost under 1 %."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._fingerprint = tiers.watch_survey(program).fingerprint
        self._good_at = 0
        self._next_s = 0.0

    def unchanged(self, step: int) -> bool:
        """Whether all is as at the start; raises when batches made from the old state were delivered meanwhile."""
        begun = time.monotonic()
        if begun < self._next_s:
            return True
        same = tiers.watch_survey(self._program).fingerprint == self._fingerprint
        now = time.monotonic()
        self._next_s = now + 100 * (now - begun)
        if same:
            self._good_at = step
            return True
        if step > self._good_at + 1:
            raise DifferentResultError(
                f"the dataset was changed by the program while data workers read it: batches {self._good_at + 1} to "
                f"{step - 1} of this iteration may have been made from its earlier state. Declare num_workers=1 or "
                "more (then a copy is what torch gives as well), or run with --tier process"
            )
        return False


class _Pinner:
    """Copies batches to pinned memory one step ahead, in a thread, as torch's pin-memory thread does."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._index = torch.accelerator.current_device_index()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stoker-pin", initializer=self._init)
        self._future: Future[Any] | None = None

    def _init(self) -> None:
        torch.accelerator.set_device_index(self._index)

    @property
    def pending(self) -> bool:
        return self._future is not None

    def pin(self, batch: Any) -> Any:
        return torch_data.pin_memory.pin_memory(batch, self._device)

    def submit(self, build: Callable[[], Any]) -> None:
        self._future = self._thread.submit(lambda: self.pin(build()))

    def result(self) -> Any:
        assert self._future is not None
        future, self._future = self._future, None
        return future.result()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class MeasuredIterator(_SingleProcessDataLoaderIter):
    """Torch's own iterator without workers, with the time in it counted as input wait."""

    def __init__(self, loader: DataLoader[Any], feed: LoaderFeed, pace: Pace) -> None:
        super().__init__(loader)
        self._feed = feed
        self._pace = pace
        feed.ordinal += 1
        pace.begun(feed)
        feed.listener.iterating(feed.ordinal, 0, 0.0)

    def __next__(self) -> Any:
        begun = time.monotonic()
        self._pace.asked(self._feed, begun)
        batch = super().__next__()
        now = time.monotonic()
        counters = self._feed.counters
        counters.input_wait_s += now - begun
        counters.batches += 1
        counters.starved_steps += 1
        counters.samples += self._feed.batch_size or 1
        self._feed.listener.tick()
        self._pace.delivered(self._feed, now)
        return batch


def serve(
    loader: DataLoader[Any],
    feed: LoaderFeed,
    pace: Pace,
    stock: Callable[[], _BaseDataLoaderIter],
    cursor: Cursor | None = None,
) -> _BaseDataLoaderIter:
    """An iterator over ``loader`` in the tier that fits it.

    Args:
        loader: the program's loader.
        feed: what stoker keeps for it.
        pace: told about each step.
        stock: makes torch's own iterator.
        cursor: where to resume.
    """
    choice = feed.choose(loader)
    if choice.tier is Tier.STOCK:
        return stock()
    if choice.tier is Tier.PROCESS and cursor is None:
        return MeasuredIterator(loader, feed, pace)
    if loader.num_workers > 0:
        loader.check_worker_number_rationality()
    generators = [g for g in (loader.generator, torch.default_generator) if g is not None]
    states = [generator.get_state() for generator in generators]
    try:
        return FedIterator(loader, feed, pace, cursor)
    except WorkerStartError as error:
        if cursor is not None:
            raise
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        feed.listener.notice(f"{error.args[0]}; this loader runs on torch's own workers")
        return stock()


_open_iterators: weakref.WeakSet[FedIterator] = weakref.WeakSet()


def close_all() -> None:
    """Ends the workers of every iterator that is still open (at exit)."""
    for iterator in list(_open_iterators):
        iterator._shutdown_workers()
