"""The ledger: a lease is noted once, items are bound as torch binds them, and ends of shards end nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.slots.free_slots import FreeSlots
from stoker.feed.state.ledger import Item, Items, Lease, Ledger, State
from tests.feed.world import work


class Table:
    """Items, and workers that get them."""

    def __init__(self, num_pinned: int = 0, first: int = 0, most_open: int = 0, *, num_workers: int = 3) -> None:
        self.items, self.ledger = Items(num_pinned, first, most_open), Ledger()
        for number in range(num_workers):
            self.ledger.born(number, number)

    def add(self) -> Item:
        return self.items.add(work(self.items.next_seq))

    def lease(self, item: Item, worker: int, slot: int = -1) -> Lease:
        if item.state is State.WAITING:
            self.items.leased(item)
        return self.ledger.lease(self.ledger.workers[worker], item, 1 if slot >= 0 else -1, slot)

    def make(self, item: Item, worker: int = 0) -> None:
        lease = self.lease(item, worker)
        assert self.ledger.answer(self.ledger.workers[worker], lease.generation) is lease
        self.items.accept(item)

    def deliver(self, item: Item) -> int:
        self.items.deliver(item)
        return item.seq


class TestLeases:
    def test_an_answer_ends_a_lease_once(self) -> None:
        table = Table()
        lease = table.lease(table.add(), 0)
        worker = table.ledger.workers[0]
        assert worker.num_held == 1
        assert table.ledger.answer(worker, lease.generation) is lease
        assert table.ledger.answer(worker, lease.generation) is None
        assert worker.num_held == 0

    def test_another_workers_lease_is_not_answered(self) -> None:
        table = Table()
        lease = table.lease(table.add(), 0)
        assert table.ledger.answer(table.ledger.workers[1], lease.generation) is None

    def test_generations_are_never_used_again(self) -> None:
        table = Table()
        found: list[int] = []
        for _ in range(5):
            item = table.items.next_waiting(0) or table.add()
            lease = table.lease(item, 0)
            found.append(lease.generation)
            table.ledger.answer(table.ledger.workers[0], lease.generation)
            table.items.release(item, lease)
        assert found == sorted(set(found))

    def test_who_departs_takes_its_leases_along(self) -> None:
        table = Table()
        leases = [table.lease(table.add(), 1, slot) for slot in range(2)]
        gone = table.ledger.depart(1)
        assert gone is not None
        assert list(gone.leases.values()) == leases
        assert table.ledger.depart(1) is None
        assert [worker.number for worker in table.ledger.active()] == [0, 2]

    def test_leases_of_an_earlier_iteration_are_not_held_but_their_slots_are(self) -> None:
        table = Table()
        old = table.lease(table.add(), 0, slot=4)
        table.ledger.make_stale()
        worker = table.ledger.workers[0]
        assert (worker.num_held, old.item) == (0, None)
        new = table.lease(table.add(), 0, slot=5)
        assert worker.num_held == 1
        assert table.ledger.answer(worker, old.generation) is old
        assert worker.num_held == 1
        assert table.ledger.answer(worker, new.generation) is new
        assert worker.num_held == 0

    def test_closing_tells_every_slot_that_nobody_answered_for(self) -> None:
        table = Table()
        table.lease(table.add(), 0, slot=4)
        table.lease(table.add(), 1, slot=7)
        table.lease(table.add(), 1)
        assert sorted(table.ledger.clear()) == [(1, 4), (1, 7)]
        assert table.ledger.clear() == []

    def test_an_item_may_be_leased_twice_and_the_first_answer_counts(self) -> None:
        """A late item of a slow host."""
        table = Table()
        item = table.add()
        slow, fast = table.lease(item, 0), table.lease(item, 1)
        table.ledger.answer(table.ledger.workers[1], fast.generation)
        table.items.accept(item)
        assert item.state is State.READY
        assert slow.item is None, "its answer is nobody's"

    def test_an_item_of_two_leases_waits_again_when_both_are_lost(self) -> None:
        table = Table()
        item = table.add()
        leases = [table.lease(item, worker) for worker in (0, 1)]
        assert not table.items.release(item, leases[0])
        assert item.state is State.LEASED
        assert table.items.release(item, leases[1])
        assert table.items.next_waiting(0) is item

    def test_only_waiting_items_are_leased(self) -> None:
        table = Table()
        item = table.add()
        table.lease(item, 0)
        with pytest.raises(AssertionError):
            table.items.leased(item)


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4), data=st.data())
def test_streams_deliver_every_batch_of_every_shard_in_torchs_order(lengths: list[int], data: st.DataObject) -> None:
    """Shards end at different times and workers die; what comes is what a round robin over the shards gives."""
    num_workers = len(lengths)
    table = Table(num_workers, num_workers=num_workers)
    items, made = table.items, dict.fromkeys(range(num_workers), 0)
    batches: dict[int, tuple[int, int]] = {}
    got: list[tuple[int, int]] = []
    finished = False
    while not finished:
        while items.num_open < 2 * num_workers and not items.all_shards_ended:
            table.add()
        number = data.draw(st.integers(0, num_workers - 1), "worker")
        item = items.next_waiting(number)
        if item is not None:
            assert item.owner == number
            lease = table.lease(item, number)
            table.ledger.answer(table.ledger.workers[number], lease.generation)
            if data.draw(st.booleans(), "dies"):
                items.release(item, lease)
            elif made[number] == lengths[number]:
                item.leases.remove(lease)
                items.end_shard(item)
            else:
                items.accept(item)
                batches[item.seq] = number, made[number]
                made[number] += 1
        while (head := items.head()) is not None and head.state is State.READY:
            got.append(batches[table.deliver(head)])
        finished = items.all_shards_ended and items.head() is None
    expected = [(w, k) for k in range(max(lengths, default=0)) for w in range(num_workers) if k < lengths[w]]
    assert got == expected


@given(slow=st.integers(0, 3), num_workers=st.integers(2, 4), depth=st.integers(1, 3), length=st.integers(12, 40))
def test_without_an_order_a_slow_worker_keeps_no_more_than_its_share(
    slow: int, num_workers: int, depth: int, length: int
) -> None:
    """As torch's loader: whoever is not waited for makes all but the items that the slow worker had at first."""
    slow %= num_workers
    table = Table(num_workers, most_open=depth * num_workers, num_workers=num_workers)
    items = table.items
    got: list[int] = []
    while len(got) < length - depth:
        while items.next_seq < length and items.num_open < depth * num_workers:
            table.add()
        for worker in range(num_workers):
            item = items.next_waiting(worker)
            if item is not None and worker != slow:
                table.make(item, worker)
        item = items.first_ready()
        assert item is not None
        assert item.maker != slow
        got.append(table.deliver(item))
    assert {item.seq for item in items} == {slow + k * num_workers for k in range(depth)}


