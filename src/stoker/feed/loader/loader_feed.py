# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch's DataLoader is typed in part)
"""Stoker's state for one DataLoader, kept across iterations: its tier, its slots and its reusable workers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from stoker.core.mishaps import BestEffort, Unfailing
from stoker.core.processes.forking import Owner
from stoker.feed.listener import LoaderListener
from stoker.feed.order.alternation import Alternation
from stoker.feed.order.sampling import Cursor, Order, draws_lazily, num_free
from stoker.feed.program import Iteration, Program, Tier, WorkItem
from stoker.feed.purity import tiers
from stoker.feed.purity.tiers import Choice
from stoker.feed.scaling import Decision, ScalingPolicy
from stoker.feed.settings import FaultSettings, FeedSettings
from stoker.feed.shell.backend import Backend
from stoker.feed.shell.crew import Crew
from stoker.feed.shell.engine import Engine
from stoker.feed.shell.memory import MemoryWatch
from stoker.feed.shell.oversight import Limits
from stoker.feed.shell.quarantine import Quarantine
from stoker.feed.state.window import Counters
from stoker.feed.torch_private import collates, index_sampler_of, is_iterable
from stoker.feed.transport.rings import SlotKeeper
from stoker.records.events import BASELINE_BATCHES


@dataclass(frozen=True, kw_only=True)
class FeedConfig:
    """How one process feeds its loaders: the user's settings, and what follows from the machine and the launch."""

    feed: FeedSettings
    faults: FaultSettings
    workers: int | None
    """Data workers of every loader; None lets the policy decide."""
    worker_memory_bytes: int
    slot_memory_bytes: int
    program: tuple[str, ...]
    """The script or ``-m module`` and its arguments, for commands in messages."""
    versus_batches: int = 0
    """Batches of each loader in which torch's own workers and ours take turns; 0 for no comparison."""
    launcher: tuple[str, ...] = ()
    """Launcher that must precede ``stoker`` in such a command, as words; empty if none."""
    memory_frac: float = 1.0
    """Share of the host's free memory that this process may use."""


class StepCutter(Protocol):
    """Moves part of the program's steps to the workers, which run it after collation."""

    def asked(self) -> None:
        """The program asks for the next batch: ``delivered`` or ``failed`` follows."""
        ...

    def failed(self) -> None:
        """The call ends with an error or the end of the iteration, not with a batch."""
        ...

    def delivered(self, item: Any, seed: Callable[[], int]) -> Any:
        """Returns the program's batch, given what workers made of a work item; ``seed`` returns the item's seed."""
        ...

    def batch_of(self, item: Any) -> Any:
        """The loader's own batch within what workers made."""
        ...

    def left(self) -> None:
        """The program has left the iteration."""
        ...


class Services(Protocol):
    """What the feed needs from the layers above it."""

    config: FeedConfig
    backend: Backend

    def mishap(self, part: str, error: Exception, consequence: str, loader: int = -1) -> None:
        """Reports that a part of stoker failed and the consequence (half a sentence); the program continues."""
        ...

    def policy(self, max_in_flight: int) -> ScalingPolicy:
        """A policy for one loader; ``max_in_flight`` bounds its items in flight (0: no bound)."""
        ...

    def listener(self, feed: LoaderFeed, loader: DataLoader[Any]) -> LoaderListener:
        """The receiver of a loader's events."""
        ...

    def cutter(self, feed: LoaderFeed, loader: DataLoader[Any]) -> StepCutter | None:
        """What moves part of this loader's steps to its workers; None for nothing."""
        ...


class Pace(Protocol):
    """Called when the program asks any loader for something and when it gets it, at the outermost edge."""

    def begun(self, feed: LoaderFeed) -> None:
        """The program called ``iter``."""
        ...

    def opened(self, feed: LoaderFeed) -> None:
        """``iter`` returned."""
        ...

    def asked(self, feed: LoaderFeed) -> None:
        """The program called ``next``."""
        ...

    def delivered(self, feed: LoaderFeed) -> None:
        """The program gets a batch."""
        ...

    def failed(self, feed: LoaderFeed, *, ended: bool) -> None:
        """The program gets an exception; ``ended``: ``StopIteration``."""
        ...

    def left(self, feed: LoaderFeed) -> None:
        """The program has left the current iteration before its end."""
        ...


