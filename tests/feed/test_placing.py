"""Which worker makes which item: rules on paper, and a machine whose workers elsewhere are slow."""

from __future__ import annotations

import pytest

from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.ledger import Items, Ledger, Worker
from stoker.feed.state.placing import LATE, TRY_AGAIN, item_for, spare_for
from tests.feed.world import World, decision, work


def worker(ledger: Ledger, number: int, *, away: bool = True, usual_s: float = 1.0, turned_s: float = 0.0) -> Worker:
    born = ledger.born(number, 0, away=away)
    born.usual_s, born.turned_s = usual_s, turned_s
    return born


def items_of(count: int) -> Items:
    items = Items()
    for number in range(count):
        items.add(work(number))
    return items


def lease(ledger: Ledger, items: Items, to: Worker, seq: int) -> None:
    item = items.by_seq[seq]
    items.leased(item)
    ledger.lease(to, item)


class TestFirstLease:
    def test_a_worker_gets_an_item_so_far_ahead_as_it_is_slow(self) -> None:
        ledger, items = Ledger(), items_of(40)
        near = worker(ledger, 0, away=False, usual_s=0.1)
        slow = worker(ledger, 1, usual_s=1.0)
        found = item_for(slow, items, (near, slow), 0.0)
        assert found is not None
        assert found.seq == 11, "ten items and its own are made meanwhile"

    def test_what_it_has_already_comes_first(self) -> None:
        ledger, items = Ledger(), items_of(40)
        near, slow = worker(ledger, 0, away=False, usual_s=0.0), worker(ledger, 1, usual_s=1.0)
        lease(ledger, items, slow, 0)
        found = item_for(slow, items, (near, slow), 0.0)
        assert found is not None
        assert found.seq == 2

    def test_one_that_is_late_for_all_gets_none(self) -> None:
        ledger, items = Ledger(), items_of(8)
        near, slow = worker(ledger, 0, away=False, usual_s=0.1), worker(ledger, 1, usual_s=1.0)
        assert item_for(slow, items, (near, slow), 0.5) is None

    def test_but_is_tried_again_far_ahead_after_a_while(self) -> None:
        ledger, items = Ledger(), items_of(8)
        near, slow = worker(ledger, 0, away=False, usual_s=0.1), worker(ledger, 1, usual_s=1.0)
        found = item_for(slow, items, (near, slow), TRY_AGAIN + 0.1)
        assert found is not None
        assert found.seq == 7

    def test_a_new_one_is_tried_with_one_item(self) -> None:
        ledger, items = Ledger(), items_of(8)
        near, new = worker(ledger, 0, away=False), worker(ledger, 1, usual_s=0.0)
        found = item_for(new, items, (near, new), 0.0)
        assert found is not None
        assert found.seq == 0
        lease(ledger, items, new, 0)
        assert item_for(new, items, (near, new), 0.0) is None

    def test_without_any_here_the_first_is_made_elsewhere(self) -> None:
        ledger, items = Ledger(), items_of(8)
        slow = worker(ledger, 1, usual_s=1.0)
        found = item_for(slow, items, (slow, worker(ledger, 2, usual_s=0.1)), 0.0)
        assert found is not None
        assert found.seq == 0

    def test_what_another_machine_could_not_make_is_made_here(self) -> None:
        world = World(workers=1, depth=1, num_slots=8, lookahead=8)
        world.send(ev.Decided(decision(2, 1, away=1)))
        world.send(ev.Wanted())
        (away,) = [number for number, one in world.ledger.workers.items() if one.away]
        failed = world.hands[away].leases[0].seq
        world.answer(away, ev.Returned)
        assert failed not in [lease.seq for lease in world.hands[away].leases]
        world.finish()
        assert world.delivered == list(range(world.length))
        assert [one.worker for one in world.log if isinstance(one, do.Lease) and one.seq == failed].count(away) == 1


class TestSecondLease:
    @pytest.mark.parametrize(("waited_s", "is_leased"), [(LATE - 0.1, False), (LATE + 0.1, True)])
    def test_the_head_is_leased_again_after_three_times_the_usual(self, waited_s: float, is_leased: bool) -> None:
        ledger, items = Ledger(), items_of(4)
        near, slow = worker(ledger, 0, away=False), worker(ledger, 1)
        lease(ledger, items, slow, 0)
        lease(ledger, items, near, 1)
        found = spare_for(items, (near, slow), 2, waited_s)
        assert found == ((near, items.by_seq[0]) if is_leased else None)

    def test_there_is_no_third_one(self) -> None:
        ledger, items = Ledger(), items_of(4)
        near, slow, other = worker(ledger, 0, away=False), worker(ledger, 1), worker(ledger, 2)
        lease(ledger, items, slow, 0)
        ledger.lease(near, items.by_seq[0])
        assert spare_for(items, (near, slow, other), 2, 100.0) is None

    def test_near_workers_are_not_watched_here(self) -> None:
        """One that hangs is ended after its silence; a sample that takes long takes long anywhere."""
        ledger, items = Ledger(), items_of(4)
        one, other = worker(ledger, 0, away=False), worker(ledger, 1, away=False)
        lease(ledger, items, one, 0)
        assert spare_for(items, (one, other), 2, 100.0) is None

    def test_a_near_one_without_work_makes_what_comes_later_from_elsewhere(self) -> None:
        ledger, items = Ledger(), items_of(4)
        near, slow = worker(ledger, 0, away=False, usual_s=0.1), worker(ledger, 1, usual_s=1.0)
        lease(ledger, items, slow, 0)
        assert spare_for(items, (near, slow), 2, 0.5) == (near, items.by_seq[0])
        assert spare_for(items, (near, slow), 2, 0.95) is None, "it is about to come"


class TestInAMachine:
    def test_the_first_answer_counts_and_the_late_one_frees_its_slot(self) -> None:
        world = World(workers=1, depth=1, num_slots=8, lookahead=8)
        world.send(ev.Decided(decision(2, 1, away=1)))
        world.send(ev.Wanted())
        (near,) = [number for number, one in world.ledger.workers.items() if not one.away]
        (away,) = [number for number, one in world.ledger.workers.items() if one.away]
        world.now_s = 1.0
        world.answer(near)
        world.now_s = 60.0
        while not any(found.leases for number, found in world.hands.items() if number == near):
            world.ask()
            world.send(ev.Polled())
        held = world.hands[away].leases[0]
        world.answer(near)
        while held.seq not in world.kept and held.seq not in world.delivered:
            world.answer(near)
        assert (held.ring, held.slot) in world.writers, "its worker may still write there"
        out = world.answer(away)
        assert isinstance(out[0], do.Drop)
        assert (held.ring, held.slot) not in world.writers
        world.finish()
        assert world.delivered == list(range(world.length))
