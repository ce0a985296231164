"""The lease table: whatever workers do, each item is delivered once, in order, and late answers are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stoker.feed.leases import LeaseTable, State
from stoker.feed.program import WorkItem


def work(number: int) -> WorkItem:
    return WorkItem(indices=[number], start=number)


class Elastic(RuleBasedStateMachine):
    """Any worker makes any item; workers die, answer late, and answer twice."""

    NUM_WORKERS = 3

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable()
        self.drawn = 0
        self.delivered: list[int] = []
        self.leases: list[tuple[int, int, int]] = []  # seq, generation, worker: not answered, worker alive
        self.stale: list[tuple[int, int]] = []  # answers that may still come, and must be refused

    @rule(count=st.integers(1, 4))
    def draw(self, count: int) -> None:
        for _ in range(count):
            item = self.table.add(work(self.drawn))
            assert item.seq == self.drawn
            self.drawn += 1

    @rule(worker=st.integers(0, NUM_WORKERS - 1))
    def lease(self, worker: int) -> None:
        item = self.table.next_waiting(worker)
        if item is None:
            assert not any(i.state is State.WAITING for i in self.table)
            return
        assert item.seq == min(i.seq for i in self.table if i.state is State.WAITING)
        generation = self.table.lease(item, worker)
        self.leases.append((item.seq, generation, worker))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.leases.remove(lease)
        seq, generation, _ = lease
        item = self.table.accept(seq, generation, f"batch {seq}")
        assert item is not None
        assert item.state is State.READY
        self.stale.append((seq, generation))

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def answer_late_or_twice(self, data: st.DataObject) -> None:
        seq, generation = data.draw(st.sampled_from(self.stale))
        assert self.table.accept(seq, generation, "wrong") is None

    @rule(worker=st.integers(0, NUM_WORKERS - 1))
    def die(self, worker: int) -> None:
        mine = [lease for lease in self.leases if lease[2] == worker]
        released = self.table.release(worker)
        assert sorted(item.seq for item in released) == sorted(seq for seq, _, _ in mine)
        self.leases = [lease for lease in self.leases if lease not in mine]
        self.stale += [(seq, generation) for seq, generation, _ in mine]

    @rule(in_order=st.booleans())
    def deliver(self, in_order: bool) -> None:
        item = self.table.head() if in_order else self.table.first_ready()
        if item is None or item.state is not State.READY:
            return
        assert self.table.deliver(item) == f"batch {item.seq}"
        assert item.seq not in self.delivered
        if in_order:
            assert item.seq == min(set(range(self.drawn)) - set(self.delivered))
        self.delivered.append(item.seq)

    @precondition(lambda self: self.drawn > 0)
    @rule()
    def leave_the_iteration(self) -> None:
        open_items = self.table.forget_all()
        assert {item.seq for item in open_items} == set(range(self.drawn)) - set(self.delivered)
        self.delivered += [item.seq for item in open_items]
        self.stale += [(seq, generation) for seq, generation, _ in self.leases]
        self.leases.clear()

    @invariant()
    def counts_agree(self) -> None:
        items = list(self.table)
        assert {item.seq for item in items} == set(range(self.drawn)) - set(self.delivered)
        assert self.table.num_ready == sum(item.state is State.READY for item in items)
        assert self.table.num_open == len(items) == len(self.table)
        held = {(item.seq, item.generation, item.worker) for item in items if item.state is State.LEASED}
        assert held == set(self.leases)

    def teardown(self) -> None:
        """However it went, the rest can be made and comes in order."""
        for worker in range(self.NUM_WORKERS):
            self.die(worker)
        while (item := self.table.next_waiting(0)) is not None:
            self.table.accept(item.seq, self.table.lease(item, 0), f"batch {item.seq}")
        while self.table.head() is not None:
            self.deliver(in_order=True)
        assert sorted(self.delivered) == list(range(self.drawn))


TestElastic = Elastic.TestCase


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    data=st.data(),
)
def test_streams_deliver_every_batch_of_every_shard_in_torchs_order(lengths: list[int], data: st.DataObject) -> None:
    """Shards end at different times and workers die; what comes is what a round robin over the shards gives."""
    num_workers = len(lengths)
    table = LeaseTable(num_workers)
    made = dict.fromkeys(range(num_workers), 0)
    got: list[tuple[int, int]] = []
    finished = False
    while not finished:
        while table.num_open < 2 * num_workers and not table.all_shards_ended:
            table.add(work(table.next_seq))
        worker = data.draw(st.integers(0, num_workers - 1), "worker")
        item = table.next_waiting(worker)
        if item is not None:
            assert item.owner == worker
            generation = table.lease(item, worker)
            if data.draw(st.booleans(), "dies"):
                table.release(worker)
                assert table.accept(item.seq, generation, "late") is None
            elif made[worker] == lengths[worker]:
                table.end_shard(item.seq, generation)
            else:
                table.accept(item.seq, generation, (worker, made[worker]))
                made[worker] += 1
        while (head := table.head()) is not None and head.state is State.READY:
            got.append(table.deliver(head))
        finished = table.all_shards_ended and table.head() is None
    expected = [(w, k) for k in range(max(lengths, default=0)) for w in range(num_workers) if k < lengths[w]]
    assert got == expected


@given(slow=st.integers(0, 3), num_workers=st.integers(2, 4), depth=st.integers(1, 3), length=st.integers(12, 40))
def test_without_an_order_a_slow_worker_keeps_no_more_than_its_share(
    slow: int, num_workers: int, depth: int, length: int
) -> None:
    """As torch's loader: whoever is not waited for makes all but the items that the slow worker had at first."""
    slow %= num_workers
    table = LeaseTable(num_workers, most_open=depth * num_workers)
    got: list[tuple[int, int]] = []
    while len(got) < length - depth:
        while table.next_seq < length and table.num_open < depth * num_workers:
            table.add(work(table.next_seq))
        for worker in range(num_workers):
            item = table.next_waiting(worker)
            if item is not None and worker != slow:
                table.accept(item.seq, table.lease(item, worker), worker)
        item = table.first_ready()
        assert item is not None
        got.append((item.seq, table.deliver(item)))
    assert all(worker != slow for _, worker in got)
    assert {item.seq for item in table} == {slow + k * num_workers for k in range(depth)}


