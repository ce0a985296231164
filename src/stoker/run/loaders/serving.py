"""Assembles feed, scale and backend for the loaders of one process, and turns what happens into events."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from stoker.backends.local import LocalBackend
from stoker.backends.remote.brokering import BrokerSettings
from stoker.backends.remote.reach import RemoteBackend
from stoker.core import host
from stoker.core.code.sources import file_shown, own_program
from stoker.core.errors import ResumeError
from stoker.core.mishaps import BestEffort, Unfailing, line_of, reraise_from_handler, trace_of
from stoker.core.processes.forking import Owner
from stoker.core.processes.interrupts import InterruptsHandedOn
from stoker.core.saying import say
from stoker.feed.loader.iterator import close_all
from stoker.feed.loader.loader_feed import FeedConfig, LoaderFeed, Pace, StepCutter
from stoker.feed.loader.serve import serve
from stoker.feed.order.sampling import Cursor
from stoker.feed.program import Tier
from stoker.feed.purity.objects import is_library
from stoker.feed.purity.tiers import Choice
from stoker.feed.replay import launcher_of
from stoker.feed.scaling import Decision
from stoker.feed.shell.backend import Backend
from stoker.feed.torch_private import BaseIterator, is_iterable
from stoker.feed.transport.board import Departure
from stoker.records import events
from stoker.records.versus import Pair
from stoker.run.environment import ACTIVE_ENV, CACHE_ENV
from stoker.run.launch import program_name
from stoker.run.loaders.device_marks import CudaMarks
from stoker.run.loaders.steps import NOTHING_DELIVERED, LoaderTotals, StepClock
from stoker.run.rank import RankPlace, find_place, name_of_group
from stoker.run.settings import RunSettings
from stoker.scale.budget import CpuLedger, rank_bytes, rank_cores
from stoker.scale.job import JobAutoscaler
from stoker.scale.limits import JobScalingConfig
from stoker.ui.windows import RecordedWindow, between

if TYPE_CHECKING:
    from stoker.run.loaders.cutting import Cutting

Sink = Callable[[events.AnyEvent], None]
_STEPS = "look at steps"
_STAYS = (Tier.PINNED, Tier.STOCK)
"""Tiers whose batches are never made on other machines."""
_RECORD, _IN_PART = "record of the run", "it is incomplete"
PROGRESS_S = 1.0
"""How often a loader's counters become an event."""
_SLOT_SHARE, _WORKER_SHARE = 0.25, 0.5
"""Shares of the available memory that slots, and all workers' private memory, may use unless set."""


