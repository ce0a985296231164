"""The ledger: which work items exist, who has a lease of which, in which slot, and which one the program gets next.

An item is waiting, leased or ready; it is delivered once, by number, and forgotten. A lease is recorded only with its
worker, and points to its item; what a worker holds, and who owns a slot, is read from there. Every lease has a
generation: a result under one that its worker no longer holds is refused.

:class:`Items` lives as long as an iteration, :class:`Ledger` as long as the processes: a worker may answer a lease of
one iteration during the next.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter
from collections.abc import Container, Iterable, Iterator

import msgspec

from stoker.feed.program import WorkItem

_RECENT = 0.25
"""Share of the latest item in the usual time of a worker."""


class State(enum.Enum):
    """State of an item."""

    WAITING = "waiting"
    LEASED = "leased"
    READY = "ready"
    VOID = "void"
    """Never made: its shard was exhausted before it."""


class Item(msgspec.Struct, eq=False):
    """One work item."""

    seq: int
    work: WorkItem
    state: State = State.WAITING
    owner: int = -1
    """Id of the worker that it is bound to; -1 for none."""
    leases: list[Lease] = []
    """Leases that may still bring it: one, or two if the first is late."""
    maker: int = -1
    """Number of the worker that got its latest lease; -1 for none."""
    arrived: int = 0
    """Rank of its result by arrival, from 1; 0 before it arrives."""
    stays: bool = False
    """Another machine could not make it: it is made on this one."""
    deaths: dict[int, int] = {}
    """Number of workers that died at each position of the batch."""


class Lease(msgspec.Struct, eq=False):
    """A worker's right to make an item and to write a slot."""

    generation: int
    item: Item | None
    """None once nobody waits for it any more: its iteration was left, or it is a repetition."""
    ring: int
    """-1 for no slot."""
    slot: int
    repeats: int = -1
    """Number of the item that the worker makes again, to reach the state of a lost one; -1 for none, -2 for one of an
    earlier iteration."""


class Worker(msgspec.Struct, eq=False):
    """A data worker."""

    number: int
    worker_id: int
    leases: dict[int, Lease] = {}
    """Unanswered leases by generation; those of earlier iterations first."""
    num_stale: int = 0
    """How many of them are of an earlier iteration."""
    may_lease: bool = True
    """It was neither asked to leave, nor lost, nor started for something else."""
    away: bool = False
    """It is on another machine."""
    turned_s: float = 0.0
    """When it turned to the first of its leases: as it got that one, or had answered the one before."""
    usual_s: float = 0.0
    """How long it has lately taken for an item, what the link takes included; 0.0 before the first."""

    def made(self, stamp_s: float) -> None:
        """Records that it has made an item, and turns to the next."""
        spent_s, self.turned_s = max(0.0, stamp_s - self.turned_s), stamp_s
        self.usual_s = self.usual_s + _RECENT * (spent_s - self.usual_s) if self.usual_s else spent_s

    @property
    def num_held(self) -> int:
        """Leases of this iteration that it has not answered."""
        return len(self.leases) - self.num_stale


class Idleness:
    """Idle times of workers: the current ones, and those that have ended."""

    __slots__ = ("since_s", "spent_s")

    def __init__(self) -> None:
        self.since_s: dict[int, float] = {}
        """When the idle time of each idle worker began, by number (monotonic clock)."""
        self.spent_s = 0.0
        """Ended idle times since the last :meth:`settle`, summed."""

    def idle(self, worker: int, since_s: float) -> None:
        """Records that a worker has had no lease since ``since_s``."""
        self.since_s[worker] = since_s

    def busy(self, worker: int, now_s: float) -> None:
        """Records that a worker has a lease again, or is gone."""
        since_s = self.since_s.pop(worker, now_s)
        if since_s < now_s:
            self.spent_s += now_s - since_s

    def settle(self, now_s: float) -> float:
        """Idle time of all workers together since the last call (s)."""
        spent_s, self.spent_s = self.spent_s, 0.0
        for worker, since_s in self.since_s.items():
            spent_s += max(0.0, now_s - since_s)
            self.since_s[worker] = max(now_s, since_s)
        return spent_s


