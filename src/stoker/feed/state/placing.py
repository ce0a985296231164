"""Which worker makes which item: near ones what the program gets next, those of other machines what it gets later.

An item that comes late holds up all behind it, since batches are delivered in order. So a worker elsewhere gets items
so far ahead as it is slow, the link to it included, and what it is still late with is made once more by another. Pure:
the ledger and the time in, a worker and an item out.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection

from stoker.feed.state.ledger import Item, Items, State, Worker

LATE = 3.0
"""An item that takes so many times what is usual is late."""
TRY_AGAIN = 10.0
"""A worker that is too slow for all items is tried again after so many of its usual times: it may not be any more."""


def item_for(
    worker: Worker, items: Items, workers: Collection[Worker], now_s: float, *, in_order: bool = True
) -> Item | None:
    """The first waiting item that a worker on another machine can make in time; None if it comes too late for all.

    Args:
        worker: has room for a lease.
        items: those of the iteration; at least one is waiting.
        workers: all.
        now_s: the time.
        in_order: batches are delivered by number; else none holds up another.
    """
    held = len(worker.leases)
    if all(other.away or not other.may_lease for other in workers):
        return items.by_seq[items.waiting[0]]  # nobody here would make it
    waiting = sorted(seq for seq in items.waiting if not items.by_seq[seq].stays)
    if not waiting or (held and not worker.usual_s):  # nothing is known of it yet
        return None
    if not (worker.usual_s and in_order):
        return items.by_seq[waiting[0]]
    if not held and now_s - worker.turned_s > TRY_AGAIN * worker.usual_s:
        return items.by_seq[waiting[-1]]
    pace = sum(1.0 / other.usual_s for other in workers if other.usual_s and other.may_lease)  # items a second, at most
    ahead = math.floor((held + 1) * worker.usual_s * pace)
    place = bisect.bisect_left(waiting, items.cursor + ahead)
    return items.by_seq[waiting[place]] if place < len(waiting) else None


def spare_for(items: Items, workers: Collection[Worker], depth: int, now_s: float) -> tuple[Worker, Item] | None:
    """An item to lease a second time while the program waits, and to whom; the first answer will count.

    A near worker without work makes what comes later from elsewhere than it would from there. If all are busy, the item
    that the program waits for goes to another worker once it takes :data:`LATE` times what is usual.

    Args:
        items: those of the iteration; none is ready that the program could get.
        workers: all.
        depth: most leases that a worker may have.
        now_s: the time.
    """
    free = [worker for worker in workers if worker.may_lease and len(worker.leases) < depth]
    for near in free:
        if not (near.away or near.leases):
            found = _sooner_by(near, items, workers, now_s)
            return None if found is None else (near, found)
    head = items.head()
    holder = _holder_elsewhere(head, workers)
    others = [worker for worker in free if worker is not holder]
    if head is None or holder is None or not others:
        return None
    known = sorted(worker.usual_s for worker in workers if worker.usual_s)
    if not known or now_s - holder.turned_s <= LATE * known[len(known) // 2]:
        return None
    return min(others, key=lambda worker: (worker.away, len(worker.leases))), head


def _sooner_by(near: Worker, items: Items, workers: Collection[Worker], now_s: float) -> Item | None:
    """The first item that another machine is expected to answer later than a near worker would."""
    for seq in range(items.cursor, items.next_seq):
        item = items.get(seq)
        holder = _holder_elsewhere(item, workers)
        if item is not None and holder is not None and near.usual_s < _expected_s(holder, item, now_s):
            return item
    return None


def _holder_elsewhere(item: Item | None, workers: Collection[Worker]) -> Worker | None:
    """The worker on another machine that alone has a lease of an item."""
    if item is None or item.state is not State.LEASED or len(item.leases) != 1:
        return None
    holder = next((worker for worker in workers if item.leases[0].generation in worker.leases), None)
    return holder if holder is not None and holder.away else None


def _expected_s(holder: Worker, item: Item, now_s: float) -> float:
    """Time until a worker answers its lease of an item: those before it come first, and what is late stays late."""
    before = sum(generation < item.leases[0].generation for generation in holder.leases)
    return before * holder.usual_s + abs(holder.turned_s + holder.usual_s - now_s)
