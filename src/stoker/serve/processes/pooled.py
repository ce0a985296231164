"""What a pool of engines knows of each, and who listens to what they did."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from stoker.serve.processes.messages import BatchDone, EngineMessage, EngineReady, Failure
from stoker.wire.polled import PolledChannel


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """Engines of one version.

    Attributes:
        engines: processes that compute.
        max_batch: most samples that they are measured with.
        slot_bytes: room for the inputs and outputs of a batch; only what is used takes memory.
        start_s: that loading and warming may take.
        measure_s: that an engine may spend on measuring its costs.
    """

    engines: int = 2
    max_batch: int = 32
    slot_bytes: int = 256 << 20
    start_s: float = 300.0
    measure_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("engines", "max_batch", "slot_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")


class GivenBatch(NamedTuple):
    """A batch that an engine has.

    Attributes:
        slot: of its tensors.
        limit_s: after which it is taken to hang.
    """

    slot: int
    limit_s: float


@dataclass(eq=False)
class PooledEngine:
    """One engine, as the service sees it."""

    number: int
    channel: PolledChannel[EngineMessage]
    pidfd: int = -1
    asked_s: float = 0.0
    """When it was asked for."""
    ready: EngineReady | None = None
    given: deque[GivenBatch] = field(default_factory=deque[GivenBatch])
    """That it computes, and the next one."""
    since_s: float = 0.0
    """When the first of these began."""
    killed: bool = False


class PoolListener(Protocol):
    """Who gives engines work."""

    def engine_idle(self) -> None:
        """An engine can take a batch."""
        ...

    def engines_changed(self, ready: int) -> None:
        """Engines have become warm, or were lost."""
        ...

    def engines_missing(self, reason: str) -> None:
        """There is no engine, and will be none soon."""
        ...

    def batch_done(self, engine: PooledEngine, slot: int, done: BatchDone) -> None:
        """A batch is computed, and its engine idle; the listener gives the slot back."""
        ...

    def batch_broken(self, engine: PooledEngine, failure: Failure) -> None:
        """The model raised."""
        ...

    def batch_lost(self, engine: PooledEngine) -> None:
        """The engine ended with a batch, or with two."""
        ...