class Ledger:
    """The workers of a set of processes, and their leases."""

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self._generation = self._stale_to = 0

    def born(self, number: int, worker_id: int, *, may_lease: bool = True, away: bool = False) -> Worker:
        """Adds a new worker."""
        worker = self.workers[number] = Worker(number, worker_id, may_lease=may_lease, away=away)
        return worker

    def lease(self, worker: Worker, item: Item | None, ring: int = -1, slot: int = -1, repeats: int = -1) -> Lease:
        """Leases an item, or a repetition, to a worker."""
        self._generation = generation = self._generation + 1
        lease = worker.leases[generation] = Lease(generation, item, ring, slot, repeats)
        if item is not None:
            item.leases.append(lease)
            item.maker = worker.number
        return lease

    def answer(self, worker: Worker, generation: int) -> Lease | None:
        """Ends the lease that a worker has answered; None if it has no such lease."""
        lease = worker.leases.pop(generation, None)
        if worker.num_stale and lease is not None and generation <= self._stale_to:
            worker.num_stale -= 1
        return lease

    def depart(self, number: int) -> Worker | None:
        """Removes a worker that is gone; returns it, with the leases that it still had."""
        return self.workers.pop(number, None)

    def active(self) -> list[Worker]:
        """Workers that may get leases."""
        return [worker for worker in self.workers.values() if worker.may_lease]

    def make_stale(self) -> None:
        """Detaches all leases from their items, as the iteration is left; workers keep the slots until they answer."""
        self._stale_to = self._generation
        for worker in self.workers.values():
            worker.num_stale = len(worker.leases)
            for lease in worker.leases.values():
                lease.item = None
                if lease.repeats >= 0:
                    lease.repeats = -2

    def clear(self) -> list[tuple[int, int]]:
        """Removes all workers, whose processes are gone; returns the slots (ring, slot) that they still had."""
        slots = [(lease.ring, lease.slot) for worker in self.workers.values() for lease in worker.leases.values()]
        for worker in self.workers.values():
            worker.leases.clear()
        self.workers.clear()
        return [pair for pair in slots if pair[1] >= 0]


