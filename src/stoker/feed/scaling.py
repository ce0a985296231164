"""What the feed tells a scaling policy, and what it obeys: plain values, so that a policy stays pure.

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
    """Share of the window's steps at which the training process found its next batch not ready."""
    input_wait_frac: float
    """Share of the window's wall time that the training process waited for batches, inside ``iter`` and ``next``."""
    blocked_frac: float
    """Share of the data workers' wall time that they had nothing to do (every lease or slot taken)."""
    step_s: float
    """Mean time the program takes between receiving a batch and asking for the next; 0.0 with no step."""
    item_wall_s: float
    """Mean wall time of one work item in a data worker; 0.0 with no item."""
    item_cpu_s: float
    """Mean CPU time of one work item; at most ``item_wall_s`` times the worker's threads."""
    batch_bytes: int
    """Largest batch seen so far, as laid out in a slot; 0 when none has been seen."""
    worker_bytes: int
    """Largest private memory of one data worker; 0 when unknown."""
    handover_frac: float = 0.0
    """Part of ``input_wait_frac``: the next batch was made, and stoker's own work kept it from the program (unpacking,
    drawing, the policy itself). More data workers do not shorten it."""
    waiting: bool = False
    """The window ended while the training process was still waiting (no step may have finished)."""
    window_s: float = 0.0
    """Length of the window; 0.0: it began where the last one ended."""
    free_bytes: int = -1
    """Memory that can still be allocated on this host, within all limits; -1: unknown, or far from short."""
    paused_s: float = 0.0
    """Time since the last window that is part of none: somebody else served the loader."""
    item_stall_s: float = -1.0
    """Mean time of one work item that its worker was ready to run and had no core (Linux: run delay); -1.0: unknown."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How many data workers there should be, and how deep each one's queue."""

    workers: int
    depth: int
    reason: str
    """One line for people: why this number, and why not more."""


class ScalingPolicy(Protocol):
    """Decides from observations alone; called about four times a second while a loader is being iterated."""

    def start(self, declared_workers: int, prefetch_factor: int) -> Decision:
        """The first decision of an iteration, before anything is measured; 0 declared: those of the process itself."""
        ...

    def decide(self, observation: Observation) -> Decision:
        """The decision for the time after this window."""
        ...
