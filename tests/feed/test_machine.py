"""What the machine of an iteration says to what happens: one rule at a time, without a process."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from stoker.core.errors import StreamNotRepeatableError, WorkerLostError, WorkerStartError
from stoker.core.slots.free_slots import FreeSlots
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.ledger import State
from stoker.feed.state.life import Phase
from stoker.feed.state.machine import MAX_LOSSES
from stoker.feed.state.probing import Probing
from tests.feed.world import World, decision, work

_T = TypeVar("_T")


def of(kind: type[_T], instructions: list[do.Instruction]) -> list[_T]:
    return [given for given in instructions if isinstance(given, kind)]


def filled(**options: Any) -> World:
    """A world whose queue is full."""
    world = World(**options)
    world.send(ev.Wanted())
    return world


def given_to(world: World) -> list[tuple[int, int]]:
    """Worker and item of every lease so far."""
    return [(lease.worker, lease.seq) for lease in of(do.Lease, world.log)]


class TestOpening:
    def test_as_many_workers_as_decided_are_started_one_after_another(self) -> None:
        world = World(workers=3)
        assert [spawn.worker_id for spawn in of(do.Spawn, world.log)] == [0, 1, 0]

    def test_pinned_ones_are_as_many_as_declared(self) -> None:
        world = World(workers=7, pinned=True)
        assert [spawn.worker_id for spawn in of(do.Spawn, world.log)] == [0, 1]

    def test_those_of_an_earlier_iteration_go_on(self) -> None:
        world = World()
        world.log.clear()
        world.begin()
        assert not of(do.Spawn, world.log)

    def test_without_any_worker_there_is_no_iteration(self) -> None:
        world = World(workers=1)
        world.refuses = "no descriptor left"
        world.die(0)
        assert isinstance(world.raised, WorkerStartError)
        assert "no data worker could be started: no descriptor left" in str(world.raised)

    def test_fewer_than_wanted_are_told_of_once(self) -> None:
        world = World(workers=1)
        world.refuses = "no process left"
        for workers in (2, 3):
            world.send(ev.Decided(decision(workers)))
        assert [notice.text for notice in of(do.Notice, world.log)] == ["1 data workers and no more: no process left"]

    def test_a_pinned_one_that_cannot_be_started_ends_it(self) -> None:
        world = World(pinned=True)
        world.refuses = "no process left"
        world.die(1)
        assert isinstance(world.raised, WorkerStartError)

    def test_the_probe_has_its_worker_second(self) -> None:
        world = World(probed=True)
        assert [spawn.purpose for spawn in of(do.Spawn, world.log)] == [
            ev.Purpose.WORK, ev.Purpose.PROBE, ev.Purpose.WORK,
        ]  # fmt: skip
        assert world.machine.phase is Phase.PROBING


class TestLeasing:
    def test_the_first_item_is_leased_before_the_others_are_drawn(self) -> None:
        world = filled()
        kinds = [type(given) for given in world.log if isinstance(given, do.Draw | do.Lease)]
        assert kinds[:3] == [do.Draw, do.Lease, do.Draw]

    def test_items_go_round_to_whoever_has_the_fewest(self) -> None:
        assert given_to(filled()) == [(0, 0), (1, 1), (0, 2), (1, 3)]

    def test_no_more_are_drawn_than_the_workers_may_hold(self) -> None:
        assert filled(workers=3, depth=3, length=40).drawn == 9

    def test_a_lazy_order_is_drawn_no_further_than_torch_would(self) -> None:
        assert filled(workers=3, depth=3, length=40, num_free=0, lookahead=4).drawn == 4

    def test_but_its_first_items_may_be(self) -> None:
        assert filled(workers=3, depth=3, length=40, num_free=8, lookahead=4).drawn == 8

    def test_a_pinned_item_is_its_own_workers(self) -> None:
        world = filled(pinned=True, lookahead=6)
        assert {(worker, seq % 2) for worker, seq in given_to(world)} == {(0, 0), (1, 1)}

    def test_slots_bound_what_is_in_flight(self) -> None:
        world = World(length=40, workers=4, depth=4)
        world.send(ev.Bounded(4, None, None))
        world.send(ev.Wanted())
        assert world.drawn == 3, "one slot is left for what the program looks at"

    def test_memory_bounds_what_is_in_flight(self) -> None:
        world = World()
        world.send(ev.Bounded(8, 2, None))
        world.send(ev.Wanted())
        assert len(given_to(world)) == 2
        world.answer(0)
        assert len(given_to(world)) == 2, "one is ready: it counts"
        world.ask()
        assert len(given_to(world)) == 3

    def test_memory_bounds_who_is_at_work(self) -> None:
        world = World()
        world.send(ev.Bounded(8, None, 1))
        world.send(ev.Wanted())
        assert {worker for worker, _ in given_to(world)} == {0}

    def test_a_lease_has_a_slot_as_long_as_there_are_any(self) -> None:
        world = filled(num_slots=3)
        assert [lease.slot for lease in of(do.Lease, world.log)] == [0, 1, 2, -1]

    def test_a_new_ring_serves_the_leases_from_there_on(self) -> None:
        world = filled(num_slots=1)
        world.rings[2] = FreeSlots(2, 8)
        world.send(ev.RingMade(world.rings[2]))
        world.answer(0)
        world.ask()
        assert of(do.Lease, world.log)[-1].ring == 2

    def test_a_dry_order_is_asked_again_with_the_next_batch(self) -> None:
        world = filled()
        world.answer(0)
        world.machine.on(ev.Drawn(None, 4), 0.0)
        assert of(do.Draw, world.machine.on(ev.Asked(), 0.0))

    def test_an_exhausted_one_is_not(self) -> None:
        world = filled(length=4)
        world.answer(0)
        assert of(do.Draw, world.machine.on(ev.Asked(), 0.0))
        world.answer(1)
        world.machine.on(ev.Drawn(None, 4, exhausted=True), 0.0)
        assert not of(do.Draw, world.machine.on(ev.Asked(), 0.0))


class TestDelivery:
    def test_batches_come_in_order_whatever_comes_first(self) -> None:
        world = filled()
        world.answer(1)
        assert isinstance(world.ask(), do.Wait)
        world.answer(0)
        assert [type(world.ask()), type(world.ask())] == [do.Deliver, do.Deliver]
        assert world.delivered == [0, 1]

    def test_or_as_they_are_made(self) -> None:
        world = filled(in_order=False)
        world.answer(1)
        world.ask()
        assert world.delivered == [1]
        assert world.machine.taken_ahead == {1}
        world.answer(0)
        world.ask()
        assert (world.machine.items.cursor, world.machine.taken_ahead) == (2, set())

    def test_another_item_is_drawn_for_each(self) -> None:
        world = filled()
        world.answer(0)
        world.log.clear()
        world.ask()
        assert [type(given) for given in world.log] == [do.Deliver, do.Draw, do.Lease]

    def test_but_not_for_one_that_is_fetched_ahead(self) -> None:
        world = filled()
        world.answer(0)
        assert [type(given) for given in world.send(ev.Asked(refill=False))] == [do.Deliver]

    def test_items_taken_before_it_was_gone_on_with_are_passed_over(self) -> None:
        world = filled(taken={1, 2}, in_order=False)
        assert [seq for _, seq in given_to(world)] == [0, 3, 4, 5]

    def test_an_exception_takes_its_batchs_place(self) -> None:
        world = filled(num_slots=4)
        out = world.answer(0, ev.Failed)
        assert [type(given) for given in out] == [do.Keep, do.Free]

    def test_the_end_comes_after_the_last_batch(self) -> None:
        world = filled(length=1)
        assert isinstance(world.ask(), do.Wait)
        world.answer(0)
        assert isinstance(world.ask(), do.Deliver)
        assert isinstance(world.ask(), do.End)

    def test_a_shard_that_ends_takes_its_later_items_along(self) -> None:
        world = filled(pinned=True, is_stream=True, lookahead=6)
        world.answer(0, ev.ShardEnded)
        world.answer(1)
        assert isinstance(world.ask(), do.Deliver)
        assert world.delivered == [1]

    def test_what_a_worker_makes_of_an_ended_shard_is_nobodys(self) -> None:
        world = filled(pinned=True, is_stream=True, lookahead=6, num_slots=8)
        world.answer(0, ev.ShardEnded)
        assert [type(given) for given in world.answer(0)] == [do.Drop]

    def test_the_stream_ends_with_its_last_shard(self) -> None:
        world = filled(pinned=True, is_stream=True, lookahead=6)
        for number in (0, 1):
            world.answer(number, ev.ShardEnded)
        assert isinstance(world.ask(), do.End)


class TestLosses:
    def test_what_a_dead_worker_had_is_made_by_another_under_other_leases(self) -> None:
        world = filled()
        before = {lease.generation for lease in world.hands[0].leases}
        world.die(0)
        again = [lease for lease in of(do.Lease, world.log) if lease.seq in (0, 2)][2:]
        assert len(again) == 2
        assert not before & {lease.generation for lease in again}

    def test_its_slots_are_free_and_it_is_replaced(self) -> None:
        world = filled(num_slots=6)
        world.log.clear()
        world.die(0)
        assert len(of(do.Free, world.log)) == 2
        assert [lost.released for lost in of(do.Lost, world.log)] == [2]
        assert len(of(do.Spawn, world.log)) == 1

    def test_one_that_leaves_as_it_was_told_is_no_loss(self) -> None:
        world = World()
        world.send(ev.Decided(decision(1)))
        (leaving,) = [number for number, hand in world.hands.items() if hand.told_to_leave]
        world.log.clear()
        world.die(leaving, left=True)
        assert not of(do.Lost, world.log)

    def test_leases_that_crossed_its_farewell_are_given_to_others(self) -> None:
        world = filled()
        world.hands[0].told_to_leave = True
        world.log.clear()
        world.die(0, left=True)
        assert not of(do.Lost, world.log)
        assert 0 in [seq for _, seq in given_to(world)] or world.machine.items.waiting

    def test_one_that_is_killed_while_it_drains_is_a_loss(self) -> None:
        world = filled()
        world.send(ev.Decided(decision(1)))
        leaving = next(number for number, hand in world.hands.items() if hand.told_to_leave)
        world.log.clear()
        world.die(leaving)
        assert [lost.worker for lost in of(do.Lost, world.log)] == [leaving]

    def test_a_host_that_takes_many_workers_is_one_loss(self) -> None:
        world = filled(workers=MAX_LOSSES + 2, depth=1, length=60)
        world.die(*range(MAX_LOSSES + 2))
        assert world.raised is None
        world.finish()

    def test_many_losses_without_a_batch_end_the_run(self) -> None:
        world = filled()
        for _ in range(MAX_LOSSES):
            world.die(max(world.hands))
        assert isinstance(world.raised, WorkerLostError)
        assert f"{MAX_LOSSES} data workers were lost in a row" in str(world.raised)

    def test_a_batch_in_between_forgives_them(self) -> None:
        world = filled(length=40)
        for turn in range(2 * MAX_LOSSES):
            world.die(max(world.hands))
            if turn % 4 == 0:
                world.answer(next(number for number, hand in world.hands.items() if hand.leases))
                world.ask()
        assert world.raised is None

    def test_the_item_that_a_worker_died_at_is_blamed(self) -> None:
        world = filled()
        world.machine.on(ev.Departed((ev.Loss(0),)), 0.0)
        out = world.machine.on(ev.Diagnosed(0, 4711, "killed by signal: SIGSEGV", seq=0), 0.0)
        assert [blame.item.seq for blame in of(do.Blame, out)] == [0]

    @pytest.mark.parametrize("why", [{"for_memory": True}, {"blames": False}, {"seq": 77}])
    def test_but_not_for_other_causes(self, why: dict[str, Any]) -> None:
        world = filled()
        world.machine.on(ev.Departed((ev.Loss(0),)), 0.0)
        out = world.machine.on(ev.Diagnosed(**{"worker": 0, "pid": 1, "cause": "killed", "seq": 0, **why}), 0.0)
        assert not of(do.Blame, out)

    def test_a_worker_that_cannot_be_reached_gets_no_lease(self) -> None:
        world = World()
        world.send(ev.Severed(0))
        world.send(ev.Wanted())
        assert {worker for worker, _ in given_to(world)} == {1}

    def test_a_retiring_one_finishes_and_is_replaced(self) -> None:
        world = filled()
        world.log.clear()
        world.send(ev.Retiring(0))
        assert [type(given) for given in world.log[:2]] == [do.Stop, do.Spawn]
        world.answer(0)
        world.ask()
        assert world.delivered == [0]

    def test_it_retires_once(self) -> None:
        world = filled()
        world.send(ev.Retiring(0))
        assert world.send(ev.Retiring(0)) == []

    def test_without_template_the_last_worker_is_waited_for(self) -> None:
        world = filled()
        assert world.send(ev.TemplateLost()) == []
        world.log.clear()
        world.die(0)
        assert not of(do.Spawn, world.log)
        world.die(1)
        world.send(ev.TemplateLost())
        assert isinstance(world.raised, WorkerStartError)

    def test_other_processes_go_on_where_those_ended(self) -> None:
        world = filled(num_slots=8)
        world.answer(0)
        world.restart()
        assert world.machine.items.get(0) is not None
        world.finish()
        assert world.delivered == list(range(12))

    def test_a_successor_of_a_pinned_worker_repeats_what_that_had_made(self) -> None:
        world = filled(pinned=True, lookahead=4)
        world.answer(0)
        world.die(0)
        repeated = [lease for lease in of(do.Lease, world.log) if lease.repeat]
        assert [(lease.seq, lease.slot) for lease in repeated] == [(0, -1)]
        assert [type(given) for given in world.answer(repeated[0].worker)] == [do.Ignore]
        world.finish()
        assert world.delivered == list(range(12))

    def test_one_that_makes_something_else_is_an_error(self) -> None:
        world = filled(pinned=True, lookahead=4)
        world.answer(0)
        world.die(0)
        successor = max(world.hands)
        world.send(ev.Arrived(successor, world.hands[successor].leases[0].generation, 0.0, check=99))
        assert isinstance(world.raised, StreamNotRepeatableError)

    def test_an_answer_to_no_lease_ends_its_worker_and_frees_nothing(self) -> None:
        world = filled(num_slots=4)
        assert [type(given) for given in world.send(ev.Arrived(0, 999, 0.0))] == [do.Ignore, do.Kill]
        world.finish()

    def test_a_returned_lease_is_given_out_again(self) -> None:
        world = filled(num_slots=4)
        lease = world.hands[0].leases.pop()
        out = world.send(ev.Returned(0, lease.generation))
        assert [type(given) for given in out] == [do.Free]
        assert world.machine.items.waiting == [lease.seq]


class TestMinds:
    def test_fewer_workers_let_those_go_that_have_the_least(self) -> None:
        world = filled()
        world.answer(1)
        world.log.clear()
        world.send(ev.Decided(decision(1)))
        assert [stop.worker for stop in of(do.Stop, world.log)] == [1]

    def test_the_same_decision_changes_nothing(self) -> None:
        world = filled()
        assert world.send(ev.Decided(decision(2))) == []

    def test_more_workers_and_a_deeper_queue(self) -> None:
        world = filled(length=40)
        world.send(ev.Decided(decision(3, 4)))
        world.send(ev.Wanted())
        assert (len(world.hands), world.machine.items.num_open) == (3, 12)

    def test_a_worker_is_idle_while_it_has_no_lease(self) -> None:
        world = filled(length=3)
        idle = world.machine.idleness.since_s
        assert not idle
        world.answer(1)
        assert set(idle) == {1}
        world.answer(0)
        world.answer(0)
        assert set(idle) == {0, 1}


class TestComparison:
    def test_both_sides_get_the_first_batch(self) -> None:
        world = filled(probed=True)
        (probe,) = of(do.Probe, world.log)
        assert (probe.role, probe.work, probe.other) == ("apart", work(0), work(1))
        assert [lease.seq for lease in of(do.Lease, world.log) if lease.digest] == [0]

    def test_it_is_over_when_both_have_said(self) -> None:
        world = filled(probed=True)
        world.work_off()
        world.send(ev.Tick(30.0))
        assert world.judged == ""
        assert world.machine.phase is Phase.FEEDING

    def test_it_is_over_when_one_takes_too_long(self) -> None:
        world = filled(probed=True)
        world.send(ev.Tick(30.0))
        world.now_s = 31.0
        world.send(ev.Tick(30.0))
        assert world.judged == "its samples could not be probed within 30 s (`--stall-timeout`)"

    def test_one_that_dies_has_a_second_chance_and_no_third(self) -> None:
        world = filled(probed=True)
        for _ in range(2):
            world.die(*[number for number, hand in world.hands.items() if hand.probes])
            world.send(ev.Tick(30.0))
        assert world.judged == "data workers were lost twice while its samples were probed"
        assert ["once more" in notice.text for notice in of(do.Notice, world.log)] == [True]

    def test_large_samples_wait_until_no_other_is_at_work(self) -> None:
        world = filled(probed=True)
        prober = next(number for number, hand in world.hands.items() if hand.probes)
        world.send(ev.Sized(prober, 1 << 20, 4, 0))
        assert world.machine.probing.holds_back
        for number in [number for number, hand in world.hands.items() if hand.forgets]:
            world.give_back(number)
        world.log.clear()
        for number in [number for number, hand in world.hands.items() if hand.leases]:
            world.answer(number)
        assert [let.worker for let in of(do.LetGoOn, world.log)][-1:] == [prober]

    def test_huge_ones_are_not_compared_and_the_workers_go_on_as_pinned_ones(self) -> None:
        world = filled(probed=True)
        prober = next(number for number, hand in world.hands.items() if hand.probes)
        world.send(ev.Sized(prober, 1 << 40, 1, 0))
        asked = [pin.worker for pin in of(do.Pin, world.log)]
        assert len(asked) == 2
        for number in asked:
            world.send(ev.Pinned(number, agreed=True))
        assert world.machine.handover.result is True
        world.send(ev.HandedOver())
        assert world.machine.pinned

    def test_a_mistake_of_ours_ends_it(self) -> None:
        world = filled(probed=True)
        world.send(ev.ProbeBroken())
        world.send(ev.Tick(30.0))
        assert world.judged == "stoker failed to compare its samples"

    def test_one_that_is_met_on_the_way_ends_nothing_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Probing, "accompany", lambda *_: [][1])
        world = filled(probed=True)
        assert [type(mishap.error) for mishap in of(do.Mishap, world.log)] == [IndexError]
        assert given_to(world) == [(0, 0), (2, 1), (0, 2), (2, 3)]
        world.finish()
        assert world.delivered == list(range(12))

    def test_nor_are_they_where_a_worker_was_killed_for_memory(self) -> None:
        world = filled(probed=True)
        world.machine.on(ev.Diagnosed(0, 1, "killed", for_memory=True), 0.0)
        world.send(ev.Tick(30.0))
        assert world.judged == "there is too little memory to compare its samples"


class TestEnds:
    def test_what_is_ready_is_discarded_and_workers_forget(self) -> None:
        world = filled()
        world.answer(0)
        out = world.machine.on(ev.Left(), 0.0)
        assert [type(given) for given in out] == [do.Discard, do.Forget]

    def test_torchs_own_workers_would_make_what_was_drawn(self) -> None:
        world = filled(pinned=True)
        assert not of(do.Forget, world.machine.on(ev.Left(), 0.0))

    def test_it_drains_until_every_lease_is_answered(self) -> None:
        world = filled(workers=1, num_slots=4)
        machine = world.machine
        world.send(ev.Left())
        assert machine.phase is Phase.DRAINING
        world.answer(0)
        assert machine.phase is Phase.DRAINING
        world.answer(0)
        assert machine.phase is Phase.ENDED

    def test_what_is_answered_in_the_next_iteration_is_dropped(self) -> None:
        world = filled(workers=1, num_slots=4)
        world.send(ev.Left())
        world.begin()
        assert [type(given) for given in world.answer(0)] == [do.Drop]

    def test_the_items_are_returned_in_their_order(self) -> None:
        world = filled()
        world.answer(1)
        assert world.machine.items.works() == [work(number) for number in range(4)]

    def test_items_that_somebody_else_delivered_are_skipped(self) -> None:
        world = World()
        world.send(ev.Skipped(5, 5))
        world.drawn = 5
        world.send(ev.Wanted())
        assert [seq for _, seq in given_to(world)] == [5, 6, 7, 8]

    def test_nothing_is_ready_before_it_is_made(self) -> None:
        world = filled()
        assert not world.machine.has_ready()
        assert all(item.state is State.LEASED for item in world.machine.items)
