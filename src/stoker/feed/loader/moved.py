# (torch's fetchers are untyped)
"""Loaders that declare no workers: served in the training process, and moved to data workers where that is provable.

Such a loader runs the user's code inside the training process, so the loader and the rest of the program may depend on
each other. It is moved only after a trial: the first batches are made here, as torch makes them, and must leave
everything that the dataset refers to unchanged, draw no random numbers, consist of plain tensors and containers, and
cost enough to be worth it. Then one batch is made in both places and compared. While workers make the rest, what the
dataset refers to is compared before every delivery, and now and then a batch is made here again.

:mod:`stoker.feed.state.life` decides; this module gathers the evidence.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.feed import streams
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.feed.order.cursor import Cursor, get_state, set_state
from stoker.feed.order.sampling import Order
from stoker.feed.program import Program, WorkItem
from stoker.feed.purity import tiers
from stoker.feed.shell.outcome import IterationEnd
from stoker.feed.state import events as ev
from stoker.feed.state.life import TRIAL, Life
from stoker.feed.torch_private import new_fetcher
from stoker.feed.transport.pack import digest, is_plain, pack

STAYS = "its batches are made in the training process"


class Undeclared:
    """One iteration of a loader without workers, as torch makes it, and what its batches may depend on.

    Args:
        loader: the program's.
        feed: stoker's state for it.
        life: state machine of the iteration.
        order: its items.
        cursor: where to resume.
        pin: copies a batch to pinned memory if the program wants that.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        feed: LoaderFeed,
        life: Life,
        order: Order,
        cursor: Cursor | None,
        pin: Callable[[Any], Any],
    ) -> None:
        self._loader = loader
        self._feed = feed
        self._life = life
        self._pin = pin
        self._program = feed.program_of(loader)
        self._looks = Looks(loader, self._program, keeps_random=feed.services.config.feed.random == "keep")
        self._watched: tuple[object, ...] = ()
        self._twin: bytes | None = None
        """Digest of the batch that is made in both places; None if making it here failed."""
        self._fetcher = self._begin_fetching(order, cursor)

    def _begin_fetching(self, order: Order, cursor: Cursor | None) -> Any:
        if not self._program.is_iterable:
            return new_fetcher(self._loader)
        state = get_state(torch.default_generator) if cursor is None or cursor.generator is None else cursor.generator
        order.note_stream(state)
        states = streams.save()
        set_state(torch.default_generator, state)
        fetcher = new_fetcher(self._loader)
        if cursor is not None:  # a stream can only be resumed by reading it again from its start
            for _, work in order.stream_items(range(cursor.next_item)):
                fetcher.fetch(work.indices)
            streams.restore(states)
        return fetcher

    def fetch(self, work: WorkItem) -> Any:
        """A batch as torch makes it without workers, with torch's bare exceptions."""
        return self._fetcher.fetch(work.good)

    def make(self, seq: int, work: WorkItem) -> Any:
        """A batch for the program, watched by the trial if there is one."""
        return self._make(work) if self._life.trial is None else self._make_watched(work)

    def _make(self, work: WorkItem) -> Any:
        try:
            return self._pin(self._fetcher.fetch(work.good))
        except StopIteration:
            if not self._program.is_iterable:
                raise
            raise IterationEnd from None

    # -- the trial ---------------------------------------------------------------------------------------------------

    def begin_trial(self) -> ev.LifeEvent:
        """Surveys what batches may depend on, before the first one."""
        looks, free_bytes = self._looks, self._feed.memory.started_bytes
        return self._feed.effort.attempt(TRIAL, lambda: looks.begin(free_bytes), ev.NotExamined(), then=STAYS)

    def _make_watched(self, work: WorkItem) -> Any:
        """Makes a batch and examines it; the sampler's draws do not count: they stay here anyway."""
        attempt = self._feed.effort.attempt
        picture = attempt(TRIAL, streams.mark, None, then=STAYS)
        begun = time.monotonic()
        batch = self._make(work)
        seconds = time.monotonic() - begun

        def examine() -> bool:
            assert picture is not None
            drew = streams.drawn_since(picture)
            if self._life.on(ev.MadeHere(seconds)):
                self._life.on(self._looks.examine(batch, drew=drew))
            return True

        if not attempt(TRIAL, examine, False, then=STAYS):
            self._life.on(ev.NotExamined())
        return batch

    # -- while moved -------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Remembers the state of the dataset that workers are about to get."""
        self._watched = self._state()

    @property
    def has_changed(self) -> bool:
        """Whether what batches may depend on has changed since :meth:`watch`."""
        return self._state() != self._watched

    def keep_twin(self, batch: Any) -> None:
        """Remembers the digest of a batch made here that a worker makes as well."""
        self._twin = self._digest(batch)

    def differs_from_twin(self, item: Any | None) -> bool:
        """Whether a worker's batch (None if making it failed) differs from the one made here."""
        twin, self._twin = self._twin, None
        return (item is None) != (twin is None) or (item is not None and self._digest(item) != twin)

    def differ(self, here: Any, moved: Any) -> bool:
        """Whether a batch made here differs from the worker's; False if the comparison fails."""
        return self._feed.effort.attempt(
            "comparison of batches",
            lambda: digest(here) != digest(self._feed.batch_of(moved)),
            False,
            then="batches made in data workers are not compared any more",
        )

    def _digest(self, item: Any) -> bytes:
        """Equal for equal batches; random bytes if there is no digest."""
        return self._feed.effort.attempt(
            "comparison of batches", lambda: digest(self._feed.batch_of(item)), None, then=STAYS
        ) or os.urandom(16)

    def _state(self) -> tuple[object, ...]:
        """What batches may depend on; equal to nothing if the survey fails."""
        return self._feed.effort.attempt("watch over a dataset", self._looks.survey, None, then=STAYS) or (object(),)


class Looks:
    """Surveys for a move, which is optional: if one fails, the loader stays in the training process.

    Args:
        loader: the program's.
        program: what it runs.
        keeps_random: if False, the dataset's random generators get a seed for each sample, and surveys ignore them.
    """

    def __init__(self, loader: DataLoader[Any], program: Program, *, keeps_random: bool) -> None:
        self._loader = loader
        self._program = program
        self._keeps_random = keeps_random
        self._before: tuple[object, ...] = ()

    def survey(self) -> tuple[object, ...]:
        """What batches may depend on; contains None if not all of it can be seen."""
        seen = tiers.watch_survey(self._program, draws=self._keeps_random).fingerprint
        return seen, tiers.ambient_state(), threading.get_ident()

    def begin(self, free_bytes: int) -> ev.TrialBegun:
        """Surveys before the first batch, with this much memory free."""
        begun = time.monotonic()
        self._before = self.survey()
        return ev.TrialBegun(self._length(), free_bytes, time.monotonic() - begun)

    def examine(self, batch: Any, *, drew: bool) -> ev.Examined:
        """Examines a batch, and whether what it may depend on has changed."""
        begun = time.monotonic()
        changed = self.survey() != self._before
        watch_s = time.monotonic() - begun
        return ev.Examined(_bytes_of(batch), drew, is_plain(batch), changed, watch_s)

    def _length(self) -> int | None:
        try:
            return len(self._loader)
        except TypeError:
            return None


def _bytes_of(batch: Any) -> int:
    """Bytes of a batch's tensors and arrays; 0 if it does not pickle, and so stays here anyway."""
    try:
        return pack(batch).payload_bytes
    except Exception:
        return 0
