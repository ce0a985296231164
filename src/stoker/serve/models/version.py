"""One version of a model: requests join batches as its policy says, and each gets one answer whatever engines do."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stoker.core.slots.writers import SlotWriter
from stoker.serve.engine import Interface
from stoker.serve.policy import BatchPolicy, QueuedRequest
from stoker.serve.processes.engine_process import array_at
from stoker.serve.processes.messages import BatchDone, BatchRun, EngineReady, Failure, TensorPlace
from stoker.serve.processes.pool import EnginePool, PooledEngine, PoolSettings, StartModel
from stoker.serve.refusals import RequestRefused, failed, too_late

Costs = Sequence[tuple[int, float]]
MakePolicy = Callable[[Costs, int], BatchPolicy]
"""A policy from measured costs and the number of engines."""

Encode = Callable[[Mapping[str, npt.NDArray[np.generic]]], "tuple[bytes, int | None]"]
"""Makes the answer of one request from its part of the outputs, before their slot is used again."""

_TRIES = 3
"""Engines that one request may end before it is given up."""
_LOST = 2
"""Engines that a version on trial may lose: someone else may end one; what ends them by itself goes on."""
_HANG_FACTOR = 20.0
"""A batch that takes so many times what it should is taken to hang."""


class Seen(Protocol):
    """Receives facts about batches, for figures."""

    def batch(self, samples: int, requests: int, took_s: float) -> None:
        """A batch was computed."""
        ...

    def retried(self, requests: int) -> None:
        """Requests lost their engine."""
        ...


@dataclass(eq=False, slots=True)
class Pending:
    """A request on its way."""

    inputs: Sequence[npt.NDArray[np.generic]]
    samples: int
    encode: Encode
    future: asyncio.Future[tuple[bytes, int | None]]
    queued: QueuedRequest
    tries: int = 0
    running: bool = False
    """An engine has it."""


@dataclass
class _Batch:
    number: int
    of_policy: int
    items: list[Pending]
    samples: int
    begun_s: float


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
        start_model: starts the process that loads it.
        settings: how it runs.
        make_policy: from its measured costs.
        seen: told what happens.
        say: shows a line to people.
    """

    def __init__(
        self, label: str, start_model: StartModel, settings: VersionSettings, make_policy: MakePolicy, seen: Seen,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.label = label
        self.settings = settings
        self.failures = 0
        """Requests for which the model raised, or that ended engines."""
        self.answered = 0
        self.troubled = asyncio.Event()
        """Set at the first failure, and when more engines are lost than someone else may have ended."""
        self.pool = EnginePool(start_model, settings.pool, self, label, say)
        self._make_policy = make_policy
        self._seen = seen
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, Pending] = {}
        self._batches: dict[int, _Batch] = {}
        self._numbers = itertools.count()
        self._policy: BatchPolicy | None = None
        self._ready: EngineReady | None = None
        self._empty: asyncio.Future[None] | None = None
        self._pumping = False

    async def start(self) -> EngineReady:
        """Loads and warms; raises :class:`~stoker.core.errors.ServingError`."""
        self._ready = await self.pool.start()
        self._policy = self._make_policy(self._ready.costs, max(1, self.pool.num_ready))
        self.engine_idle()
        return self._ready

    @property
    def interface(self) -> Interface:
        """What it takes and gives."""
        assert self._ready is not None, "a version is asked after its start"
        return self._ready.interface

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
    def num_pending(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    async def infer(
        self, inputs: Sequence[npt.NDArray[np.generic]], samples: int, encode: Encode, deadline_s: float, priority: int
    ) -> tuple[bytes, int | None]:
        """The answer, as ``encode`` made it; if the caller is cancelled, a request that waits does not run.

        Args:
            inputs: in the order of the interface; kept until the answer.
            samples: that they have.
            encode: makes the answer.
            deadline_s: by the loop's clock.
            priority: lower goes first.

        Raises:
            RequestRefused: there is none.
        """
        number = next(self._numbers)
        kind: Hashable = tuple([array.shape[1:] for array in inputs]) if self.interface.is_batched else None
        queued = QueuedRequest(number, samples, deadline_s, kind, priority)
        item = self._pending[number] = Pending(inputs, samples, encode, self._loop.create_future(), queued)
        self.policy.arrive(queued)
        self._pump_soon()
        try:
            return await item.future
        except asyncio.CancelledError:
            if number in self._pending and not item.running:
                self.policy.cancel(number)
                self._leave(item)
            raise

    def sweep(self) -> None:
        """Looks for engines that hang; called now and then."""
        self.pool.kill_hung(self._loop.time())
        self._pump()

    async def drained(self) -> None:
        """Returns once no request is left."""
        while self._pending:
            self._empty = self._loop.create_future()
            await self._empty

    async def close(self) -> None:
        """Ends its processes; requests that are left are refused."""
        for item in list(self._pending.values()):
            self._refuse(item, too_late(1.0, "the service ends"))
        await self.pool.close()

    def engine_idle(self) -> None:
        """An engine is there for the next batch."""
        if self._policy is not None:
            self._pump()

    def engines_changed(self, ready: int) -> None:
        """Corrects what is believed of the time until an answer; one that is lost is back in milliseconds."""
        if self._policy is not None:
            self._policy.set_engines(max(1, ready))

    def batch_done(self, engine: PooledEngine, done: BatchDone) -> None:
        """Answers the requests of a batch."""
        batch = self._batches.pop(engine.number)
        now_s = self._loop.time()
        self.policy.ended(now_s, batch.of_policy, batch.samples, now_s - batch.begun_s)
        self._seen.batch(batch.samples, len(batch.items), done.took_s)
        assert engine.slot is not None
        view = self.pool.ring.view(engine.slot, self.pool.ring.slot_bytes)
        specs = self.interface.outputs
        try:
            outputs = {
                spec.name: array_at(view, place, spec.dtype) for spec, place in zip(specs, done.outputs, strict=True)
            }
            if self.interface.is_batched and any(len(array) != batch.samples for array in outputs.values()):
                raise ValueError(f"outputs must have {batch.samples} samples, as the inputs")
        except ValueError as error:
            for item in batch.items:
                self._fail(item, str(error))
            return
        start = 0
        for item in batch.items:
            own = outputs
            if self.interface.is_batched:
                own = {name: array[start : start + item.samples] for name, array in outputs.items()}
            start += item.samples
            try:
                self._answer(item, item.encode(own))
            except ValueError as error:  # numbers that no JSON can hold
                self._fail(item, str(error))

    def batch_broken(self, engine: PooledEngine, failure: Failure) -> None:
        """The model raised: each request runs alone, so that only the one that causes it has no answer."""
        batch = self._batches.pop(engine.number)
        self.policy.ended(self._loop.time(), batch.of_policy, batch.samples, None)
        if len(batch.items) == 1:
            self._fail(batch.items[0], failure.text)
        else:
            self._again(batch.items)

    def batch_lost(self, engine: PooledEngine) -> None:
        """The engine is gone: its requests run again, alone, as one of them may be the cause."""
        batch = self._batches.pop(engine.number)
        self.policy.ended(self._loop.time(), batch.of_policy, batch.samples, None)
        self._seen.retried(len(batch.items))
        if self.pool.lost > _LOST:
            self.troubled.set()
        for item in batch.items:
            item.tries += 1
            if item.tries >= _TRIES:
                self._fail(item, f"its engine ended {item.tries} times while it computed this request")
        self._again([item for item in batch.items if item.tries < _TRIES])
        self._pump()

    def _again(self, items: Sequence[Pending]) -> None:
        for item in items:
            item.running = False
        gone = [item for item in items if item.future.cancelled()]
        for item in gone:
            self._leave(item)
        self.policy.requeue([item.queued for item in items if item not in gone])

    def _pump_soon(self) -> None:
        """Gives engines work once all requests that have already arrived are in the queue: no wait, larger batches."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Gives idle engines what waits, as long as there are both."""
        self._pumping = False
        policy, pool = self.policy, self.pool
        now_s = self._loop.time()
        while policy.num_waiting and pool.idle:
            chosen = policy.next_batch(now_s)
            if chosen is None:
                return
            for number in chosen.dropped:
                late = too_late(0.1, "the answer would come too late", outcome="dropped")
                self._refuse(self._pending[number], late)
            items = [item for each in chosen.requests if (item := self._pending.get(each.number)) is not None]
            if items:
                self._run(pool.idle[-1], items, now_s, chosen.expected_s)

    def _run(self, engine: PooledEngine, items: list[Pending], now_s: float, expected_s: float) -> None:
        ring = self.pool.ring
        slot = ring.take()
        assert slot is not None, "there are as many slots as engines"
        samples = sum(item.samples for item in items)
        view = ring.view(slot, ring.slot_bytes)
        writer = SlotWriter(view)
        places: list[TensorPlace] = []
        for place_of, spec in enumerate(self.interface.inputs):
            first = items[0].inputs[place_of]
            shape = (samples, *first.shape[1:]) if self.interface.is_batched else first.shape
            offset = writer.reserve(math.prod(shape) * spec.dtype.itemsize)
            if offset is None:
                ring.give_back(slot)
                self._too_large(items)
                return
            place = TensorPlace(offset, shape)
            places.append(place)
            target, start = array_at(view, place, spec.dtype), 0
            if not self.interface.is_batched:
                target[...] = first
                continue
            for item in items:
                target[start : start + item.samples] = item.inputs[place_of]
                start += item.samples
        for item in items:
            item.running = True
        number = self.policy.started(now_s, expected_s)
        self._batches[engine.number] = _Batch(engine.number, number, items, samples, now_s)
        limit_s = max(self.settings.hang_s, _HANG_FACTOR * expected_s)
        self.pool.run(engine, BatchRun(number, slot, places, writer.used_bytes), now_s, limit_s)

    def _too_large(self, items: list[Pending]) -> None:
        if len(items) > 1:
            self._again(items)
            return
        size = sum(array.nbytes for array in items[0].inputs)
        self._refuse(
            items[0],
            RequestRefused(
                413, f"`inputs` must fit a slot of {self.settings.pool.slot_bytes} bytes, got {size}; "
                "the service takes more with --slot-bytes"
            ),
        )  # fmt: skip

    def _answer(self, item: Pending, answer: tuple[bytes, int | None]) -> None:
        self.answered += 1
        self._leave(item)
        if not item.future.done():
            item.future.set_result(answer)

    def _fail(self, item: Pending, text: str) -> None:
        self.failures += 1
        self.troubled.set()
        self._refuse(item, failed(text))

    def _refuse(self, item: Pending, refusal: RequestRefused) -> None:
        self._leave(item)
        if not item.future.done():
            item.future.set_exception(refusal)

    def _leave(self, item: Pending) -> None:
        del self._pending[item.queued.number]
        if not self._pending and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)
