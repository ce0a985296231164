# (loaders and their batches are the program's)
"""Gets an iteration's batches from data workers or the training process, as its :class:`Life` decides."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from stoker.core.errors import WorkerStartError
from stoker.core.mishaps import is_own, reraise_from_handler
from stoker.feed.loader.inline import InlineMaker, InProcess
from stoker.feed.loader.loader_feed import LoaderFeed, torchs_lookahead
from stoker.feed.loader.moved import STAYS, Undeclared
from stoker.feed.loader.pinning import Pinner
from stoker.feed.order.cursor import Cursor
from stoker.feed.order.sampling import Order
from stoker.feed.program import Iteration, Tier, WorkItem
from stoker.feed.shell.engine import Engine
from stoker.feed.shell.outcome import FailedItem, IterationEnd
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.life import Life, Phase
from stoker.feed.torch_private import pinning

_T = TypeVar("_T")


class Supply:
    """The batches of one iterator, iteration after iteration.

    Args:
        loader: the program's.
        feed: stoker's state for it.
        pin_device: type of the accelerator, as torch's iterator knows it.
        pins: whether batches are pinned.
    """

    def __init__(self, loader: DataLoader[Any], feed: LoaderFeed, pin_device: Any, *, pins: bool) -> None:
        self._feed = feed
        self._loader = loader
        self._program = feed.program_of(loader)
        self._pin_device = pin_device
        self._pins = pins
        self._pin = functools.partial(_pinned, pin_device) if pins else _as_it_is
        self.life = Life(declared=loader.num_workers, elastic=False, candidate=False)  # of no iteration yet
        self.engine: Engine | None = None
        self._pinner: Pinner | None = None
        self._ahead: tuple[int, int, WorkItem, FailedItem | None] | None = None
        """``after`` and ``seq`` of the batch that is being pinned, its item, and its failure if there is no batch."""
        self.after: int | None = None
        """First item that the program lacks once it has this batch; None: one more than before."""
        self.seq = 0
        """Number of this batch's item."""

    def begin(self, loader: DataLoader[Any], order: Order, base_seed: int, cursor: Cursor | None) -> None:
        """Begins the next iteration, at ``cursor`` if there is one; existing workers stay."""
        feed, choice, config = self._feed, self._feed.choice, self._feed.services.config
        assert choice is not None
        self._loader, self._order, self._base_seed, self._cursor = loader, order, base_seed, cursor
        self._here: InProcess | None = None
        self._first: WorkItem | None = None  # handed out before the verdict
        self._has_twin = False
        """Whether the program has the workers' next batch already: it was made here as well."""
        self.life = Life(
            declared=loader.num_workers,
            elastic=choice.tier is Tier.ELASTIC,
            candidate=choice.candidate,
            # Only workers can leave out what they delivered out of order before a state was saved.
            wants_workers=config.workers != 0 or bool(order.taken),
            keeps_random=config.feed.random == "keep",
        )
        if self._pins and self._pinner is None:
            self._pinner = Pinner(self._pin_device)
        self._forget_ahead()
        if not loader.num_workers:
            self._undeclared = Undeclared(loader, feed, self.life, order, cursor, self._pin)
            feed.begin_iteration(cursor)
        self._go_on(ev.Begun())

    def next(self) -> Any:
        """The next batch; raises :class:`IterationEnd` at the end, and any error of making it."""
        if self.life.takes:
            batch = self._from_workers()
            return batch if type(batch) is not ev.Stranded else self._go_on(batch)
        self.after, self.seq = None, self._order.yielded
        return self._go_on(ev.Next(self._order.yielded))

    def _go_on(self, found: Any) -> Any:
        """Carries out what follows from an event; returns the batch that results, if any."""
        while isinstance(found, ev.LifeEvent):
            out, found = self.life.on(found), None
            for instruction in out:
                found = getattr(self, _ACTIONS[type(instruction)])(instruction)
        return found

    @property
    def num_workers(self) -> int:
        """Data workers that the iteration begins with."""
        if self.engine is None:
            return 0
        pinned = self.engine.iteration.tier is Tier.PINNED
        return self._loader.num_workers if pinned else self.engine.state.decision.workers

    @property
    def num_open(self) -> int:
        """Items drawn for workers but not delivered to the program."""
        return (self._ahead is not None) + (self.engine.num_open if self.engine is not None else 0)

    def draw(self) -> WorkItem | None:
        """The next item, without the samples that killed data workers; None if there is none."""
        work = self._order.draw()
        return self._feed.without_bad(work) if work is not None else None

    @property
    def is_batched(self) -> bool:
        """Whether an item is a batch that the loader collates."""
        return self._program.auto_collation

    # -- from workers ------------------------------------------------------------------------------------------------

    def _running(self) -> Engine:
        assert self.engine is not None
        return self.engine

    def _open(self, _: do.Open) -> None:
        """Starts workers and draws ahead, as torch does inside ``iter`` if workers are declared."""
        feed = self._feed
        if self.engine is not None:  # persistent: the same workers continue
            self.engine = feed.continue_engine(self._loader, self.engine, self._base_seed, self._order)
        else:
            self.engine = feed.open(self._loader, self._base_seed, self._order, self._cursor)
        self.engine.fill()
        try:
            self.engine.crew.complete()
        except WorkerStartError:
            self.engine.crew.close()
            raise

    def _dismiss(self, _: do.Dismiss) -> None:
        self._feed.dismiss_leaving()

    def _take(self, take: do.Take) -> Any:
        if self._loader.num_workers:
            return self._from_workers()
        engine = self._running()
        engine.fill()  # without workers, torch draws at the first next, not inside iter()
        work = self._next_work(engine) if take.repeat else None
        batch = self._from_workers()
        if work is not None and type(batch) is not ev.Stranded:
            self._repeat(work, batch)
        return batch

    def _next_work(self, engine: Engine) -> WorkItem | None:
        return self._ahead[2] if self._ahead is not None else engine.first_work()

    def _repeat(self, work: WorkItem, batch: Any) -> None:
        """Makes a batch again, in this process, and compares the two."""
        if self._feed.services.config.feed.random == "sample":
            here = InlineMaker(self._program, self._elastic()).make(self.seq, work)
        else:
            here = self._undeclared.fetch(work)
        self._go_on(ev.Repeated(self._undeclared.differ(here, batch)))

    def _from_workers(self) -> Any:
        """The workers' next batch; an event if no workers are left."""
        engine, pinner = self.engine, self._pinner
        assert engine is not None
        try:
            if pinner is not None:
                return self._take_pinned(engine, pinner)
            batch = self._surely(Engine.next_batch)
        except WorkerStartError as error:
            return ev.Stranded(error)
        self.after, self.seq = engine.state.items.cursor, engine.state.delivered_seq
        return self._build(batch) if type(batch) is FailedItem else batch

    def _take_pinned(self, engine: Engine, pinner: Pinner) -> Any:
        """The workers' next batch in pinned memory; the one after it is pinned meanwhile."""
        state = engine.state
        if self._ahead is not None:
            self.after, self.seq, _, failed = self._ahead
            self._ahead = None
            batch = pinner.result() if failed is None else self._build(failed)
            with contextlib.suppress(WorkerStartError):  # asking for the next batch raises it again
                engine.pump()
            engine.fill()
        else:
            result = self._surely(Engine.next_item)
            self.after, self.seq = state.items.cursor, state.delivered_seq
            batch = pinner.pin(self._build(result))
        work = engine.first_work()
        if work is not None and self.life.phase is Phase.FEEDING and engine.has_ready_head and self._loader.in_order:
            with contextlib.suppress(WorkerStartError):
                result = self._surely(_without_refill)
                failed = None
                if isinstance(result, FailedItem):
                    failed = result  # may run the program's code: in its own thread, when it asks for the batch
                else:
                    pinner.submit(functools.partial(engine.build, result), functools.partial(engine.drop, result))
                self._ahead = state.items.cursor, state.delivered_seq, work, failed
        return batch

    def _forget_ahead(self) -> None:
        if self._ahead is not None and self._ahead[3] is None:
            self._count(self._ahead[2], -1)
        self._ahead = None
        if self._pinner is not None:
            self._pinner.forget()

    def _build(self, result: Any) -> Any:
        if not isinstance(result, FailedItem):
            return self._running().build(result)
        if not self._loader.num_workers:
            self._undeclared.fetch(result.work)  # raises the bare exception, as torch does without workers
        result.reraise(self._program.dataset)

    def _surely(self, take: Callable[[Engine], _T]) -> _T:
        """What ``take`` gets from the engine; a failing crew is replaced once."""
        for attempt in (0, 1):
            try:
                return take(self.engine)  # pyright: ignore[reportArgumentType]  # there is one
            except WorkerStartError as error:
                if attempt:
                    raise
                self._replace_crew(error)
        raise AssertionError("unreachable")

    def _replace_crew(self, error: WorkerStartError) -> None:
        """Replaces a crew whose template died by one with the dataset as it is now."""
        engine = self._running()
        self._feed.listener.notice(f"{error.args[0]}; restarted, no sample lost")
        engine.crew.close()
        engine.restaff(self._feed.new_crew(self._loader, engine.iteration))

    # -- the tier ----------------------------------------------------------------------------------------------------

    def _await_first(self, _: do.AwaitFirst) -> ev.FirstMade:
        """Whether the first batch may be handed out before the verdict.

        A fresh worker with id 0 made it before anything else, just as a pinned worker would; so unless it drew from
        the streams that the tiers seed differently, it is the same in both.
        """
        engine = self._running()
        if not self._loader.in_order:
            return ev.FirstMade(False)  # which batch comes first is not known in advance
        try:
            engine.await_head()
        except WorkerStartError:
            return ev.FirstMade(False)
        is_worker_0s = engine.state.items.cursor % self._loader.num_workers == 0  # not so after a resume
        is_safe = is_worker_0s and engine.state.probing.first_drew is False
        if is_safe:
            self._first = engine.first_work()
        return ev.FirstMade(is_safe)

    def _settle(self, _: do.Settle) -> ev.Settled | ev.Stranded:
        """The probe's verdict; probes again if the template dies meanwhile."""
        try:
            return ev.Settled(self._surely(lambda engine: self._feed.settle(engine, self._loader)))
        except WorkerStartError as error:
            return ev.Stranded(error)

    def _go_pinned(self, _: do.GoPinned) -> None:
        engine = self._running()
        first, iteration = engine.state.items.cursor, engine.iteration
        pinned = Iteration(ordinal=iteration.ordinal, base_seed=iteration.base_seed, tier=Tier.PINNED)
        if engine.hand_over(pinned):
            if self._first is not None:
                engine.inherit(first - 1, self._first)
            return
        works = self._end_workers()
        self.engine = self._feed.start_engine(
            self._loader, pinned, self._order, first=first, adopt=works, delivered=self._first
        )
        self.engine.fill()

    # -- in the training process -------------------------------------------------------------------------------------

    def _end_workers(self) -> list[WorkItem]:
        """Ends the workers; returns the items that were drawn but not delivered."""
        engine, self.engine = self._running(), None
        works = engine.abort()
        engine.crew.close()
        return works

    def _leave(self, _: do.Leave) -> None:
        engine = self._running()
        first, works = engine.state.items.cursor, self._end_workers()
        if self._has_twin:
            first, works, self._has_twin = first + 1, works[1:], False
        if self._ahead is not None:  # what it is made from may have changed since
            first = self._ahead[1]
            works.insert(0, self._ahead[2])
            self._forget_ahead()
        self._make_from(first, works, engine.iteration)

    def _open_here(self, _: do.OpenHere) -> None:
        if self._loader.num_workers:
            self._feed.begin_iteration(self._cursor)
        self._make_from(self._order.next_item, [], self._elastic())

    def _make_from(self, first: int, works: list[WorkItem], iteration: Iteration) -> None:
        """Makes batches in this process from this item on."""
        if self._loader.num_workers:
            maker, pin = InlineMaker(self._program, iteration), self._pin
            ahead = torchs_lookahead(self._loader)
            self._here = InProcess(lambda seq, work: pin(maker.make(seq, work)), works, self.draw, first, ahead)
        else:
            self._here = InProcess(self._undeclared.make, works, self.draw, first, 0)

    def _elastic(self) -> Iteration:
        return self._feed.iteration(self._base_seed, Tier.ELASTIC)

    def _make_here(self, _: do.MakeHere) -> Any:
        here = self._here
        assert here is not None
        self.seq = here.seq
        batch = self._counted(here.next)
        self.after = here.seq
        return batch

    def _counted(self, make: Callable[[], tuple[WorkItem, Any]]) -> Any:
        """A batch made in this process; the program is starved while it is made."""
        begun, counters = time.monotonic(), self._feed.counters
        work, batch = make()
        counters.starved_s += time.monotonic() - begun
        counters.starved_steps += 1
        self._count(work, 1)
        self._feed.listener.tick()
        return batch

    def _count(self, work: WorkItem, batches: int) -> None:
        self._feed.counters.batches += batches
        self._feed.counters.samples += batches * work.num_samples(batched=self._program.auto_collation)

    # -- loaders without workers -------------------------------------------------------------------------------------

    def _begin_trial(self, _: do.BeginTrial) -> ev.LifeEvent:
        self._open_here(do.OpenHere())
        return self._undeclared.begin_trial()

    def _start(self, _: do.Start) -> ev.LifeEvent:
        first = self._here.seq if self._here is not None else self._order.next_item
        self._undeclared.watch()
        try:
            self.engine = self._feed.start_engine(self._loader, self._elastic(), self._order, first=first)
        except Exception as error:
            if not (is_own(error) or isinstance(error, WorkerStartError)):
                raise
            return ev.NotStarted(error)
        self._here = None
        return ev.Started()

    def _make_twin(self, _: do.MakeTwin) -> Any:
        engine = self._running()
        engine.fill()
        work = engine.first_work()
        if work is None:
            raise IterationEnd
        self._has_twin = True
        batch = self._counted(lambda: (work, self._undeclared.make(self.seq, work)))
        self._undeclared.keep_twin(batch)
        return batch

    def _compare_twin(self, _: do.CompareTwin) -> ev.TwinCompared | ev.Stranded:
        counters = self._feed.counters
        counted = counters.batches, counters.samples, counters.starved_steps  # the twin is counted where it is made
        try:
            result = self._surely(_without_refill)
        except WorkerStartError as error:
            return ev.Stranded(error)
        counters.batches, counters.samples, counters.starved_steps = counted
        self._has_twin = False
        item = None if isinstance(result, FailedItem) else self._running().build(result)
        return ev.TwinCompared(self._undeclared.differs_from_twin(item))

    def _look(self, _: do.Look) -> ev.Looked:
        return ev.Looked(self._undeclared.has_changed)

    def _stay(self, stay: do.Stay) -> None:
        self._feed.refuse(self._loader, stay.why, keep_trying=stay.keep_trying)

    def _failed(self, failed: do.Failed) -> None:
        reraise_from_handler(failed.error)
        self._feed.effort.failed(failed.part, failed.error, STAYS)

    def _notice(self, notice: do.Notice) -> None:
        self._feed.listener.notice(notice.text)

    def _raise(self, instruction: do.Raise) -> None:
        raise instruction.error

    # -- ends --------------------------------------------------------------------------------------------------------

    def end(self, *, seen: bool) -> None:
        """Ends the iteration; ``seen`` if the program has reached its end, not left it."""
        self._forget_ahead()
        self._go_on(ev.Over(seen))
        self._here = None

    def abort(self) -> None:
        """Leaves the iteration, at its end or before, as the program begins another with the same workers."""
        self._forget_ahead()
        if self.engine is not None and self.life.phase is not Phase.ENDED:
            self.engine.abort()

    def let_go(self) -> None:
        """Parks the workers, or ends them."""
        engine, self.engine = self.engine, None
        if self._pinner is not None:
            self._pinner.close()
            self._pinner = None
        if engine is None:
            return
        engine.abort()
        if engine.iteration.tier is Tier.ELASTIC and self._loader.num_workers:
            self._feed.park(engine.crew)
        else:
            engine.crew.close()


def _pinned(device: Any, batch: Any) -> Any:
    return pinning.pin_memory(batch, device)  # looked up now: a program may replace it


def _as_it_is(batch: Any) -> Any:
    return batch


def _without_refill(engine: Engine) -> Any:
    return engine.next_item(refill=False)


_ACTIONS = {
    instruction: name
    for instruction in do.Instruction.__subclasses__()
    if hasattr(Supply, name := "_" + ev.snake_case(instruction.__name__))
}
