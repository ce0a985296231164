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
from dataclasses import dataclass, field
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
from stoker.feed.state.probing import why_not_probed
from stoker.feed.torch_private import DatasetKind
from stoker.feed.transport.pack import digest, is_plain, pack

_TRIAL = "trial of a loader without workers"
_STAYS = "its batches are made in the training process"
TRIAL_BATCHES = 3
MIN_BATCH_S = 0.005
"""Batches that take less are not worth a process."""
MIN_REST_S = 0.5
"""Nor is an iteration of which less than this is left."""
MAX_WATCH_FRAC = 0.03
"""Comparing the dataset before each delivery may cost this share of making a batch."""
RECHECK_EVERY = 97
"""Every so many batches one is made again here and compared; a prime, so as not to meet a rhythm of the program's."""


def state_of(program: Program, random: str) -> tuple[object, ...]:
    """What the batches of a loader without workers may depend on, as far as it can be seen; contains None if not.

    Under ``sample`` random generators that the dataset holds get a seed for each sample, and their state is no part.
    """
    seen = tiers.watch_survey(program, draws=random == "keep").fingerprint
    return seen, tiers.ambient_state(), threading.get_ident()


@dataclass
class Trial:
    """Watches the first batches made here."""

    program: Program
    length: int | None
    random: str
    free_bytes: int = 0
    """Memory that could be allocated before the first batch was made; 0 when unknown."""
    batch_bytes: int = 0
    """Of the largest batch made here."""
    make_s: list[float] = field(default_factory=list[float])
    obstacle: str = ""

    def __post_init__(self) -> None:
        self.watch_s = float("inf")
        self._state = self._look()

    def _look(self) -> tuple[object, ...]:
        begun = time.monotonic()
        state = state_of(self.program, self.random)
        self.watch_s = min(self.watch_s, time.monotonic() - begun)  # the least disturbed of several
        return state

    def note(self, batch: Any, seconds: float, *, drew: bool) -> None:
        """A batch was made here in so many seconds."""
        self.make_s.append(seconds)
        if self._is_quick:
            return
        self.batch_bytes = max(self.batch_bytes, _bytes_of(batch))
        if drew and self.random == "keep":
            self.obstacle = (
                "its samples draw from the main random stream (`--random sample` gives each sample a seed instead)"
            )
        elif not is_plain(batch):
            self.obstacle = "its batches hold objects that would not be quite the same after a journey"
        elif self._look() != self._state:
            self.obstacle = "what its dataset refers to changes from batch to batch"

    @property
    def over(self) -> bool:
        """Whether it is known whether to move."""
        return bool(self.obstacle) or self._is_quick or len(self.make_s) >= TRIAL_BATCHES

    @property
    def _is_quick(self) -> bool:
        """Whether already the first batch, which is rarely the quickest, took too little."""
        return bool(self.make_s) and self.make_s[0] < MIN_BATCH_S

    def verdict(self) -> str:
        """Why the loader stays, as half a sentence; empty when it is worth moving."""
        if self.obstacle:
            return self.obstacle
        if why := why_not_probed(
            sample_bytes=self.batch_bytes, batch_bytes=self.batch_bytes, workers=1, free_bytes=self.free_bytes
        ):
            return why
        seconds = sorted(self.make_s)[len(self.make_s) // 2]
        if seconds < MIN_BATCH_S:
            return f"a batch takes {1e3 * seconds:.1f} ms to make: nothing to gain"
        if self.length is not None and (self.length - len(self.make_s)) * seconds < MIN_REST_S:
            return f"an iteration of {self.length} batches of {1e3 * seconds:.0f} ms is too short to gain from it"
        if self.watch_s > MAX_WATCH_FRAC * seconds:
            return f"watching its objects would take {1e3 * self.watch_s:.1f} ms of {1e3 * seconds:.0f} ms a batch"
        return ""


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
            self._trial = feed.effort.attempt(
                _TRIAL,
                lambda: Trial(self._program, _length(loader), feed.services.config.random, feed.memory.started_bytes),
                None,
                then=_STAYS,
            )

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
            trial.note(batch, seconds, drew=streams.drawn_since(picture))
            return True

        if not attempt(_TRIAL, note, False, then=_STAYS):
            trial.obstacle = "stoker failed to look at its batches"
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
