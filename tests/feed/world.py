"""A shell on paper: carries out what a machine says on workers that are queues, and looks whether it may say so."""

from __future__ import annotations

from collections import deque
from typing import Any

from stoker.core.slots.free_slots import FreeSlots
from stoker.feed.program import WorkItem
from stoker.feed.scaling import Decision
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.ledger import Ledger
from stoker.feed.state.machine import Machine


def work(number: int) -> WorkItem:
    """Item ``number`` of an order."""
    return WorkItem(indices=[number], start=number)


def decision(workers: int, depth: int = 2, away: int = 0) -> Decision:
    """So many workers."""
    return Decision(workers=workers, depth=depth, reason="", away=away)


class Hand:
    """A worker on paper: what it was told and has not answered."""

    def __init__(self, number: int, *, told_to_leave: bool = False) -> None:
        self.number = number
        self.leases: deque[do.Lease] = deque()
        self.answered: list[int] = []
        self.told_to_leave = told_to_leave
        self.forgets = False
        self.probes: list[str] = []


class World:
    """One loader: its workers, its slots, its program.

    Args:
        length: items of an iteration.
        num_slots: of the ring; 0 for none.
        probed: samples are compared first.
        make: makes the machine of an iteration.
        options: of the machine.
    """

    def __init__(
        self,
        *,
        length: int = 12,
        workers: int = 2,
        depth: int = 2,
        num_slots: int = 0,
        probed: bool = False,
        make: type[Machine] = Machine,
        **options: Any,
    ) -> None:
        self.length = length
        self.make, self.options = make, {"declared": 2, "lookahead": workers * depth, **options}
        self.decision = decision(workers, depth)
        self.ledger = Ledger()
        self.hands: dict[int, Hand] = {}
        self.num_born = 0
        self.refuses = ""
        self.now_s = 0.0
        self.slots = FreeSlots(1, num_slots) if num_slots else None
        self.rings = {1: self.slots} if self.slots is not None else {}
        self.writers: dict[tuple[int, int], int] = {}  # slots that a worker may write, with the lease's generation
        self.log: list[do.Instruction] = []
        self.judged: str | None = None
        self.raised: Exception | None = None
        self.begin(probed=probed)

    def begin(self, *, probed: bool = False, first: int = 0) -> None:
        """An iteration begins, with the workers that there are."""
        self.drawn = first
        self.kept: dict[int, tuple[int, int, int]] = {}  # number -> what was made, ring, slot
        self.delivered: list[int] = []
        self.held: list[tuple[int, int]] = []  # slots that the program looks at
        self.probed = probed
        options = {"decision": self.decision, "ledger": self.ledger, "first": first}
        self.machine = self.make(**{**options, "drawn": first, **self.options})
        if probed:
            self.send(ev.ProbeWanted())
        self.send(ev.RingMade(self.slots))
        self.send(ev.Opened(tuple(n for n, hand in self.hands.items() if not hand.told_to_leave)))

    # What is carried out

    def send(self, event: ev.Event) -> list[do.Instruction]:
        """Tells the machine, and does what it says."""
        out = self.machine.on(event, self.now_s)
        self.carry_out(out)
        return out

    def carry_out(self, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            self.log.append(instruction)
            getattr(self, ev.snake_case(type(instruction).__name__))(instruction)

    def draw(self, _: do.Draw) -> None:
        if self.drawn == self.length:
            self.send(ev.Drawn(None, self.drawn, exhausted=True))
        else:
            self.drawn += 1
            self.send(ev.Drawn(work(self.drawn - 1), self.drawn))

    def spawn(self, spawn: do.Spawn) -> None:
        if self.refuses:
            self.send(ev.Refused(self.refuses, spawn.purpose, spawn.away))
            return
        number, self.num_born = self.num_born, self.num_born + 1
        self.hands[number] = Hand(number, told_to_leave=spawn.purpose is not ev.Purpose.WORK)
        self.send(ev.Born(number, spawn.worker_id, spawn.purpose, spawn.away))

    def lease(self, lease: do.Lease) -> None:
        if lease.slot >= 0:
            place = lease.ring, lease.slot
            assert place not in self.writers, "a slot of two workers"
            assert place not in self.held, "a slot that the program looks at"
            assert place not in [(ring, slot) for _, ring, slot in self.kept.values()], "a slot with a batch"
            self.writers[place] = lease.generation
        if lease.worker in self.hands:
            self.hands[lease.worker].leases.append(lease)

    def keep(self, keep: do.Keep) -> None:
        assert keep.seq not in self.kept, "made twice"
        made, ring, slot = self.arriving
        self.kept[keep.seq] = self.arriving
        assert made == keep.seq, "another item's batch"
        self.writers.pop((ring, slot), None)

    def drop(self, _: do.Drop) -> None:
        ring, slot = self.arriving[1:]
        if slot >= 0:
            self.release(ring, slot)

    def ignore(self, _: do.Ignore) -> None:
        pass

    def free(self, free: do.Free) -> None:
        self.release(free.ring, free.slot)

    def release(self, ring: int, slot: int) -> None:
        self.writers.pop((ring, slot), None)
        self.rings[ring].give_back(slot)

    def discard(self, discard: do.Discard) -> None:
        _, ring, slot = self.kept.pop(discard.seq)
        if slot >= 0:
            self.rings[ring].give_back(slot)

    def deliver(self, deliver: do.Deliver) -> None:
        made, ring, slot = self.kept.pop(deliver.item.seq)
        assert made not in self.delivered, "delivered twice"
        self.delivered.append(made)
        if slot >= 0:
            self.held.append((ring, slot))

    def wait(self, _: do.Wait) -> None:
        pass

    def end(self, _: do.End) -> None:
        pass

    def stop(self, stop: do.Stop) -> None:
        if stop.worker in self.hands:
            self.hands[stop.worker].told_to_leave = True

    def kill(self, kill: do.Kill) -> None:
        if kill.worker in self.hands:
            self.die(kill.worker)

    def forget(self, _: do.Forget) -> None:
        for hand in self.hands.values():
            hand.forgets = not hand.told_to_leave

    def share_ring(self, _: do.ShareRing) -> None:
        pass

    def probe(self, probe: do.Probe) -> None:
        if probe.worker in self.hands:
            self.hands[probe.worker].probes.append(probe.role)

    def let_go_on(self, _: do.LetGoOn) -> None:
        pass

    def pin(self, _: do.Pin) -> None:
        pass

    def lost(self, lost: do.Lost) -> None:
        self.send(ev.Diagnosed(lost.worker, 4711, "killed by signal: SIGKILL"))

    def blame(self, _: do.Blame) -> None:
        pass

    def judge(self, judge: do.Judge) -> None:
        self.judged = judge.why_not

    def mishap(self, _: do.Mishap) -> None:
        pass

    def notice(self, _: do.Notice) -> None:
        pass

    def raise_(self, instruction: do.Raise) -> None:
        self.raised = instruction.error

    def __getattr__(self, name: str) -> Any:
        if name == "raise":
            return self.raise_
        raise AttributeError(name)

    # What happens

    def answer(self, number: int, event: Any = ev.Arrived) -> list[do.Instruction]:
        """A worker is done with its first lease, one way or another."""
        hand = self.hands[number]
        lease = hand.leases.popleft()
        hand.answered.append(lease.generation)
        if lease.digest:
            self.send(ev.Evidence("beside", "same"))
        ring, slot = (lease.ring, lease.slot) if event is ev.Arrived else (-1, -1)
        self.arriving = lease.seq, ring, slot
        made: tuple[Any, ...] = (self.now_s, lease.seq) if event is ev.Arrived else ()
        out = self.send(event(number, lease.generation, *made))
        self.send(ev.Polled())
        return out

    def die(self, *numbers: int, left: bool = False) -> None:
        """Workers end, by one cause."""
        losses = tuple(ev.Loss(n, expected=self.hands[n].told_to_leave, left=left) for n in numbers)
        for number in numbers:
            del self.hands[number]
        self.send(ev.Departed(losses))
        self.send(ev.Polled())

    def give_back(self, number: int) -> None:
        """A worker that was told to forget returns what it has not begun."""
        hand, hand.forgets = self.hands[number], False
        while len(hand.leases) > 1:
            lease = hand.leases.pop()
            self.send(ev.Returned(number, lease.generation))
        self.send(ev.Polled())

    def restart(self) -> None:
        """All processes end, and others take over."""
        self.raised, self.refuses = None, ""
        self.hands.clear()
        for ring, slot in self.ledger.clear():
            self.release(ring, slot)
        self.ledger = Ledger()
        self.send(ev.Restarted(self.ledger))
        self.send(ev.Opened())
        self.send(ev.Polled())

    def look_away(self) -> None:
        """The program drops a batch."""
        ring, slot = self.held.pop(0)
        self.rings[ring].returned.append(slot)

    def ask(self) -> do.Instruction:
        """The program asks for a batch; what comes of it."""
        first, items = self.send(ev.Asked())[0], self.machine.items
        if isinstance(first, do.Deliver) and self.raised is None:
            missing = min(self.length - self.drawn, self.machine.capacity - items.num_open)
            assert missing <= 0, "a batch that is delivered has another one drawn"
        return first

    def work_off(self) -> None:
        """Everybody does all that he has been told, in turns."""
        for number, hand in list(self.hands.items()):
            if hand.probes:
                hand.probes.clear()
                self.send(ev.Evidence("apart", "same"))
            if number in self.hands and hand.leases:
                self.answer(number)
            elif number in self.hands and hand.told_to_leave and not hand.leases:
                self.die(number, left=True)

    def finish(self) -> None:
        """Nothing more goes wrong: the iteration ends, soon, and time need not pass for it."""
        for _ in range(20 * self.length + 40):
            if self.raised is not None:
                self.restart()
            if self.probed and self.judged is None:
                self.send(ev.Tick(30.0))
                self.work_off()
                continue
            first = self.ask()
            if isinstance(first, do.End):
                return
            while self.held:
                self.look_away()
            if not isinstance(first, do.Deliver):
                self.work_off()
        raise AssertionError(f"the iteration does not end: {self.delivered} of {self.length}")
