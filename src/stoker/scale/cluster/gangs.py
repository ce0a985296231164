"""Which waiting jobs get their GPUs: all of them or none, in an order, with backfill, and who is preempted for whom.

The same class live and simulated: pure state, time is an argument. Data workers' CPUs are not admitted here, they come
from the pool.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from stoker.scale.cluster.rooms import Need, Rooms, Seat

Discipline = Literal["fifo", "srtf", "2d-las", "fair"]
DISCIPLINES: tuple[Discipline, ...] = get_args(Discipline)

LEVEL_S = 3600.0
"""2D-LAS: GPU seconds of the first level; each further level is four times as long (Tiresias uses two or three)."""
PREEMPT_FACTOR = 2.0
"""A running gang is preempted only for one whose key is so many times better: each costs a restart."""
Cause = Literal["no GPU", "CPUs short", "fragmentation", "behind another"]
CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True, kw_only=True)
class Gang:
    """A job that waits for its GPUs, or has them."""

    name: int
    need: Need
    arrived_s: float = 0.0
    attained_s: float = 0.0
    """Seconds for which it had its GPUs."""
    left_s: float = math.inf
    """Seconds that it would still take at full speed; infinite if its end is unknown."""
    priority: int = 0
    resumable: bool = False
    """It continues from its checkpoint: it may be preempted."""


@dataclass(frozen=True)
class Started:
    """A gang that gets its GPUs, and those preempted for it."""

    gang: Gang
    seats: list[Seat]
    preempted: tuple[Gang, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GangConfig:
    """How gangs are admitted."""

    discipline: Discipline = "fifo"
    patience_s: float = math.inf
    """Once the first of the queue has waited so long, none behind it starts before it. Infinite: always backfill."""
    preempt_factor: float = PREEMPT_FACTOR

    def __post_init__(self) -> None:
        if self.discipline not in DISCIPLINES:
            raise ValueError(f"`discipline` must be one of {', '.join(DISCIPLINES)}, got {self.discipline!r}")
        if not self.patience_s >= 0.0 or not self.preempt_factor >= 1.0:
            raise ValueError(
                f"`patience_s` must not be negative and `preempt_factor` at least 1, got {self.patience_s} and "
                f"{self.preempt_factor}"
            )


def key_of(gang: Gang, discipline: Discipline, now_s: float) -> float:
    """The order of gangs in a discipline; smaller goes first.

    Source: SRTF and 2D-LAS as in Tiresias (NSDI 2019), the latter with levels four times apart; "fair" is finish-time
    fairness after Themis (NSDI 2020): whom waiting slowed down most.
    """
    if discipline == "srtf":
        return gang.left_s * gang.need.gpus
    if discipline == "2d-las":
        attained = gang.attained_s * gang.need.gpus
        return max(0.0, math.ceil(math.log(attained / LEVEL_S, 4.0))) if attained > 0.0 else 0.0
    if discipline == "fair":
        left = gang.left_s if math.isfinite(gang.left_s) else 0.0
        alone = gang.attained_s + left + LEVEL_S / 6
        return -(now_s - gang.arrived_s + left + LEVEL_S / 6) / alone
    return gang.arrived_s


class GangQueue:
    """The queue of gangs, and those that have GPUs.

    A gang with the smallest key starts first; where it has no room, the next that fits does (backfill). Gangs of equal
    needs are interchangeable, so that only the first of each need is looked at.

    Args:
        rooms: of the cluster; the queue is the only one that takes room.
        config: the discipline and its limits.
    """

    def __init__(self, rooms: Rooms, config: GangConfig) -> None:
        self.rooms = rooms
        self.config = config
        self._waiting: dict[Need, list[tuple[int, float, float, int, Gang]]] = {}
        self._running: dict[int, tuple[Gang, list[Seat]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def refused(self, need: Need) -> str:
        """What lacks for a gang that can never start; empty where it can."""
        return self.rooms.lacks(need)

    def push(self, gang: Gang, now_s: float) -> None:
        """Adds a gang to the queue.

        Raises:
            ValueError: it can never start.
        """
        if lacks := self.rooms.lacks(gang.need):
            raise ValueError(f"`{gang.name}` must fit the empty cluster: {lacks}")
        heap = self._waiting.get(gang.need)
        if heap is None:
            heap = self._waiting[gang.need] = []
        self._count += 1
        key = key_of(gang, self.config.discipline, now_s)
        heapq.heappush(heap, (-gang.priority, key, gang.arrived_s, self._count, gang))

    def adopt(self, gang: Gang, seats: list[Seat]) -> None:
        """Takes in a gang that has its GPUs already."""
        self.rooms.retake(seats)
        self._running[gang.name] = (gang, seats)

    def withdraw(self, name: int) -> None:
        """Removes a waiting gang."""
        for need, heap in list(self._waiting.items()):
            heap[:] = [row for row in heap if row[4].name != name]
            heapq.heapify(heap)
            if not heap:
                del self._waiting[need]

    def ended(self, name: int) -> None:
        """Gives back the GPUs of a gang that ended."""
        _, seats = self._running.pop(name)
        self.rooms.vacate(seats)

    def start(self, now_s: float, current: Callable[[Gang], Gang] = lambda gang: gang) -> Iterable[Started]:
        """Starts all that can start, one after another.

        Args:
            now_s: the time.
            current: the gang as it is now, with what it attained; asked for running gangs that may be preempted.
        """
        if self.config.discipline == "fair":
            self._sort_again(now_s)
        while self._waiting:
            started = self._next(now_s) or self._by_preemption(now_s, current)
            if started is None:
                return
            yield started

    def waiting(self) -> list[tuple[Need, int]]:
        """How many gangs wait, for each need that some do."""
        return [(need, len(heap)) for need, heap in self._waiting.items()]

    def cause(self, need: Need) -> Cause:
        """Why gangs of a need wait now."""
        if need.gpus > self.rooms.free_gpus:
            return "no GPU"
        if self.rooms.fragmented(need):
            return "fragmentation"
        return "CPUs short" if self.rooms.cpus_bind(need) else "behind another"

    def _next(self, now_s: float) -> Started | None:
        if not self.rooms.free_gpus:
            return None
        heads = sorted((heap[0], need) for need, heap in self._waiting.items() if need.gpus <= self.rooms.free_gpus)
        first = min((heap[0] for heap in self._waiting.values()), default=None)
        for head, need in heads:
            if head is not first and first is not None and now_s - first[4].arrived_s > self.config.patience_s:
                return None
            seats = self.rooms.place(need)
            if seats is not None:
                return self._begin(need, seats)
        return None

    def _begin(self, need: Need, seats: list[Seat], preempted: tuple[Gang, ...] = ()) -> Started:
        heap = self._waiting[need]
        gang = heapq.heappop(heap)[4]
        if not heap:
            del self._waiting[need]
        self._running[gang.name] = (gang, seats)
        return Started(gang, seats, preempted)

    def _by_preemption(self, now_s: float, current: Callable[[Gang], Gang]) -> Started | None:
        """Starts the first of the queue in the place of resumable gangs that are much behind it."""
        if self.config.discipline == "fifo" and not any(heap[0][0] for heap in self._waiting.values()):
            return None
        head, need = min((heap[0], need) for need, heap in self._waiting.items())
        victims: list[tuple[float, Gang]] = []
        for gang, _ in self._running.values():
            if not gang.resumable or gang.priority > head[4].priority:
                continue
            now = current(gang)
            key = key_of(now, self.config.discipline, now_s)
            if now.priority < head[4].priority or self._much_worse(key, head[1]):
                victims.append((key, now))
        victims.sort(key=lambda each: (each[1].priority, -each[0]))
        return self._in_place_of([gang for _, gang in victims], need, now_s)

    def _much_worse(self, running: float, waiting: float) -> bool:
        if self.config.discipline == "fifo":
            return False
        if self.config.discipline == "2d-las":
            return running > waiting
        if self.config.discipline == "fair":
            return -waiting > -running * self.config.preempt_factor
        return running > waiting * self.config.preempt_factor

    def _in_place_of(self, victims: list[Gang], need: Need, now_s: float) -> Started | None:
        """Vacates victims, the last in order first, until the need fits; gives back what was not needed after all."""
        vacated: list[Gang] = []
        seats: list[Seat] | None = None
        for gang in victims:
            self.rooms.vacate(self._running[gang.name][1])
            vacated.append(gang)
            seats = self.rooms.place(need)
            if seats is not None:
                break
        if seats is None:
            for gang in vacated:
                self._retake(gang)
            return None
        gone = tuple(gang for gang in vacated if not self._retake(gang))
        for gang in gone:
            del self._running[gang.name]
            self.push(gang, now_s)
        return self._begin(need, seats, gone)

    def _retake(self, gang: Gang) -> bool:
        """Whether a vacated gang can have its own seats again; it has them then."""
        seats = self._running[gang.name][1]
        free = all(
            self.rooms.gpus[seat.node] >= seat.gpus and self.rooms.cpus[seat.node] >= seat.cpus - 1e-9 for seat in seats
        )
        if free:
            self.rooms.retake(seats)
        return free

    def _sort_again(self, now_s: float) -> None:
        for heap in self._waiting.values():
            heap[:] = [(row[0], key_of(row[4], self.config.discipline, now_s), row[2], row[3], row[4]) for row in heap]
            heapq.heapify(heap)
