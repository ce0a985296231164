# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (loaders and their batches are the program's)
"""Alternates torch's own workers with ours, so that a run measures what the program gains from stoker.

:mod:`stoker.feed.order.alternation` decides which side makes which batch, and what counts. Both sides draw from one
order: the program sees each batch once, in its order.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.core.errors import WorkerStartError
from stoker.feed.loader.loader_feed import LoaderFeed, Pace, torchs_lookahead
from stoker.feed.loader.rival import Rival
from stoker.feed.loader.supply import Supply
from stoker.feed.order.alternation import Alternation, BatchSource, Walk, plan
from stoker.feed.order.cursor import length_of
from stoker.feed.order.sampling import Order, draws_lazily, num_free
from stoker.feed.program import Tier
from stoker.feed.state.life import NOT_WANTED, Phase
from stoker.feed.torch_private import index_sampler_of, is_iterable
from stoker.records import versus


def _alternation(loader: DataLoader[Any], feed: LoaderFeed) -> Alternation | None:
    """A loader's comparison, begun if necessary; None if there is none."""
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
        return f"{lazy}, and a comparison would draw from it at other times"
    if loader.num_workers and feed.services.config.workers == 0:
        return NOT_WANTED
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
    """Number of last items that must be drawn exactly when torch draws them: by the engine, outside of rounds."""
    return 0 if num_free(index_sampler_of(loader)) is None else torchs_lookahead(loader) + 1


def _end(feed: LoaderFeed, reason: str = "") -> None:
    """Ends the comparison of a loader for good and reports how it ended."""
    feed.to_compare = False
    pairs = feed.alternation.pairs if feed.alternation is not None else []
    found = versus.compare(pairs)
    missing = f"not compared with plain python: {reason or versus.shortfall(pairs)}"
    feed.listener.comparison_ended(reason, versus.describe(found) if found else missing)


