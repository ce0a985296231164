"""What the service asks of a policy: which requests are taken, and which go together; pure, time is an argument.

The rules are in ``stoker.scale.serving``; the simulator drives the same ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol


class QueuedRequest(NamedTuple):
    """A request that waits.

    Attributes:
        number: of the request, unique.
        samples: that it has.
        deadline_s: when its answer must be there; infinite for one without.
        kind: requests of one kind may be joined in a batch; None for one that must run alone.
        priority: lower ones go first.
    """

    number: int
    samples: int
    deadline_s: float
    kind: Hashable = 0
    priority: int = 3


class ChosenBatch(NamedTuple):
    """What an idle engine is to do.

    Attributes:
        requests: to run together, at least one unless all that waited were dropped.
        expected_s: how long that should take.
        dropped: numbers of requests that cannot be answered in time any more.
    """

    requests: Sequence[QueuedRequest]
    expected_s: float
    dropped: Sequence[int]


class BatchPolicy(Protocol):
    """The queue before the engines of one version of a model."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether those that wait fill a batch: more would not make it larger."""
        ...

    def refusal_s(self, now_s: float, priority: int) -> float | None:
        """None if a request that arrives now can be answered in time; else in how many seconds it is worth a try."""
        ...

    def arrive(self, request: QueuedRequest) -> None:
        """Adds a request to those that wait."""
        ...

    def requeue(self, requests: Sequence[QueuedRequest]) -> None:
        """Puts requests whose engine was lost back in front; they are not dropped."""
        ...

    def cancel(self, number: int) -> None:
        """Takes a request out, if it waits."""
        ...

    def set_engines(self, count: int) -> None:
        """Tells how many engines there are."""
        ...

    def next_batch(self, now_s: float, wait_s: float | None = None) -> ChosenBatch | None:
        """What an engine is to do that is idle, or that computes and should be idle in ``wait_s``; None for nothing.

        One that computes, though it is late and ``wait_s`` 0, gets no batch with empty places that is all that waits.
        """
        ...

    def left_s(self, now_s: float, batch: int) -> float:
        """How long a batch that began should still take."""
        ...

    def started(self, now_s: float, expected_s: float) -> int:
        """Notes that a batch began, or will; returns its number."""
        ...

    def begins(self, now_s: float, batch: int) -> None:
        """Notes that a batch begins now that was given to an engine beforehand."""
        ...

    def ended(
        self, now_s: float, batch: int, samples: int, took_s: float | None, handover_s: float = 0.0
    ) -> None:  # fmt: skip
        """Notes that a batch ended.

        Args:
            now_s: when that is.
            batch: its number.
            samples: that it had.
            took_s: that its engine computed; None where that was lost, which says nothing about the cost.
            handover_s: that it was on the way for longer, to the engine and back.
        """
        ...

    def answered(self, after_s: float, late_frac: float) -> None:
        """Notes how long after the end of a batch its answers were written, and what share of them was late."""
        ...