class Items:
    """Items from the one the program gets next (``cursor``) to the last one drawn.

    Args:
        num_pinned: W to bind item k to the worker with id k modulo W; 0 to let any worker make any item.
        first: number of the first item (a resumed iteration does not begin at 0).
        most_open: unfinished items that all pinned workers together may have if the program does not need the order;
            an item is then bound to the next worker with less than its share of them, as in torch's loader. 0 if it
            needs the order.
    """

    def __init__(self, num_pinned: int = 0, first: int = 0, most_open: int = 0) -> None:
        self._num_pinned = num_pinned
        self._most_open = most_open
        self._turn = first
        self.by_seq: dict[int, Item] = {}
        self.waiting: list[int] = []
        """Numbers of the waiting items, as a heap."""
        self._void_from: dict[int, int] = {}  # worker id -> its first void item (exhausted shard)
        self.cursor = first
        self.next_seq = first
        self.num_ready = 0
        self._num_accepted = 0

    def __len__(self) -> int:
        return len(self.by_seq)

    def __iter__(self) -> Iterator[Item]:
        return iter(list(self.by_seq.values()))

    def get(self, seq: int) -> Item | None:
        """The item, unless delivered or unknown."""
        return self.by_seq.get(seq)

    def add(self, work: WorkItem) -> Item:
        """Appends a new item."""
        seq = self.next_seq
        item = self.by_seq[seq] = Item(seq, work, owner=self._next_owner() if self._num_pinned else -1)
        self.next_seq = seq + 1
        if item.owner in self._void_from:
            item.state = State.VOID
        else:
            heapq.heappush(self.waiting, seq)
        return item

    def _next_owner(self) -> int:
        if not self._most_open:
            return self.next_seq % self._num_pinned
        undone = Counter(item.owner for item in self.by_seq.values())
        active = [worker for worker in range(self._num_pinned) if worker not in self._void_from]
        for _ in range(self._num_pinned):
            worker, self._turn = self._turn % self._num_pinned, self._turn + 1
            if worker in active and undone[worker] < self._most_open // len(active):
                return worker
        return min(active, key=lambda worker: undone[worker], default=self.next_seq % self._num_pinned)

    def pin(self, num_pinned: int, most_open: int = 0) -> None:
        """Binds items to workers, as these arguments of the class do; only before the first delivery."""
        self._num_pinned, self._most_open, self._turn = num_pinned, most_open, self.next_seq
        for item in self.by_seq.values():
            item.owner = item.seq % num_pinned

    def adopt(self, works: Iterable[WorkItem], taken: Container[int]) -> None:
        """Appends items that were drawn for an earlier machine, at numbers that are not ``taken``."""
        for work in works:
            while self.next_seq in taken:
                self.pass_over()
            self.add(work)

    def works(self) -> list[WorkItem]:
        """What is drawn and not delivered, in order."""
        return [item.work for item in sorted(self, key=lambda item: item.seq)]

    def pass_over(self) -> None:
        """Skips the next number: its item was delivered before the iteration was resumed."""
        self.next_seq += 1

    def skip_to(self, seq: int) -> None:
        """Skips all items below ``seq``, which were delivered elsewhere; nothing may be open."""
        assert not self.by_seq
        self.cursor = self.next_seq = seq

    def next_waiting(self, worker_id: int) -> Item | None:
        """The first item that a worker may take, without leasing it."""
        if not self._num_pinned:
            return self.by_seq[self.waiting[0]] if self.waiting else None
        for seq in sorted(self.waiting):
            if self.by_seq[seq].owner == worker_id:
                return self.by_seq[seq]
        return None

    def leased(self, item: Item) -> None:
        """Marks a waiting item as leased."""
        assert item.state is State.WAITING
        if self.waiting[0] == item.seq:
            heapq.heappop(self.waiting)
        else:
            self.waiting.remove(item.seq)
            heapq.heapify(self.waiting)
        item.state = State.LEASED

    def accept(self, item: Item) -> None:
        """Marks a leased item as ready and detaches its other leases."""
        assert item.state is State.LEASED
        item.state = State.READY
        for other in item.leases:
            other.item = None
        item.leases.clear()
        self.num_ready += 1
        item.arrived = self._num_accepted = self._num_accepted + 1

    def release(self, item: Item, lease: Lease) -> bool:
        """Removes a lease that brought nothing; returns whether its item waits again."""
        item.leases.remove(lease)
        lease.item = None
        if item.leases or item.state is not State.LEASED:
            return False
        item.state = State.WAITING
        heapq.heappush(self.waiting, item.seq)
        return True

    def end_shard(self, item: Item) -> None:
        """Marks an item and the later ones of its worker as void: their shard is exhausted."""
        self._void_from[item.owner] = item.seq
        for other in self.by_seq.values():
            if other.seq >= item.seq and other.owner == item.owner:
                other.state = State.VOID
        self.waiting = [seq for seq in self.waiting if self.by_seq[seq].state is State.WAITING]
        heapq.heapify(self.waiting)

    @property
    def all_shards_ended(self) -> bool:
        """Whether every pinned worker's shard is exhausted."""
        return self._num_pinned > 0 and len(self._void_from) == self._num_pinned

    @property
    def num_in_flight(self) -> int:
        """Items that are leased or ready."""
        return sum(1 for i in self.by_seq.values() if i.state in (State.LEASED, State.READY))

    @property
    def num_open(self) -> int:
        """Items drawn and neither delivered nor void."""
        if not self._void_from:
            return len(self.by_seq)
        return sum(1 for i in self.by_seq.values() if i.state is not State.VOID)

    def head(self) -> Item | None:
        """The item that the program gets next; None if no drawn item is left."""
        while True:
            item = self.by_seq.get(self.cursor)
            if item is None:
                if self.cursor < self.next_seq:  # delivered out of order
                    self.cursor += 1
                    continue
                return None
            if item.state is not State.VOID:
                return item
            del self.by_seq[self.cursor]
            self.cursor += 1

    def first_ready(self) -> Item | None:
        """The item that has been ready for longest, for programs that do not need the order."""
        ready = [i for i in self.by_seq.values() if i.state is State.READY]
        return min(ready, key=lambda i: i.arrived, default=None)

    def deliver(self, item: Item) -> None:
        """Removes a ready item."""
        assert item.state is State.READY
        del self.by_seq[item.seq]
        self.num_ready -= 1
        if item.seq == self.cursor:
            self.cursor += 1

    def forget_all(self) -> list[Item]:
        """Removes all items, as the program has left the iteration; returns them by number."""
        items = sorted(self.by_seq.values(), key=lambda item: item.seq)
        for item in items:
            item.leases.clear()
        self.by_seq.clear()
        self.waiting.clear()
        self.num_ready = 0
        self.cursor = self.next_seq
        return items
