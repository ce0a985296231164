"""One version of a model: requests join batches as its policy says, and each gets one answer whatever engines do.

In a turn of the event loop all that has arrived is read first; then engines that have become idle get their next batch;
then what the others have left is answered. So batches are as large as they can be without a wait, and no engine waits
for the encoding of answers. A full batch does not wait for an engine to become idle: it cannot become larger, and the
engine would wait for it on its way.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple, Protocol

import numpy as np

from stoker.serve.engine import ANY, Interface
from stoker.serve.models.pending import Pending
from stoker.serve.policy import BatchPolicy, QueuedRequest
from stoker.serve.processes.messages import BatchDone, BatchRun, EngineReady, Failure
from stoker.serve.processes.places import array_at, placed
from stoker.serve.processes.pool import EnginePool, StartModel
from stoker.serve.processes.pooled import PooledEngine, PoolSettings
from stoker.serve.protocol.requests import RequestParser
from stoker.serve.refusals import RequestRefused, failed, too_late

Costs = Sequence[tuple[int, float]]
MakePolicy = Callable[[Costs, int], BatchPolicy]
"""A policy from measured costs and the number of engines."""

_TRIES = 3
"""Engines that one request may end before it is given up."""
_LOST = 2
"""Engines that a version on trial may lose: someone else may end one; what ends them by itself goes on."""
_TROUBLE_S = 5.0
"""When it is worth another try where there is no engine: a model that does not load is tried again so often."""
_HANG_FACTOR = 20.0
"""A batch that takes so many times what it should is taken to hang."""


class Seen(Protocol):
    """Receives facts about batches, for figures."""

    def batch(self, samples: int, took_s: float, handover_s: float) -> None:
        """A batch was computed, and was on the way for so much longer."""
        ...

    def retried(self, requests: int) -> None:
        """Requests lost their engine."""
        ...


@dataclass(slots=True)
class _Batch:
    of_policy: int
    items: list[Pending]
    samples: int
    begun_s: float


class _Computed(NamedTuple):
    batch: _Batch
    slot: int
    done: BatchDone
    ended_s: float


@dataclass(frozen=True, kw_only=True)
class VersionSettings:
    """How one version runs.

    Attributes:
        pool: its engines.
        max_samples: of one request.
        hang_s: longest time that a batch may take unless it should take longer.
    """

    pool: PoolSettings
    max_samples: int = 1024
    hang_s: float = 1.0


class ModelVersion:
    """Requests for one version, its engines, and which goes where.

    Args:
        label: of the version, as answers name it.
        start_model: has the process started that loads it.
        settings: how it runs.
        make_policy: from its measured costs.
        seen: told what happens.
        say: shows a line to people.
        behind: whether others answer requests while it starts.
        subject: of messages about it; its label without one.
    """

    def __init__(
        self, label: str, start_model: StartModel, settings: VersionSettings, make_policy: MakePolicy, seen: Seen,
        say: Callable[[str], None], *, behind: bool = False, subject: str = "",
    ) -> None:  # fmt: skip
        self.label = label
        self.settings = settings
        self.failures = 0
        """Requests that it failed at and another version did not."""
        self.answered = 0
        self.troubled = asyncio.Event()
        """Set at the first of these, and when more engines are lost than someone else may have ended."""
        self.pool = EnginePool(start_model, settings.pool, self, subject or f"`{label}`", say, behind=behind)
        self._make_policy = make_policy
        self._seen = seen
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, Pending] = {}
        self._batches: dict[int, deque[_Batch]] = defaultdict(deque)
        """By the number of their engine, in its order."""
        self._computed: list[_Computed] = []
        """Batches whose requests have no answer yet."""
        self._numbers = itertools.count()
        self._policy: BatchPolicy | None = None
        self._ready: EngineReady | None = None
        self._parser: RequestParser | None = None
        self._has_kinds = False
        """Whether requests differ in sizes other than their samples."""
        self._empty: asyncio.Future[None] | None = None
        self._turning = False

    async def start(self) -> EngineReady:
        """Loads and warms; raises :class:`~stoker.core.errors.ServingError`."""
        self._ready = await self.pool.start()
        interface = self._ready.interface
        self._parser = RequestParser(interface, self.settings.max_samples)
        self._has_kinds = not interface.is_batched or any(ANY in spec.shape[1:] for spec in interface.inputs)
        self._policy = self._make_policy(self._ready.costs, max(1, self.pool.num_ready))
        self.engine_idle()
        return self._ready

    @property
    def interface(self) -> Interface:
        """What it takes and gives."""
        assert self._ready is not None, "a version is asked after its start"
        return self._ready.interface

    @property
    def parser(self) -> RequestParser:
        """Reads requests for it."""
        assert self._parser is not None, "a version is asked after its start"
        return self._parser

    @property
    def costs(self) -> Costs:
        """Samples and seconds, as measured at its start."""
        assert self._ready is not None, "a version is asked after its start"
        return self._ready.costs

    @property
    def policy(self) -> BatchPolicy:
        """Its queue."""
        assert self._policy is not None, "a version is asked after its start"
        return self._policy

    @property
    def trouble(self) -> str:
        """Why it answers nothing, where that is not over in a moment; else empty."""
        return "" if self.pool.num_ready else self.pool.trouble

    @property
    def num_pending(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    def submit(self, item: Pending) -> None:
        """Takes a request: it gets an answer, or a refusal, unless it is cancelled."""
        if trouble := self.trouble:
            self._unanswered(item, trouble)
            return
        self.policy.arrive(self._taken(item))
        if self.policy.is_full:
            self._pump()
        self._turn_soon()

    def submit_first(self, item: Pending) -> None:
        """Takes a request that another version failed at: it runs alone, before all others, whatever its deadline."""
        if trouble := self.trouble:
            item.refuse(too_late(_TROUBLE_S, trouble))
            return
        self.policy.requeue([self._taken(item)])
        self._turn_soon()

    def outdone(self) -> None:
        """Another version has answered what this one failed at."""
        self.failures += 1
        self.troubled.set()

    def has(self, item: Pending) -> bool:
        """Whether it is to answer a request."""
        return item.queued is not None and self._pending.get(item.queued.number) is item

    def cancel(self, item: Pending) -> None:
        """Forgets a request that waits; one that an engine has ends with its batch."""
        if not item.running and item.queued is not None and self.has(item):
            self.policy.cancel(item.queued.number)
            self._leave(item)

    def sweep(self) -> None:
        """Looks for engines that hang; called now and then."""
        self.pool.kill_hung(monotonic())
        self._pump()

    async def drained(self) -> None:
        """Returns once no request is left."""
        while self._pending:
            self._empty = self._loop.create_future()
            await self._empty

    async def close(self, *, at_once: bool = True) -> None:
        """Ends its processes, which may take a moment unless ``at_once``; requests that are left are refused."""
        self._answer_computed()
        for item in list(self._pending.values()):
            self._refuse(item, too_late(1.0, "the service ends"))
        await self.pool.close(at_once=at_once)

    def engine_idle(self) -> None:
        """An engine is there for the next batch."""
        if self._policy is not None:
            self._turn_soon()

    def engines_changed(self, ready: int) -> None:
        """Corrects what is believed of the time until an answer; one that is lost is back in milliseconds."""
        if self._policy is not None:
            self._policy.set_engines(max(1, ready))

    def engines_missing(self, reason: str) -> None:
        """Requests that wait do not wait for what may never come."""
        if self._policy is None:  # none came yet: it does not load
            return
        waiting = {number: item for number, item in self._pending.items() if not item.running}
        for number in waiting:
            self._policy.cancel(number)
        self._policy.next_batch(monotonic())  # forgets them: it predicts nothing of what does not wait
        for item in waiting.values():
            self._leave(item)
            self._unanswered(item, reason)

    def batch_done(self, engine: PooledEngine, slot: int, done: BatchDone) -> None:
        """Keeps a batch for the end of the turn, and its slot with it; its engine has work at once if that is there."""
        now_s = monotonic()
        batch = self._ended(engine, now_s)
        handover_s = max(now_s - batch.begun_s - done.took_s, 0.0)  # the service may hear of two at once
        self.policy.ended(now_s, batch.of_policy, batch.samples, done.took_s, handover_s)
        self._seen.batch(batch.samples, done.took_s, handover_s)
        self._computed.append(_Computed(batch, slot, done, now_s))
        if self.policy.is_full:
            self._pump()
        self._turn_soon()

    def batch_broken(self, engine: PooledEngine, failure: Failure) -> None:
        """The model raised: each request runs alone, so that only the one that causes it has no answer."""
        now_s = monotonic()
        batch = self._ended(engine, now_s)
        self.policy.ended(now_s, batch.of_policy, batch.samples, None)
        if len(batch.items) == 1:
            self._fail(batch.items[0], failure.text)
        else:
            self._again(batch.items)

    def batch_lost(self, engine: PooledEngine) -> None:
        """The engine is gone: its requests run again, alone, as one of them may be the cause."""
        batch, *others = self._batches.pop(engine.number)
        if self.pool.lost > _LOST:
            self.troubled.set()
        for each in (batch, *others):
            self.policy.ended(monotonic(), each.of_policy, each.samples, None)
            self._seen.retried(len(each.items))
        for item in batch.items:
            item.tries += 1
            if item.tries >= _TRIES:
                self._fail(item, f"its engine ended {item.tries} times while it computed this request")
        self._again([item for item in batch.items if item.tries < _TRIES])
        for each in others:
            self._again(each.items)
        self._pump()

    def _taken(self, item: Pending) -> QueuedRequest:
        number = next(self._numbers)
        request = item.request
        kind: Hashable = 0
        if self._has_kinds:
            kind = tuple([array.shape[1:] for array in request.inputs]) if self.interface.is_batched else None
        item.version, item.running, item.tries = self, False, 0
        item.queued = queued = QueuedRequest(number, request.samples, item.deadline_s, kind, item.priority)
        self._pending[number] = item
        return queued

    def _ended(self, engine: PooledEngine, now_s: float) -> _Batch:
        """The batch that an engine was computing; it continues by the next one that it has."""
        batches = self._batches[engine.number]
        batch = batches.popleft()
        if batches:
            batches[0].begun_s = now_s
            self.policy.begins(now_s, batches[0].of_policy)
        else:
            del self._batches[engine.number]
        return batch

    def _again(self, items: Sequence[Pending]) -> None:
        again: list[QueuedRequest] = []
        for item in items:
            item.running = False
            if item.gone:
                self._leave(item)
            elif item.queued is not None:
                again.append(item.queued)
        self.policy.requeue(again)

    def _turn_soon(self) -> None:
        """Goes on once all that has arrived in this turn of the loop is read."""
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._pump()
        if self._computed:
            self._answer_computed()
            self._pump()  # where slots were short: an engine may have ended two batches in one turn

    def _pump(self) -> None:
        """Gives idle engines what waits, as long as there are both; and full batches to engines that still compute."""
        policy, pool = self.policy, self.pool
        now_s = monotonic()
        while policy.num_waiting and pool.idle and pool.ring.num_free and self._next(pool.idle[-1], now_s, None):
            pass
        while policy.is_full and pool.ring.num_free and (busy := pool.running_alone):
            left_s, engine = min(
                [(policy.left_s(now_s, self._batches[each.number][0].of_policy), each) for each in busy],
                key=lambda each: each[0],
            )
            if not self._next(engine, now_s, left_s):
                return

    def _next(self, engine: PooledEngine, now_s: float, wait_s: float | None) -> bool:
        """Gives an engine that is idle, or will be in ``wait_s``, what the policy chooses; False if that is nothing."""
        chosen = self.policy.next_batch(now_s, wait_s)
        if chosen is None:
            return False
        for number in chosen.dropped:
            late = too_late(0.1, "the answer would come too late", outcome="dropped")
            self._refuse(self._pending[number], late)
        items = [item for each in chosen.requests if (item := self._pending.get(each.number)) is not None]
        if items:
            self._run(engine, items, now_s + (wait_s or 0.0), chosen.expected_s)
        return True

    def _run(self, engine: PooledEngine, items: list[Pending], begin_s: float, expected_s: float) -> None:
        interface = self.interface
        samples = sum([item.request.samples for item in items])
        shapes = [array.shape for array in items[0].request.inputs]
        if interface.is_batched:
            shapes = [(samples, *shape[1:]) for shape in shapes]
        sizes = [math.prod(shape) * spec.dtype.itemsize for shape, spec in zip(shapes, interface.inputs, strict=True)]
        places = placed(sizes, 0, self.pool.ring.slot_bytes)
        if places is None:
            self._too_large(items)
            return
        slot = self.pool.ring.take()
        assert slot is not None, "it is asked before"
        memory = self.pool.memory(slot)
        for place, (spec, shape, offset) in enumerate(zip(interface.inputs, shapes, places.offsets, strict=True)):
            target = array_at(memory, offset, shape, spec.dtype)
            if interface.is_batched:
                np.concatenate([item.request.inputs[place] for item in items], out=target)
            else:
                target[...] = items[0].request.inputs[place]
        for item in items:
            item.running = True
        number = self.policy.started(begin_s, expected_s)
        self._batches[engine.number].append(_Batch(number, items, samples, begin_s))
        limit_s = max(self.settings.hang_s, _HANG_FACTOR * expected_s)
        self.pool.run(engine, BatchRun(number, slot, places.offsets, shapes, places.end), begin_s, limit_s)

    def _answer_computed(self) -> None:
        """Answers what engines have left, and frees its slots."""
        computed, self._computed = self._computed, []
        for batch, slot, done, ended_s in computed:
            self._answer_batch(batch, slot, done)
            self.pool.ring.give_back(slot)
            now_s = monotonic()
            late = sum([item.deadline_s < now_s for item in batch.items])
            self.policy.answered(now_s - ended_s, late / len(batch.items))

    def _answer_batch(self, batch: _Batch, slot: int, done: BatchDone) -> None:
        memory, interface = self.pool.memory(slot), self.interface
        try:
            outputs = {
                spec.name: array_at(memory, offset, shape, spec.dtype)
                for spec, offset, shape in zip(interface.outputs, done.offsets, done.shapes, strict=True)
            }
            if interface.is_batched and any(len(array) != batch.samples for array in outputs.values()):
                raise ValueError(f"outputs must have {batch.samples} samples, as the inputs")
        except ValueError as error:
            for item in batch.items:
                self._fail(item, str(error))
            return
        start = 0
        for item in batch.items:
            own = outputs
            if interface.is_batched:
                end = start + item.request.samples
                own = {name: array[start:end] for name, array in outputs.items()}
                start = end
            self._leave(item)
            try:
                item.answer(self, own)
            except ValueError as error:  # numbers that no JSON can hold
                self._failed(item, str(error))
            else:
                self.answered += 1
                if item.on_answer is not None:
                    item.on_answer()

    def _unanswered(self, item: Pending, reason: str) -> None:
        """There is no engine for it; another version may have one."""
        if item.on_failure is not None and not item.gone:
            item.on_failure(item)
        else:
            item.refuse(too_late(_TROUBLE_S, reason))

    def _too_large(self, items: list[Pending]) -> None:
        if len(items) > 1:
            self._again(items)
            return
        size = sum([array.nbytes for array in items[0].request.inputs])
        self._refuse(
            items[0],
            RequestRefused(
                413, f"`inputs` must fit a slot of {self.settings.pool.slot_bytes} bytes, got {size}; "
                "the service takes more with --slot-bytes"
            ),
        )  # fmt: skip

    def _fail(self, item: Pending, text: str) -> None:
        self._leave(item)
        self._failed(item, text)

    def _failed(self, item: Pending, text: str) -> None:
        if item.on_failure is not None and not item.gone:
            item.on_failure(item)
        else:
            item.refuse(failed(text))

    def _refuse(self, item: Pending, refusal: RequestRefused) -> None:
        self._leave(item)
        item.refuse(refusal)

    def _leave(self, item: Pending) -> None:
        assert item.queued is not None, "it has been taken"
        del self._pending[item.queued.number]
        if not self._pending and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)
