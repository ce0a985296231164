"""The lease table: which work items exist, who makes them, and which one the program gets next.

Pure bookkeeping, no clock and no processes. An item is waiting, leased or ready; it is delivered once, by number, and
forgotten. Every lease has a generation: what arrives under an old one (from a worker presumed dead, or from before
the program left the iteration) is refused.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stoker.feed.program import WorkItem

_generations = itertools.count(1)
"""Shared by all tables: a worker may answer a lease of one iteration during the next."""


class State(enum.Enum):
    """Where an item is in its life."""

    WAITING = "waiting"
    LEASED = "leased"
    READY = "ready"
    VOID = "void"
    """Its shard was exhausted before it."""


@dataclass(slots=True)
class Item:
    """One work item and its current lease."""

    seq: int
    work: WorkItem
    state: State = State.WAITING
    generation: int = 0
    worker: int = -1
    """Worker that holds the lease, or made it; -1 for none."""
    ring: int = -1
    slot: int = -1
    owner: int = -1
    """Id of the worker that it is bound to; -1 for none."""
    result: Any = None
    arrived: int = 0
    """Place among the results in the order in which they came."""
    deaths: dict[int, int] = field(default_factory=dict[int, int])
    """How many workers died at each position of the batch."""


class LeaseTable:
    """Items from the one the program gets next (``cursor``) to the last one drawn.

    Args:
        num_pinned: W to bind item k to the worker with id k modulo W; 0 to let any worker make any item.
        first: number of the first item (a resumed iteration does not begin at 0).
        most_open: where the program does not need the order, items that all pinned workers together may have undone;
            an item is then bound to the next worker that has less than its share of them, as torch's loader does it.
            0 where it needs the order.
    """

    def __init__(self, num_pinned: int = 0, first: int = 0, most_open: int = 0) -> None:
        self._num_pinned = num_pinned
        self._most_open = most_open
        self._turn = first
        self._items: dict[int, Item] = {}
        self._waiting: list[int] = []
        self._void_from: dict[int, int] = {}  # worker id -> its first void item (exhausted shard)
        self.cursor = first
        self.next_seq = first
        self.num_ready = 0
        self._num_accepted = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(list(self._items.values()))

    def get(self, seq: int) -> Item | None:
        """The item, unless delivered or unknown."""
        return self._items.get(seq)

    def add(self, work: WorkItem) -> Item:
        """A new item behind all others."""
        item = Item(self.next_seq, work, owner=self._next_owner())
        self._items[item.seq] = item
        self.next_seq += 1
        if item.owner in self._void_from:
            item.state = State.VOID
        else:
            heapq.heappush(self._waiting, item.seq)
        return item

    def _next_owner(self) -> int:
        if not self._num_pinned:
            return -1
        if not self._most_open:
            return self.next_seq % self._num_pinned
        undone = Counter(item.owner for item in self._items.values())
        active = [worker for worker in range(self._num_pinned) if worker not in self._void_from]
        for _ in range(self._num_pinned):
            worker, self._turn = self._turn % self._num_pinned, self._turn + 1
            if worker in active and undone[worker] < self._most_open // len(active):
                return worker
        return min(active, key=lambda worker: undone[worker], default=self.next_seq % self._num_pinned)

    def pin(self, num_pinned: int, most_open: int = 0) -> None:
        """Binds items to workers, as these arguments do at the start; before anything was delivered."""
        self._num_pinned, self._most_open, self._turn = num_pinned, most_open, self.next_seq
        for item in self._items.values():
            item.owner = item.seq % num_pinned

    def pass_over(self) -> None:
        """The next item was delivered before the iteration was gone on with."""
        self.next_seq += 1

    def skip_to(self, seq: int) -> None:
        """All items below ``seq`` were delivered by somebody else; nothing is open."""
        assert not self._items
        self.cursor = self.next_seq = seq

    def next_waiting(self, worker_id: int) -> Item | None:
        """The first item that a worker may take, without taking it."""
        if not self._num_pinned:
            while self._waiting:
                item = self._items.get(self._waiting[0])
                if item is not None and item.state is State.WAITING:
                    return item
                heapq.heappop(self._waiting)
            return None
        for seq in sorted(self._waiting):
            item = self._items.get(seq)
            if item is not None and item.owner == worker_id and item.state is State.WAITING:
                return item
        return None

    def lease(self, item: Item, worker: int, ring: int = -1, slot: int = -1) -> int:
        """Gives a waiting item to a worker; returns the lease's generation."""
        assert item.state is State.WAITING
        if self._waiting[0] == item.seq:
            heapq.heappop(self._waiting)
        else:
            self._waiting.remove(item.seq)
            heapq.heapify(self._waiting)
        item.state, item.generation = State.LEASED, next(_generations)
        item.worker, item.ring, item.slot = worker, ring, slot
        return item.generation

    def accept(self, seq: int, generation: int, result: Any) -> Item | None:
        """Marks a lease as fulfilled; None when the lease is no longer valid (the caller drops the result)."""
        item = self._items.get(seq)
        if item is None or item.state is not State.LEASED or item.generation != generation:
            return None
        item.state, item.result = State.READY, result
        self.num_ready += 1
        self._num_accepted += 1
        item.arrived = self._num_accepted
        return item

    def end_shard(self, seq: int, generation: int) -> None:
        """The shard of the worker that ``seq`` is bound to is exhausted: it and later ones will never be made."""
        item = self._items.get(seq)
        if item is None or item.state is not State.LEASED or item.generation != generation:
            return
        self._void_from[item.owner] = seq
        for other in self._items.values():
            if other.seq >= seq and other.owner == item.owner:
                other.state = State.VOID
        self._waiting = [s for s in self._waiting if self._items[s].state is State.WAITING]
        heapq.heapify(self._waiting)

    @property
    def all_shards_ended(self) -> bool:
        """Whether every pinned worker's shard is exhausted."""
        return self._num_pinned > 0 and len(self._void_from) == self._num_pinned

    def release(self, worker: int) -> list[Item]:
        """Takes back every lease of a worker; the items wait again and old results will be refused."""
        released = [i for i in self._items.values() if i.state is State.LEASED and i.worker == worker]
        for item in released:
            self.release_item(item)
        return released

    def release_item(self, item: Item) -> None:
        """Takes back one lease (or drops a ready result, to have it made again)."""
        self.num_ready -= item.state is State.READY
        item.state, item.worker, item.result = State.WAITING, -1, None
        item.ring = item.slot = -1
        item.generation = next(_generations)
        heapq.heappush(self._waiting, item.seq)

    @property
    def num_in_flight(self) -> int:
        """Items that are leased or ready."""
        return sum(1 for i in self._items.values() if i.state in (State.LEASED, State.READY))

    @property
    def num_open(self) -> int:
        """Items drawn and neither delivered nor void."""
        if not self._void_from:
            return len(self._items)
        return sum(1 for i in self._items.values() if i.state is not State.VOID)

    def head(self) -> Item | None:
        """The item that the program gets next; None when none is left of those drawn."""
        while True:
            item = self._items.get(self.cursor)
            if item is None:
                if self.cursor < self.next_seq:  # delivered out of order
                    self.cursor += 1
                    continue
                return None
            if item.state is not State.VOID:
                return item
            del self._items[self.cursor]
            self.cursor += 1

    def first_ready(self) -> Item | None:
        """The item that has been ready for longest, for programs that do not need the order."""
        ready = [i for i in self._items.values() if i.state is State.READY]
        return min(ready, key=lambda i: i.arrived, default=None)

    def deliver(self, item: Item) -> Any:
        """Removes a ready item and returns its result."""
        assert item.state is State.READY
        del self._items[item.seq]
        self.num_ready -= 1
        if item.seq == self.cursor:
            self.cursor += 1
        result, item.result = item.result, None  # whoever still has the item does not keep its batch
        return result

    def forget_all(self) -> list[Item]:
        """Empties the table (the program left the iteration); returns what was open."""
        items = list(self._items.values())
        self._items.clear()
        self._waiting.clear()
        self.num_ready = 0
        self.cursor = self.next_seq
        return items
