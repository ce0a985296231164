"""Lives of iterations: whatever happens to its workers, each ends, having delivered every item once and in order.

The same rules find seven mistakes that are planted into the machine.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stoker.core.slots.free_slots import FreeSlots
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.ledger import Lease, Ledger, State, Worker
from stoker.feed.state.machine import Machine
from tests.feed.world import World, decision


class Lives(RuleBasedStateMachine):
    """Workers answer, fail, die one by one or together, answer twice; the policy and memory change their minds."""

    make: type[Machine] = Machine
    most_leases = 2
    """Of an item at a time."""

    @initialize(
        pinned=st.booleans(), in_order=st.booleans(), num_slots=st.integers(0, 6), probed=st.booleans(),
        workers=st.integers(1, 4), depth=st.integers(1, 3),
    )  # fmt: skip
    def open(self, pinned: bool, in_order: bool, num_slots: int, probed: bool, workers: int, depth: int) -> None:
        self.in_order = in_order
        self.world = World(
            length=14, workers=workers, depth=depth, num_slots=num_slots, probed=probed and not pinned, make=self.make,
            pinned=pinned, in_order=in_order,
        )  # fmt: skip
        self.world.send(ev.Wanted())

    def pick(self, data: st.DataObject, numbers: list[int]) -> int:
        return data.draw(st.sampled_from(sorted(numbers)), "worker")

    def busy(self) -> list[int]:
        return [number for number, hand in self.world.hands.items() if hand.leases]

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.world.answer(self.pick(data, self.busy()))

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def raise_in_the_users_code(self, data: st.DataObject) -> None:
        self.world.answer(self.pick(data, self.busy()), ev.Failed)

    @precondition(lambda self: any(hand.answered for hand in self.world.hands.values()))
    @rule(data=st.data())
    def answer_once_more(self, data: st.DataObject) -> None:
        number = self.pick(data, [n for n, hand in self.world.hands.items() if hand.answered])
        generation = data.draw(st.sampled_from(self.world.hands[number].answered))
        self.world.arriving = -1, -1, -1
        self.world.send(ev.Arrived(number, generation, 0.0))
        assert number not in self.world.hands, "it is ended"

    @precondition(lambda self: self.world.hands)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.world.hands)))
        self.world.die(*data.draw(st.permutations(sorted(self.world.hands)))[:count])

    @precondition(lambda self: any(hand.told_to_leave and not hand.leases for hand in self.world.hands.values()))
    @rule(data=st.data())
    def leave_as_told(self, data: st.DataObject) -> None:
        hands = self.world.hands
        self.world.die(self.pick(data, [n for n in hands if hands[n].told_to_leave and not hands[n].leases]), left=True)

    @precondition(lambda self: any(hand.probes for hand in self.world.hands.values()))
    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        number = self.pick(data, [n for n, hand in self.world.hands.items() if hand.probes])
        self.world.send(ev.Evidence(self.world.hands[number].probes.pop(), "same"))

    @precondition(lambda self: any(hand.forgets for hand in self.world.hands.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.world.give_back(self.pick(data, [n for n, hand in self.world.hands.items() if hand.forgets]))

    @rule()
    def ask(self) -> None:
        world = self.world
        if world.raised is not None or (world.probed and world.judged is None):
            return
        world.ask()

    @precondition(lambda self: self.world.held)
    @rule()
    def look_away(self) -> None:
        self.world.look_away()

    @rule(workers=st.integers(1, 4), depth=st.integers(1, 3), away=st.integers(0, 3))
    def decide(self, workers: int, depth: int, away: int) -> None:
        self.world.decision = decision(workers, depth, min(away, workers - 1) if self.world.machine.may_leave else 0)
        self.world.send(ev.Decided(self.world.decision))
        self.world.send(ev.Wanted())

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.world.now_s += seconds
        self.world.send(ev.Polled())

    @rule(in_flight=st.none() | st.integers(1, 4), most_busy=st.none() | st.integers(1, 3))
    def bound(self, in_flight: int | None, most_busy: int | None) -> None:
        self.world.send(ev.Bounded(8, in_flight, most_busy))

    @rule(num_slots=st.integers(1, 6))
    def make_a_ring(self, num_slots: int) -> None:
        generation = max(self.world.rings, default=0) + 1
        self.world.slots = self.world.rings[generation] = FreeSlots(generation, num_slots)
        self.world.send(ev.RingMade(self.world.slots))

    @rule(why=st.sampled_from(["", "no memory"]))
    def refuse(self, why: str) -> None:
        self.world.refuses = why

    @rule()
    def look(self) -> None:
        if self.world.probed and self.world.judged is None:
            self.world.send(ev.Tick(30.0))

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule()
    def begin_the_next_iteration(self) -> None:
        world = self.world
        unseen = sorted(set(range(world.drawn)) - set(world.delivered))
        assert [w.start for w in world.machine.items.works()] == unseen, "nothing that was drawn is lost"
        world.send(ev.Left())
        assert not world.kept
        for ring, slot in world.held:
            world.rings[ring].returned.append(slot)
        world.begin()
        world.send(ev.Wanted())

    @invariant()
    def order(self) -> None:
        if hasattr(self, "world") and self.in_order:
            assert self.world.delivered == sorted(self.world.delivered)

    @invariant()
    def ledger(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for number, hand in world.hands.items():
            assert set(world.ledger.workers[number].leases) == {lease.generation for lease in hand.leases}
        for item in world.machine.items:
            assert (item.state is State.LEASED) == bool(item.leases)
            holders = [
                n for n, worker in world.ledger.workers.items() for one in item.leases if one in worker.leases.values()
            ]
            assert len(set(holders)) == len(item.leases) <= self.most_leases, "a second lease is another worker's"
        ready = {item.seq for item in world.machine.items if item.state is State.READY}
        assert ready == set(world.kept)
        assert world.machine.items.num_ready == len(ready)
        taken = {(ring, slot) for ring, slots in world.rings.items() for slot in range(slots.num_slots)
                 if slot in slots.taken and slot not in slots.returned}  # fmt: skip
        filled = {(ring, slot) for _, ring, slot in world.kept.values() if slot >= 0}
        assert taken == set(world.writers) | filled | set(world.held), "no slot is lost"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.refuses = ""
        world.send(ev.Bounded(8, None, None))
        world.finish()
        assert sorted(world.delivered) == list(range(world.length)), "each item once"
        self.order()


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


class DistantLives(Lives):
    """The same where most workers are on other machines, and what they are late with is leased a second time."""

    @initialize(
        num_slots=st.integers(0, 8), near=st.integers(1, 2), away=st.integers(1, 3), depth=st.integers(1, 3),
        now_s=st.sampled_from([0.1, 1.0]),
    )  # fmt: skip
    def open(self, num_slots: int, near: int, away: int, depth: int, now_s: float) -> None:
        self.in_order = True
        world = self.world = World(length=14, workers=near, depth=depth, num_slots=num_slots, make=self.make)
        world.decision = decision(near + away, depth, away)
        world.send(ev.Decided(world.decision))
        world.send(ev.Wanted())
        world.now_s = now_s
        world.work_off()  # it is known how long an item takes


TestDistantLives = DistantLives.TestCase
TestDistantLives.settings = TestLives.settings


# -- planted mistakes --------------------------------------------------------------------------------------------------


class _Trusting(Ledger):
    """Does not look at generations."""

    def answer(self, worker: Worker, generation: int) -> Lease | None:
        known = generation in worker.leases
        return super().answer(worker, generation if known or not worker.leases else next(iter(worker.leases)))


class NoGenerationCheck(Machine):
    def __init__(self, **options: Any) -> None:
        options["ledger"].__class__ = _Trusting
        super().__init__(**options)


class SlotFreedTwice(Machine):
    def _on_failed(self, event: ev.Failed, now_s: float) -> list[do.Instruction]:
        out = super()._on_failed(event, now_s)
        return [*out, *(given for given in out if isinstance(given, do.Free))]


def _others(machine: Machine, event: ev.Arrived) -> list[Lease]:
    """Other leases of the item that has arrived."""
    worker = machine.ledger.workers.get(event.worker)
    lease = worker.leases.get(event.generation) if worker is not None else None
    item = lease.item if lease is not None else None
    return [other for other in item.leases if other is not lease] if item is not None else []


class LateAnswerCountsToo(Machine):
    """The item's other lease is not told that the first answer has come."""

    def _on_arrived(self, event: ev.Arrived, now_s: float) -> list[do.Instruction]:
        others = [(lease, lease.item) for lease in _others(self, event)]
        out = super()._on_arrived(event, now_s)
        for lease, item in others:
            lease.item, item.state = item, State.LEASED  # type: ignore[union-attr]
        return out


