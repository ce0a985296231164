# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
# (subclasses torch's private iterator so that every draw is torch's own)
"""The iterator that a program's ``for`` loop gets in place of torch's; its supply makes the batches.

It subclasses torch's base iterator, whose constructor makes an iteration's random draws exactly as the installed torch
makes them.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.core.errors import WorkerStartError, dead_worker
from stoker.core.places import call, calling_as, standing_in
from stoker.core.processes.forking import Owner
from stoker.core.processes.interrupts import InterruptsHandedOn
from stoker.feed.loader.compared import Turns
from stoker.feed.loader.loader_feed import LoaderFeed, Pace, Services
from stoker.feed.loader.supply import Supply
from stoker.feed.order.cursor import Cursor
from stoker.feed.order.sampling import Bookmark, Order
from stoker.feed.program import item_seed
from stoker.feed.shell.outcome import IterationEnd
from stoker.feed.state.life import Phase
from stoker.feed.streams import torch_state
from stoker.feed.torch_private import (
    BaseIterator,
    InProcessIterator,
    WorkersIterator,
    copy_without_iterator,
    end_workers,
    is_iterable,
)


class FedIterator(BaseIterator):
    """Serves one iteration of a loader, or all iterations of a persistent one.

    Args:
        loader: the program's loader.
        feed: stoker's state for it.
        pace: notified of each step.
        cursor: where to resume; None at the start of an iteration.
    """

    def __init__(self, loader: DataLoader[Any], feed: LoaderFeed, pace: Pace, cursor: Cursor | None = None) -> None:
        begun = time.monotonic()
        generators = [g for g in (loader.generator, torch.default_generator) if g is not None]
        before = [torch_state(generator) for generator in generators] if cursor is not None else []
        stock = WorkersIterator if loader.num_workers > 0 else InProcessIterator
        _constructing(stock)(super().__init__, loader)
        self._profile_name = f"enumerate(DataLoader)#{stock.__name__}.__next__"  # profiling tools look for it
        for generator, state in zip(generators, before, strict=False):
            generator.set_state(state)  # a resumed iteration made its draws before it was saved
        self._feed = feed
        self._pace = pace
        self._owner = Owner()
        self._supply = Supply(loader, feed, self._pin_memory_device, pins=self._pin_memory)
        self._turns = Turns.of(loader, feed, self._supply, pace, pins=self._pin_memory) if cursor is None else None
        self._cut_off = False
        self._ordinal = -1
        self._entered = True
        self._handles: list[_WorkerHandle] = []
        feed.enter()
        if cursor is not None:
            self._base_seed = cursor.base_seed
        self._begin(loader, cursor)
        feed.listener.iterating(feed.ordinal, self._supply.num_workers, time.monotonic() - begun)
        _open_iterators.add(self)

    def _begin(self, loader: DataLoader[Any], cursor: Cursor | None) -> None:
        drawn: Any = self._sampler_iter
        self._order = Order(self._index_sampler, drawn, auto_collation=self._auto_collation, cursor=cursor)
        self._sampler_iter = self._order  # torch's base class draws from our order
        loader = _without_iterator(loader)
        if self._turns is None:
            self._supply.begin(loader, self._order, self._base_seed, cursor)
        else:
            self._turns.begin(loader, self._order, self._base_seed)
        self._ordinal = self._feed.ordinal
        self.bookmark = Bookmark(
            order=self._order,
            iteration=self._feed.ordinal,
            base_seed=self._base_seed,
            shards=self._num_workers if is_iterable(loader) else None,
        )

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begins the next iteration of a persistent loader."""
        begun = time.monotonic()
        self._pace.begun(self._feed)
        try:
            self._supply.abort()
            super()._reset(loader, first_iter)
            self._begin(loader, None)
            self._feed.listener.iterating(self._feed.ordinal, self._supply.num_workers, time.monotonic() - begun)
        finally:
            self._pace.opened(self._feed)

    # -- the step ----------------------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        feed, pace, turns = self._feed, self._pace, self._turns
        if turns is not None and self._is_open and (made := turns.next()) is not None:
            self._num_yielded += 1
            return made[0]
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
        if turns is not None:
            turns.delivered()
        return batch

    def _next_of_torch(self) -> Any:
        """Calls torch's own ``next``; if that may warn about a stream's length, as if the program had called it."""
        told = self._IterableDataset_len_called
        if told is None or self._num_yielded < told:
            return super().__next__()
        return calling_as(sys._getframe(2))(super().__next__)

    @property
    def _is_open(self) -> bool:
        return not self._cut_off and self._supply.life.phase is not Phase.ENDED and self._owner.is_here

    def _item_seed(self) -> int:
        return item_seed(self._base_seed, self._feed.ordinal, self._supply.seq)

    def _next_data(self) -> Any:
        if not self._owner.is_here:
            raise RuntimeError("a DataLoader iterator does not work in a forked child; call iter(loader) there")
        if self._cut_off:
            raise RuntimeError("stoker has ended this iterator before its last batch; call iter(loader) for a new one")
        supply = self._supply
        if supply.life.phase is Phase.ENDED:
            raise StopIteration
        try:
            batch = supply.next()
        except IterationEnd:
            self._finish()
            raise StopIteration from None
        except WorkerStartError as error:
            if supply.engine is None or not supply.engine.state.lost_pid:
                raise
            raise WorkerStartError(f"{dead_worker(supply.engine.state.lost_pid)}: {error.args[0]}") from error
        self._order.advance(supply.after)
        return batch

    # -- ends --------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._order.finished = True
        self._supply.end(seen=True)
        self._leave_steps()
        self._feed.listener.snapshot()
        if not self._persistent_workers:
            self._let_go()

    def _let_go(self) -> None:
        if self._turns is not None:
            self._turns.end()
        self._keep_handles()
        self._supply.let_go()

    def _shutdown_workers(self) -> None:
        """Ends the workers; named as in torch, because Lightning and others call it."""
        if self._owner.is_here:
            self._supply.end(seen=False)
            self._leave_steps()
            if self._feed.ordinal == self._ordinal:  # else a later iteration has already begun
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
        engine = self._supply.engine
        return list(engine.crew.members.values()) if engine is not None else []

    @property
    def _workers(self) -> list[_WorkerHandle]:
        """Process-like handles in the order of worker ids, for programs that end or count workers.

        After the iteration, the handles of its last workers.
        """
        self._keep_handles()
        return self._handles

    def _keep_handles(self) -> None:
        engine = self._supply.engine
        active = engine.crew.active() if engine is not None else []
        members = sorted(active, key=lambda member: member.identity.worker_id)
        self._handles = [_WorkerHandle(self, member.pid) for member in members] or self._handles

    def close(self) -> None:
        """Ends the workers; a program that continues the iteration gets an error."""
        self._cut_off = self._supply.life.phase is not Phase.ENDED
        self._shutdown_workers()

    @property
    def feed(self) -> LoaderFeed:
        """Stoker's state for the loader."""
        return self._feed


@functools.cache
def _constructing(stock: type[BaseIterator]) -> Callable[..., None]:
    """Calls the base constructor from torch's own line, which its warnings name."""
    return standing_in(call, stock.__init__, "super().__init__(")


def _without_iterator(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader, or a copy of a persistent one: that refers to its iterator, which must not refer back.

    In such a cycle, the workers of a dropped loader would live until the next garbage collection.
    """
    return copy_without_iterator(loader) if loader.persistent_workers else loader


class _WorkerHandle:
    """Stands in for the process object of one data worker."""

    def __init__(self, owner: FedIterator, pid: int) -> None:
        self._owner = weakref.ref(owner)
        self.pid = pid

    def is_alive(self) -> bool:
        owner = self._owner()
        return owner is not None and any(m.pid == self.pid for m in owner._crew_members())

    @property
    def exitcode(self) -> int | None:
        """None while the worker lives, then 0, as after an orderly stop."""
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
