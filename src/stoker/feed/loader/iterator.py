# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (subclasses torch's private iterator so that every draw is torch's own)
"""The iterator that a program's ``for`` loop drives, in place of torch's, where data workers make the batches.

It subclasses torch's base iterator, whose constructor makes the draws of an iteration exactly as the installed torch
makes them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch.utils.data import DataLoader

from stoker.core.errors import WorkerStartError, dead_worker
from stoker.core.forking import Owner
from stoker.core.interrupts import InterruptsHandedOn
from stoker.core.places import call, calling_as, standing_in
from stoker.feed.loader.inline import InlineMaker
from stoker.feed.loader.loader_feed import LoaderFeed, Services
from stoker.feed.loader.pinning import Pinner
from stoker.feed.order.cursor import Cursor
from stoker.feed.order.sampling import Bookmark, Order
from stoker.feed.program import Iteration, Tier, WorkItem, item_seed
from stoker.feed.shell.engine import Engine
from stoker.feed.shell.outcome import FailedItem, IterationEnd
from stoker.feed.torch_private import (
    BaseIterator,
    InProcessIterator,
    WorkersIterator,
    copy_without_iterator,
    end_workers,
    pinning,
)


class Pace(Protocol):
    """Is told when the program asks for something and when it gets it, on every loader: at the outermost edge."""

    def begun(self, feed: LoaderFeed) -> None:
        """The program called ``iter``."""
        ...

    def opened(self, feed: LoaderFeed) -> None:
        """It returned."""
        ...

    def asked(self, feed: LoaderFeed) -> None:
        """The program called ``next``."""
        ...

    def delivered(self, feed: LoaderFeed) -> None:
        """The program gets a batch."""
        ...

    def failed(self, feed: LoaderFeed, *, ended: bool) -> None:
        """The program gets an exception; ``ended``: ``StopIteration``."""
        ...

    def left(self, feed: LoaderFeed) -> None:
        """The program has left the current iteration before its end."""
        ...


class FedIterator(BaseIterator):
    """Serves one iteration of a loader that declares workers (elastic or pinned tier).

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
        stock = WorkersIterator if loader.num_workers > 0 else InProcessIterator
        _constructing(stock)(super().__init__, loader)
        self._profile_name = f"enumerate(DataLoader)#{stock.__name__}.__next__"  # tools for profiles look for it
        for generator, state in zip(generators, before, strict=False):
            generator.set_state(state)  # a resumed iteration has made its draws before it was saved
        self._loader = _without_iterator(loader)
        self._feed = feed
        self._pace = pace
        self._owner = Owner()
        self._program = feed.program_of(loader)
        self._engine: Engine | None = None
        self._pinner: Pinner | None = None
        self._in_process: InProcess | None = None
        self._ended = self._cut_off = False
        self._after: int | None = None
        self._after_pinned = 0
        self._seq = self._seq_pinned = 0
        self._ordinal = -1
        self._entered = True
        self._handles: list[_WorkerHandle] = []
        feed.enter()
        if cursor is not None:
            self._base_seed = cursor.base_seed
        self._begin(cursor)
        feed.listener.iterating(feed.ordinal, self._num_workers_at_start(), time.monotonic() - begun)
        _open_iterators.add(self)

    def _begin(self, cursor: Cursor | None) -> None:
        drawn: Any = self._sampler_iter
        self._order = Order(self._index_sampler, drawn, auto_collation=self._auto_collation, cursor=cursor)
        self._sampler_iter = self._order  # what torch's base class would draw from is ours to draw
        self._ended = False
        if self._pin_memory and self._pinner is None:
            self._pinner = Pinner(self._pin_memory_device)
        self._start(cursor)
        self._ordinal = self._feed.ordinal
        self.bookmark = Bookmark(
            order=self._order,
            iteration=self._feed.ordinal,
            base_seed=self._base_seed,
            shards=self._num_workers if self._program.is_iterable else None,
        )

    def _start(self, cursor: Cursor | None) -> None:
        """Gets an engine and draws ahead, which torch does inside ``iter`` where there are workers."""
        feed = self._feed
        if self._engine is not None:  # persistent: the same workers go on
            self._engine = feed.continue_engine(self._loader, self._engine, self._base_seed, self._order)
        else:
            self._engine = feed.open(self._loader, self._base_seed, self._order, cursor)
        self._settled = feed.choice is not None and not feed.choice.candidate
        self._asked_before = False
        self._first: WorkItem | None = None  # handed out before the verdict
        self._engine.fill()
        try:
            self._engine.crew.complete()
        except WorkerStartError:
            self._engine.crew.close()
            raise

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """A persistent loader begins its next iteration."""
        begun = time.monotonic()
        self._pace.begun(self._feed)
        try:
            if self._engine is not None and not self._ended:
                self._engine.abort()
            super()._reset(loader, first_iter)
            self._loader = _without_iterator(loader)
            self._begin(None)
            started_s = time.monotonic() - begun
            self._feed.listener.iterating(self._feed.ordinal, self._num_workers_at_start(), started_s)
        finally:
            self._pace.opened(self._feed)

    def _num_workers_at_start(self) -> int:
        if self._engine is None:
            return 0
        pinned = self._engine.iteration.tier is Tier.PINNED
        return self._num_workers if pinned else self._engine.state.decision.workers

    # -- the step ----------------------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        feed, pace = self._feed, self._pace
        pace.asked(feed)
        try:
            if feed.counters.batches >= feed.landmark:
                feed.effort.attempt("record of a loader", feed.pass_landmark, None, then="it is recorded in part")
            cutter = feed.cutter
            if cutter is None:
                batch = self._next_of_torch()
            else:
                cutter.asked()
                try:
                    item = self._next_of_torch()
                except BaseException:
                    cutter.failed()
                    raise
                batch = cutter.delivered(item, self._item_seed)
        except BaseException as error:
            pace.failed(feed, ended=isinstance(error, StopIteration))
            raise
        pace.delivered(feed)
        return batch

    def _next_of_torch(self) -> Any:
        """Torch's own ``next``; where it is about to warn of a stream's length, as called by the program."""
        told = self._IterableDataset_len_called
        if told is None or self._num_yielded < told:
            return super().__next__()
        return calling_as(sys._getframe(2))(super().__next__)

    def _item_seed(self) -> int:
        return item_seed(self._base_seed, self._feed.ordinal, self._seq)

    def _next_data(self) -> Any:
        if not self._owner.is_here:
            raise RuntimeError("a DataLoader iterator does not work in a forked child; call iter(loader) there")
        if self._cut_off:
            raise RuntimeError("stoker has ended this iterator before its last batch; call iter(loader) for a new one")
        if self._ended:
            raise StopIteration
        self._after, self._seq = None, self.yielded
        try:
            batch = self._next_batch()
        except IterationEnd:
            self._finish()
            raise StopIteration from None
        except WorkerStartError as error:
            if self._engine is None or not self._engine.state.lost_pid:
                raise
            raise WorkerStartError(f"{dead_worker(self._engine.state.lost_pid)}: {error.args[0]}") from error
        self._order.advance(self._in_process.seq if self._in_process is not None else self._after)
        return batch

    @property
    def yielded(self) -> int:
        """Batches that the program has taken in this iteration."""
        return self._order.yielded

    def _next_batch(self) -> Any:
        if self._in_process is None and not self._settled:
            if not self._asked_before:
                self._asked_before = True
                if self._first_is_safe():
                    self._first = self._engine.first_work() if self._engine is not None else None
                    return self._take()
            self._settle()
        if self._in_process is not None:
            self._seq = self._in_process.seq
            return self._counted(self._in_process.next)
        if self.yielded == 1:
            self._feed.dismiss_leaving()
        try:
            return self._take()
        except WorkerStartError as error:
            self._go_on_without_workers(error)
        return self._next_batch()

    def _counted(self, make: Callable[[], tuple[WorkItem, Any]]) -> Any:
        """A batch made in this process, for which the program starves as long as it takes."""
        begun = time.monotonic()
        work, batch = make()
        counters = self._feed.counters
        counters.starved_s += time.monotonic() - begun
        counters.batches += 1
        counters.starved_steps += 1
        counters.samples += work.num_samples(batched=self._auto_collation)
        self._feed.listener.tick()
        return batch

    def _take(self) -> Any:
        assert self._engine is not None
        pinner = self._pinner
        if pinner is None:
            batch, state = self._from_engine(Engine.next_batch), self._engine.state
            self._after, self._seq = state.items.cursor, state.delivered_seq
            return self._build(batch) if type(batch) is FailedItem else batch
        if pinner.pending:
            self._after, self._seq = self._after_pinned, self._seq_pinned
            batch = pinner.result()
            with contextlib.suppress(WorkerStartError):  # asking for the next one finds out again
                self._engine.pump()
            self._engine.fill()
        else:
            result = self._payload()
            self._after, self._seq = self._engine.state.items.cursor, self._engine.state.delivered_seq
            batch = pinner.pin(self._build(result))
        if self._engine.has_ready_head and self._loader.in_order:
            with contextlib.suppress(WorkerStartError):
                result = self._payload(refill=False)
                self._after_pinned, self._seq_pinned = self._engine.state.items.cursor, self._engine.state.delivered_seq
                pinner.submit(lambda: self._build(result))
        return batch

    def _build(self, result: Any) -> Any:
        assert self._engine is not None
        if isinstance(result, FailedItem):
            self._raise(result)
        return self._engine.build(result)

    def _raise(self, failed: FailedItem) -> NoReturn:
        failed.reraise(self._dataset)

    def _payload(self, *, refill: bool = True) -> Any:
        return self._from_engine(lambda engine: engine.next_item(refill=refill))

    def _from_engine(self, take: Callable[[Engine], Any]) -> Any:
        """What an engine gives, after a restart if need be."""
        for attempt in (0, 1):
            assert self._engine is not None
            try:
                return take(self._engine)
            except WorkerStartError as error:
                if attempt:
                    raise
                self._replace_crew(error)
        raise AssertionError("unreachable")

    def _go_on_without_workers(self, error: WorkerStartError) -> None:
        """The rest of an elastic iteration is made here; what only a pinned worker could make raises."""
        engine = self._engine
        if engine is None or engine.iteration.tier is not Tier.ELASTIC or not self._settled:
            raise error
        self._feed.listener.notice(f"{error.args[0]}; the rest of the iteration is made in the training process")
        maker, first = InlineMaker(self._program, engine.iteration), engine.state.items.cursor
        self._go_on_here(maker.make, self._leave_engine(), first)

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
        elastic = self._verdict()
        if elastic and self._feed.services.config.workers != 0:
            return
        first, iteration = self._engine.state.items.cursor, self._engine.iteration
        pinned = Iteration(ordinal=iteration.ordinal, base_seed=iteration.base_seed, tier=Tier.PINNED)
        if not elastic and self._engine.hand_over(pinned):
            if self._first is not None:
                self._engine.inherit(first - 1, self._first)
            return
        works = self._leave_engine()
        if elastic:
            maker = InlineMaker(self._program, iteration)
            self._go_on_here(maker.make, works, first)
        else:
            self._engine = self._feed.start_engine(
                self._loader, pinned, self._order, first=first, adopt=works, delivered=self._first
            )
            self._engine.fill()

    def _first_is_safe(self) -> bool:
        """Whether the first batch may be handed out before the verdict.

        A fresh worker with id 0 made it before anything else, just as a pinned worker would; so unless it drew from
        the streams that the tiers seed differently, it is the same in both.
        """
        assert self._engine is not None
        if not self._loader.in_order:
            return False  # which one comes first is not known before
        try:
            self._engine.await_head()
        except WorkerStartError:
            return False
        state = self._engine.state
        is_worker_0s = self._num_workers > 0 and state.items.cursor % self._num_workers == 0  # not so after a resume
        return is_worker_0s and state.probing.first_drew is False

    def _verdict(self) -> bool:
        """Whether the elastic tier holds; probed a second time when the template dies meanwhile."""
        assert self._engine is not None
        try:
            return self._feed.settle(self._engine, self._loader)
        except WorkerStartError as error:
            self._replace_crew(error)
            return self._feed.settle(self._engine, self._loader)

    def _leave_engine(self) -> list[WorkItem]:
        """Ends the workers; returns the items that were drawn and not delivered."""
        engine, self._engine = self._engine, None
        assert engine is not None
        works = engine.abort()
        engine.crew.close()
        return works

    def _go_on_here(self, make: Callable[[int, WorkItem], Any], works: Sequence[WorkItem], first: int) -> None:
        self._in_process = InProcess(lambda seq, work: self._pin(make(seq, work)), works, self._draw, first)

    def _draw(self) -> WorkItem | None:
        """The next item to be made here, without the samples that ended data workers."""
        work = self._order.draw()
        return self._feed.without_bad(work) if work is not None else None

    def _pin(self, batch: Any) -> Any:
        if self._pin_memory:
            return pinning.pin_memory(batch, self._pin_memory_device)
        return batch

    # -- ends --------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._ended = self._order.finished = True
        self._leave_steps()
        self._in_process = None
        self._feed.listener.snapshot()
        if not self._persistent_workers:
            self._let_go()

    def _let_go(self) -> None:
        self._keep_handles()
        engine, self._engine = self._engine, None
        if self._pinner is not None:
            self._pinner.close()
            self._pinner = None
        if engine is None:
            return
        engine.abort()
        self._dismiss(engine)

    def _dismiss(self, engine: Engine) -> None:
        if engine.iteration.tier is Tier.ELASTIC:
            self._feed.park(engine.crew)
        else:
            engine.crew.close()

    def _shutdown_workers(self) -> None:
        """What torch's iterator offers: ends the workers (Lightning and others call it)."""
        if self._owner.is_here:
            self._ended = True
            self._leave_steps()
            if self._feed.ordinal == self._ordinal:  # else a later iteration is under way already
                self._pace.left(self._feed)
            self._let_go()

    def _leave_steps(self) -> None:
        if self._feed.cutter is not None:
            self._feed.cutter.left()

    def __del__(self) -> None:
        if getattr(self, "_entered", False) and self._owner.is_here:
            with InterruptsHandedOn():
                self._shutdown_workers()
                self._feed.leave()

    def _crew_members(self) -> list[Any]:
        return list(self._engine.crew.members.values()) if self._engine is not None else []

    @property
    def _workers(self) -> list[_WorkerHandle]:
        """Handles with the methods of processes, in the order of their ids, for programs that end or count workers.

        After the end of the iteration those of the last ones.
        """
        self._keep_handles()
        return self._handles

    def _keep_handles(self) -> None:
        active = self._engine.crew.active() if self._engine is not None else []
        members = sorted(active, key=lambda member: member.identity.worker_id)
        self._handles = [_WorkerHandle(self, member.pid) for member in members] or self._handles

    def close(self) -> None:
        """Ends the workers; a program that goes on with the iteration is told so."""
        self._cut_off = not self._ended
        self._shutdown_workers()

    @property
    def feed(self) -> LoaderFeed:
        """What stoker keeps for the loader."""
        return self._feed


