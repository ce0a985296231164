"""A second shell, with workers on other machines, needs rules at most: the state has room for what happens there.

One event takes many workers, and an item that is late is leased a second time. Processes of one machine need no second
lease, so its rule is here; that the first arrival wins, and that the other is dropped with its slot, are the machine's.
"""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.ledger import Item, Items, Lease, State
from stoker.feed.state.machine import Machine
from tests.feed.test_lives import Lives
from tests.feed.world import World


class Hedging(Machine):
    """Leases an item that is late to a second worker as well; nothing is added to the state for it."""

    def lease_again(self, seq: int, now_s: float) -> list[do.Instruction]:
        item, out = self.items.get(seq), list[do.Instruction]()
        if item is None or item.state is not State.LEASED or self.pinned:
            return out
        others = [w for w in self.ledger.active() if all(lease.item is not item for lease in w.leases.values())]
        if others:
            item.state = State.WAITING  # until the next line but one, where it is leased
            heapq.heappush(self.items.waiting, seq)
            self._lease(min(others, key=lambda worker: worker.num_held), item, now_s, out)
        return out


def hedged(**options: Any) -> tuple[World, list[do.Lease]]:
    """A world whose first item is with two workers, and both leases."""
    world = World(**{"workers": 3, "num_slots": 9, "make": Hedging, **options})
    world.send(ev.Wanted())
    lease_again(world, 0)
    return world, [given for given in world.log if isinstance(given, do.Lease) and given.seq == 0]


def lease_again(world: World, seq: int) -> None:
    machine: Any = world.machine
    world.carry_out(machine.lease_again(seq, world.now_s))


def bring(world: World, lease: do.Lease) -> list[do.Instruction]:
    """The worker of a lease makes all that it was given up to that."""
    hand = world.hands[lease.worker]
    while hand.leases[0] is not lease:
        world.answer(lease.worker)
    return world.answer(lease.worker)


class TestLateItems:
    def test_its_second_lease_is_another_workers_in_another_slot(self) -> None:
        _, (first, second) = hedged()
        assert first.worker != second.worker
        assert (first.ring, first.slot) != (second.ring, second.slot)
        assert first.generation != second.generation

    @pytest.mark.parametrize("faster", [0, 1])
    def test_the_first_arrival_wins_and_the_other_is_dropped_with_its_slot(self, faster: int) -> None:
        world, leases = hedged()
        out = bring(world, leases[faster])
        assert [type(given) for given in out] == [do.Keep]
        slower = leases[1 - faster]
        assert (slower.ring, slower.slot) in world.writers, "its worker may still write it"
        assert [type(given) for given in bring(world, slower)] == [do.Drop]
        assert world.slots is not None
        assert slower.slot not in world.slots.taken
        world.finish()
        assert world.delivered == list(range(world.length))

    def test_also_where_the_batch_was_delivered_meanwhile(self) -> None:
        world, (first, second) = hedged()
        bring(world, second)
        assert isinstance(world.ask(), do.Deliver)
        assert [type(given) for given in bring(world, first)] == [do.Drop]
        assert world.delivered == [0]

    def test_one_of_its_workers_may_be_lost(self) -> None:
        world, (first, second) = hedged()
        world.log.clear()
        world.die(first.worker)
        assert 0 not in [given.seq for given in world.log if isinstance(given, do.Lease)], "the other goes on"
        assert [type(given) for given in bring(world, second)] == [do.Keep]

    def test_or_both_by_one_event(self) -> None:
        world, (first, second) = hedged()
        world.log.clear()
        world.die(first.worker, second.worker)
        again = [given for given in world.log if isinstance(given, do.Lease) and given.seq == 0]
        assert len(again) == 1
        world.finish()
        assert world.delivered == list(range(world.length))

    def test_a_second_lease_that_is_given_back_leaves_the_first(self) -> None:
        world, (_, second) = hedged()
        world.hands[second.worker].leases.remove(second)
        out = world.send(ev.Returned(second.worker, second.generation))
        assert [type(given) for given in out] == [do.Free]
        assert 0 not in world.machine.items.waiting


class TestManyLosses:
    def test_what_a_host_takes_is_leased_once_more_each_to_those_that_are_left(self) -> None:
        world = World(workers=8, depth=2, num_slots=32, length=40)
        world.send(ev.Wanted())
        taken = list(range(6))
        lost = {lease.seq for number in taken for lease in world.hands[number].leases}
        world.log.clear()
        world.refuses = "the host is gone"
        world.die(*taken)
        assert len([free for free in world.log if isinstance(free, do.Free)]) == len(lost) == 12
        while world.hands and world.machine.items.waiting:
            world.answer(next(number for number, hand in world.hands.items() if hand.leases))
            world.ask()
        again = [given.seq for given in world.log if isinstance(given, do.Lease) and given.seq in lost]
        assert sorted(again) == sorted(lost)
        world.refuses = ""
        world.finish()
        assert world.delivered == list(range(40))


class LivesOfTwoLeases(Lives):
    """The same lives, with second leases among all else that happens."""

    make = Hedging
    most_leases = 4  # as many as there may be workers: its rule asks again for the same item

    @precondition(lambda self: any(item.state is State.LEASED for item in self.world.machine.items))
    @rule(data=st.data())
    def lease_again(self, data: st.DataObject) -> None:
        late = [item.seq for item in self.world.machine.items if item.state is State.LEASED]
        lease_again(self.world, data.draw(st.sampled_from(sorted(late)), "item"))


TestLivesOfTwoLeases = LivesOfTwoLeases.TestCase
TestLivesOfTwoLeases.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class _OneLossIsEnough(Items):
    """Has an item wait again although another worker has it."""

    def release(self, item: Item, lease: Lease) -> bool:
        others = [other for other in item.leases if other is not lease]
        for other in others:
            item.leases.remove(other)
        return super().release(item, lease)


class LosesSecondLeases(Hedging):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.items.__class__ = _OneLossIsEnough


def test_a_second_lease_that_is_forgotten_is_found() -> None:
    class Planted(LivesOfTwoLeases):
        make = LosesSecondLeases

    found = settings(max_examples=150, stateful_step_count=20, phases=[Phase.generate], deadline=None, database=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Planted, settings=found)
