"""Finds the allocator or starts it; what a job's broker says to it.

For processes that have joined the cluster: never a training process.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import RayError

from stoker.backends.ray.allocator.actor import Allocator
from stoker.backends.ray.allocator.settings import AllocatorConfig
from stoker.backends.ray.joining import NAMESPACE
from stoker.backends.remote.brokering import SeenQueue
from stoker.scale.cluster import GrantOrder, JobReport, QueueWindow

NAME = "allocator"
_ANSWER_S = 5.0
"""An allocator that is silent for so long is looked for again."""
_RETRY_S = 2.0


def find_or_start(config: AllocatorConfig | None = None, namespace: str = NAMESPACE) -> Any:
    """The handle of the cluster's allocator; of two who start it at once, one does.

    Args:
        config: for the case that it is started.
        namespace: of its name.
    """
    actor: Any = ray.remote(Allocator)
    return actor.options(
        name=NAME, namespace=namespace, lifetime="detached", get_if_exists=True, num_cpus=0, max_restarts=-1,
        max_task_retries=0, max_concurrency=8,
    ).remote(config or AllocatorConfig(), namespace)  # fmt: skip


class AllocatorClient:
    """A job's line to the allocator: never waits, and without one the job scales alone.

    Args:
        job: name that no other job has.
        config: for the case that this job starts the allocator.
        namespace: of its name.
    """

    def __init__(self, job: str, config: AllocatorConfig | None = None, namespace: str = NAMESPACE) -> None:
        self.job = job
        self._config, self._namespace = config, namespace
        # Ray's lookups wait for its head; here they may.
        self._finding = ThreadPoolExecutor(1, thread_name_prefix="allocator")
        self._found: Future[Any] | None = None
        self._handle: Any = None
        self._answer: Any = None
        self.sent = False
        """Whether the last report was sent: while another is on its way, none is."""
        self.grace_s: float | None = None
        """Time to finish the items at work on CPUs that are taken back, if people chose it."""
        self.waited = 0
        """CPUs that would help and that no node has, by the last answer."""
        self._sent_s = self._failed_s = float("-inf")

    def exchange(self, report: JobReport) -> tuple[GrantOrder, ...] | None:
        """Sends a report, and returns the answer to an earlier one; None if there is none yet, or no allocator.

        What an answer allows and is not held after :data:`_ANSWER_S` without another one must not be taken any more.
        """
        orders, self.sent = self._received(), False
        if self._answer is None and self._is_found():
            self._sent_s = time.monotonic()
            self._answer = self._handle.report.remote(report)
            self.sent = True
        return orders

    def leave(self) -> None:
        """The job ended."""
        if self._handle is not None:
            self._handle.leave.remote(self.job)
        self._finding.shutdown(wait=False, cancel_futures=True)

    def _received(self) -> tuple[GrantOrder, ...] | None:
        if self._answer is None:
            return None
        if not ray.wait([self._answer], timeout=0)[0]:
            if time.monotonic() - self._sent_s > _ANSWER_S:
                self._lose()
            return None
        try:
            orders, self.waited, self.grace_s = ray.get(self._answer, timeout=0.1)
            return orders
        except RayError:
            self._lose()
            return None
        finally:
            self._answer = None

    def _lose(self) -> None:
        self._handle = self._answer = None
        self.waited = 0
        self._failed_s = time.monotonic()

    def _is_found(self) -> bool:
        if self._handle is not None:
            return True
        if self._found is None:
            if time.monotonic() - self._failed_s > _RETRY_S:
                self._found = self._finding.submit(find_or_start, self._config, self._namespace)
        elif self._found.done():
            found, self._found = self._found, None
            if found.exception() is None:
                self._handle = found.result()
            else:
                self._failed_s = time.monotonic()
        return self._handle is not None


def window_of(queue: SeenQueue) -> QueueWindow:
    """What a crew's queue showed, as the allocator learns curves from it: a worker is a CPU."""
    return QueueWindow(
        cpus=queue.near + queue.away, samples_per_s=queue.batches_per_s, starved_frac=queue.starved_frac,
        blocked_frac=queue.blocked_frac, computing_frac=queue.computing_frac,
    )  # fmt: skip


class GrantedCpus:
    """The CPUs that the allocator gives a job, as its broker takes them.

    Args:
        job: name that no other job of the cluster has.
        user: whose it is.
        priority: its class.
    """

    def __init__(self, job: str, user: str, priority: int = 0) -> None:
        self._client = AllocatorClient(job)
        self._user, self._priority = user, priority
        self._began_s = time.monotonic()
        self._heard_s = float("-inf")
        self._granted: dict[str, int] = {}
        self._own_cpus = 0
        self._window: QueueWindow | None = None
        """One that was not sent yet."""

    @property
    def waited(self) -> int:
        """CPUs that would help and that no node has."""
        return self._client.waited

    @property
    def grace_s(self) -> float | None:
        """Time to finish the items at work on CPUs that are taken back, if people chose it."""
        return self._client.grace_s

    def ask(
        self,
        wanted: int,
        held: Mapping[str, int],
        homes: Sequence[str],
        refused: Collection[str],
        queue: SeenQueue | None = None,
    ) -> Mapping[str, int] | None:
        """CPUs by node that the job may have; None without an allocator: then it scales alone.

        Args:
            wanted: that it would use.
            held: that it has, by node.
            homes: nodes of its training workers.
            refused: nodes that cannot serve it.
            queue: what its queue showed, if that is new.
        """
        if queue is not None:
            self._own_cpus, self._window = queue.near, window_of(queue)
        now_s = time.monotonic()
        age_s = now_s - self._began_s
        # An upper bound of the work done, and the same for all jobs.
        orders = self._client.exchange(
            JobReport(
                job=self._client.job, user=self._user, priority=self._priority, wanted=wanted,
                held=dict(held), homes=tuple(homes),
                refused=tuple(sorted(refused)), age_s=age_s, progress_s=age_s, own_cpus=self._own_cpus,
                window=self._window,
            )
        )  # fmt: skip
        if self._client.sent:
            self._window = None
        if orders is not None:
            self._heard_s = now_s
            self._granted = {order.node: order.cpus for order in orders if order.cpus}
        return self._granted if now_s - self._heard_s <= _ANSWER_S else None