class LoaderFeed:
    """Serves one DataLoader."""

    def __init__(self, loader: DataLoader[Any], services: Services, number: int) -> None:
        self.number = number
        self.services = services
        self.counters = Counters()
        self.effort = BestEffort(functools.partial(services.mishap, loader=number))
        telling: Any = Unfailing(
            services.listener(self, loader), self.effort, "record of a loader", then="it is recorded in part"
        )
        self.listener: LoaderListener = telling
        self.choice: Choice | None = None
        self.ordinal = -1
        self.landmark = 1
        """Count of batches at which the counters are next recorded, whatever the time."""
        self._warm_from: int | None = None
        self.engine: Engine | None = None
        self._policy = services.policy(0 if num_free(index_sampler_of(loader)) != 0 else torchs_lookahead(loader))
        self._keeper = SlotKeeper(services.config.slot_memory_bytes, self.listener.notice)
        self.memory = MemoryWatch(
            self.program_of(loader), self._keeper, torchs_lookahead(loader), services.config.memory_frac
        )
        self._quarantine = Quarantine(
            dataset=loader.dataset,
            loader=number,
            policy=services.config.faults.on_bad_sample,
            cap=services.config.faults.bad_sample_cap,
            listener=self.listener,
            auto_collation=collates(loader),
            program=services.config.program,
            launcher=services.config.launcher,
        )
        self._verdict_for: tuple[int, ...] = ()
        self._said_on_probe = False
        self._parked: Crew | None = None
        self._leaving: list[Crew] = []
        self._stage = b""
        self.cutter = services.cutter(self, loader)
        self.to_compare = bool(services.config.versus_batches)
        """Whether torch's own workers take turns with ours, now or later."""
        self.alternation: Alternation | None = None
        """Their turns, once they have begun."""
        self._num_iterators = 0
        self._dropped = False
        self._owner = Owner()

    # -- describing the loader ---------------------------------------------------------------------------------------

    @staticmethod
    def program_of(loader: DataLoader[Any]) -> Program:
        """What the loader's workers run."""
        return Program(
            dataset=loader.dataset,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            is_iterable=is_iterable(loader),
            auto_collation=collates(loader),
            drop_last=loader.drop_last,
            declared_workers=loader.num_workers,
        )

    def choose(self, loader: DataLoader[Any]) -> Choice:
        """The tier for the next iteration; the probe's verdict holds until the dataset or a function is replaced."""
        identity = (id(loader.dataset), id(loader.collate_fn), id(loader.worker_init_fn), loader.num_workers)
        if self.choice is None or identity != self._verdict_for:
            self._verdict_for = identity
            self.choice = self.effort.attempt(
                "look at a loader", lambda: self._choose(loader), None, then="it is left to torch"
            )
        if self.choice is None:
            self.leave_to_torch("stoker failed to look into it")
        assert self.choice is not None
        return self.choice

    def _choose(self, loader: DataLoader[Any]) -> Choice:
        program = self.program_of(loader)
        choice = tiers.choose(program, index_sampler_of(loader), wish=self.services.config.feed.tier)
        if not choice.candidate:
            self.listener.opened(choice)
        elif program.declared_workers == 0:
            # Stands until the trial is over, which a program that leaves its loops early may never reach.
            self.listener.opened(tiers.on_trial())
        return choice

    # -- engines -----------------------------------------------------------------------------------------------------

    def open(self, loader: DataLoader[Any], base_seed: int, order: Order, cursor: Cursor | None) -> Engine:
        """An engine for the next iteration; the caller fills it and completes its crew.

        Raises:
            WorkerStartError: no process could be started.
        """
        choice = self.choose(loader)
        self.begin_iteration(cursor)
        iteration = self.iteration(base_seed, choice.tier)
        engine = self.start_engine(loader, iteration, order, first=order.next_item, filled_next=True)
        if choice.candidate and not self._said_on_probe:
            # Stands until the verdict, which a program that takes one batch of each iteration never reaches.
            self.effort.attempt(
                "reason of a tier", lambda: self.listener.opened(tiers.on_probe()), None, then="it is not shown"
            )
            self._said_on_probe = True
        return engine

    def pass_landmark(self) -> None:
        """Records the counters where a report's windows begin and end.

        These are the first batch; the end of the warm-up, when the batches in flight at the first delivery are
        delivered; and the end of the baseline.
        """
        self.listener.snapshot()
        passed = self.counters.batches
        if self._warm_from is None:
            self._warm_from = passed + (self.engine.capacity if self.engine is not None else 0)
        marks = (self._warm_from, self._warm_from + BASELINE_BATCHES)
        self.landmark = next((mark for mark in marks if mark > passed), sys.maxsize)

    @property
    def num_workers(self) -> int:
        """Data workers alive and not about to leave."""
        return len(self.engine.crew.active()) if self.engine is not None else 0

    def iteration(self, base_seed: int, tier: Tier) -> Iteration:
        """The constants of the current iteration."""
        config = self.services.config
        return Iteration(
            ordinal=self.ordinal,
            base_seed=base_seed,
            tier=tier,
            worker_memory_bytes=config.worker_memory_bytes,
            seeds_generators=config.feed.random == "sample" and tier is Tier.ELASTIC,
        )

    def begin_iteration(self, cursor: Cursor | None = None) -> None:
        """Numbers the iteration; a resumed one keeps its number."""
        self.ordinal = cursor.iteration if cursor is not None else self.ordinal + 1

    def continue_engine(self, loader: DataLoader[Any], engine: Engine, base_seed: int, order: Order) -> Engine:
        """An engine for the next iteration of a persistent loader, with the same workers."""
        self.ordinal += 1
        iteration = self.iteration(base_seed, engine.iteration.tier)
        engine.crew.begin(iteration)
        return self.start_engine(loader, iteration, order, crew=engine.crew)

    def start_engine(
        self,
        loader: DataLoader[Any],
        iteration: Iteration,
        order: Order,
        *,
        first: int = 0,
        adopt: Sequence[WorkItem] = (),
        crew: Crew | None = None,
        delivered: WorkItem | None = None,
        filled_next: bool = False,
    ) -> Engine:
        """An engine over ``order`` with the given crew, the parked one, or a new one.

        With ``filled_next`` the caller fills it at once and then completes its crew, so that the template is forked
        while the first worker works. The crew is complete before the caller draws from a lazy sampler, which may
        change the dataset: all workers need it unchanged.
        """
        program = self.program_of(loader)
        decision = self.decide_start(loader)
        crew = crew or self._unpark(program, iteration) or self.new_crew(loader, iteration)
        try:
            engine = self._new_engine(loader, crew, iteration, order, decision, first)
            if delivered is not None:
                engine.inherit(first - 1, delivered)
            engine.adopt(adopt)
            engine.open(probed=self.choice is not None and self.choice.candidate)
            if not filled_next or draws_lazily(index_sampler_of(loader)):
                crew.complete()
        except Exception:
            crew.close()
            raise
        self.engine = engine
        return engine

    def _new_engine(
        self,
        loader: DataLoader[Any],
        crew: Crew,
        iteration: Iteration,
        order: Order,
        decision: Decision,
        first: int,
    ) -> Engine:
        return Engine(
            program=self.program_of(loader),
            crew=crew,
            iteration=iteration,
            order=order,
            policy=self._policy,
            decision=decision,
            keeper=self._keeper,
            memory=self.memory,
            counters=self.counters,
            limits=self._limits(loader),
            quarantine=self._quarantine,
            listener=self.listener,
            effort=self.effort,
            lookahead=torchs_lookahead(loader),
            num_free=0 if iteration.tier is Tier.PINNED else num_free(index_sampler_of(loader)),
            in_order=loader.in_order or loader.num_workers == 0,
            first=first,
        )

    def decide_start(self, loader: DataLoader[Any]) -> Decision:
        """Number of workers that an iteration begins with: as the last one ended, or as declared."""
        workers, depth = loader.num_workers, loader.prefetch_factor or 2
        declared = Decision(workers=max(workers, 1), depth=depth, reason="as declared")
        return self.effort.attempt(
            "choice of the number of workers",
            lambda: self._policy.start(workers, depth),
            declared,
            then="a loader begins with those that it declares",
        )

    def _limits(self, loader: DataLoader[Any]) -> Limits:
        config = self.services.config
        return Limits(
            worker_memory_bytes=config.worker_memory_bytes,
            stall_timeout_s=config.faults.stall_timeout_s,
            timeout_s=loader.timeout,
        )

    # -- the probe's verdict -----------------------------------------------------------------------------------------

    def settle(self, engine: Engine, loader: DataLoader[Any]) -> bool:
        """Waits for the probe and settles the tier; False when the elastic tier is refused."""
        assert self.choice is not None
        if not self.choice.candidate:  # settled by another iterator over the same loader
            return self.choice.tier is Tier.ELASTIC
        evidence = engine.await_evidence()
        random, candidate, program = self.services.config.feed.random, self.choice, self.program_of(loader)
        judged = self.effort.attempt(
            "comparison of samples",
            lambda: tiers.judge(candidate, program, evidence, random=random),
            None,
            then="this loader is served as declared",
        )
        self.choice = judged or tiers.as_declared(program, "stoker failed to compare its samples")
        self.listener.opened(self.choice)
        return self.choice.tier is Tier.ELASTIC

    def without_bad(self, work: WorkItem) -> WorkItem:
        """A newly drawn item without the samples that killed data workers in an earlier iteration."""
        return self._quarantine.apply(work)

    def leave_to_torch(self, why: str) -> None:
        """Has torch serve the loader from now on."""
        self._close_parked()
        self.choice = tiers.left_to_torch(why)
        self.listener.opened(self.choice)

    def refuse(self, loader: DataLoader[Any], why: str, *, keep_trying: bool = False) -> None:
        """Keeps a loader that declares no workers in the training process; only for now with ``keep_trying``."""
        program = self.program_of(loader)
        told = self.effort.attempt("reason of a tier", lambda: tiers.impure(program, why), None, then="it is not shown")
        choice = told or tiers.as_declared(program, why)
        self.listener.opened(choice)
        if not keep_trying:
            self.choice = choice

    # -- crews -------------------------------------------------------------------------------------------------------

    def new_crew(self, loader: DataLoader[Any], iteration: Iteration) -> Crew:
        """A crew with the dataset as the program sees it now; raises ``WorkerStartError``."""
        context = loader.multiprocessing_context or torch.multiprocessing
        crew = Crew(self.services.backend, self.program_of(loader), context, iteration, self._keeper.give_back)
        crew.stage(self._stage)
        return crew

    def stage(self, body: bytes) -> None:
        """Sets what workers do with each batch after collation: a pickled callable, empty for nothing."""
        self._stage = body
        if self.engine is not None:
            self.engine.crew.stage(body)
        if self._parked is not None:
            self._parked.stage(body)

    def batch_of(self, item: Any) -> Any:
        """The loader's own batch within what workers made."""
        return item if self.cutter is None else self.cutter.batch_of(item)

    def park(self, crew: Crew) -> None:
        """Keeps a crew for the next iteration, which reuses it if its copy of the dataset is still current."""
        self._close_leaving()
        left = self.choice is not None and self.choice.tier is Tier.STOCK
        if self._parked is not None or not crew.is_reusable or self._dropped or left:
            crew.close()
        else:
            crew.ask_fingerprint()
            self._parked = crew

    def _unpark(self, program: Program, iteration: Iteration) -> Crew | None:
        crew, self._parked = self._parked, None
        if crew is None:
            return None
        if iteration.tier is Tier.ELASTIC:
            known = crew.fingerprint()
            if known and self._fingerprint(program, known) == known:
                crew.begin(iteration)
                return crew
        self._leaving.append(crew)  # ending it now would delay the first batch
        return None

    def _fingerprint(self, program: Program, known: bytes) -> bytes | None:
        return self.effort.attempt(
            "fingerprint of a dataset",
            lambda: tiers.reuse_fingerprint(program, known),
            None,
            then="each iteration starts new data workers",
        )

    def dismiss_leaving(self) -> None:
        """Dismisses the crews with an outdated dataset, once the first batch of a newer crew is there."""
        for crew in self._leaving:
            crew.dismiss()

    def _close_leaving(self) -> None:
        while self._leaving:
            self._leaving.pop().close()

    def enter(self) -> None:
        """Counts an iterator that opens."""
        self._num_iterators += 1

    def leave(self) -> None:
        """Counts an iterator that is gone; the last one of a dropped loader closes the feed."""
        self._num_iterators -= 1
        if self._dropped and not self._num_iterators:
            self.close()

    def drop(self) -> None:
        """The program has dropped the loader; an iterator over it may live on."""
        self._dropped = True
        if self._num_iterators == 0:
            self.close()
        else:
            self._close_parked()

    def close(self) -> None:
        """Ends parked workers and frees slots."""
        if not self._owner.is_here:
            return
        self._close_parked()
        self._keeper.close()

    def _close_parked(self) -> None:
        if not self._owner.is_here:
            return
        self._close_leaving()
        if self._parked is not None:
            self._parked.close()
            self._parked = None


def torchs_lookahead(loader: DataLoader[Any]) -> int:
    """Most items that torch's loader would have drawn but not delivered."""
    return max(1, loader.num_workers * (loader.prefetch_factor or 2))
