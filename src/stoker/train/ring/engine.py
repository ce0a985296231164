"""What exchanges run on: connections of one rank, the thread that works in order, the watch over the others.

Pure Python and sockets: who holds an :class:`ExchangeEngine` closes it. An error of one exchange is the end of all that
follow, since nobody knows how much of it the other ranks have seen.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stoker.core.errors import ExchangeError
from stoker.core.processes.forking import Owner, at_fork
from stoker.train.ring.links import LinkBrokenError, RingLink
from stoker.train.ring.meeting import RingSockets
from stoker.train.ring.watching.blame import RankFault
from stoker.train.ring.watching.watch import RankWatch

FLAT, WATCH = "flat", "watch"
"""Names of rings: for sums and chains over all ranks, and for the watch."""


@dataclass(eq=False)
class ExchangeJob:
    """One exchange of this rank.

    Attributes:
        name: the caller's, such as a layer's.
        step: of training, for errors.
        work: carries it out; called with its number on this rank, from 1.
        finish: called when it is over, with its error or None.
        over: set after that.
        error: the same.
    """

    name: str
    step: int
    work: Callable[[int], object]
    finish: Callable[[ExchangeError | None], object]
    over: threading.Event = field(default_factory=threading.Event)
    error: ExchangeError | None = None


class ExchangeEngine:
    """Exchanges of one rank, one after another.

    Args:
        sockets: its connections, by ring; ``flat`` and ``watch`` among them. Owned from here on.
        ranks: global numbers by place in the group.
        timeout_s: of the process group.
    """

    def __init__(self, sockets: dict[str, RingSockets], ranks: Sequence[int], timeout_s: float) -> None:
        self._ranks = tuple(ranks)
        self.links = {
            name: RingLink(
                each.following,
                each.preceding,
                place=each.place,
                ranks=[self._ranks[one] for one in each.ranks],
                name=f"stoker-exchange-{name}",
            )
            for name, each in sockets.items()
            if name != WATCH
        }
        watched = sockets[WATCH]
        self.watch = RankWatch(
            (watched.preceding, self._ranks[watched.neighbour(-1)]),
            (watched.following, self._ranks[watched.neighbour(1)]),
            timeout_s,
            self._shut,
        )
        self._rank = self._ranks[watched.ranks[watched.place]]
        self._owner = Owner()
        self._queue: queue.SimpleQueue[ExchangeJob | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self.is_closed = False
        """Whether nothing more is exchanged."""
        self._number = 0
        self._error: ExchangeError | None = None
        self._thread = threading.Thread(target=self._run, name="stoker-exchange", daemon=True)
        self._thread.start()
        at_fork(self._abandon)

    def submit(self, job: ExchangeJob) -> None:
        """Queues an exchange; all ranks do so in one order. A closed engine fails it at once."""
        if self.is_closed:
            _finish(job, _closed(job))
            return
        self._queue.put(job)
        if self.is_closed:  # closed in between: nobody works on it any more
            self._fail_queued()

    def close(self) -> None:
        """Ends the threads and closes the connections; what is not done yet fails. A forked child does nothing."""
        if not self._owner.is_here:
            return
        with self._closing:
            if self.is_closed:
                return
            self.is_closed = True
        self._shut()  # wakes a thread that waits for bytes; of finished exchanges nothing is left to be sent
        self._queue.put(None)
        self._thread.join()
        for link in self.links.values():
            link.close()
        self.watch.close()
        self._fail_queued()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            error = self._error
            if error is None:
                self._number += 1
                error = self._error = self._carry_out(job)
            _finish(job, error)

    def _carry_out(self, job: ExchangeJob) -> ExchangeError | None:
        self.watch.begin(self._number)
        try:
            job.work(self._number)
            return None
        except Exception as error:
            if self.is_closed:
                return _closed(job)
            return self._said(job, self._fault_behind(error))
        finally:
            self.watch.end()

    def fail(self, error: Exception) -> None:
        """An exchange has failed in a further thread: all ranks hear why, and all that waits for bytes ends."""
        if not self.is_closed:
            self._fault_behind(error)
        self._shut()

    def ask(self) -> RankFault | None:
        """Who is lost, where a collective of others has failed; None if nobody knows."""
        return None if self.is_closed else self.watch.ask()

    def _fault_behind(self, error: Exception) -> RankFault:
        if isinstance(error, LinkBrokenError):
            if error.why:
                self.watch.report(RankFault(error.rank, error.why))
            return self.watch.verdict(error.rank)
        # A mistake of ours: the other ranks must not wait for this one.
        fault = RankFault(self._rank, f"failed: {type(error).__name__}: {error}")
        self.watch.report(fault)
        return fault

    def _said(self, job: ExchangeJob, fault: RankFault) -> ExchangeError:
        return ExchangeError(
            f"`rank {fault.rank}` {fault.why}, in the exchange of {job.name!r} at step {job.step}; look at what that "
            "rank printed, and restart the program",
            rank=fault.rank, layer=job.name, step=job.step,
        )  # fmt: skip

    def _shut(self) -> None:
        for link in self.links.values():
            link.shut()

    def _fail_queued(self) -> None:
        while not self._queue.empty():
            job = self._queue.get()
            if job is not None:
                _finish(job, _closed(job))

    def _abandon(self) -> None:
        """Closes the copies of a forked child: a connection ends with the rank, not with its children."""
        if self.is_closed:
            return
        self.is_closed = True
        for link in self.links.values():
            for sock in link.sockets():
                if (fd := sock.detach()) >= 0:
                    os.close(fd)
        self.watch.abandon()


def _closed(job: ExchangeJob) -> ExchangeError:
    return ExchangeError(
        f"`{job.name}` must be exchanged before the exchange is closed, and comes at step {job.step}; exchange before "
        "destroy_process_group()",
        layer=job.name, step=job.step,
    )  # fmt: skip


def _finish(job: ExchangeJob, error: ExchangeError | None) -> None:
    job.error = error
    try:
        job.finish(error)
    finally:
        job.over.set()
