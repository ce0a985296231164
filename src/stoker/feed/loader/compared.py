# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch's private iterator, of which this is a subclass, is untyped)
"""Iterators in which torch's own workers and ours take turns, so that a run says what the program gains from us.

Which batch is whose, and what counts, is decided in :mod:`stoker.feed.order.alternation`. Both sides draw from one
order: the program sees each batch once, in its order.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.core.errors import WorkerStartError
from stoker.feed.loader.iterator import FedIterator, Pace
from stoker.feed.loader.loader_feed import LoaderFeed, torchs_lookahead
from stoker.feed.loader.moved import UndeclaredIterator
from stoker.feed.loader.rival import Rival
from stoker.feed.order.alternation import Alternation, Side, Turn, Walk, plan
from stoker.feed.order.cursor import Cursor, length_of
from stoker.feed.order.sampling import draws_lazily, num_free
from stoker.feed.program import Tier
from stoker.feed.torch_private import index_sampler_of, is_iterable
from stoker.records import versus


def iterator_type(loader: DataLoader[Any], feed: LoaderFeed, cursor: Cursor | None) -> type[FedIterator]:
    """What serves the next iteration of a loader: with torch's own workers taking turns as long as they are to."""
    compared = cursor is None and _alternation(loader, feed) is not None
    if loader.num_workers:
        return ComparedIterator if compared else FedIterator
    return ComparedUndeclared if compared else UndeclaredIterator


def _alternation(loader: DataLoader[Any], feed: LoaderFeed) -> Alternation | None:
    """The comparison of a loader, if there is one to begin or to go on with."""
    if not feed.to_compare:
        return None
    if feed.alternation is None:
        why = _unfit(loader, feed)
        rounds = why or plan(
            feed.services.config.versus_batches,
            length=_length(loader),
            reserve=_reserve(loader),
            workers=loader.num_workers,
        )
        if isinstance(rounds, str):
            _end(feed, rounds)
            return None
        feed.alternation = Alternation(rounds)
    return feed.alternation


def _unfit(loader: DataLoader[Any], feed: LoaderFeed) -> str:
    """Why a loader's declaration forbids a comparison, as half a sentence; empty when it does not."""
    lazy = draws_lazily(index_sampler_of(loader))
    if is_iterable(loader):
        return "two sets of workers would each read shards of its iterable dataset"
    if loader.num_workers and not loader.in_order:
        return "with `in_order=False` its batches have no order in which two could take turns"
    if num_free(index_sampler_of(loader)) == 0:
        return f"{lazy}, and would be drawn from at other times"
    if loader.num_workers and feed.services.config.workers == 0:
        return "`--workers 0` makes its batches in the training process"
    choice = feed.choose(loader)
    return "" if choice.candidate else _unfit_tier(choice.tier, choice.reason)


def _unfit_tier(tier: Tier, reason: str) -> str:
    if tier is Tier.ELASTIC:
        return ""
    if tier is Tier.PINNED:
        return f"each of two sets of workers would have made a part of what its samples depend on: {reason}"
    return f"it is served as torch serves it: {reason}"


def _length(loader: DataLoader[Any]) -> int | None:
    length = length_of(index_sampler_of(loader))
    return length if length >= 0 else None


def _reserve(loader: DataLoader[Any]) -> int:
    """The last items of an iteration, which must be drawn when torch draws them: by the engine, outside of rounds."""
    return 0 if num_free(index_sampler_of(loader)) is None else torchs_lookahead(loader) + 1


def _end(feed: LoaderFeed, reason: str = "") -> None:
    """Says how the comparison of a loader ended; there will be no further one."""
    feed.to_compare = False
    pairs = feed.alternation.pairs if feed.alternation is not None else []
    found = versus.compare(pairs)
    missing = f"not compared with plain python: {reason or versus.shortfall(pairs)}"
    feed.listener.comparison_ended(reason, versus.describe(found) if found else missing)


