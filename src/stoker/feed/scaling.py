"""The interface of scaling policies: observations and decisions as plain values, so that a policy stays pure.

The feed measures; a policy (``stoker.scale.job``) decides; the feed acts. Time is a field, never read from a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One window of a loader's queue, as seen by the training process.

    Steps are deliveries of a batch. Workers' figures are means over the items finished in the window.
    """

    now_s: float
    """Monotonic time at the end of the window."""
    workers: int
    """Data workers that are alive and not draining."""
    depth: int
    """Work items that each data worker may hold (leased or ready) at a time."""
    steps: int
    """Batches delivered in the window."""
    items: int
    """Work items finished by data workers in the window."""
    starved_frac: float
    """Share of the window's steps at which the training process found its next batch not made."""
    input_wait_frac: float
    """Share of the window's wall time in which the training process waited for batches, in ``iter`` or ``next``."""
    blocked_frac: float
    """Share of the data workers' wall time in which they had nothing to do (every lease or slot taken)."""
    step_s: float
    """Mean time between a batch's delivery and the program's next request; 0.0 without a step."""
    item_wall_s: float
    """Mean wall time of one work item in a data worker; 0.0 without an item."""
    item_cpu_s: float
    """Mean CPU time of one work item; at most ``item_wall_s`` times the worker's threads."""
    batch_bytes: int
    """Largest batch seen so far, as laid out in a slot; 0 before the first."""
    worker_bytes: int
    """Largest private memory of one data worker; 0 when unknown."""
    handover_frac: float = 0.0
    """Part of ``input_wait_frac`` in which the next batch was made already: stoker's own work (unpacking, drawing, the
    policy itself). More data workers do not shorten it."""
    waiting: bool = False
    """The window ended while the training process was still waiting (no step may have finished)."""
    window_s: float = 0.0
    """Length of the window; 0.0: it began at the end of the previous one."""
    free_bytes: int = -1
    """Memory that can still be allocated on this host, within all limits; -1: unknown or ample."""
    paused_s: float = 0.0
    """Time since the last window that no window counts: torch served the loader, or a compared round was not steady."""
    item_stall_s: float = -1.0
    """Mean time per work item for which its worker was runnable but had no core (Linux: run delay); -1.0: unknown."""
    away: int = 0
    """Data workers among ``workers`` that are on other machines."""
    away_room: int = 0
    """Data workers that other machines would take in all; 0 without any, and while this loader must stay here."""
    away_limit: str = ""
    """What the links to other machines carry that carry no more, for people; empty while none is full."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How many data workers there should be, and the depth of each one's queue."""

    workers: int
    depth: int
    reason: str
    """One line for people: why this number, and why not more."""
    away: int = 0
    """How many of ``workers`` are to be on other machines."""

    @property
    def numbers(self) -> tuple[int, int, int]:
        """What is decided, apart from the words."""
        return self.workers, self.away, self.depth


class ScalingPolicy(Protocol):
    """Decides from observations alone; called about four times a second while a loader is being iterated."""

    def start(self, declared_workers: int, prefetch_factor: int) -> Decision:
        """The first decision of an iteration, before any measurement; with 0 declared, the policy chooses."""
        ...

    def decide(self, observation: Observation) -> Decision:
        """The decision for the time after this window."""
        ...