@functools.cache
def _constructing(stock: type[BaseIterator]) -> Callable[..., None]:
    """Calls the base constructor from where torch's own iterator calls it, as its warnings name it."""
    return standing_in(call, stock.__init__, "super().__init__(")


def _without_iterator(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader as it is now, for later looks; a persistent one keeps its iterator, so must not be kept by it.

    Else its workers would live on until the next garbage collection after the program has dropped the loader.
    """
    return copy_without_iterator(loader) if loader.persistent_workers else loader


class InProcess:
    """The rest of an iteration, made in this process from the same order."""

    def __init__(
        self,
        make: Callable[[int, WorkItem], Any],
        works: Sequence[WorkItem],
        draw: Callable[[], WorkItem | None],
        seq: int,
    ) -> None:
        self._make = make
        self._works = deque(works)
        self._draw = draw
        self.seq = seq
        """Number of the next item."""

    def next(self) -> tuple[WorkItem, Any]:
        """The next item and its batch; raises :class:`IterationEnd` at the end, and what making it raises."""
        work = self._works.popleft() if self._works else self._draw()
        if work is None:
            raise IterationEnd
        seq, self.seq = self.seq, self.seq + 1
        return work, self._make(seq, work)


class _WorkerHandle:
    """Looks like the process of one data worker."""

    def __init__(self, owner: FedIterator, pid: int) -> None:
        self._owner = weakref.ref(owner)
        self.pid = pid

    def is_alive(self) -> bool:
        owner = self._owner()
        return owner is not None and any(m.pid == self.pid for m in owner._crew_members())

    @property
    def exitcode(self) -> int | None:
        """None while it lives; 0 then, as of one that ended because it was told to."""
        return None if self.is_alive() else 0

    def terminate(self) -> None:
        owner = self._owner()
        if owner is not None:
            end_workers(owner)

    kill = terminate

    def join(self, timeout: float | None = None) -> None:
        """Workers end with the iterator; there is nothing to wait for."""


_open_iterators: weakref.WeakSet[FedIterator] = weakref.WeakSet()


def close_all(services: Services) -> None:
    """Ends the workers of every iterator of these services that is still open (at exit)."""
    for iterator in list(_open_iterators):
        if iterator.feed.services is services:
            iterator.close()