class ComparedIterator(FedIterator):
    """As its base class, with rounds of batches that torch's own iterator makes."""

    def __init__(self, loader: DataLoader[Any], feed: LoaderFeed, pace: Pace, cursor: Cursor | None = None) -> None:
        self._rival: Rival | None = None
        self._walk: Walk | None = None
        super().__init__(loader, feed, pace, cursor)

    def _start(self, cursor: Cursor | None) -> None:
        self._challenge()
        try:
            super()._start(cursor)
        except WorkerStartError:
            self._dismiss_rival()
            raise
        self._show_pace()

    def _challenge(self) -> None:
        """Torch's workers start where the program asks for an iterator, as they would without us."""
        alternation = _alternation(self._loader, self._feed)
        self._walk = None
        if alternation is None:
            self._dismiss_rival()
            return
        started = self._rival is None
        try:
            if self._rival is None:
                self._rival = Rival(self._loader, self._base_seed, pin_memory=self._pin_memory)
            else:
                self._rival.restart()
        except Exception as error:  # what torch refuses would be refused without us as well: the program may not care
            self._stop(f"torch's own loader could not be started ({error!r})")
            return
        context: Any = self._loader.multiprocessing_context or torch.multiprocessing
        cold = started and self._num_workers > 0 and context.get_start_method() != "fork"
        length = _length(self._loader)
        last = None if length is None else length - _reserve(self._loader)
        self._walk = Walk(alternation, last=last, cold=cold)
        self._begin_rounds()

    def _begin_rounds(self) -> None:
        """The first round begins with the first item."""
        self._next_turn()

    # -- the step ----------------------------------------------------------------------------------------------------

    @property
    def _turn(self) -> Turn | None:
        """The round under way."""
        return self._walk.turn if self._walk is not None else None

    @property
    def _is_plain(self) -> bool:
        turn = self._turn
        return turn is not None and turn.side is Side.PLAIN

    def __next__(self) -> Any:
        if self._walk is not None and not (self._ended or self._cut_off) and self._owner.is_here:
            self._turn_over()
        if self._is_plain:
            return self._next_of_rival()
        samples = self._feed.counters.samples
        batch = super().__next__()
        self._note(self._feed.counters.samples - samples, self._feed.num_workers)
        return batch

    def _next_of_rival(self) -> Any:
        """A batch of torch's; no part of what a report says of ours, to which such a round is a pause."""
        rival = self._rival
        assert rival is not None
        try:
            work, batch = rival.next()
        except StopIteration:  # the order has ended within the round
            self._go_on_alone()
            return super().__next__()
        self._order.advance(self._order.drawn - rival.num_open)
        self._num_yielded += 1
        self._note(work.num_samples(batched=self._auto_collation), rival.num_workers)
        return batch

    def _note(self, samples: int, workers: int) -> None:
        """A batch was delivered, as the program sees it: with all that we do inside of ``next``."""
        if self._walk is not None:
            self._walk.delivered(time.monotonic(), samples, workers)
            self._show_pace()
            self._feed.listener.tick()

    def _show_pace(self) -> None:
        """The policy learns from the steady part of our rounds; the rest is a pause to it."""
        if self._engine is not None:
            self._engine.show_pace(self._walk is None or (self._walk.steady and not self._is_plain))

    # -- turns -------------------------------------------------------------------------------------------------------

    def _turn_over(self) -> None:
        """Has the other side take over where a round is over."""
        turn = self._turn
        why = "" if self._is_plain else self._obstacle()
        if why:
            self._stop(why)
        elif turn is not None and self._order.drawn == turn.end and not self._num_open:
            self._next_turn()

    @property
    def _num_open(self) -> int:
        """Items drawn and not delivered, by either side."""
        made = self._engine.num_open if self._engine is not None else 0
        ahead = self._pinner is not None and self._pinner.pending
        return made + ahead + (self._rival.num_open if self._rival is not None else 0)

    def _obstacle(self) -> str:
        """Why the comparison cannot go on, as half a sentence; empty when it can."""
        choice = self._feed.choice
        if choice is None or choice.candidate:
            return ""
        in_process = "its batches are made in the training process" if self._in_process is not None else ""
        return _unfit_tier(choice.tier, choice.reason) or in_process

    def _next_turn(self) -> None:
        walk, rival = self._walk, self._rival
        assert walk is not None
        assert rival is not None
        was_plain = self._is_plain
        num_open = self._num_open
        pair = walk.next_turn(self._order.drawn - num_open, num_open)
        if pair is not None:
            self._feed.listener.compared(pair)
        self._order.limit = walk.turn.end if walk.turn is not None else None
        if self._is_plain:
            self._leave_ours()
            rival.begin(self._draw)
        elif was_plain and self._engine is not None:
            self._engine.skip_to(self._order.drawn)
        self._show_pace()
        if walk.turn is None and walk.alternation.over:
            self._go_on_alone()
            self._dismiss_rival()
            _end(self._feed)

    def _leave_ours(self) -> None:
        """The last step over a batch of ours is over."""
        self._leave_steps()
        self._pace.left(self._feed)

    def _stop(self, why: str) -> None:
        """No more comparing, in the middle of it or before."""
        self._go_on_alone()
        self._dismiss_rival()
        _end(self._feed, why)

    def _go_on_alone(self) -> None:
        """The rest of the iteration is ours."""
        if self._is_plain and self._engine is not None:
            self._engine.skip_to(self._order.drawn)
        self._order.limit = None
        self._walk = None
        self._show_pace()

    # -- ends --------------------------------------------------------------------------------------------------------

    def _dismiss_rival(self) -> None:
        rival, self._rival = self._rival, None
        if rival is not None:
            rival.close()

    def _let_go(self) -> None:
        self._walk = None
        self._dismiss_rival()
        super()._let_go()


class ComparedUndeclared(ComparedIterator, UndeclaredIterator):
    """The same for a loader that declares no workers, once it is served by ours: torch makes its batches here."""

    def _begin_rounds(self) -> None:
        self._begun = False

    def _turn_over(self) -> None:
        super()._turn_over()
        if not self._begun and self._walk is not None and self._engine is not None and not self._twin:
            self._begun = True  # the trial is over
            self._next_turn()
