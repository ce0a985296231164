"""The life of one iteration as its program sees it: who makes the next batch, data workers or the training process.

What the workers do meanwhile is decided in :mod:`stoker.feed.state.machine`.
"""

from __future__ import annotations

import enum

from stoker.core.errors import DifferentResultError, WorkerStartError
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.instructions import Instruction
from stoker.feed.state.trial import Trial

RECHECK_EVERY = 97
"""Every so many batches, one is remade here and compared; a prime, to keep out of step with the program's periods."""
TRIAL = "trial of a loader without workers"
_CHANGED = "what the dataset refers to has changed; from here on batches are made in this process"
NOT_WANTED = "`--workers 0` makes its batches in the training process"
_DISMISS, _MAKE, _TAKE = do.Dismiss(), do.MakeHere(), do.Take()


class Phase(enum.Enum):
    """Phase of an iteration."""

    OPENING = "opening"
    """Its workers are being started."""
    PROBING = "probing"
    """They work while its samples are compared: the tier is not settled."""
    FEEDING = "feeding"
    TRIAL = "trial"
    """Its loader declares no workers; first batches made in the training process show whether workers would pay."""
    IN_PROCESS = "in process"
    """The rest of it is made in the training process."""
    DRAINING = "draining"
    """The program has left it; workers still hold leases of it."""
    ENDED = "ended"
    """No lease of it is left."""