class Turns:
    """Switches a compared loader between torch's own iterator and our supply.

    Args:
        feed: stoker's state for the loader.
        supply: our side.
        pace: notified when the last step over one of our batches ends with its round.
        pins: whether batches are pinned.
    """

    def __init__(self, feed: LoaderFeed, supply: Supply, pace: Pace, *, pins: bool) -> None:
        self._feed = feed
        self._supply = supply
        self._pace = pace
        self._pins = pins
        self._rival: Rival | None = None
        self._walk: Walk | None = None
        self._has_begun = False
        self._samples = 0

    @staticmethod
    def of(loader: DataLoader[Any], feed: LoaderFeed, supply: Supply, pace: Pace, *, pins: bool) -> Turns | None:
        """The turns of a loader; None if it is not compared, or no longer."""
        return Turns(feed, supply, pace, pins=pins) if _alternation(loader, feed) is not None else None

    def begin(self, loader: DataLoader[Any], order: Order, base_seed: int) -> None:
        """Begins the next iteration, on both sides."""
        self._order = order
        self._challenge(loader, base_seed)
        try:
            self._supply.begin(loader, order, base_seed, None)
        except WorkerStartError:
            self._dismiss_rival()
            raise
        self._show_pace()

    def _challenge(self, loader: DataLoader[Any], base_seed: int) -> None:
        """Starts torch's workers when the program asks for an iterator, as torch would without us."""
        alternation = _alternation(loader, self._feed)
        self._walk = None
        if alternation is None:
            self._dismiss_rival()
            return
        started = self._rival is None
        try:
            if self._rival is None:
                self._rival = Rival(loader, base_seed, pin_memory=self._pins)
            else:
                self._rival.restart()
        except Exception as error:  # torch would raise it without us too, and the program may not care
            self._stop(f"torch's own loader could not be started ({error!r})")
            return
        context: Any = loader.multiprocessing_context or torch.multiprocessing
        cold = started and loader.num_workers > 0 and context.get_start_method() != "fork"
        length = _length(loader)
        last = None if length is None else length - _reserve(loader)
        self._walk = Walk(alternation, last=last, cold=cold)
        self._has_begun = loader.num_workers > 0
        if self._has_begun:  # the first round begins at the first item; without workers, when the trial is over
            self._next_turn()

    # -- the step ----------------------------------------------------------------------------------------------------

    @property
    def _is_plain(self) -> bool:
        turn = self._walk.turn if self._walk is not None else None
        return turn is not None and turn.side is BatchSource.PLAIN

    def next(self) -> tuple[Any] | None:
        """A batch made by torch; None if the next one is ours, then ``delivered`` follows.

        Reports on our side leave torch's batches out and treat their round as a pause.
        """
        self._turn_over()
        rival = self._rival
        if self._is_plain and rival is not None:
            try:
                work, batch = rival.next()
            except StopIteration:  # the order has ended within the round
                self._go_on_alone()
            else:
                self._order.advance(self._order.drawn - rival.num_open)
                self._note(work.num_samples(batched=self._supply.is_batched), rival.num_workers)
                return (batch,)
        self._samples = self._feed.counters.samples
        return None

    def delivered(self) -> None:
        """The program gets one of our batches."""
        self._note(self._feed.counters.samples - self._samples, self._feed.num_workers)

    def _note(self, samples: int, workers: int) -> None:
        """Records a delivery as the program sees it, with all our work inside ``next``."""
        if self._walk is not None:
            self._walk.delivered(time.monotonic(), samples, workers)
            self._show_pace()
            self._feed.listener.tick()

    def _show_pace(self) -> None:
        """Lets the policy learn from the steady part of our rounds; the rest is a pause to it."""
        if self._supply.engine is not None:
            self._supply.engine.show_pace(self._walk is None or (self._walk.steady and not self._is_plain))

    # -- turns -------------------------------------------------------------------------------------------------------

    def _turn_over(self) -> None:
        """Hands over to the other side at the end of a round."""
        walk = self._walk
        if walk is None:
            return
        if not self._is_plain and (why := self._obstacle()):
            self._stop(why)
        elif walk.turn is not None and self._order.drawn == walk.turn.end and not self._num_open:
            self._next_turn()
        elif not self._has_begun and self._supply.life.phase is Phase.FEEDING:
            self._has_begun = True
            self._next_turn()

    @property
    def _num_open(self) -> int:
        """Items drawn but not delivered, on both sides."""
        return self._supply.num_open + (self._rival.num_open if self._rival is not None else 0)

    def _obstacle(self) -> str:
        """Why the comparison cannot continue, as half a sentence; empty when it can."""
        choice = self._feed.choice
        if choice is None or choice.candidate:
            return ""
        here = self._supply.life.phase is Phase.IN_PROCESS
        in_process = "its batches are made in the training process" if here else ""
        return _unfit_tier(choice.tier, choice.reason) or in_process

    def _next_turn(self) -> None:
        walk, rival, order, feed = self._walk, self._rival, self._order, self._feed
        assert walk is not None
        assert rival is not None
        was_plain, num_open = self._is_plain, self._num_open
        pair = walk.next_turn(order.drawn - num_open, num_open)
        if pair is not None:
            feed.listener.compared(pair)
        order.limit = walk.turn.end if walk.turn is not None else None
        if self._is_plain:
            if feed.cutter is not None:
                feed.cutter.left()
            self._pace.left(feed)  # the last step over one of our batches has ended
            rival.begin(self._supply.draw)
        elif was_plain:
            self._skip()
        self._show_pace()
        if walk.turn is None and walk.alternation.over:
            self._stop()

    def _skip(self) -> None:
        """Moves our side past the items that torch has delivered."""
        if self._supply.engine is not None:
            self._supply.engine.skip_to(self._order.drawn)

    def _stop(self, why: str = "") -> None:
        """Ends the comparison: it is complete, or cannot continue."""
        self._go_on_alone()
        self._dismiss_rival()
        _end(self._feed, why)

    def _go_on_alone(self) -> None:
        """Leaves the rest of the iteration to our side."""
        if self._is_plain:
            self._skip()
        self._order.limit = None
        self._walk = None
        self._show_pace()

    # -- ends --------------------------------------------------------------------------------------------------------

    def _dismiss_rival(self) -> None:
        rival, self._rival = self._rival, None
        if rival is not None:
            rival.close()

    def end(self) -> None:
        """Ends torch's workers, when the iterator releases its own."""
        self._walk = None
        self._dismiss_rival()
