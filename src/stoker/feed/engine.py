"""One iteration over one loader: draws items, leases them, survives its workers, delivers in order.

Single-threaded and without a clock of its own pace: everything happens inside the program's calls of ``next``. While
the program computes, workers work on the leases they have; while it waits, the engine polls, watches and scales.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stoker.core.errors import StokerError, StreamNotRepeatableError, WorkerLostError, WorkerStartError, dead_worker
from stoker.core.mishaps import BestEffort, Unfailing, reraise_from_handler
from stoker.feed.crew import LEFT, Crew, Departure, Member, Message
from stoker.feed.handover import Handover
from stoker.feed.history import History
from stoker.feed.leases import Item, LeaseTable, State
from stoker.feed.listener import Listener
from stoker.feed.memory import MemoryWatch
from stoker.feed.order import Order
from stoker.feed.outcome import FailedItem, IterationEnd
from stoker.feed.oversight import COUNTING, Limits, Oversight
from stoker.feed.pack import unpack
from stoker.feed.probe import Evidence
from stoker.feed.probing import Probing
from stoker.feed.program import Iteration, Program, Tier, WorkItem
from stoker.feed.quarantine import Quarantine
from stoker.feed.rings import Payload, SlotKeeper
from stoker.feed.roster import Roster
from stoker.feed.scaling import Decision, ScalingPolicy
from stoker.feed.watch import INTERVAL_S, Watch
from stoker.feed.window import Counters, Window
from stoker.feed.wire import Frame, Kind, LeaseFlag, LeaseHeader, ReadyHeader, unpack_lease, unpack_ready

_T = TypeVar("_T")
_POLL_S = 0.1
"""Longest wait without looking at workers, policy and time limit."""
_SAY_AGAIN_S = 5.0
"""A new reason for the same number of workers is reported no more often than this."""
_MAX_LOSSES = 12
"""Workers lost in a row without one finished item: something is wrong with all of them."""


class Engine:
    """Runs one iteration.

    Args:
        program: what workers run.
        crew: processes to run it; the engine drives them but does not close them.
        iteration: constants of this pass.
        order: the items; drawn in this process.
        policy: how many workers, how deep; ignored by the pinned tier.
        keeper: slots, kept from iteration to iteration.
        memory: bounds what is in flight, likewise.
        counters: cumulative counters of the loader.
        effort: attempts what may fail without harm.
        lookahead: most items that may be drawn and not delivered, but for the free ones.
        num_free: the first so many items of the iteration are drawn as the policy likes; None for all.
        in_order: deliver by number; else whatever is ready.
        first: number of the first item (an iteration that is gone on with does not begin at 0).
    """

    def __init__(
        self,
        *,
        program: Program,
        crew: Crew,
        iteration: Iteration,
        order: Order,
        policy: ScalingPolicy,
        decision: Decision,
        keeper: SlotKeeper,
        memory: MemoryWatch,
        counters: Counters,
        limits: Limits,
        quarantine: Quarantine,
        listener: Listener,
        effort: BestEffort,
        lookahead: int,
        num_free: int | None,
        in_order: bool,
        first: int = 0,
    ) -> None:
        self.crew = crew
        self._program = program
        self.iteration = iteration
        self._order = order
        self.decision = decision
        self._keeper = keeper
        self._counters = counters
        self._limits = limits
        self._quarantine = quarantine
        self._listener = listener
        self._lookahead = lookahead
        self._num_free = num_free
        self._in_order = in_order
        self._pinned = iteration.tier is Tier.PINNED
        self._most_open = 0 if in_order else lookahead
        self._table = LeaseTable(program.declared_workers if self._pinned else 0, first, self._most_open)
        self._history = History() if self._pinned else None
        watch = Watch(limits.stall_timeout_s, time.monotonic() + INTERVAL_S)
        self._window = Window(counters, time.monotonic())
        self._oversight = Oversight(watch, memory, policy, self._window, counters, effort)
        window: Any = Unfailing(self._window, effort, *COUNTING)
        self._effort = effort
        self._roster = Roster(crew, program, window, pinned=self._pinned, started=self._on_started)
        self.probing = Probing()
        self._handover = Handover()
        self._losses = 0
        self.lost_pid = 0
        """Process id of the worker lost last; 0 for none."""
        self._memory = memory
        self._said_refusal = False
        self._booked_s = self._said_s = 0.0
        self.taken_ahead = order.taken
        """Items delivered beyond the cursor (``in_order=False``), in this iteration or before it was gone on with."""
        self._first = first
        self.delivered_seq = first - 1
        """Number of the item delivered last."""
        if self._history is not None and program.is_iterable:
            made = [*range(first), *self.taken_ahead]
            owners = order.owners(made, program.declared_workers)
            self._history.assume(order.stream_items(made[: len(owners)]), owners)
            order.made_by = Counter(owners if self._most_open else ())

    # -- workers ---------------------------------------------------------------------------------------------------

    def staff(self) -> None:
        """Starts or drains workers until there are as many as decided; raises ``WorkerStartError`` when none can be."""
        most = self._memory.most_busy
        self._roster.staff(self.decision.workers if most is None else min(most, self.decision.workers))
        if self.crew.refusal and not self._said_refusal:
            self._said_refusal = True
            self._listener.notice(f"{len(self.crew.active())} data workers and no more: {self.crew.refusal}")

    def _on_started(self, member: Member) -> None:
        if self._history is not None:
            self._repeat_history(member)
        self._probe(lambda: self.probing.spawn(self.crew, self._program))

    # -- items -----------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Items that may be drawn and not delivered."""
        if self._pinned:
            return self._lookahead
        open_items = max(1, self.decision.workers) * self.decision.depth
        if self._num_free == 0:
            open_items = min(open_items, self._lookahead)
        return max(1, min(open_items, self._keeper.num_slots - 1))

    @property
    def _most_drawn(self) -> int:
        """Where drawing stops for now."""
        if self._num_free is None or self._order.drawn < self._num_free:
            return max(2, self.capacity) if self.probing.wanted else self.capacity  # the probe likes to have another
        return min(self.capacity, self._lookahead)

    @property
    def num_ready(self) -> int:
        """Batches made and not delivered."""
        return self._table.num_ready

    def fill(self) -> None:
        """Draws and leases as much as may be in flight; the first worker begins while the other items are drawn."""
        while not self._order.exhausted and self._table.num_open < self._most_drawn:
            if self._pinned and self._program.is_iterable and self._table.all_shards_ended:
                break
            if not self.draw_one():
                break
            if self._table.num_open == (2 if self.probing.wanted else 1):
                self._lease_waiting()
        self._lease_waiting()

    def draw_one(self) -> bool:
        """Draws one item, as torch's loader does once for every batch it hands out; False at the end."""
        work = self._order.draw()
        if work is None:
            return False
        if self._table.next_seq in self.taken_ahead:
            self._table.pass_over()
        else:
            self._table.add(self._quarantine.apply(work))
        return True

    def _lease_waiting(self) -> None:
        depth = max(2, -(-self.capacity // max(1, len(self.crew.active())))) if self._pinned else self.decision.depth
        members = self._roster.lacking(depth)
        while members:
            members.sort(key=self._roster.held)
            for member in list(members):
                item = self._table.next_waiting(member.identity.worker_id)
                if item is not None and not self._has_room(item, member):
                    item = None
                if item is not None:
                    self._lease(member, item)
                if item is None or self._roster.held(member) >= depth:
                    members.remove(member)

    def _has_room(self, item: Item, member: Member) -> bool:
        """Whether memory allows that this worker makes one more item; else it waits until others are done."""
        most, most_busy = self._memory.in_flight, self._memory.most_busy
        if most_busy is not None and not self._roster.held(member) and len(self._roster.holding()) >= most_busy:
            return False
        if self.probing.holds_back:  # but the first batch is waited for, whatever became of its worker
            return item is self._table.head() and self.delivered_seq < self._first
        return most is None or self._table.num_in_flight < most or item is self._table.head()

    def _lease(self, member: Member, item: Item) -> None:
        ring, slot = self._keeper.take()
        number = member.identity.number
        generation = self._table.lease(item, number, ring, slot)
        flags = LeaseFlag.INLINE if self._keeper.descriptors_are_short else LeaseFlag.NONE
        if self.probing.wanted:
            flags |= LeaseFlag.DIGEST
            other = self._table.get(item.seq + 1)
            self._probe(lambda: self.probing.accompany(self.crew, self._program, item, other, number))
        self.crew.lease(member, LeaseHeader(item.seq, generation, ring, slot, flags), item.work)
        self._roster.add_lease(member)

    # -- arrivals --------------------------------------------------------------------------------------------------

    def pump(self, timeout_s: float = 0.0) -> None:
        """Takes in what workers have sent; waits for the first of it up to ``timeout_s``."""
        changed = False
        for arrival in self.crew.poll(timeout_s):
            changed = True
            if isinstance(arrival, Departure):
                self._on_departure(arrival)
            else:
                self._on_message(arrival)
        ring = self._keeper.fit(self.capacity)
        if ring is not None:
            self.crew.share(ring)
        self._oversight.fit(self.capacity, max(1, len(self.crew.active())), self.iteration.tier, self._table.head())
        if self.probing.holds_back:
            self._probe(lambda: self.probing.go_on(self.crew, all_idle=not self._roster.holding()))
        if self.crew.template_lost and not self.crew.members:
            raise WorkerStartError("the template process is gone, and with it all data workers")
        if changed:
            self._lease_waiting()

    def restaff(self, crew: Crew) -> None:
        """Goes on with other processes; what the lost ones had not finished is made again."""
        for item in self._table:
            if item.state is State.LEASED:  # its worker was closed before it was seen to end
                self._table.release_item(item)
        self.crew = crew
        self.probing.forget()
        self._roster.replace_crew(crew)
        if self._history is not None:
            self._history.forget_repeats()
        ring = self._keeper.current
        if ring is not None:
            crew.share(ring)
        self.staff()
        self._lease_waiting()

    def await_evidence(self) -> tuple[Evidence, Evidence] | str:
        """What both sides of the probe found, or why there is no telling; one that dies is given a second chance."""
        timeout_s = self._limits.stall_timeout_s
        deadline = time.monotonic() + timeout_s
        while self.probing.evidence is None:
            if self.probing.refused:
                return self.probing.refused
            if self._attempt_probe(lambda: self.probing.hopeless(self.crew), otherwise=True):
                if not self._attempt_probe(lambda: self.probing.repeat(self.crew, self._program), otherwise=False):
                    return self.probing.refused or "data workers were lost twice while its samples were probed"
                self._listener.notice("a data worker was lost while samples were probed; they are probed once more")
                deadline = time.monotonic() + timeout_s
            elif time.monotonic() > deadline:
                return f"its samples could not be probed within {timeout_s:g} s (`--stall-timeout`)"
            self.pump(_POLL_S)
        return self.probing.evidence

    def _on_message(self, message: Message) -> None:
        frame = message.frame
        if frame.kind is Kind.READY:
            self._on_ready(message.worker, frame)
        elif frame.kind is Kind.FAILED:
            self._on_failed(message.worker, frame)
        elif frame.kind is Kind.ENDED:
            self._on_ended(message.worker, frame)
        elif frame.kind is Kind.RETURNED:
            header, _ = unpack_lease(frame.body)
            self._return_lease(message.worker, header, time.monotonic())
            self._keeper.give_back(header.ring, header.slot)
            item = self._table.get(header.seq)
            if item is not None and item.state is State.LEASED and item.generation == header.generation:
                self._table.release_item(item)
        elif frame.kind is Kind.RETIRING:
            self._on_retiring(message.worker, frame)
        elif frame.kind is Kind.PROBED:
            self._probe(lambda: self.probing.found(frame.body))
        elif frame.kind is Kind.SIZED:
            self._probe(lambda: self._on_sized(message.worker, pickle.loads(frame.body)))
        elif frame.kind is Kind.PINNED:
            self._handover.answered(message.worker, agreed=pickle.loads(frame.body))

    def _probe(self, act: Callable[[], None]) -> None:
        self._attempt_probe(act, otherwise=None)

    def _attempt_probe(self, act: Callable[[], _T], *, otherwise: _T) -> _T:
        """A step of the comparison of samples; one that fails ends it."""
        try:
            return act()
        except StokerError:
            raise
        except Exception as error:
            reraise_from_handler(error)
            self.probing.give_up(self.crew, "stoker failed to compare its samples")
            self._effort.failed("comparison of samples", error, "this loader is served as declared")
            return otherwise

    def _on_sized(self, worker: int, sample_bytes: int) -> None:
        """The first sample of the probe is large: it goes on when the others are done, or not at all."""
        free_bytes = self._memory.started_bytes
        why_not = self.probing.sized(self.crew, self._program, worker, sample_bytes, self._table.head(), free_bytes)
        if why_not:
            self.crew.end_probe(worker, why_not)
            self._handover.begin(self.crew, self._program, self._table, self._most_open)
        else:
            self.crew.forget()

    def hand_over(self, iteration: Iteration) -> bool:
        """Goes on as the pinned tier with the same workers, if they allow it; else nothing has changed."""
        while self._handover.result is None:
            self.pump(_POLL_S)
        if not self._handover.result:
            return False
        self.iteration = iteration
        self.crew.become(iteration)
        self._pinned, self._history = True, History()
        self._roster.pin()
        ready = [item for item in self._table if item.state is State.READY]
        self._history.assume([(item.seq, item.work) for item in ready], [item.owner for item in ready])
        return True

    def _return_lease(self, worker: int, header: LeaseHeader | ReadyHeader, stamp_s: float) -> None:
        self._roster.return_lease(worker, stamp_s)
        self.crew.answered(worker, header.ring, header.slot)

    def _on_ready(self, worker: int, frame: Frame) -> None:
        header, rest = unpack_ready(frame.body)
        self._return_lease(worker, header, header.stamp)
        self._losses = self._memory.kills_in_a_row = 0
        counters = self._counters
        counters.items += 1
        counters.worker_busy_s += header.wall_s
        counters.worker_cpu_s += header.cpu_s
        counters.stalls_known = counters.stalls_known and header.stall_s >= 0.0
        counters.worker_stall_s += max(0.0, header.stall_s)
        counters.private_bytes = max(counters.private_bytes, header.private_bytes)
        if self._history is not None and self._history.is_repeat(header.seq):
            self._on_repeated(worker, header.seq, header.check)
            return
        payload = self._keeper.arrive(header, rest, frame.fds)
        item = self._table.accept(header.seq, header.generation, payload)
        if item is None:
            self._keeper.drop(payload)
        elif self._history is not None:
            self._history.made(item.seq, item.work, header.check, item.owner)

    def _on_failed(self, worker: int, frame: Frame) -> None:
        header, body = unpack_lease(frame.body)
        self._return_lease(worker, header, time.monotonic())
        self._losses = 0
        if self._history is not None and self._history.is_repeat(header.seq):
            return
        self._keeper.give_back(header.ring, header.slot)
        if (found := self._table.get(header.seq)) is None:
            return
        result = FailedItem(bytes(body), header.seq, found.work)
        item = self._table.accept(header.seq, header.generation, result)
        if item is not None and self._history is not None:
            self._history.made(item.seq, item.work, None, item.owner)

    def _on_ended(self, worker: int, frame: Frame) -> None:
        header, _ = unpack_lease(frame.body)
        self._return_lease(worker, header, time.monotonic())
        self._keeper.give_back(header.ring, header.slot)
        self._table.end_shard(header.seq, header.generation)

    # -- losses ----------------------------------------------------------------------------------------------------

    def _on_departure(self, departure: Departure) -> None:
        self._roster.remove(departure.worker)
        self._handover.lost(departure.worker)
        for ring, slot in self.crew.slots_left(departure.worker):
            self._keeper.give_back(ring, slot)
        released = self._table.release(departure.worker)
        if departure.expected and (not released or departure.cause == LEFT):
            return  # leases that crossed its farewell are simply given to others
        self._losses += 1
        self.lost_pid = departure.pid
        cause = self._oversight.cause_of(departure, busy=len(self._roster.holding()))
        self._listener.worker_lost(replace(departure, cause=cause or departure.cause), len(released))
        self._memory.check(departure, cause)
        if cause:
            self.probing.refuse("there is too little memory to compare its samples")
        else:
            self._blame(departure)
        if self._losses >= _MAX_LOSSES:
            raise WorkerLostError(
                f"{dead_worker(departure.pid)}: {self._losses} data workers were lost in a row without finishing an "
                f"item, the last one {departure.cause}; run with --workers 0 to see the cause in the training process"
            )
        if not self.crew.template_lost:
            self.staff()

    def _blame(self, departure: Departure) -> None:
        item = self._table.get(departure.whereabouts.seq)
        if item is not None and item.state is State.WAITING and "SIGSTOP" not in departure.cause:
            self._quarantine.blame(item, departure, self.iteration)

    def _repeat_history(self, member: Member) -> None:
        """Has a new pinned worker make again what the lost one had made, so that its state is the same."""
        assert self._history is not None
        worker_id = member.identity.worker_id
        for seq, work in self._history.of(worker_id):
            self._history.expect(seq)
            self.crew.lease(member, LeaseHeader(seq, 0, -1, -1, LeaseFlag.REPLAY), work)
            self._roster.add_lease(member)

    def _on_repeated(self, worker: int, seq: int, check: int) -> None:
        assert self._history is not None
        if not self._history.repeated(seq, check):
            raise StreamNotRepeatableError(
                f"{dead_worker(self.lost_pid)}, and item {seq} came out different when its successor, data worker "
                f"{worker}, made it again; the dataset depends on more than its arguments and seeds, so the batches "
                "already delivered can't be told from those still due. Make the stream repeatable: let it depend on "
                "its files and seeds alone"
            )

    def _on_retiring(self, worker: int, frame: Frame) -> None:
        member = self.crew.members.get(worker)
        if member is None or member.draining:
            return
        self._roster.dismiss(member)
        self._listener.notice(
            f"data worker {worker} uses {pickle.loads(frame.body) >> 20} MiB of its own, near its budget of "
            f"{self._limits.worker_memory_bytes >> 20} MiB: replaced, no sample lost"
        )
        self.staff()

    # -- delivery --------------------------------------------------------------------------------------------------

    def next_item(self, *, refill: bool = True) -> Any:
        """The next payload, to be built, or a :class:`FailedItem`; raises :class:`IterationEnd` at the end.

        With ``refill`` another item is drawn for the one delivered, at the moment at which torch's loader draws it.
        """
        item = self._await_item()
        self._routine(time.monotonic())
        result = self._deliver(item)
        if refill:
            self.fill()
        return result

    @property
    def has_ready_head(self) -> bool:
        """Whether the next batch is there already (as far as the last poll knows)."""
        item = self._find()
        return item is not None and item.state is State.READY

    def _find(self) -> Item | None:
        return (None if self._in_order else self._table.first_ready()) or self._table.head()

    def await_head(self) -> None:
        """Waits until the next batch is there, without delivering it; raises :class:`IterationEnd` at the end."""
        self._await_item()

    def _await_item(self) -> Item:
        self.pump()
        item = self._find()
        return item if item is not None and item.state is State.READY else self._wait(item)

    def _wait(self, item: Item | None) -> Item:
        """Waits for the next item; all of that time the program starves, whatever is done meanwhile."""
        self._counters.starved_steps += 1
        begun = self._booked_s = time.monotonic()
        while True:
            if item is None:
                self.fill()
                item = self._find()
                if item is None:
                    raise IterationEnd
            now = self._book_starved()
            if item.state is State.READY:
                return item
            if self._limits.timeout_s and now - begun > self._limits.timeout_s:
                raise RuntimeError(f"DataLoader timed out after {self._limits.timeout_s} seconds")
            self._lease_waiting()
            self.pump(_POLL_S)
            self._routine(self._book_starved(), waiting=True)
            item = self._find()

    def _book_starved(self) -> float:
        """The time now, up to which the program has starved."""
        before, self._booked_s = self._booked_s, time.monotonic()
        self._counters.starved_s += self._booked_s - before
        return self._booked_s

    def _deliver(self, item: Item) -> Any:
        if item.seq != self._table.cursor:
            self.taken_ahead.add(item.seq)
        if self._pinned and self._most_open:
            self._order.made_by[item.owner] += 1
        self.delivered_seq = item.seq
        result = self._table.deliver(item)
        while self._table.cursor in self.taken_ahead:
            self.taken_ahead.discard(self._table.cursor)
            self._table.cursor += 1
        self._counters.batches += 1
        if not isinstance(result, FailedItem):
            self._counters.samples += item.work.num_samples(batched=self._program.auto_collation)
            self._counters.bytes += result.header.payload_bytes
        return result

    def build(self, payload: Payload) -> Any:
        """The batch of a delivered payload."""
        return unpack(payload.skeleton, self._keeper.memory_of(payload, reserve=len(self.crew.members)))

    def _routine(self, now: float, *, waiting: bool = False) -> None:
        """What is due from time to time: watching workers and asking the policy."""
        for suspect in self._oversight.suspects(self.crew, now, self._roster.holding()):
            self.crew.kill(suspect.member, suspect.cause, with_stack=True)
        if not self._oversight.is_due(now):
            return
        seen = self._oversight.observe(
            now, len(self.crew.active()), self.decision.depth, self._keeper.largest_bytes, waiting=waiting
        )
        decision = None if self._pinned or seen is None else self._oversight.decide(seen)
        if decision is not None:
            self._obey(decision)
        self._listener.tick()

    def _obey(self, decision: Decision) -> None:
        before, self.decision = self.decision, decision
        now = time.monotonic()
        changed = (decision.workers, decision.depth) != (before.workers, before.depth)
        if changed or (decision.reason != before.reason and now - self._said_s > _SAY_AGAIN_S):
            self._said_s = now
            self._listener.snapshot()
            self._listener.workers_changed(decision)
        if changed:
            self.staff()
            self.fill()

    def abort(self) -> list[WorkItem]:
        """Leaves the iteration: what is open is forgotten and returned; slots are freed once no worker writes them."""
        items = self._table.forget_all()
        for item in items:
            if item.state is State.READY and isinstance(item.result, Payload):
                self._keeper.drop(item.result)
            item.result = None  # the probe may still have the item
        if not self._pinned:  # torch's workers make what was drawn even when nobody waits for it: their state goes on
            self.crew.forget()
        return [item.work for item in sorted(items, key=lambda item: item.seq)]

    @property
    def num_open(self) -> int:
        """Items drawn and not delivered."""
        return self._table.num_open

    def skip_to(self, seq: int) -> None:
        """Goes on at item ``seq``: somebody else has delivered those before it, and nothing is open."""
        self._table.skip_to(seq)

    def show_pace(self, wanted: bool) -> None:
        """Whether the policy is to learn from what happens from now on; else it is a pause to it."""
        pace = self._window.resume if wanted else self._window.pause
        self._effort.attempt(COUNTING[0], lambda: pace(time.monotonic()), None, then=COUNTING[1])

    def first_work(self) -> WorkItem | None:
        """The item that is delivered next, without waiting for it; None at the end."""
        head = self._table.head()
        return head.work if head is not None else None

    def inherit(self, seq: int, work: WorkItem) -> None:
        """An item that an earlier engine delivered: a pinned worker makes it again to be in the same state."""
        if self._history is not None:
            self._history.made(seq, work, None, seq % self._program.declared_workers)

    def adopt(self, works: Sequence[WorkItem]) -> None:
        """Takes over items that an earlier engine had drawn."""
        for work in works:
            while self._table.next_seq in self.taken_ahead:
                self._table.pass_over()
            self._table.add(work)

    @property
    def cursor(self) -> int:
        """Items delivered without a gap."""
        return self._table.cursor