class Life:
    """One iteration.

    Args:
        declared: workers that the loader declares.
        elastic: any number of workers may make its batches, as far as known.
        candidate: the samples have yet to prove that.
        wants_workers: workers may make elastic batches; False for ``--workers 0``.
        keeps_random: samples draw from the program's random streams, not each from its own seed.
    """

    def __init__(
        self, *, declared: int, elastic: bool, candidate: bool, wants_workers: bool = True, keeps_random: bool = True
    ) -> None:
        self.phase = Phase.OPENING
        self.takes = False
        """Workers make the next batch, and it may be taken without another event."""
        self.trial: Trial | None = None
        self._declared = declared
        self._elastic = elastic
        self._candidate = candidate
        self._wants_workers = wants_workers
        self._keeps_random = keeps_random
        self._yielded = 0
        self._has_asked = False
        self._next_recheck = RECHECK_EVERY

    def on(self, event: ev.LifeEvent) -> list[Instruction]:
        """Handles an event; returns the instructions, in order. The last of them may cause another event."""
        return getattr(self, _HANDLERS[type(event)])(event)

    def _on_begun(self, event: ev.Begun) -> list[Instruction]:
        if self._candidate and self._declared:  # `wants_workers` matters only once the tier is settled
            self.phase = Phase.PROBING
            return [do.Open()]
        if self._elastic and not self._wants_workers:
            self.phase = Phase.IN_PROCESS
            return [*([do.Stay(NOT_WANTED)] if self._candidate else []), do.OpenHere()]
        if self._candidate:
            return [do.BeginTrial()]
        if not (self._elastic or self._declared):
            self.phase = Phase.IN_PROCESS
            return [do.OpenHere()]
        self.phase = Phase.FEEDING
        return [do.Open()] if self._declared else [do.Start()]

    def _on_next(self, event: ev.Next) -> list[Instruction]:
        self._yielded = event.yielded
        if self.phase is Phase.IN_PROCESS:
            return [_MAKE]
        if self.phase is Phase.TRIAL:
            return self._try()
        if self.phase is Phase.PROBING:
            if self._has_asked or not self._declared:
                return [do.Settle()]
            self._has_asked = True
            return [do.AwaitFirst()]
        return self._feed() if self._declared else [do.Look()]

    def _feed(self) -> list[Instruction]:
        """Takes the next batch from workers."""
        self.phase = Phase.FEEDING
        if self._declared:
            self.takes = self._yielded > 0
            return [_DISMISS, _TAKE] if self._yielded == 1 else [_TAKE]
        if self._yielded < self._next_recheck:
            return [_TAKE]
        self._next_recheck = self._yielded + RECHECK_EVERY
        return [do.Take(repeat=True)]

    def _go_here(self, *before: Instruction) -> list[Instruction]:
        """Makes the rest of the iteration in the training process."""
        self.phase, self.takes = Phase.IN_PROCESS, False
        return [*before, _MAKE]

    def _on_stranded(self, event: ev.Stranded) -> list[Instruction]:
        """Raises if only pinned workers could make the rest, or while it is unknown whether they must."""
        probes = self.phase is Phase.PROBING and not self._declared
        if not (probes or (self.phase is Phase.FEEDING and self._elastic)):
            return [do.Raise(event.error)]
        text = f"{event.error.args[0]}; the rest of the iteration is made in the training process"
        return self._go_here(do.Notice(text), do.Leave())

    def _on_over(self, event: ev.Over) -> list[Instruction]:
        in_trial, self.phase, self.takes = self.phase is Phase.TRIAL, Phase.ENDED, False
        return [do.Stay("its iterations are too short to try", keep_trying=True)] if in_trial and event.seen else []

    # -- the tier ----------------------------------------------------------------------------------------------------

    def _on_first_made(self, event: ev.FirstMade) -> list[Instruction]:
        return [_TAKE] if event.is_safe else [do.Settle()]

    def _on_settled(self, event: ev.Settled) -> list[Instruction]:
        self._elastic = event.elastic
        if not self._declared:
            return [do.CompareTwin()]
        if not event.elastic:
            return [do.GoPinned(), *self._feed()]
        return self._feed() if self._wants_workers else self._go_here(do.Leave())

    # -- loaders without workers -------------------------------------------------------------------------------------

    def _on_trial_begun(self, event: ev.TrialBegun) -> list[Instruction]:
        length, free_bytes, watch_s = event.length, event.free_bytes, event.watch_s
        try:
            self.trial = Trial(length=length, keeps_random=self._keeps_random, free_bytes=free_bytes, watch_s=watch_s)
        except Exception as error:
            self.phase = Phase.IN_PROCESS
            return [do.Failed(TRIAL, error)]
        self.phase = Phase.TRIAL
        return []

    def _on_made_here(self, event: ev.MadeHere) -> list[Instruction]:
        if self.trial is None:
            return []
        self.trial.timed(event.seconds)
        return [] if self.trial.is_quick else [do.Examine()]

    def _on_examined(self, event: ev.Examined) -> list[Instruction]:
        if self.trial is not None:
            self.trial.seen(
                batch_bytes=event.batch_bytes, drew=event.drew, is_plain=event.is_plain, changed=event.changed,
                watch_s=event.watch_s,
            )  # fmt: skip
        return []

    def _on_not_examined(self, event: ev.NotExamined) -> list[Instruction]:
        if self.trial is not None:
            self.trial.give_up("stoker failed to look at its batches")
        else:
            self.phase = Phase.IN_PROCESS
        return []

    def _try(self) -> list[Instruction]:
        """Once the trial is over, keeps the loader here, or starts workers and makes their first batch here as well."""
        if self.trial is None:  # workers could not be started, and the program continued after the error
            return self._go_here()
        try:
            if not self.trial.over:
                return [_MAKE]
            why = self.trial.verdict()
        except Exception as error:
            why, failed = "stoker failed to judge its batches", [do.Failed(TRIAL, error)]
        else:
            failed = []
        self.trial = None
        return self._go_here(*failed, do.Stay(why)) if why else [do.Start()]

    def _on_started(self, event: ev.Started) -> list[Instruction]:
        if self.phase is not Phase.TRIAL:
            return []
        self.phase = Phase.PROBING
        return [do.MakeTwin()]

    def _on_not_started(self, event: ev.NotStarted) -> list[Instruction]:
        if self.phase is not Phase.TRIAL:
            return [do.Raise(event.error)]
        if isinstance(event.error, WorkerStartError):
            return self._go_here(do.Notice(str(event.error.args[0])), do.Stay("no data worker can be started"))
        failed = do.Failed("start of data workers", event.error)
        return self._go_here(failed, do.Stay("stoker failed to start data workers"))

    def _on_twin_compared(self, event: ev.TwinCompared) -> list[Instruction]:
        if not self._elastic:
            return self._go_here(do.Leave())
        if event.differs and self._keeps_random:
            return self._go_here(do.Stay("its batches come out different in a data worker"), do.Leave())
        return self._feed()

    def _on_looked(self, event: ev.Looked) -> list[Instruction]:
        return self._go_here(do.Leave(), do.Notice(_CHANGED)) if event.changed else self._feed()

    def _on_repeated(self, event: ev.Repeated) -> list[Instruction]:
        if not event.differs:
            return []
        last, first = self._yielded, max(0, self._yielded - RECHECK_EVERY)
        text = (
            f"batch {last} made in a data worker differs from the same batch made in the training process; batches "
            f"{first} to {last} of this iteration may be affected. Run with --tier pinned, or declare num_workers=1 or "
            "more if the difference does not matter"
        )
        return [do.Raise(DifferentResultError(text))]


_HANDLERS = {event: "_on_" + ev.snake_case(event.__name__) for event in ev.LifeEvent.__subclasses__()}
