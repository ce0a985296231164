"""Runs an iteration on processes of this machine: reports events to its state machine and carries out the instructions.

Single-threaded and without a timer: everything happens inside the program's calls of ``next``. While the program
computes, workers process the leases they have; while it waits, the engine polls, watches and scales. Decisions are
made in :mod:`stoker.feed.state.machine`; batches stay here.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stoker.core.errors import StokerError
from stoker.core.mishaps import BestEffort, reraise_from_handler
from stoker.core.slots.ring import Ring
from stoker.feed.fetch import moves_samples
from stoker.feed.listener import Listener
from stoker.feed.order.sampling import Order
from stoker.feed.program import Iteration, Program, Tier, WorkItem
from stoker.feed.purity.probe import Evidence
from stoker.feed.scaling import Decision, ScalingPolicy
from stoker.feed.shell.crew import Crew, Message
from stoker.feed.shell.gateway import LEFT, HostLoss, Said
from stoker.feed.shell.memory import MemoryWatch
from stoker.feed.shell.outcome import FailedItem, IterationEnd
from stoker.feed.shell.oversight import COUNTING, Limits, Oversight
from stoker.feed.shell.quarantine import Quarantine
from stoker.feed.shell.watch import INTERVAL_S, Watch
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.in_flight import LARGE_BYTES
from stoker.feed.state.machine import Machine
from stoker.feed.state.window import Counters, Window
from stoker.feed.transport.board import Departure
from stoker.feed.transport.messages import Frame, MessageKind, ReadyHeader, unpack_lease, unpack_ready
from stoker.feed.transport.pack import unpack
from stoker.feed.transport.rings import Payload, SlotKeeper

_T = TypeVar("_T")
_POLL_S = 0.1
"""Longest wait between looks at workers, policy and time limit."""
_SAY_AGAIN_S = 5.0
"""A new reason for the same number of workers is reported no more often than this."""
_ASKED, _ASKED_ONLY, _POLLED, _WANTED = ev.Asked(), ev.Asked(refill=False), ev.Polled(), ev.Wanted()


class Engine:
    """Runs one iteration.

    Args:
        program: what workers run.
        crew: processes to run it; the engine drives them but does not close them.
        iteration: constants of this pass.
        order: the items; drawn in this process.
        policy: number of workers and depth of each one's queue; ignored by the pinned tier.
        keeper: slots, kept across iterations.
        memory: limits the items in flight; kept across iterations.
        counters: cumulative counters of the loader.
        effort: attempts what may fail without harm.
        lookahead: most items that may be drawn and not delivered, apart from the free ones.
        num_free: so many first items of the iteration are drawn as early as the policy likes; None for all.
        in_order: deliver by number; else in order of arrival.
        first: number of the first item (not 0 in a resumed iteration).
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
        self._keeper = keeper
        self._employ(crew)
        self._program = program
        self.iteration = iteration
        self._order = order
        self._memory = memory
        self._counters = counters
        self._limits = limits
        self._quarantine = quarantine
        self._listener = listener
        self._effort = effort
        watch = Watch(limits.stall_timeout_s, time.monotonic() + INTERVAL_S)
        self.state = Machine(
            decision=decision,
            ledger=crew.ledger,
            declared=program.declared_workers,
            pinned=iteration.tier is Tier.PINNED,
            is_stream=program.is_iterable,
            lookahead=lookahead,
            num_free=num_free,
            in_order=in_order,
            first=first,
            drawn=order.drawn,
            taken=order.taken,
        )
        self._window = Window(counters, time.monotonic(), self.state.idleness)
        self._oversight = Oversight(watch, memory, policy, self._window, counters, effort)
        self._is_batched = program.auto_collation
        self._results: dict[int, Payload | FailedItem] = {}
        """Results that are made and not delivered, by item number."""
        self._departures: dict[int, Departure] = {}
        self._judged: str | None = None
        """Why the comparison of samples ended without evidence, empty with it; None while it runs."""
        self._ring: Ring | None = None
        self._bounds: tuple[int, int | None, int | None] | None = None
        self._fitted: tuple[int, int] | None = None
        self._booked_s = self._said_s = self._due_s = 0.0
        self._remember(order, first)

    def _employ(self, crew: Crew) -> None:
        self.crew, self._lease = crew, crew.lease
        crew.is_short = self._keeper.descriptors_are_short

    def _remember(self, order: Order, first: int) -> None:
        """Records what pinned workers made before the iteration was resumed."""
        history, declared = self.state.history, self._program.declared_workers
        if history is not None and self._program.is_iterable:
            made = [*range(first), *order.taken]
            owners = order.owners(made, declared)
            history.assume(order.stream_items(made[: len(owners)]), owners)
            order.made_by = Counter(owners if self.state.most_open else ())
        self.state.made_by = order.made_by

    def open(self, *, probed: bool = False) -> None:
        """Starts or drains workers to the number decided; raises ``WorkerStartError`` if none can be started."""
        now = time.monotonic()
        if probed:
            self._perform(self.state.on(ev.ProbeWanted(), now))
        self._tell_bounds()
        self._share()
        active = tuple(member.identity.number for member in self.crew.active())
        self._perform(self.state.on(ev.Opened(active), now))

    # -- carrying out ------------------------------------------------------------------------------------------------

    def _tell(self, event: ev.Event) -> None:
        """Passes an event to the state machine and carries out its instructions."""
        self._perform(self.state.on(event, time.monotonic()))

    def _perform(self, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            getattr(self, _ACTIONS[type(instruction)])(instruction)

    def _draw(self, instruction: do.Draw) -> None:
        """Draws as long as more items are wanted."""
        order, state, quarantine = self._order, self.state, self._quarantine
        while True:
            work = order.draw()
            if work is not None and quarantine.num_quarantined:
                work = quarantine.apply(work)
            event = ev.Drawn(work, order.drawn, order.exhausted)
            out = state.on(event, time.monotonic())
            more = bool(out) and type(out[-1]) is do.Draw
            for given in out[:-1] if more else out:
                getattr(self, _ACTIONS[type(given)])(given)
            if not more:
                return

    def _spawn(self, spawn: do.Spawn) -> None:
        apart, worker_id = spawn.purpose is not ev.Purpose.WORK, spawn.worker_id
        member = self.crew.spawn_away(worker_id) if spawn.away else self.crew.spawn(worker_id, apart=apart)
        if member is None:
            self._tell(ev.Refused(self.crew.refusal, spawn.purpose, spawn.away))
        else:
            self._tell(ev.Born(member.identity.number, member.identity.worker_id, spawn.purpose, spawn.away))

    def _stop(self, stop: do.Stop) -> None:
        member = self.crew.members.get(stop.worker)
        if member is not None:
            self.crew.stop(member)

    def _kill(self, kill: do.Kill) -> None:
        self.crew.end(kill.worker, kill.why)

    def _forget(self, _: do.Forget) -> None:
        self.crew.forget()

    def _share_ring(self, _: do.ShareRing) -> None:
        assert self._ring is not None
        self.crew.share(self._ring)

    def _free(self, free: do.Free) -> None:
        self._keeper.give_back(free.ring, free.slot)

    def _discard(self, discard: do.Discard) -> None:
        result = self._results.pop(discard.seq)
        if isinstance(result, Payload):
            self._keeper.drop(result)

    def _probe(self, probe: do.Probe) -> None:
        member = self.crew.members.get(probe.worker)
        if member is not None:
            self.crew.probe(member, probe.role, probe.work, probe.other)

    def _let_go_on(self, let: do.LetGoOn) -> None:
        self.crew.let_go_on(let.worker)

    def _pin(self, pin: do.Pin) -> None:
        member = self.crew.members.get(pin.worker)
        if member is not None:
            self.crew.pin(member)

    def _judge(self, judge: do.Judge) -> None:
        self._judged = judge.why_not

    def _lost(self, lost: do.Lost) -> None:
        """Finds out and reports why a worker ended."""
        departure = self._departures[lost.worker]
        cause = self._oversight.cause_of(departure, busy=len(self.state.holding()))
        self._listener.worker_lost(replace(departure, cause=cause or departure.cause), lost.released)
        self._memory.check(departure, cause)
        self._tell_bounds()
        diagnosed = ev.Diagnosed(
            lost.worker,
            departure.pid,
            departure.cause,
            departure.whereabouts.seq,
            for_memory=bool(cause),
            blames=departure.blames and "SIGSTOP" not in departure.cause,
        )
        for instruction in self.state.on(diagnosed, time.monotonic()):
            if isinstance(instruction, do.Blame):
                self._quarantine.blame(instruction.item, departure, self.iteration)
            else:
                self._perform([instruction])

    def _mishap(self, mishap: do.Mishap) -> None:
        reraise_from_handler(mishap.error)
        self._effort.failed("comparison of samples", mishap.error, "this loader is served as declared")

    def _notice(self, notice: do.Notice) -> None:
        self._listener.notice(notice.text)

    def _raise(self, instruction: do.Raise) -> None:
        raise instruction.error

    # -- items -------------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Items that may be drawn and not delivered."""
        return self.state.capacity

    @property
    def num_ready(self) -> int:
        """Batches made and not delivered."""
        return self.state.items.num_ready

    def fill(self) -> None:
        """Draws and leases as much as may be in flight; the first worker begins while the other items are drawn."""
        self._tell(_WANTED)

    # -- arrivals ----------------------------------------------------------------------------------------------------

    def pump(self, timeout_s: float = 0.0) -> None:
        """Handles what workers have sent; waits up to ``timeout_s`` for the first of it."""
        state, arrivals = self.state, self.crew.poll(timeout_s)
        for arrival in arrivals:
            if type(arrival) is Message:
                frame = arrival.frame
                if frame.kind is MessageKind.READY:
                    self._on_ready(arrival.worker, frame, *unpack_ready(frame.body))
                elif handler := _MESSAGES.get(frame.kind):
                    getattr(self, handler)(arrival.worker, frame)
            elif type(arrival) is Departure:
                self._on_departures((arrival,))
            elif isinstance(arrival, HostLoss):
                self._on_departures(arrival.departures)
            elif isinstance(arrival, Said):
                self._listener.notice(arrival.text)
            else:
                self._tell(ev.Severed(arrival.worker))
        if self._fitted != (self._keeper.largest_bytes, state.capacity) or self._keeper.current is not self._ring:
            self._fit()
        if self._keeper.largest_bytes >= LARGE_BYTES or self._memory.is_tight or self._memory.most_busy is not None:
            self._bound()
        if self.crew.template_lost:
            self._tell(ev.TemplateLost())
        if state.probing.holds_back or (arrivals and state.items.waiting):
            self._tell(_POLLED)

    def _fit(self) -> None:
        """Makes a larger ring if batches have outgrown the current one."""
        self._keeper.fit(self.capacity)
        self._fitted = self._keeper.largest_bytes, self.capacity
        self._tell_bounds()
        self._share()

    def _share(self) -> None:
        ring = self._keeper.current
        if ring is not self._ring:
            self._ring = ring
            slots = ring.slots if ring is not None else None
            self._tell(ev.RingMade(slots))

    def _bound(self) -> None:
        """Limits the items in flight if batches are large."""
        active = max(1, len(self.crew.active()))
        self._oversight.fit(self.capacity, active, self.iteration.tier, self.state.items.head())
        self._tell_bounds()

    def _tell_bounds(self) -> None:
        bounds = self._keeper.num_slots, self._memory.in_flight, self._memory.most_busy
        if bounds != self._bounds:
            self._bounds = bounds
            self._tell(ev.Bounded(*bounds))

    def restaff(self, crew: Crew) -> None:
        """Continues with new processes; what the old ones had not finished is made again."""
        self._employ(crew)
        self._judged, now = None, time.monotonic()
        self._perform(self.state.on(ev.Restarted(crew.ledger), now))
        self._tell_bounds()
        self._perform(self.state.on(ev.Opened(), now))
        self._perform(self.state.on(_POLLED, now))

    def await_evidence(self) -> tuple[Evidence, Evidence] | str:
        """Waits for what both sides of the probe find, or why there is nothing; a lost side gets a second chance."""
        tick = ev.Tick(self._limits.stall_timeout_s)
        self.state.probing.deadline_s = None
        while True:
            self._tell(tick)
            if self._judged is not None:
                return self._judged or self.state.probing.evidence or ""
            self.pump(_POLL_S)

    def _on_ready(self, worker: int, frame: Frame, header: ReadyHeader, rest: memoryview) -> None:
        counters = self._counters
        counters.items += 1
        maker = self.state.ledger.workers.get(worker)
        counters.items_away += maker is not None and maker.away
        counters.worker_busy_s += header.wall_s
        counters.worker_cpu_s += header.cpu_s
        if header.stall_s < 0.0:
            counters.stalls_known = False
        else:
            counters.worker_stall_s += header.stall_s
        if header.private_bytes > counters.private_bytes:
            counters.private_bytes = header.private_bytes
        self._memory.kills_in_a_row = 0
        out = self.state.on(ev.Arrived(worker, header.generation, header.stamp, header.check), time.monotonic())
        first = out[0]
        if type(first) is do.Keep:
            self._results[first.seq] = self._keeper.arrive(header, rest, frame.fds)
        elif type(first) is do.Drop:
            self._keeper.drop(self._keeper.arrive(header, rest, frame.fds))
        else:
            for fd in frame.fds:
                os.close(fd)
        if len(out) > 1:
            self._perform(out[1:])

    def _on_failed(self, worker: int, frame: Frame) -> None:
        header, body = unpack_lease(frame.body)
        item = self.state.items.get(header.seq)
        out = self.state.on(ev.Failed(worker, header.generation), time.monotonic())
        if type(out[0]) is do.Keep and item is not None:
            self._results[header.seq] = FailedItem(bytes(body), header.seq, item.work)
        self._perform(out[1:])

    def _on_ended(self, worker: int, frame: Frame) -> None:
        self._tell(ev.ShardEnded(worker, unpack_lease(frame.body)[0].generation))

    def _on_returned(self, worker: int, frame: Frame) -> None:
        self._tell(ev.Returned(worker, unpack_lease(frame.body)[0].generation))

    def _on_retiring(self, worker: int, frame: Frame) -> None:
        out = self.state.on(ev.Retiring(worker), time.monotonic())
        if out:
            self._perform(out[:1])
            self._listener.notice(
                f"data worker {worker} uses {pickle.loads(frame.body) >> 20} MiB of private memory, near its budget of "
                f"{self._limits.worker_memory_bytes >> 20} MiB: replaced, no sample lost"
            )
            self._perform(out[1:])

    def _on_probed(self, worker: int, frame: Frame) -> None:
        found = self._attempt_probe(lambda: pickle.loads(frame.body), None)
        if found is not None:
            role, value = found
            event = ev.Drew(value) if role == "drew" else ev.Evidence(role, value)
            self._tell(event)

    def _on_sized(self, worker: int, frame: Frame) -> None:
        """The first sample of the probe is large."""
        sized = self._attempt_probe(lambda: self._sized(worker, frame), None)
        if sized is not None:
            self._tell(sized)

    def _sized(self, worker: int, frame: Frame) -> ev.Sized:
        head = self.state.items.head()
        samples = len(head.work.indices) if head is not None and moves_samples(self._program, Tier.ELASTIC) else 1
        return ev.Sized(worker, pickle.loads(frame.body), samples, self._memory.started_bytes)

    def _on_pinned(self, worker: int, frame: Frame) -> None:
        self._tell(ev.Pinned(worker, agreed=pickle.loads(frame.body)))

    def _on_departures(self, departures: tuple[Departure, ...]) -> None:
        self._departures |= {departure.worker: departure for departure in departures}
        if self.crew.template_lost:
            self._perform(self.state.on(ev.TemplateLost(), time.monotonic()))
        losses = tuple(ev.Loss(gone.worker, gone.expected, gone.cause == LEFT) for gone in departures)
        self._perform(self.state.on(ev.Departed(losses), time.monotonic()))
        for departure in departures:
            del self._departures[departure.worker]

    def _attempt_probe(self, act: Callable[[], _T], otherwise: _T) -> _T:
        """Runs a step of the comparison of samples; a failure ends the comparison."""
        try:
            return act()
        except StokerError:
            raise
        except Exception as error:
            self._tell(ev.ProbeBroken())
            self._mishap(do.Mishap(error))
            return otherwise

    def hand_over(self, iteration: Iteration) -> bool:
        """Continues in the pinned tier with the same workers if they all agree; else nothing has changed."""
        handover = self.state.handover
        while handover.result is None:
            self.pump(_POLL_S)
        if not handover.result:
            return False
        self.iteration = iteration
        self.crew.become(iteration)
        self._tell(ev.HandedOver())
        return True

    # -- delivery ----------------------------------------------------------------------------------------------------

    def next_item(self, *, refill: bool = True) -> Any:
        """The next payload, to be built, or a :class:`FailedItem`; raises :class:`IterationEnd` at the end.

        With ``refill``, another item is drawn in place of the delivered one, just when torch's loader draws it.
        """
        self.pump()
        now = time.monotonic()
        if now >= self._due_s:
            self._routine(now)
        asked = _ASKED if refill else _ASKED_ONLY
        out = self.state.on(asked, now)
        if type(out[0]) is not do.Deliver:
            self._wait()
            out = self.state.on(asked, time.monotonic())
        deliver: Any = out[0]
        result = self._delivered(deliver)
        if len(out) > 1:
            self._perform(out[1:])
        return result

    def next_batch(self) -> Any:
        """The next batch, or a :class:`FailedItem`; raises :class:`IterationEnd` at the end."""
        result = self.next_item()
        if type(result) is FailedItem:
            return result
        return unpack(result.skeleton, self._keeper.memory_of(result, reserve=len(self.crew.members)))

    def _delivered(self, deliver: do.Deliver) -> Payload | FailedItem:
        item, counters = deliver.item, self._counters
        result = self._results.pop(item.seq)
        counters.batches += 1
        if type(result) is Payload:
            work = item.work
            counters.samples += len(work.indices) - len(work.skip) if self._is_batched else 1
            counters.bytes += result.header.payload_bytes
        return result

    @property
    def has_ready_head(self) -> bool:
        """Whether the next batch is ready, as of the last poll."""
        return self.state.has_ready()

    def await_head(self) -> None:
        """Waits until the next batch is ready, without delivering it; raises :class:`IterationEnd` at the end."""
        self.pump()
        if not self.state.has_ready():
            self._wait()

    def _wait(self) -> None:
        """Waits for the next item; all of that time counts as starved, whatever is done meanwhile."""
        state = self.state
        self._counters.starved_steps += 1
        begun = self._booked_s = time.monotonic()
        while True:
            if state.next_item() is None:
                self.fill()
                if state.next_item() is None:
                    self._oversight.settle(time.monotonic())
                    raise IterationEnd
            now = self._book_starved()
            if state.has_ready():
                return
            if self._limits.timeout_s and now - begun > self._limits.timeout_s:
                raise RuntimeError(f"DataLoader timed out after {self._limits.timeout_s} seconds")
            self._perform(state.on(_POLLED, now))
            self.pump(_POLL_S)
            self._routine(self._book_starved(), waiting=True)

    def _book_starved(self) -> float:
        """Counts the time until now as starved; returns now."""
        before, self._booked_s = self._booked_s, time.monotonic()
        self._counters.starved_s += self._booked_s - before
        return self._booked_s

    def build(self, payload: Payload) -> Any:
        """Builds the batch of a delivered payload."""
        return unpack(payload.skeleton, self._keeper.memory_of(payload, reserve=len(self.crew.members)))

    def drop(self, payload: Payload) -> None:
        """Frees what a delivered payload lies in, of which no batch will be built."""
        self._keeper.drop(payload)

    def _routine(self, now: float, *, waiting: bool = False) -> None:
        """Does what is due from time to time: watches workers and asks the policy."""
        self.crew.is_short = self._keeper.descriptors_are_short
        for suspect in self._oversight.suspects(self.crew, now, self.state.holding()):
            self.crew.kill(suspect.member, suspect.cause, with_stack=True)
        if not self._oversight.is_due(now):
            self._due_s = self._oversight.due_s(now)
            return
        depth, largest, may_leave = self.state.decision.depth, self._keeper.largest_bytes, self.state.may_leave
        seen = self._oversight.observe(now, self.crew, depth, largest, waiting=waiting, may_leave=may_leave)
        decision = None if self.state.pinned or seen is None else self._oversight.decide(seen)
        self._due_s = self._oversight.due_s(now)
        if decision is not None:
            self._obey(decision)
        self._listener.tick()

    def _obey(self, decision: Decision) -> None:
        before, now = self.state.decision, time.monotonic()
        changed = decision.numbers != before.numbers
        if changed or (decision.reason != before.reason and now - self._said_s > _SAY_AGAIN_S):
            self._said_s = now
            self._listener.snapshot()
            self._listener.workers_changed(decision)
        self._perform(self.state.on(ev.Decided(decision), now))
        if changed:
            self.fill()

    # -- ends --------------------------------------------------------------------------------------------------------

    def abort(self) -> list[WorkItem]:
        """Leaves the iteration and returns its open items; slots are freed once no worker writes to them."""
        works = self.state.items.works()
        self._tell(ev.Left())
        return works

    @property
    def num_open(self) -> int:
        """Items drawn and not delivered."""
        return self.state.items.num_open

    def skip_to(self, seq: int) -> None:
        """Continues at item ``seq``: torch's workers have delivered those before it, and nothing is open."""
        self._tell(ev.Skipped(seq, self._order.drawn))

    def show_pace(self, wanted: bool) -> None:
        """Sets whether the policy learns from what follows; otherwise it counts as a pause."""
        pace, self._due_s = self._window.resume if wanted else self._window.pause, 0.0
        self._effort.attempt(COUNTING[0], lambda: pace(time.monotonic()), None, then=COUNTING[1])

    def first_work(self) -> WorkItem | None:
        """The item that is delivered next, without waiting for its batch; None at the end."""
        head = self.state.items.head()
        return head.work if head is not None else None

    def inherit(self, seq: int, work: WorkItem) -> None:
        """Records an item that an earlier engine delivered: a pinned worker remakes it to reach the same state."""
        if self.state.history is not None:
            self.state.history.made(seq, work, None, seq % self._program.declared_workers)

    def adopt(self, works: Sequence[WorkItem]) -> None:
        """Takes over items that an earlier engine had drawn."""
        self.state.items.adopt(works, self.state.taken_ahead)


_ACTIONS = {instruction: "_" + ev.snake_case(instruction.__name__) for instruction in do.Instruction.__subclasses__()}
_MESSAGES = {kind: name for kind in MessageKind if hasattr(Engine, name := "_on_" + kind.name.lower())}
