# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch's private iterator, of which this is a subclass, is untyped)
"""Loaders that declare no workers: served in the training process, and moved to data workers where that is provable.

Such a loader runs the user's code inside the training process, so anything the program does may matter to it and the
other way round. It is moved only after a trial: the first batches are made here, as torch makes them, and must leave
everything that the dataset refers to unchanged, draw no random numbers, consist of plain tensors and containers, and
cost enough to be worth it. Then one batch is made in both places and compared. While workers make the rest, what the
dataset refers to is compared before every delivery, and now and then a batch is made here again.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader

from stoker.core.errors import DifferentResultError
from stoker.core.mishaps import is_own
from stoker.feed import streams
from stoker.feed.loader.inline import InlineMaker
from stoker.feed.loader.iterator import FedIterator, InProcess, Pace
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.feed.order.cursor import Cursor, get_state, set_state
from stoker.feed.program import Iteration, Program, Tier, WorkItem
from stoker.feed.purity import tiers
from stoker.feed.shell.engine import Engine
from stoker.feed.shell.outcome import FailedItem, IterationEnd
from stoker.feed.state.trial import Trial
from stoker.feed.torch_private import DatasetKind
from stoker.feed.transport.pack import digest, is_plain, pack

_TRIAL = "trial of a loader without workers"
_STAYS = "its batches are made in the training process"
RECHECK_EVERY = 97
"""Every so many batches one is made again here and compared; a prime, so as not to meet a rhythm of the program's."""


def state_of(program: Program, random: str) -> tuple[object, ...]:
    """What the batches of a loader without workers may depend on, as far as it can be seen; contains None if not.

    Under ``sample`` random generators that the dataset holds get a seed for each sample, and their state is no part.
    """
    seen = tiers.watch_survey(program, draws=random == "keep").fingerprint
    return seen, tiers.ambient_state(), threading.get_ident()


