"""A request on its way: what a version of a model knows of who asked."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stoker.serve.engine import Interface
from stoker.serve.policy import QueuedRequest
from stoker.serve.protocol.requests import InferRequest
from stoker.serve.refusals import RequestRefused

Outputs = Mapping[str, npt.NDArray[np.generic]]
"""The outputs for one request; their slot is used again, so what an answer needs of them is copied at once."""


class Answering(Protocol):
    """The version of a model that answers, as who asked sees it."""

    label: str

    @property
    def interface(self) -> Interface:
        """What it takes and gives."""
        ...

    def cancel(self, item: Pending) -> None:
        """Forgets a request that waits."""
        ...


class Pending(abc.ABC):
    """A request on its way; exactly one of :meth:`answer` and :meth:`refuse` is called, in the loop of the service.

    Args:
        request: as it was read.
        deadline_s: by ``time.monotonic``.
        priority: lower goes first.
    """

    __slots__ = (
        "deadline_s", "gone", "on_answer", "on_failure", "priority", "queued", "request", "running", "tries", "version"
    )  # fmt: skip

    def __init__(self, request: InferRequest, deadline_s: float, priority: int) -> None:
        self.request = request
        self.deadline_s = deadline_s
        self.priority = priority
        self.on_failure: Callable[[Pending], None] | None = None
        """Takes it where the model fails at it, instead of a refusal."""
        self.on_answer: Callable[[], None] | None = None
        """Told once a version has answered it."""
        self.version: Answering | None = None
        """That is to answer."""
        self.queued: QueuedRequest | None = None
        """As its queue has it."""
        self.running = False
        """An engine has it."""
        self.gone = False
        """Nobody waits for it."""
        self.tries = 0

    @abc.abstractmethod
    def answer(self, version: Answering, outputs: Outputs) -> None:
        """Takes the outputs; raises ``ValueError`` where they are numbers that its encoding cannot hold."""

    @abc.abstractmethod
    def refuse(self, refusal: RequestRefused) -> None:
        """There is no answer."""

    def leave(self) -> None:
        """Nobody waits for it any more: it does not run, unless an engine has it already."""
        self.gone = True
        if self.version is not None:
            self.version.cancel(self)
