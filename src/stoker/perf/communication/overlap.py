"""How much of an exchange overlaps with computation: simulates one compute lane and one link, event by event.

Both process their work in order. A transfer starts when the link is free and the tasks before it are done; a task that
needs a transfer waits for it. While the link is busy computation is slower by a stated factor, since the kernels of a
collective take multiprocessors and memory bandwidth.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """Computation.

    Attributes:
        needs: transfers that must be done before it starts, counted from the first; 0 for none.
    """

    seconds: float
    needs: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """An exchange.

    Attributes:
        after: tasks that must be done before it starts, counted from the first.
    """

    seconds: float
    after: int = 0


@dataclass(frozen=True, slots=True)
class Overlap:
    """The outcome of a simulation.

    Attributes:
        exposed_s: how much longer everything takes than computation alone.
        hidden_s: the rest of the exchange.
    """

    exposed_s: float
    hidden_s: float

    @property
    def total_s(self) -> float:
        """Time of the whole exchange."""
        return self.exposed_s + self.hidden_s


def overlapped(tasks: Sequence[Task], transfers: Sequence[Transfer], slowdown: float = 0.0) -> Overlap:
    """Runs tasks and transfers in overlap.

    Args:
        tasks: in order of computation.
        transfers: in order on the link.
        slowdown: computation takes 1 + this times as long while the link is busy.

    Raises:
        ValueError: a task waits for a transfer that waits for the task, or the slowdown is negative.
    """
    _check(tasks, transfers, slowdown)
    now, done, sent = 0.0, 0, 0
    left = tasks[0].seconds if tasks else 0.0
    carrying = 0.0
    is_busy = False
    while done < len(tasks) or sent < len(transfers):
        if not is_busy and sent < len(transfers) and transfers[sent].after <= done:
            is_busy, carrying = True, transfers[sent].seconds
        runs = done < len(tasks) and tasks[done].needs <= sent
        pace = 1.0 + slowdown if is_busy else 1.0
        computing = left * pace if runs else float("inf")
        sending = carrying if is_busy else float("inf")
        passed = min(computing, sending)
        now += passed
        if sending <= computing:
            is_busy, sent = False, sent + 1
            left -= passed / pace if runs else 0.0
        else:
            carrying -= passed
        if computing <= sending or (runs and left <= 0.0):
            done += 1
            left = tasks[done].seconds if done < len(tasks) else 0.0
    total = sum(transfer.seconds for transfer in transfers)
    exposed = min(max(0.0, now - sum(task.seconds for task in tasks)), total)
    return Overlap(exposed, total - exposed)


def _check(tasks: Sequence[Task], transfers: Sequence[Transfer], slowdown: float) -> None:
    if slowdown < 0:
        raise ValueError(f"`slowdown` must not be negative, got {slowdown}")
    for number, transfer in enumerate(transfers):
        if transfer.seconds < 0 or not 0 <= transfer.after <= len(tasks):
            raise ValueError(f"`transfers` must take time and follow tasks that exist, got {transfer} at {number}")
    latest = [0, *itertools.accumulate((transfer.after for transfer in transfers), max)]
    for number, task in enumerate(tasks):
        if task.seconds < 0 or not 0 <= task.needs <= len(transfers):
            raise ValueError(f"`tasks` must take time and need transfers that exist, got {task} at {number}")
        if latest[task.needs] > number:
            raise ValueError(f"`tasks` must not need transfers that follow them, got {task} at {number}")