class UndeclaredIterator(FedIterator):
    """Serves one iteration of a loader with ``num_workers=0``."""

    def __init__(self, loader: DataLoader[Any], feed: LoaderFeed, pace: Pace, cursor: Cursor | None = None) -> None:
        self._trial: Trial | None = None
        self._watched: tuple[object, ...] = ()
        self._twin = b""
        """Digest of the batch that is made in both places."""
        self._next_recheck = RECHECK_EVERY
        super().__init__(loader, feed, pace, cursor)

    def _start(self, cursor: Cursor | None) -> None:
        loader, feed = self._loader, self._feed
        assert feed.choice is not None
        self._settled = True
        self._fetcher = self._begin_fetching(cursor)
        feed.begin_iteration(cursor)
        if feed.choice.tier is Tier.ELASTIC and not feed.choice.candidate:
            self._watched = self._state()
            self._engine = feed.start_engine(loader, self._iteration(), self._order, first=self.yielded)
            return
        self._in_process = InProcess(self._make_watched, [], self._draw, self.yielded)
        if feed.choice.candidate:
            self._trial = feed.effort.attempt(_TRIAL, self._begin_trial, None, then=_STAYS)

    def _begin_trial(self) -> Trial:
        feed = self._feed
        watch_s = self._look()
        return Trial(
            length=_length(self._loader),
            keeps_random=feed.services.config.random == "keep",
            free_bytes=feed.memory.started_bytes,
            watch_s=watch_s,
        )

    def _look(self) -> float:
        """Looks at what its batches may depend on, for the trial; the seconds that this took."""
        begun = time.monotonic()
        self._watched = state_of(self._program, self._feed.services.config.random)
        return time.monotonic() - begun

    def _iteration(self) -> Iteration:
        return self._feed.iteration(self._base_seed, Tier.ELASTIC)

    def _begin_fetching(self, cursor: Cursor | None) -> Any:
        kind, auto = self._dataset_kind, self._auto_collation
        if not self._program.is_iterable:
            return DatasetKind.create_fetcher(kind, self._dataset, auto, self._collate_fn, self._drop_last)
        state = get_state(torch.default_generator) if cursor is None or cursor.generator is None else cursor.generator
        self._order.note_stream(state)
        states = streams.save()
        set_state(torch.default_generator, state)
        fetcher = DatasetKind.create_fetcher(kind, self._dataset, auto, self._collate_fn, self._drop_last)
        if cursor is not None:  # a stream can only be gone on with by reading it again from its start
            for _, work in self._order.stream_items(range(cursor.next_item)):
                fetcher.fetch(work.indices)
            streams.restore(states)
        return fetcher

    def _make(self, seq: int, work: WorkItem) -> Any:
        """A batch as torch makes it without workers."""
        if not self._program.is_iterable:
            return self._pin(self._fetcher.fetch(work.good))
        try:
            return self._pin(self._fetcher.fetch(work.good))
        except StopIteration:
            raise IterationEnd from None

    def _make_watched(self, seq: int, work: WorkItem) -> Any:
        """The same under the eyes of a trial, which does not see the draws of the sampler: those stay here anyway."""
        trial = self._trial
        if trial is None:
            return self._make(seq, work)
        attempt = self._feed.effort.attempt
        picture = attempt(_TRIAL, streams.mark, None, then=_STAYS)
        begun = time.monotonic()
        batch = self._make(seq, work)
        seconds = time.monotonic() - begun

        def note() -> bool:
            assert picture is not None
            drew = streams.drawn_since(picture)
            trial.timed(seconds)
            if not trial.is_quick:
                before, watch_s = self._watched, self._look()
                trial.seen(
                    batch_bytes=_bytes_of(batch),
                    drew=drew,
                    is_plain=is_plain(batch),
                    changed=self._watched != before,
                    watch_s=watch_s,
                )
            return True

        if not attempt(_TRIAL, note, False, then=_STAYS):
            trial.give_up("stoker failed to look at its batches")
        return batch

    def _next_batch(self) -> Any:
        if self._trial is not None:
            return self._try()
        if self._twin:
            self._compare_twin()
        elif self._engine is not None and self._state() != self._watched:
            self._come_back("what the dataset refers to has changed; from here on batches are made in this process")
        if self._in_process is not None:
            return self._counted(self._in_process.next)
        assert self._engine is not None
        if self.yielded >= self._next_recheck:
            return self._recheck()
        self._engine.fill()  # at the first next, not inside iter(), torch draws without workers
        return self._take()

    # -- the trial ---------------------------------------------------------------------------------------------------

    def _try(self) -> Any:
        assert self._trial is not None
        assert self._in_process is not None
        trial = self._trial
        if trial.over:
            self._trial = None
            failed = "stoker failed to judge its batches"
            why = self._feed.effort.attempt(_TRIAL, trial.verdict, failed, then=_STAYS)
            if not why:
                return self._make_twin()
            self._feed.refuse(self._loader, why)
            return self._counted(self._in_process.next)
        return self._counted(self._in_process.next)

    def _make_twin(self) -> Any:
        """The first batch that workers make is made here as well."""
        self._watched = self._state()
        try:
            self._engine = self._feed.start_engine(self._loader, self._iteration(), self._order, first=self.yielded)
        except Exception as error:
            if not is_own(error):
                raise
            self._feed.effort.failed("start of data workers", error, _STAYS)
            self._feed.refuse(self._loader, "stoker failed to start data workers")
            assert self._in_process is not None
            return self._counted(self._in_process.next)
        self._in_process = None
        self._engine.fill()
        work = self._engine.first_work()
        if work is None:
            raise IterationEnd
        batch = self._counted(lambda: (work, self._make(self.yielded, work)))
        self._twin = self._digest(batch)
        return batch

    def _compare_twin(self) -> None:
        twin, self._twin = self._twin, b""
        assert self._engine is not None
        same = self._verdict()
        result = self._payload(refill=False)
        drew_allowed = self._feed.services.config.random == "sample"
        differs = isinstance(result, FailedItem) or self._digest(self._engine.build(result)) != twin
        if same and not drew_allowed and differs:
            self._feed.refuse(self._loader, "its batches come out different in a data worker")
            same = False
        if not same:
            self._come_back("")

    def _come_back(self, notice: str) -> None:
        first = self.yielded
        works = self._leave_engine()
        if notice:
            self._feed.listener.notice(notice)
        self._in_process = InProcess(self._make, works, self._draw, first)

    # -- while moved -------------------------------------------------------------------------------------------------

    def _recheck(self) -> Any:
        assert self._engine is not None
        self._next_recheck = self.yielded + RECHECK_EVERY
        work = self._engine.first_work()
        batch = self._take()
        if work is None:
            return batch
        if self._feed.services.config.random == "sample":
            here = InlineMaker(self._program, self._iteration()).make(self.yielded, work)
        else:
            here = self._fetcher.fetch(work.good)
        if self._differ(here, batch):
            first = max(0, self.yielded - RECHECK_EVERY)
            raise DifferentResultError(
                f"batch {self.yielded} made in a data worker differs from the same batch made in the training process; "
                f"batches {first} to {self.yielded} of this iteration may be affected. Run with --tier pinned, or "
                "declare num_workers=1 or more if the difference does not matter"
            )
        return batch

    def _differ(self, here: Any, moved: Any) -> bool:
        """Whether a batch made here is another than the one that a worker made, as far as that can be told."""
        return self._feed.effort.attempt(
            "comparison of batches",
            lambda: digest(here) != digest(self._feed.batch_of(moved)),
            False,
            then="batches made in data workers are not compared any more",
        )

    def _digest(self, item: Any) -> bytes:
        """Equal for equal batches; where that can't be told, of no other batch."""
        return self._feed.effort.attempt(
            "comparison of batches", lambda: digest(self._feed.batch_of(item)), None, then=_STAYS
        ) or os.urandom(16)

    def _state(self) -> tuple[object, ...]:
        """What its batches may depend on; where that can't be told, equal to nothing."""
        return self._feed.effort.attempt(
            "watch over a dataset",
            lambda: state_of(self._program, self._feed.services.config.random),
            None,
            then=_STAYS,
        ) or (object(),)

    def _raise(self, failed: FailedItem) -> NoReturn:
        """Torch raises the bare exception where there are no workers, so the batch is made again here."""
        self._fetcher.fetch(failed.work.good)
        super()._raise(failed)

    def _dismiss(self, engine: Engine) -> None:
        engine.crew.close()

    def _finish(self) -> None:
        self._close_trial()
        super()._finish()

    def _close_trial(self) -> None:
        if self._trial is not None:
            self._feed.refuse(self._loader, "its iterations are too short to try", keep_trying=True)
            self._trial = None


def _bytes_of(batch: Any) -> int:
    """Memory of a batch's tensors and arrays; 0 for what does not pickle, which stays here for other reasons."""
    try:
        return pack(batch).payload_bytes
    except Exception:
        return 0


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