class Serving:
    """Serves the DataLoaders of this process.

    Args:
        settings: what the user chose.
        sinks: told every event; must not raise.
        program: the script or ``-m module`` and its arguments; this process's own by default.
        launcher: what must start ``stoker`` for that program; this process's own where there is no ``program``.
        clock: of the steps of all loaders.
    """

    def __init__(
        self,
        settings: RunSettings,
        sinks: list[Sink],
        program: tuple[str, ...] = (),
        launcher: tuple[str, ...] = (),
        clock: StepClock | None = None,
    ) -> None:
        self.settings = settings
        remote = settings.remote
        self.backend: Backend = LocalBackend()
        self._remote: RemoteBackend | None = None
        self._program = program or own_program()
        if remote.uses_ray or (remote.addresses and remote.secret_file is not None):
            stall_s = settings.faults.stall_timeout_s
            self.backend = self._remote = RemoteBackend(
                remote, stall_s, self._broker(), (ACTIVE_ENV, CACHE_ENV), self._cache()
            )
        self._launcher = launcher if program else launcher_of(os.environ)
        self._take_place(find_place())
        self.clock = clock or StepClock(device=CudaMarks())
        self._blind: Exception | None = None
        self.cutting = self._look_at_steps()
        self._sinks = sinks
        self.effort = BestEffort(self.mishap)
        pace: Any = Unfailing(
            self.clock, self.effort, "count of times", then="times and rates are missing from here on", together=True
        )
        self.pace: Pace = pace
        """Receives each step of each loader."""
        self._started_s = time.monotonic()
        self._feeds: dict[int, tuple[weakref.ref[DataLoader[Any]], LoaderFeed]] = {}
        self.sites: weakref.WeakKeyDictionary[DataLoader[Any], str] = weakref.WeakKeyDictionary()
        """Where the program made each loader, as ``file.py:line``."""
        self._policies: weakref.WeakSet[JobAutoscaler] = weakref.WeakSet()
        self._owner = Owner()
        self._count = 0

    def _cache(self) -> str:
        """Settings of the cache through which this process reads stores."""
        if not os.environ.get(CACHE_ENV):
            return ""
        from stoker.run.caching.cache_run import current_run

        told = current_run()
        return told.cache.to_json() if told is not None else ""

    def _broker(self) -> BrokerSettings:
        """What obtains processors of a cluster for this process."""
        ranks = find_place().local_world_size
        return BrokerSettings(
            job=f"{program_name(self._program) if self._program else 'program'}-{os.getpid()}",
            insecure=self.settings.remote.insecure,
            cores=max(1, int(host.cores())),
            shared=name_of_group(os.environ) if ranks > 1 else "",
        )

    def _look_at_steps(self) -> Cutting | None:
        """Connects the cut to the loaders of this process; None if this torch lacks what it needs."""
        settings = self.settings
        try:
            # Imported here: loaders are served under a torch that lacks one of the private names of the cut.
            from stoker.run.loaders.cutting import Cutting

            return Cutting(
                self.emit,
                self.now_s,
                lambda: self.cores,
                always=settings.cut.cut == "always",
                sample=settings.feed.random == "sample",
            )
        except Exception as error:  # reported with the first loader
            self._blind = error
            return None

    def _take_place(self, place: RankPlace) -> None:
        """Divides the machine among the ranks that share it."""
        self.place = place
        """This process among the ranks of its program, as known when it first iterated over a loader."""
        settings, ranks = self.settings, place.local_world_size
        self.cores = settings.scale.cpu_budget or rank_cores(host.cores(), ranks)
        """CPU budget of all loaders of this process: the setting, or this rank's share of the machine."""
        self._ledger = CpuLedger(self.cores)
        _, available = host.memory_bytes()
        self._memory_bytes = rank_bytes(available, ranks)
        self.config = FeedConfig(
            feed=settings.feed,
            faults=settings.faults,
            workers=settings.scale.workers,
            worker_memory_bytes=settings.feed.worker_memory_bytes
            or max(1 << 27, int(self._memory_bytes * _WORKER_SHARE / max(self.cores, 1))),
            slot_memory_bytes=settings.feed.slot_memory_bytes or int(self._memory_bytes * _SLOT_SHARE),
            versus_batches=settings.report.versus_plain or 0,
            program=self._program,
            launcher=self._launcher,
            memory_frac=1.0 / ranks,
        )

    def look_at_place(self) -> None:
        """Finds the place again if no loader was iterated yet: the program may have made its process group since."""
        if not self._count and (place := find_place()) != self.place:
            self._take_place(place)

    def emit(self, event: events.AnyEvent) -> None:
        """Sends an event to all sinks; a failing sink gets no more."""
        for sink in (*self._sinks,):
            try:
                sink(event)
            except Exception as error:
                reraise_from_handler(error)
                self._drop_sink(sink, error)

    def _drop_sink(self, sink: Sink, error: Exception) -> None:
        if sink in self._sinks:
            self._sinks.remove(sink)
            say(line_of(_RECORD, error, _IN_PART))  # the failed part may be the one that shows such lines
            self.mishap(_RECORD, error, _IN_PART)

    def mishap(self, part: str, error: Exception, consequence: str, loader: int = -1) -> None:
        """Reports and records an error inside stoker; the program continues."""
        text, trace = line_of(part, error, consequence), trace_of(error)
        self.emit(events.Notice(t_s=self.now_s(), text=text, loader=loader, trace=trace))

    def now_s(self) -> float:
        """Seconds since this process began to serve."""
        return time.monotonic() - self._started_s

    @property
    def _most_workers(self) -> int:
        """The most data workers of a loader that the user allows."""
        return self.settings.scale.max_workers or max(64, self.settings.scale.workers or 0)

    def policy(self, max_in_flight: int) -> JobAutoscaler:
        """A policy for one loader, under the CPU budget that all loaders of the process share."""
        fixed, most = self.settings.scale.workers, self._most_workers
        config = JobScalingConfig(
            cpu_budget_cores=self.cores,
            memory_budget_bytes=int(self._memory_bytes * (_SLOT_SHARE + _WORKER_SHARE)),
            max_workers=most,
            fixed_workers=None if fixed is None else max(1, fixed),
            fixed_away=self.settings.remote.workers,
            max_in_flight=max_in_flight,
        )
        policy = JobAutoscaler(config, self._ledger.join())
        self._policies.add(policy)
        return policy

    def limit_workers(self, most: int) -> None:
        """Lowers, or raises again, the most data workers of each loader; those that it takes end when they are done."""
        for policy in self._policies:
            allowed = min(most, self._most_workers)
            policy.config = dataclasses.replace(policy.config, max_workers=max(policy.config.min_workers, allowed))

    def cutter(self, feed: LoaderFeed, loader: DataLoader[Any]) -> StepCutter | None:
        """Creates the cutter of one loader's steps."""
        if self.settings.cut.cut == "off":
            return None
        if self.cutting is None:
            if self._blind is not None:
                self.effort.failed(_STEPS, self._blind, "the steps of this program are not cut")
            return None
        return self.cutting.cutter(feed, (self.sites.get(loader, ""), call_site(3)))

    def listener(self, feed: LoaderFeed, loader: DataLoader[Any]) -> LoaderEvents:
        """Turns what happens to a loader into events."""
        return LoaderEvents(self, feed, loader)

    def feed_for(self, loader: DataLoader[Any]) -> LoaderFeed:
        """The state of a loader; created at its first iteration and dropped with the loader."""
        found = self._feeds.get(id(loader))
        if found is not None and found[0]() is loader:
            return found[1]
        self.look_at_place()
        feed = LoaderFeed(loader, self, self._count)
        self._count += 1
        key = id(loader)
        self._feeds[key] = (weakref.ref(loader, functools.partial(self._drop, key)), feed)
        return feed

    def known_feed(self, loader: DataLoader[Any]) -> LoaderFeed | None:
        """The state of a loader, if it was iterated."""
        found = self._feeds.get(id(loader))
        return found[1] if found is not None and found[0]() is loader else None

    def progress(self, feed: LoaderFeed, at: LoaderTotals | None) -> events.Progress:
        """A loader's counters as of a delivery (None: none yet), with the state of its queue now."""
        counters, engine, now_s = feed.counters, feed.engine, time.monotonic()
        done = at or NOTHING_DELIVERED
        active = engine.crew.active() if engine is not None else []
        return events.Progress(
            t_s=now_s - self._started_s,
            loader=feed.number,
            iteration=feed.ordinal,
            batches=done.batches,
            samples=done.samples,
            bytes=done.bytes,
            input_wait_s=done.input_wait_s,
            h2d_s=done.h2d_s,
            compute_s=done.compute_s,
            other_s=done.other_s,
            paused_s=done.paused_s,
            starved_steps=done.starved_steps,
            starved_s=done.starved_s,
            delivered_s=at.at_s - self._started_s if at is not None else 0.0,
            waiting_s=now_s - counters.asked_s if counters.asked_s is not None else 0.0,
            workers=len(active),
            away=sum(member.away for member in active),
            items_away=counters.items_away,
            ready=engine.num_ready if engine is not None else 0,
            capacity=engine.capacity if engine is not None else 0,
            worker_busy_s=counters.worker_busy_s,
            worker_idle_s=counters.worker_idle_s,
            worker_cpu_s=counters.worker_cpu_s,
            optimizer_steps=done.optimizer_steps,
        )

    def overall(self, feed: LoaderFeed) -> RecordedWindow | None:
        """A loader from its first delivery to its last one, as every report has it; None before the second."""
        clock = self.clock.of(feed)
        if clock.first is None or clock.last is None:
            return None
        return between(self.progress(feed, clock.first), self.progress(feed, clock.last))

    def add_sink(self, sink: Sink) -> None:
        """Sends every event to ``sink`` from now on; it must not raise."""
        self._sinks.append(sink)

    def remove_sink(self, sink: Sink) -> None:
        """Ends it."""
        if sink in self._sinks:
            self._sinks.remove(sink)

    def _drop(self, key: int, ref: weakref.ref[DataLoader[Any]]) -> None:
        found = self._feeds.get(key)
        if found is not None and found[0] is ref:
            with InterruptsHandedOn():
                del self._feeds[key]
                found[1].listener.snapshot()
                found[1].drop()

    def iterate(
        self, loader: DataLoader[Any], stock: Callable[[], BaseIterator], cursor: Cursor | None = None
    ) -> BaseIterator:
        """An iterator over a loader; torch's own in processes that this one forked."""
        if not self._owner.is_here:
            return stock()
        feed = self.effort.attempt("inspect a loader", lambda: self.feed_for(loader), None, then="it is left to torch")
        if feed is not None:
            return serve(loader, feed, self.pace, stock, cursor)
        if cursor is not None:
            raise ResumeError("`state` cannot be resumed: stoker failed to inspect its loader (see the line above)")
        return stock()

    def made(self, loader: DataLoader[Any]) -> None:
        """Records where the program created a loader."""

        def remember() -> None:
            self.sites[loader] = call_site(5)

        self.effort.attempt("find a program's place", remember, None, then="it is not named")

    def close(self) -> None:
        """Ends all workers and reports the last counters."""
        if not self._owner.is_here:
            return
        close_all(self)
        if self.cutting is not None:
            self.effort.attempt(_STEPS, self.cutting.close, None, then="nothing, since the program has ended")
        for _, feed in self._feeds.values():
            feed.listener.snapshot()
            feed.close()
        self._feeds.clear()
        if self._remote is not None:
            self._remote.close()


