"""A model and engines that a test plays: no process, and every message by hand."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections import deque

import numpy as np

from stoker.scale.serving import CostCurve, ServingQueue, ServingRules
from stoker.serve.engine import ANY, Interface, TensorSpec
from stoker.serve.models.pending import Answering, Outputs, Pending
from stoker.serve.models.version import ModelVersion, VersionSettings
from stoker.serve.processes.messages import FRAMING, BatchDone, BatchRun, EngineMessage, Failure, pack, unpack, warm
from stoker.serve.processes.pooled import PoolSettings
from stoker.serve.protocol.requests import InferRequest
from stoker.serve.refusals import RequestRefused
from stoker.wire.polled import PolledChannel

F4 = np.dtype("<f4")
INTERFACE = Interface((TensorSpec("x", F4, (ANY,)),), (TensorSpec("y", F4, (ANY,)),), "test")
TURNS = 20
"""Of the loop, in which whatever is to happen by itself has happened."""


async def turns() -> None:
    """Lets whatever is to happen by itself happen."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class PlayedModel:
    """The process with the model and its engines, as the service sees them: it loads, and forks what is asked."""

    def __init__(self) -> None:
        self._forks: PolledChannel[EngineMessage] | None = None
        self.asked: deque[int] = deque()
        """Sockets of engines that the service has asked for."""
        self.known: list[bytes] = []
        """What the service says that it was loaded from, of each start."""
        self.trouble = ""
        """Why it is not loaded; empty where it is."""

    def start(self, sock: socket.socket, behind: bool, known: bytes) -> None:
        self._forks = PolledChannel(sock.dup(), FRAMING, blocking=False)
        self.known.append(known)
        if self.trouble:
            self._forks.send(EngineMessage.CHANGED, pack(Failure(self.trouble)))
        else:
            self._forks.send(EngineMessage.LOADED, b"a source")

    async def engine(self, second_s: float) -> PlayedEngine:
        """The next engine that the service asks for, ready."""
        while not self.asked:
            await asyncio.sleep(0)
            for frame in (self._forks and self._forks.receive()) or ():
                assert frame.kind is EngineMessage.FORK
                sock, memory = frame.fds
                os.close(memory)
                self.asked.append(sock)
        engine = PlayedEngine(self.asked.popleft())
        engine.channel.send(EngineMessage.READY, warm(INTERFACE, [(1, second_s)]))
        return engine

    def close(self) -> None:
        assert self._forks is not None
        self._forks.close()


class PlayedEngine:
    """Computes a batch when it is told to."""

    def __init__(self, fd: int) -> None:
        self.channel: PolledChannel[EngineMessage] = PolledChannel(socket.socket(fileno=fd), FRAMING, blocking=False)
        self.given: deque[BatchRun] = deque()

    async def samples(self) -> list[int]:
        """Of the batches that it has."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
            self.given += [unpack(frame.body, BatchRun) for frame in self.channel.receive() or ()]
        return [run.shapes[0][0] for run in self.given]

    def done(self) -> None:
        run = self.given.popleft()
        self.channel.send(EngineMessage.DONE, pack(BatchDone(run.batch, 1e-6, [run.used_bytes], run.shapes)))

    def broken(self) -> None:
        run = self.given.popleft()
        self.channel.send(EngineMessage.BROKEN, pack(Failure("it raised", run.batch)))


class Asked(Pending):
    """A request of one sample; it knows what became of it."""

    __slots__ = ("answered_by", "became", "reason")

    def __init__(self, deadline_s: float = math.inf) -> None:
        super().__init__(InferRequest("", [np.zeros(1, F4)], 1, [("y", True)], None), deadline_s, 3)
        self.became = "waits"
        self.reason = ""
        """Why it was refused."""
        self.answered_by = ""
        """The version that did."""

    def answer(self, version: Answering, outputs: Outputs) -> None:
        assert self.became == "waits"
        self.became, self.answered_by = "answered", version.label

    def refuse(self, refusal: RequestRefused) -> None:
        assert self.became == "waits"
        self.became, self.reason = refusal.outcome, f"{refusal.status} {refusal}"


class Unseen:
    """Takes facts about batches."""

    def batch(self, samples: int, took_s: float, handover_s: float) -> None:
        pass

    def retried(self, requests: int) -> None:
        pass


def played_version(
    label: str, model: PlayedModel, max_batch: int = 4, *, engines: int = 1, start_s: float = 300.0
) -> ModelVersion:
    """A version whose engines the test plays."""
    return ModelVersion(
        label, model.start,
        VersionSettings(
            pool=PoolSettings(engines=engines, max_batch=max_batch, slot_bytes=1 << 12, start_s=start_s)
        ),
        lambda costs, engines: ServingQueue(ServingRules(max_batch=max_batch), CostCurve(tuple(costs)), engines),
        Unseen(), lambda text: None,
    )  # fmt: skip