class LateSlotFreedAtOnce(Machine):
    """The slot of the lease that lost is free before its worker has answered."""

    def _on_arrived(self, event: ev.Arrived, now_s: float) -> list[do.Instruction]:
        others = _others(self, event)
        out = super()._on_arrived(event, now_s)
        return [*out, *(do.Free(other.ring, other.slot) for other in others if other.slot >= 0)]


class DeathDuringTheProbe(Machine):
    def _on_tick(self, event: ev.Tick, now_s: float) -> list[do.Instruction]:
        self.probing.hopeless = lambda ledger: False
        return super()._on_tick(event, now_s)


class LostRefill(Machine):
    def _on_asked(self, event: ev.Asked, now_s: float) -> list[do.Instruction]:
        out = super()._on_asked(event, now_s)
        late = self.delivered_seq > 3 and isinstance(out[0], do.Deliver)
        return [given for given in out if not (late and isinstance(given, do.Draw))]


class DrainingDropsALease(Machine):
    def _dismiss(self, worker: Worker, now_s: float) -> do.Instruction:
        for lease in worker.leases.values():
            lease.item = None
        return super()._dismiss(worker, now_s)


def check_found(lives: type[Lives], planted: type[Machine]) -> None:
    class Planted(lives):
        make = planted

    # It ends with the first that is found; late answers take some luck.
    found = settings(max_examples=2000, stateful_step_count=30, phases=[Phase.generate], deadline=None, database=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Planted, settings=found)


@pytest.mark.parametrize(
    "planted", [NoGenerationCheck, SlotFreedTwice, DeathDuringTheProbe, LostRefill, DrainingDropsALease]
)
def test_a_planted_mistake_is_found(planted: type[Machine]) -> None:
    check_found(Lives, planted)


@pytest.mark.parametrize("planted", [LateAnswerCountsToo, LateSlotFreedAtOnce])
def test_one_about_second_leases_is_found(planted: type[Machine]) -> None:
    check_found(DistantLives, planted)