class LoaderEvents:
    """Listener of one loader."""

    def __init__(self, serving: Serving, feed: LoaderFeed, loader: DataLoader[Any]) -> None:
        self._serving = serving
        self._feed = feed
        self._next_s = 0.0
        self._site = serving.sites.get(loader) or call_site(2)  # a loader made earlier: the site of its use
        self._dataset = type(loader.dataset).__name__
        self._length = length_of(loader)
        self._batch_size = getattr(loader, "batch_size", None)  # another library's stand-in has none
        self._declared = loader.num_workers
        self._has_said_it_stays = False

    def opened(self, choice: Choice) -> None:
        """Records the final tier."""
        self._serving.emit(
            events.LoaderOpened(
                t_s=self._serving.now_s(),
                loader=self._feed.number,
                site=self._site,
                dataset=self._dataset,
                length=self._length,
                batch_size=self._batch_size,
                declared_workers=self._declared,
                tier=choice.tier.value,
                reason=choice.reason,
                evidence=list(choice.evidence),
            )
        )
        if self._serving.settings.remote.backend != "local" and choice.tier in _STAYS and not self._has_said_it_stays:
            self._has_said_it_stays = True
            self.notice(f"this loader's workers stay on this machine: it is {choice.tier.value}: {choice.reason}")

    def iterating(self, ordinal: int, workers: int, start_s: float) -> None:
        """Records the begin of an iteration."""
        event = events.IterationStarted(
            t_s=self._serving.now_s(), loader=self._feed.number, iteration=ordinal, workers=workers, start_s=start_s
        )
        self._serving.emit(event)

    def compared(self, pair: Pair) -> None:
        """Records a timed round of each side."""
        self._serving.emit(events.PairCompared(t_s=self._serving.now_s(), loader=self._feed.number, pair=pair))

    def comparison_ended(self, reason: str, found: str) -> None:
        """Records why no more rounds follow."""
        ended = events.ComparisonEnded(t_s=self._serving.now_s(), loader=self._feed.number, reason=reason)
        self._serving.emit(ended)
        self.notice(f"{self._site}: {found}")

    def notice(self, text: str) -> None:
        """Records a notice."""
        self._serving.emit(events.Notice(t_s=self._serving.now_s(), text=text, loader=self._feed.number))

    def workers_changed(self, decision: Decision) -> None:
        """Records a decision of the policy."""
        self._serving.emit(
            events.WorkersChanged(
                t_s=self._serving.now_s(),
                loader=self._feed.number,
                workers=decision.workers,
                depth=decision.depth,
                reason=decision.reason,
                away=decision.away,
            )
        )

    def worker_lost(self, departure: Departure, released: int) -> None:
        """Records a lost worker."""
        self._serving.emit(
            events.WorkerLost(
                t_s=self._serving.now_s(),
                loader=self._feed.number,
                worker=departure.worker,
                pid=departure.pid,
                cause=departure.cause,
                released=released,
                stack=departure.stack,
                place=departure.place,
            )
        )

    def sample_quarantined(self, index: object, path: str, seed: int, action: str) -> None:
        """Records a skipped or replaced sample."""
        self._serving.emit(
            events.SampleQuarantined(
                t_s=self._serving.now_s(),
                loader=self._feed.number,
                index=repr(index),
                path=path,
                seed=seed,
                action=action,
            )
        )

    def tick(self) -> None:
        """Emits the counters once a second."""
        now = self._serving.now_s()
        if now >= self._next_s:
            self._next_s = now + PROGRESS_S
            self.snapshot()

    def snapshot(self) -> None:
        """Emits the counters."""
        if self._feed.ordinal >= 0:
            self._serving.emit(self._serving.progress(self._feed, self._serving.clock.of(self._feed).last))


def length_of(loader: DataLoader[Any]) -> int | None:
    """Batches of an epoch, where the loader knows; the program sees no trace of the question."""
    if is_iterable(loader):
        return None  # looking would change what torch warns about
    try:
        return len(loader)
    except Exception:
        return None


def call_site(depth: int) -> str:
    """``file.py:line`` of the nearest caller in the program's own code, else of the nearest outside torch and stoker.

    Frameworks rebuild loaders from those they are given, and a place inside a framework tells a user nothing.
    """
    frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    nearest = ""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", "stoker.")):
            filename = frame.f_code.co_filename
            place = f"{file_shown(filename)}:{frame.f_lineno}"
            if not is_library(filename):
                return place
            nearest = nearest or place
        frame = frame.f_back
    return nearest or "unknown"
