"""The life of one iteration of one loader, from its first worker to its last batch: events in, instructions out.

Draws items, leases them, survives the loss of workers and delivers in order, without a clock, a process or a byte of a
batch: each event brings the time, and a shell carries the instructions out (:mod:`stoker.feed.shell`, or on a virtual
clock :mod:`stoker.sim`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from stoker.core.errors import StokerError, WorkerStartError
from stoker.core.slots.free_slots import FreeSlots
from stoker.feed.scaling import Decision
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.ends import not_repeatable, too_many_losses
from stoker.feed.state.handover import Handover
from stoker.feed.state.history import History
from stoker.feed.state.instructions import Instruction
from stoker.feed.state.ledger import Idleness, Item, Items, Lease, Ledger, State, Worker
from stoker.feed.state.life import Phase
from stoker.feed.state.placing import item_for, spare_for
from stoker.feed.state.probing import Probing

_T = TypeVar("_T")
MAX_LOSSES = 12
"""After so many losses in a row without a finished item, something is wrong with all workers."""
_BROKEN = "stoker failed to compare its samples"
_DRAW, _WAIT, _END, _DROP, _IGNORE = do.Draw(), do.Wait(), do.End(), do.Drop(), do.Ignore()


class Machine:
    """One iteration.

    Args:
        decision: number of workers, which pinned loaders ignore, and depth of each one's queue.
        ledger: the workers, kept across iterations for as long as their processes live.
        declared: workers that the loader declares.
        pinned: exactly one worker for each of those, and each item bound to one.
        is_stream: an item may turn out not to exist, because its shard is exhausted.
        lookahead: most items that may be drawn and not delivered, apart from the free ones.
        num_free: so many first items of the iteration are drawn as early as the policy likes; None for all.
        in_order: deliver by number; else in order of arrival.
        first: number of the first item (not 0 in a resumed iteration).
        drawn: items drawn before.
        taken: items delivered beyond ``first`` before the iteration was resumed.
    """

    def __init__(
        self,
        *,
        decision: Decision,
        ledger: Ledger,
        declared: int = 0,
        pinned: bool = False,
        is_stream: bool = False,
        lookahead: int = 1,
        num_free: int | None = None,
        in_order: bool = True,
        first: int = 0,
        drawn: int = 0,
        taken: set[int] | None = None,
    ) -> None:
        self.phase = Phase.OPENING
        self.ledger = ledger
        self.decision = decision
        self.pinned = pinned
        self._declared = declared
        self._is_stream = is_stream
        self._lookahead = lookahead
        self._num_free = num_free
        self._in_order = in_order
        self._first = first
        self._drawn = drawn
        self.idleness = Idleness()
        self._broken: list[Instruction] = []
        self.most_open = 0 if in_order else lookahead
        self.items = Items(declared if pinned else 0, first, self.most_open)
        self.history = History() if pinned else None
        self.probing = Probing(declared)
        self.handover = Handover()
        self.taken_ahead = taken if taken is not None else set[int]()
        """Items delivered beyond the cursor (``in_order=False``), also those before the iteration was resumed."""
        self.delivered_seq = first - 1
        """Number of the item delivered last."""
        self.made_by: Counter[int] = Counter()
        """Number of delivered items by the id of the pinned worker that made them (``in_order=False``)."""
        self._slots: FreeSlots | None = None
        self._num_slots: int | None = None
        self._in_flight: int | None = None
        self._most_busy: int | None = None
        self._is_dry = False
        self._exhausted = False
        self._losses = 0
        self.lost_pid = 0
        """Process id of the worker lost last; 0 for none."""
        self.template_lost = False
        self._said_refusal = False
        self.capacity = 0
        """Items that may be drawn and not delivered."""
        self._is_plain = False  # the capacity alone limits how many are drawn
        self._fit()

    def on(self, event: ev.Event, now_s: float) -> list[Instruction]:
        """Handles an event; returns the instructions, in order."""
        out = getattr(self, _HANDLERS[type(event)])(event, now_s)
        if self._broken:
            out, self._broken = [*out, *self._broken], []
        return out

    def _attempt(self, act: Callable[[], _T], otherwise: _T) -> _T:
        """Runs a step of the comparison of samples; a failure ends the comparison and does no other harm."""
        try:
            return act()
        except StokerError:
            raise
        except Exception as error:
            self._broken += [*self.probing.give_up(_BROKEN), do.Mishap(error)]
            return otherwise

    # -- bounds ------------------------------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Recomputes the capacity."""
        if self.pinned:
            self.capacity, self._is_plain = self._lookahead, False
            return
        num_open = max(1, self.decision.workers) * self.decision.depth
        if self._num_free == 0:
            num_open = min(num_open, self._lookahead)
        if self._num_slots is not None:
            num_open = min(num_open, self._num_slots - 1)
        self.capacity = max(1, num_open)
        self._is_plain = self._num_free is None and self.capacity > 1

    def _on_bounded(self, event: ev.Bounded, now_s: float) -> list[Instruction]:
        self._num_slots, self._in_flight, self._most_busy = event.num_slots, event.in_flight, event.most_busy
        self._fit()
        return []

    def _on_ring_made(self, event: ev.RingMade, now_s: float) -> list[Instruction]:
        self._slots = event.slots
        return [do.ShareRing()] if event.slots is not None else []

    def _on_decided(self, event: ev.Decided, now_s: float) -> list[Instruction]:
        before, self.decision = self.decision, event.decision
        if before.numbers == event.decision.numbers:
            return []
        self._fit()
        return self._staff(now_s)

    # -- workers -----------------------------------------------------------------------------------------------------

    @property
    def may_leave(self) -> bool:
        """Whether items may be made on other machines."""
        return self.phase is Phase.FEEDING and not (self.pinned or self._is_stream)

    def _on_opened(self, event: ev.Opened, now_s: float) -> list[Instruction]:
        self.ledger.make_stale()
        for worker in self.ledger.workers.values():
            worker.may_lease = worker.number in event.active
            if worker.may_lease:
                self.idleness.idle(worker.number, now_s)
        self.phase = Phase.PROBING if self.probing.wanted else Phase.FEEDING
        return self._staff(now_s)

    def _staff(self, now_s: float) -> list[Instruction]:
        """Starts the next missing worker, or has the surplus leave; each birth starts the next one."""
        active = self.ledger.active()
        declared = max(self._declared, 1)
        present = [worker.worker_id for worker in active]
        if self.pinned:
            missing = next((worker_id for worker_id in range(declared) if worker_id not in present), None)
            return [do.Spawn(missing)] if missing is not None else []
        most = self.decision.workers if self._most_busy is None else self._most_busy
        near = min(self.decision.workers - self.decision.away, most)
        far = min(self.decision.away, most - near)
        out: list[Instruction] = []
        for away, wanted in ((False, near), (True, far)):
            there = [worker for worker in active if worker.away is away]
            if len(there) < wanted:
                return [*out, do.Spawn(min(range(declared), key=present.count), away=away)]
            out += [self._dismiss(w, now_s) for w in sorted(there, key=lambda w: w.num_held)[: len(there) - wanted]]
        return out

    def _dismiss(self, worker: Worker, now_s: float) -> Instruction:
        """Makes a worker finish its leases and leave."""
        self.idleness.busy(worker.number, now_s)
        worker.may_lease = False
        return do.Stop(worker.number)

    def _on_born(self, event: ev.Born, now_s: float) -> list[Instruction]:
        purpose = event.purpose
        worker = self.ledger.born(event.worker, event.worker_id, may_lease=purpose is ev.Purpose.WORK, away=event.away)
        if purpose is not ev.Purpose.WORK:
            out = self._attempt(lambda: self.probing.born(event.worker, purpose), [])
            return out if purpose is ev.Purpose.REPEAT else [*out, *self._staff(now_s)]
        self.idleness.idle(worker.number, now_s)
        out = self._repeat_history(worker, now_s)
        probe = self._attempt(self.probing.spawn, [])
        return [*out, *(probe or self._staff(now_s))]

    def _on_refused(self, event: ev.Refused, now_s: float) -> list[Instruction]:
        num_active = len(self.ledger.active())
        if event.purpose is not ev.Purpose.WORK:
            self._attempt(self.probing.not_born, None)
            return self._staff(now_s) if event.purpose is ev.Purpose.PROBE else []
        if not event.why or event.away:
            return []
        if self.pinned or not num_active:
            return [do.Raise(WorkerStartError(f"no data worker could be started: {event.why}"))]
        if self._said_refusal:
            return []
        self._said_refusal = True
        return [do.Notice(f"{num_active} data workers and no more: {event.why}")]

    def _on_severed(self, event: ev.Severed, now_s: float) -> list[Instruction]:
        worker = self.ledger.workers.get(event.worker)
        if worker is not None:
            worker.may_lease = False
        return []

    def _on_retiring(self, event: ev.Retiring, now_s: float) -> list[Instruction]:
        worker = self.ledger.workers.get(event.worker)
        if worker is None or not worker.may_lease:
            return []
        return [self._dismiss(worker, now_s), *self._staff(now_s)]

    def holding(self) -> set[int]:
        """Numbers of the workers that have leases of this iteration."""
        return {worker.number for worker in self.ledger.workers.values() if worker.num_held}

    # -- losses ------------------------------------------------------------------------------------------------------

    def _on_departed(self, event: ev.Departed, now_s: float) -> list[Instruction]:
        out: list[Instruction] = []
        lost: list[do.Lost] = []
        for loss in event.losses:
            released = self._bury(loss.worker, now_s, out)
            if not loss.expected or (released and not loss.left):
                lost.append(do.Lost(loss.worker, released))  # else leases sent as it was leaving go to others
        self._losses += bool(lost)
        self._end_if_drained()
        return [*out, *lost]

    def _bury(self, number: int, now_s: float, out: list[Instruction]) -> int:
        """Frees the slots of a worker that is gone and requeues its items; returns how many."""
        self.idleness.busy(number, now_s)
        self.handover.lost(number)
        worker = self.ledger.depart(number)
        released = 0
        for lease in worker.leases.values() if worker is not None else ():
            if lease.slot >= 0:
                out.append(do.Free(lease.ring, lease.slot))
            if lease.item is not None:
                released += self.items.release(lease.item, lease)
        return released

    def _on_diagnosed(self, event: ev.Diagnosed, now_s: float) -> list[Instruction]:
        self.lost_pid = event.pid
        out: list[Instruction] = []
        if event.for_memory:
            self._attempt(lambda: self.probing.refuse("there is too little memory to compare its samples"), None)
        elif event.blames:
            item = self.items.get(event.seq)
            if item is not None and item.state is State.WAITING:
                out.append(do.Blame(item))
        if self._losses >= MAX_LOSSES:
            return [*out, do.Raise(too_many_losses(event.pid, self._losses, event.cause))]
        return out if self.template_lost or self.phase is Phase.DRAINING else [*out, *self._staff(now_s)]

    def _on_template_lost(self, event: ev.TemplateLost, now_s: float) -> list[Instruction]:
        self.template_lost = True
        if self.ledger.workers:
            return []
        return [do.Raise(WorkerStartError("the template process is gone, and with it all data workers"))]

    def _on_restarted(self, event: ev.Restarted, now_s: float) -> list[Instruction]:
        """Continues with new processes; what the old ones had not finished is made again."""
        for item in self.items:
            for lease in list(item.leases):
                self.items.release(item, lease)
        self.ledger, self.template_lost = event.ledger, False
        self.probing.forget()
        return [] if self._slots is None else [do.ShareRing()]

    # -- items -------------------------------------------------------------------------------------------------------

    def _on_wanted(self, event: ev.Wanted, now_s: float) -> list[Instruction]:
        self._is_dry = False
        return [_DRAW] if self._draws() else self._lease_waiting(now_s)

    def _draws(self) -> bool:
        """Whether another item is to be drawn."""
        items, most = self.items, self.capacity
        if self._is_dry or self._exhausted:
            return False
        if self._num_free is not None and self._drawn >= self._num_free:
            most = min(most, self._lookahead)
        elif most < 2 and self.probing.wanted:
            most = 2  # the probe wants another item
        if len(items.by_seq) < most:
            return not (self.pinned and self._is_stream and items.all_shards_ended)
        return items.num_open < most and not (self.pinned and self._is_stream and items.all_shards_ended)

    def _on_drawn(self, event: ev.Drawn, now_s: float) -> list[Instruction]:
        """Adds a drawn item; the first worker begins while the others are drawn."""
        items, self._drawn = self.items, event.drawn
        if event.work is None:
            self._is_dry, self._exhausted = True, event.exhausted
            return self._lease_waiting(now_s)
        if items.next_seq in self.taken_ahead:  # delivered before the iteration was resumed
            items.pass_over()
        else:
            items.add(event.work)
        more = len(items.by_seq) < self.capacity if self._is_plain else self._draws()
        out: list[Instruction] = []
        if not more or len(items.by_seq) == (2 if self.probing.wanted else 1):
            out = self._lease_waiting(now_s)
        if more:
            out.append(_DRAW)
        return out

    def _lease_waiting(self, now_s: float) -> list[Instruction]:
        """Leases waiting items to the workers that have the fewest."""
        out: list[Instruction] = []
        items = self.items
        if not items.waiting:
            return out
        workers = self.ledger.workers.values()
        depth = self.decision.depth
        if self.pinned:
            depth = max(2, -(-self.capacity // max(1, len(self.ledger.active()))))
        lacking = [w for w in workers if w.may_lease and len(w.leases) - w.num_stale < depth]
        bounded = self._most_busy is not None or self._in_flight is not None or self.probing.holds_back
        while lacking and items.waiting:
            worker = lacking[0]
            fewest = len(worker.leases) - worker.num_stale
            for other in lacking:
                if len(other.leases) - other.num_stale < fewest:
                    worker, fewest = other, len(other.leases) - other.num_stale
            if worker.away:
                item = item_for(worker, items, workers, now_s, in_order=self._in_order)
            else:
                item = items.next_waiting(worker.worker_id) if self.pinned else items.by_seq[items.waiting[0]]
            if item is None or (bounded and not self._has_room(item, worker)):
                lacking.remove(worker)
                continue
            self._lease(worker, item, now_s, out)
            if fewest + 1 >= depth:
                lacking.remove(worker)
        return out

    def _lease_again(self, now_s: float) -> list[Instruction]:
        """Leases an item a second time that comes late from another machine, if the program waits."""
        out: list[Instruction] = []
        if self.decision.away and self.may_leave and self._in_order and not self.has_ready():
            found = spare_for(self.items, self.ledger.workers.values(), self.decision.depth, now_s)
            if found is not None and self._has_room(found[1], found[0]):
                self._lease(*found, now_s, out)
        return out

    def _has_room(self, item: Item, worker: Worker) -> bool:
        """Whether memory allows this worker one more item; else the item waits until others are done."""
        most, most_busy = self._in_flight, self._most_busy
        if most_busy is not None and not worker.num_held and len(self.holding()) >= most_busy:
            return False
        if self.probing.holds_back:  # but the first batch must be made, even if its worker was lost
            return item is self.items.head() and self.delivered_seq < self._first
        return most is None or self.items.num_in_flight < most or item is self.items.head()

    def _lease(self, worker: Worker, item: Item, now_s: float, out: list[Instruction]) -> None:
        slots, ring, slot = self._slots, -1, -1
        if slots is not None and (slot := slots.take()) >= 0:
            ring = slots.generation
        if len(worker.leases) == worker.num_stale:
            self.idleness.busy(worker.number, now_s)
        if not worker.leases:
            worker.turned_s = now_s
        if item.state is State.WAITING:
            self.items.leased(item)
        lease = self.ledger.lease(worker, item, ring, slot)
        digest = self.probing.wanted
        if digest:
            other = self.items.get(item.seq + 1)
            out += self._attempt(lambda: self.probing.accompany(item, other, worker.number), [])
        out.append(do.Lease(worker.number, item.seq, lease.generation, ring, slot, item.work, digest))

    def _repeat_history(self, worker: Worker, now_s: float) -> list[Instruction]:
        """Makes a new pinned worker repeat what the lost one had made, to reach the same state."""
        out: list[Instruction] = []
        if self.history is None:
            return out
        for seq, work in self.history.of(worker.worker_id):
            if not worker.leases:
                self.idleness.busy(worker.number, now_s)
            lease = self.ledger.lease(worker, None, repeats=seq)
            out.append(do.Lease(worker.number, seq, lease.generation, -1, -1, work, repeat=True))
        return out

    # -- arrivals ----------------------------------------------------------------------------------------------------

    def _answered(self, number: int, generation: int, stamp_s: float, *, made: bool = True) -> Lease | None:
        """Ends the lease that a worker has answered; None if it has no such lease."""
        worker = self.ledger.workers.get(number)
        lease = self.ledger.answer(worker, generation) if worker is not None else None
        if worker is None or lease is None:
            return None
        if made:
            worker.made(stamp_s)
        if worker.may_lease and len(worker.leases) == worker.num_stale:
            self.idleness.idle(number, stamp_s)
        if self.phase is Phase.DRAINING:
            self._end_if_drained()
        return lease

    def _refuse(self, worker: int) -> list[Instruction]:
        return [_IGNORE, do.Kill(worker, "it answered a lease that it did not have")]

    def _on_arrived(self, event: ev.Arrived, now_s: float) -> list[Instruction]:
        lease = self._answered(event.worker, event.generation, event.stamp_s)
        if lease is None:
            return self._refuse(event.worker)
        self._losses = 0
        item = lease.item
        if item is None:
            return [_DROP] if lease.repeats == -1 else self._repeated(event, lease.repeats)
        if item.state is not State.LEASED:  # void meanwhile: its shard had ended
            return [_DROP]
        self.items.accept(item)
        if self.history is not None:
            self.history.made(item.seq, item.work, event.check, item.owner)
        return [do.Keep(item.seq)]

    def _repeated(self, event: ev.Arrived, seq: int) -> list[Instruction]:
        if seq < 0 or self.history is None or self.history.is_same(seq, event.check):
            return [_IGNORE]
        return [_IGNORE, do.Raise(not_repeatable(self.lost_pid, seq, event.worker))]

    def _on_failed(self, event: ev.Failed, now_s: float) -> list[Instruction]:
        lease = self._answered(event.worker, event.generation, now_s)
        if lease is None:
            return self._refuse(event.worker)
        self._losses = 0
        free: list[Instruction] = [do.Free(lease.ring, lease.slot)] if lease.slot >= 0 else []
        item = lease.item
        if item is None or item.state is not State.LEASED:
            return [_IGNORE, *free]
        self.items.accept(item)
        if self.history is not None:
            self.history.made(item.seq, item.work, None, item.owner)
        return [do.Keep(item.seq), *free]

    def _on_shard_ended(self, event: ev.ShardEnded, now_s: float) -> list[Instruction]:
        lease = self._answered(event.worker, event.generation, now_s)
        if lease is None:
            return self._refuse(event.worker)
        if lease.item is not None and lease.item.state is State.LEASED:
            lease.item.leases.remove(lease)
            self.items.end_shard(lease.item)
        return [do.Free(lease.ring, lease.slot)] if lease.slot >= 0 else []

    def _on_returned(self, event: ev.Returned, now_s: float) -> list[Instruction]:
        lease = self._answered(event.worker, event.generation, now_s, made=False)
        if lease is None:
            return self._refuse(event.worker)
        if lease.item is not None:
            lease.item.stays = self.ledger.workers[event.worker].away
            self.items.release(lease.item, lease)
        return [do.Free(lease.ring, lease.slot)] if lease.slot >= 0 else []

    def _on_polled(self, event: ev.Polled, now_s: float) -> list[Instruction]:
        go_on: list[Instruction] = []
        if self.probing.holds_back:
            go_on = self._attempt(lambda: self.probing.go_on(self.ledger), [])
        return [*go_on, *self._lease_waiting(now_s), *self._lease_again(now_s)]

    # -- the tier ----------------------------------------------------------------------------------------------------

    def _on_probe_wanted(self, event: ev.ProbeWanted, now_s: float) -> list[Instruction]:
        self._attempt(self.probing.start, None)
        return []

    def _on_drew(self, event: ev.Drew, now_s: float) -> list[Instruction]:
        self._attempt(lambda: self.probing.drew(event.drew), None)
        return []

    def _on_evidence(self, event: ev.Evidence, now_s: float) -> list[Instruction]:
        self._attempt(lambda: self.probing.found(event.role, event.found), None)
        return []

    def _on_sized(self, event: ev.Sized, now_s: float) -> list[Instruction]:
        """The first sample of the probe is large: it continues when the others are done, or not at all."""
        return self._attempt(lambda: self._sized(event), [])

    def _sized(self, event: ev.Sized) -> list[Instruction]:
        why_not, out = self.probing.sized(
            event.worker,
            event.sample_bytes,
            event.samples,
            workers=len(self.ledger.active()),
            free_bytes=event.free_bytes,
        )
        if not why_not:
            return [*out, do.Forget()]
        asked = self.handover.begin(self.ledger, self._declared, self.items, self.most_open)
        return [do.Kill(event.worker, why_not), *(do.Pin(worker) for worker in asked)]

    def _on_probe_broken(self, event: ev.ProbeBroken, now_s: float) -> list[Instruction]:
        return self.probing.give_up(_BROKEN)

    def _on_tick(self, event: ev.Tick, now_s: float) -> list[Instruction]:
        broken: list[Instruction] = []
        out = self._attempt(lambda: self.probing.check(self.ledger, now_s, event.stall_timeout_s), broken)
        if out is broken:  # if the check fails, the comparison would never end
            broken.append(do.Judge(self.probing.refused))
        if any(isinstance(instruction, do.Judge) for instruction in out):
            self.phase = Phase.FEEDING
        return out

    def _on_pinned(self, event: ev.Pinned, now_s: float) -> list[Instruction]:
        self.handover.answered(event.worker, agreed=event.agreed)
        return []

    def _on_handed_over(self, event: ev.HandedOver, now_s: float) -> list[Instruction]:
        self.pinned, self.history = True, History()
        ready = [item for item in self.items if item.state is State.READY]
        self.history.assume([(item.seq, item.work) for item in ready], [item.owner for item in ready])
        self._fit()
        return []

    # -- delivery ----------------------------------------------------------------------------------------------------

    def next_item(self) -> Item | None:
        """The item that the program gets next, made or not; None if no drawn item is left."""
        return (None if self._in_order else self.items.first_ready()) or self.items.head()

    def has_ready(self) -> bool:
        """Whether the next batch is made."""
        items = self.items
        item = items.by_seq.get(items.cursor)
        if item is None or not self._in_order:
            item = self.next_item()
        return item is not None and item.state is State.READY

    def _on_asked(self, event: ev.Asked, now_s: float) -> list[Instruction]:
        items = self.items
        item = items.by_seq.get(items.cursor)
        if item is None or item.state is not State.READY or not self._in_order:
            item = self.next_item()
            if item is None:
                return [_DRAW] if self._draws() else [_END]
            if item.state is not State.READY:
                return [_WAIT]
        seq = self.delivered_seq = item.seq
        if seq != items.cursor:
            self.taken_ahead.add(seq)
        if self.pinned and self.most_open:
            self.made_by[item.owner] += 1
        items.deliver(item)
        while items.cursor in self.taken_ahead:
            self.taken_ahead.discard(items.cursor)
            items.cursor += 1
        if not event.refill:
            return [do.Deliver(item)]
        self._is_dry = False
        if (len(items.by_seq) < self.capacity and not self._exhausted) if self._is_plain else self._draws():
            return [do.Deliver(item), _DRAW]
        return [do.Deliver(item), *self._lease_waiting(now_s)]

    # -- ends --------------------------------------------------------------------------------------------------------

    def _on_left(self, event: ev.Left, now_s: float) -> list[Instruction]:
        """Forgets open items, as the program leaves the iteration; slots are freed once no worker writes to them."""
        out: list[Instruction] = [do.Discard(item.seq) for item in self.items if item.state is State.READY]
        self.ledger.make_stale()
        self.items.forget_all()
        if not self.pinned:  # torch's workers make what was drawn even if nobody waits for it: their state advances
            out.append(do.Forget())
        self.phase = Phase.DRAINING
        self._end_if_drained()
        return out

    def _end_if_drained(self) -> None:
        if self.phase is Phase.DRAINING and not any(worker.leases for worker in self.ledger.workers.values()):
            self.phase = Phase.ENDED

    def _on_skipped(self, event: ev.Skipped, now_s: float) -> list[Instruction]:
        self.items.skip_to(event.seq)
        self._drawn = event.drawn
        self._is_dry = False
        return []


_HANDLERS = {event: "_on_" + ev.snake_case(event.__name__) for event in ev.Event.__subclasses__()}