def test_without_an_order_results_go_out_as_they_come() -> None:
    table = Table(2, most_open=4)
    items = [table.add() for _ in range(4)]
    for number in (3, 0, 2):
        table.make(items[number], number % 2)
    came: list[int] = []
    while (item := table.items.first_ready()) is not None:
        came.append(table.deliver(item))
    assert came == [3, 0, 2]


class TestPinned:
    def test_an_item_waits_for_its_own_worker(self) -> None:
        table = Table(num_pinned=2)
        for _ in range(4):
            table.add()
        first = table.items.next_waiting(1)
        assert first is not None
        assert first.seq == 1
        table.lease(first, 1)
        second = table.items.next_waiting(1)
        assert second is not None
        assert second.seq == 3

    def test_items_of_an_ended_shard_are_void_from_the_start(self) -> None:
        table = Table(num_pinned=2)
        item = table.add()
        table.lease(item, 0)
        table.items.end_shard(item)
        table.add()
        assert table.add().state is State.VOID
        head = table.items.head()
        assert head is not None
        assert head.seq == 1
        assert table.items.num_open == 1

    def test_all_shards_have_ended_when_each_has(self) -> None:
        table = Table(num_pinned=2)
        items = [table.add(), table.add()]
        table.items.end_shard(items[0])
        assert not table.items.all_shards_ended
        table.items.end_shard(items[1])
        assert table.items.all_shards_ended
        assert table.items.head() is None

    def test_items_that_were_drawn_are_bound_later(self) -> None:
        table = Table()
        for _ in range(3):
            table.add()
        table.items.pin(2)
        assert [item.owner for item in table.items] == [0, 1, 0]
        assert table.add().owner == 1


class TestResumed:
    def test_numbers_go_on(self) -> None:
        table = Table(first=7)
        assert table.add().seq == 7
        assert table.items.cursor == 7

    def test_items_taken_before_are_passed_over(self) -> None:
        table = Table(first=2)
        for taken in (False, True, True, False):
            if taken:
                table.items.pass_over()
            else:
                table.add()
        while (item := table.items.next_waiting(0)) is not None:
            table.make(item)
        seqs: list[int] = []
        while (head := table.items.head()) is not None:
            seqs.append(table.deliver(head))
        assert seqs == [2, 5]


def test_items_of_somebody_else_are_skipped_by_number() -> None:
    table = Table(first=4)
    item = table.add()
    table.make(item)
    table.deliver(item)
    table.items.skip_to(9)
    assert (table.items.head(), table.items.cursor, table.items.num_open) == (None, 9, 0)
    assert table.add().seq == 9


def test_what_is_open_is_returned_by_number() -> None:
    table = Table()
    items = [table.add() for _ in range(3)]
    table.make(items[2])
    assert table.items.forget_all() == items
    assert (len(table.items), table.items.num_ready, table.items.cursor) == (0, 0, 3)


class TestFreeSlots:
    def test_the_slot_used_last_is_taken_first(self) -> None:
        slots = FreeSlots(1, 3)
        first, second = slots.take(), slots.take()
        slots.give_back(first)
        assert slots.take() == first
        assert {first, second, slots.take()} == {0, 1, 2}
        assert slots.take() == -1

    def test_a_slot_is_not_freed_twice(self) -> None:
        slots = FreeSlots(1, 3)
        slot = slots.take()
        slots.give_back(slot)
        with pytest.raises(AssertionError, match="freed twice"):
            slots.give_back(slot)

    def test_one_whose_last_view_died_is_free_when_the_next_is_asked_for(self) -> None:
        slots = FreeSlots(1, 1)
        slot = slots.take()
        slots.returned.append(slot)
        assert slot in slots.taken
        assert slots.take() == slot