def test_without_an_order_results_go_out_as_they_come() -> None:
    table = LeaseTable(2, most_open=4)
    generations = [table.lease(table.add(work(number)), number % 2) for number in range(4)]
    for number in (3, 0, 2):
        table.accept(number, generations[number], number)
    came: list[int] = []
    while (item := table.first_ready()) is not None:
        came.append(table.deliver(item))
    assert came == [3, 0, 2]


class TestPinned:
    def test_an_item_waits_for_its_own_worker(self) -> None:
        table = LeaseTable(num_pinned=2)
        for number in range(4):
            table.add(work(number))
        first = table.next_waiting(1)
        assert first is not None
        assert first.seq == 1
        table.lease(first, 1)
        second = table.next_waiting(1)
        assert second is not None
        assert second.seq == 3

    def test_items_of_an_ended_shard_are_void_from_the_start(self) -> None:
        table = LeaseTable(num_pinned=2)
        item = table.add(work(0))
        table.end_shard(0, table.lease(item, 0))
        table.add(work(1))
        assert table.add(work(2)).state is State.VOID
        head = table.head()
        assert head is not None
        assert head.seq == 1
        assert table.num_open == 1

    def test_an_end_under_an_old_lease_ends_nothing(self) -> None:
        table = LeaseTable(num_pinned=1)
        item = table.add(work(0))
        generation = table.lease(item, 0)
        table.release(0)
        table.end_shard(0, generation)
        assert item.state is State.WAITING
        assert not table.all_shards_ended


class TestResumed:
    def test_numbers_go_on(self) -> None:
        table = LeaseTable(first=7)
        assert table.add(work(0)).seq == 7
        assert table.cursor == 7

    def test_items_taken_before_are_passed_over(self) -> None:
        table = LeaseTable(first=2)
        for taken in (False, True, True, False):
            if taken:
                table.pass_over()
            else:
                table.add(work(0))
        seqs: list[int] = []
        while (item := table.next_waiting(0)) is not None:
            table.accept(item.seq, table.lease(item, 0), None)
        while (head := table.head()) is not None:
            seqs.append(head.seq)
            table.deliver(head)
        assert seqs == [2, 5]


def test_only_waiting_items_are_leased() -> None:
    table = LeaseTable()
    item = table.add(work(0))
    table.lease(item, 0)
    with pytest.raises(AssertionError):
        table.lease(item, 1)


def test_items_of_somebody_else_are_skipped_by_number() -> None:
    table = LeaseTable(first=4)
    item = table.add(work(4))
    table.accept(4, table.lease(item, 0), "made")
    table.deliver(item)
    table.skip_to(9)
    assert (table.head(), table.cursor, table.num_open) == (None, 9, 0)
    assert table.add(work(9)).seq == 9
