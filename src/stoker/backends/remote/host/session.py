"""One gateway's program on a host: a process that forks data workers of it, and sends on what they make.

Forked for each connection by the process that has loaded the program, and ended with the connection. The first one for
a program is forked by the host: it loads the program, and becomes that process. The workers are those of a local
template, in a ring of this process's own: a batch is sent from its slot, which is free when the last byte has left.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from stoker.backends.local import LocalBackend
from stoker.backends.remote import messages
from stoker.backends.remote.admission import this_offer, why_not_called, why_not_same
from stoker.backends.remote.host.keeping import ProgramClaim
from stoker.backends.remote.host.loading import LoadedProgram, ProgramLoading
from stoker.backends.remote.messages import (
    FRAMING,
    LEASE_S,
    LOAD_S,
    Admission,
    AwayEnd,
    Caller,
    Fault,
    HostProgress,
    RemoteKind,
)
from stoker.backends.ship_records import MAX_PROGRAM_BYTES
from stoker.backends.shipping import made_of, read_sample
from stoker.core import host
from stoker.core.errors import StokerError, WireError
from stoker.core.processes.forking import at_fork
from stoker.core.saying import say
from stoker.feed.program import Iteration, Program
from stoker.feed.shell.crew import Arrival, Crew, Message, WorkerHandle
from stoker.feed.shell.watch import Watch
from stoker.feed.transport.board import Departure
from stoker.feed.transport.messages import (
    LeaseFlag,
    MessageKind,
    Place,
    ReadyHeader,
    pack_lease,
    unpack_lease,
    unpack_ready,
)
from stoker.feed.transport.rings import Payload, SlotKeeper
from stoker.wire.framing import Frame
from stoker.wire.polled import PolledChannel
from stoker.wire.tls import TlsSocket

_TICK_S = 0.25
_PROGRESS_S = 10.0
_SLOT_SHARE = 0.25
"""Share of the available memory that slots may use."""


class HostSession:
    """Serves one gateway until the connection ends.

    Args:
        sock: encrypted, to a gateway that has proven the secret.
        cores: that the host lends.
        share: of the names of its programs.
        loaded: the program that this process has; None for a process that has none yet.
    """

    def __init__(self, sock: TlsSocket, cores: float, share: str, loaded: LoadedProgram | None = None) -> None:
        self._channel: PolledChannel[RemoteKind] = PolledChannel(sock, FRAMING, blocking=False)
        at_fork(self._channel.abandon)
        self._cores = cores
        self._heard_s = time.monotonic()
        self._share = share
        self._announced: messages.ProgramAhead | None = None
        self.loaded = loaded
        self.claim: ProgramClaim | None = None
        """The right to load a program, and to keep it for others once this connection has ended."""
        self._loading: ProgramLoading | None = None
        self._progressed_s = float("-inf")
        self._is_leaving = False
        self._checker: tuple[int, int] | None = None  # process, and the pipe with its digest
        self._digest: bytes | None = None
        self._made: bytes | None = None
        self._crew: Crew | None = None
        self._watch: Watch | None = None
        self._keeper = SlotKeeper(int(host.memory_bytes()[1] * _SLOT_SHARE), say)
        self._born: dict[int, WorkerHandle] = {}
        self._names: dict[int, int] = {}  # number of our crew -> the gateway's
        self._unborn: dict[int, int] = {}
        self._leases: dict[int, dict[int, tuple[int, int]]] = {}  # the gateway's number -> generation -> ring, slot
        self._outbox: deque[tuple[RemoteKind, bytes, Payload | None]] = deque()
        """What workers have said and made, in order: the end of a worker comes after its last batch."""
        self._sending: Payload | None = None
        self._sent: messages.SentSoFar = messages.SentSoFar()
        self._full_since_s: float | None = None
        self._is_over = False
        self._handlers: dict[RemoteKind, Callable[[bytes], None]] = {
            RemoteKind.HERE: self._on_here,
            RemoteKind.PROGRAM: self._on_program,
            RemoteKind.PART: self._on_part,
            RemoteKind.DIGEST: self._on_digest,
            RemoteKind.SPAWN: self._on_spawn,
            RemoteKind.TELL: self._on_tell,
            RemoteKind.END: self._on_end,
            RemoteKind.PING: self._on_ping,
        }

    def run(self) -> None:
        """Serves; returns when the gateway is gone, with all workers ended."""
        try:
            while not self._is_over:
                self._turn()
        except (OSError, WireError) as error:
            say(f"a gateway was left: {error}")
        finally:
            if self._crew is not None:
                self._crew.close()
            if self._loading is not None:
                self._loading.close()
            self._channel.close()

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._channel.unsent else 0))
        if self._crew is not None:
            poll.register(self._crew.fileno(), select.POLLIN)
        if self._checker is not None:
            poll.register(self._checker[1], select.POLLIN)
        if self._loading is not None and self._loading.fileno() >= 0:
            poll.register(self._loading, select.POLLIN)
        poll.poll(_TICK_S * 1e3)
        self._receive()
        if self._announced is not None and self.loaded is None:
            self._get_on(self._announced)
        if self._crew is not None:
            self._look_after(self._crew)
        if self._checker is not None:
            self._look_at_checker(*self._checker)
        self._pass_on()
        self._is_over = self._is_over or (self._is_leaving and not self._channel.unsent)

    def _receive(self) -> None:
        while (frames := self._channel.receive()) != []:
            if frames is None:
                self._is_over = True
                return
            self._heard_s = time.monotonic()
            for frame in frames:
                handler = self._handlers.get(frame.kind)
                if handler is None:
                    raise WireError(f"`{frame.kind.name}` is not for a host")
                handler(frame.body)
        self._is_over = self._is_over or time.monotonic() - self._heard_s > LEASE_S

    def _on_ping(self, body: bytes) -> None:
        self._count_full()
        self._send(RemoteKind.PONG, msgspec.msgpack.encode(self._sent))

    def _count_full(self) -> None:
        """Adds up the time for which bytes waited for the connection."""
        now_s, since_s = time.monotonic(), self._full_since_s
        if since_s is not None:
            self._sent = msgspec.structs.replace(self._sent, full_s=self._sent.full_s + now_s - since_s)
        self._full_since_s = now_s if self._channel.unsent else None

    def _send(self, kind: RemoteKind, body: bytes, tail: memoryview | None = None) -> None:
        self._channel.send(kind, body, tail=tail)

    # -- admission ---------------------------------------------------------------------------------------------------

    def _on_here(self, body: bytes) -> None:
        caller = messages.read(body, Caller)
        refusal = why_not_called(caller, this_offer(self._cores))
        loaded = self.loaded.fingerprint if self.loaded is not None else b""
        self._send(RemoteKind.OFFER, msgspec.msgpack.encode(this_offer(self._cores, refusal, loaded)))

    def _on_program(self, body: bytes) -> None:
        if self._announced is not None:
            raise WireError("`PROGRAM` must come once on a connection")
        announced = self._announced = messages.read(body, messages.ProgramAhead)
        if not 0 < announced.num_bytes <= MAX_PROGRAM_BYTES:
            raise WireError(f"`PROGRAM` must have 1 to {MAX_PROGRAM_BYTES} bytes, got {announced.num_bytes}")
        if self.loaded is not None:
            if announced.fingerprint != self.loaded.fingerprint:
                raise WireError("`PROGRAM` must be the one that was called")
            self._begin_sample(self.loaded.program, announced.sample)

    def _on_part(self, body: bytes) -> None:
        if self._loading is None:
            raise WireError("`PART` must be of a program that was asked for")
        self._loading.add(body)

    def _get_on(self, announced: messages.ProgramAhead) -> None:
        """Loads the program, or waits for the process that does: each is loaded once for all that call this host."""
        if self._is_leaving:
            return
        if self._loading is None:
            claim = ProgramClaim(self._share, announced.fingerprint)
            if claim.take():
                self.claim, self._loading = claim, ProgramLoading(announced)
                self._send(RemoteKind.SEND, b"")
            elif claim.is_kept():
                self._leave()
            else:
                self._progress()
            return
        for text in self._loading.look():
            self._progress(text)
        if self._loading.is_ready:
            self._progress()
            self._progress(self._loading.load())
            self._heard_s = time.monotonic()
            self._leave_loaded(self._loading)
        elif self._loading.refusal:
            self._is_leaving = True
            self._admit(self._loading.refusal)

    def _leave_loaded(self, loading: ProgramLoading) -> None:
        if loading.refusal:
            self._is_leaving = True
            self._admit(loading.refusal)
            return
        assert self.claim is not None
        self.loaded = loading.loaded
        self.claim.open()  # before the gateway calls again
        self._leave()

    def _leave(self) -> None:
        """The process that has the program answers the next call."""
        self._is_leaving = True
        self._send(RemoteKind.LOADED, b"")

    def _progress(self, text: str = "") -> None:
        """Tells that it goes on; without a text, now and then."""
        now_s = time.monotonic()
        if text or now_s - self._progressed_s > _PROGRESS_S:
            self._progressed_s = now_s
            self._send(RemoteKind.PROGRESS, msgspec.msgpack.encode(HostProgress(text)))

    def _begin_sample(self, program: Program, sample: bytes) -> None:
        """Has a child make the sample item."""
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(ours)
            _make_sample(program, sample, theirs)
        os.close(theirs)
        self._checker = pid, ours
        self._checked_by_s = time.monotonic() + LOAD_S

    def _look_at_checker(self, pid: int, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        late = time.monotonic() > self._checked_by_s
        if not (late or poll.poll(0)):
            return
        made = b"" if late else os.read(fd, 16)
        if not made:
            os.kill(pid, 9)
        os.close(fd)
        os.waitpid(pid, 0)
        self._checker, self._made = None, made or b"raises a crash".ljust(16)
        self._compare()

    def _on_digest(self, body: bytes) -> None:
        self._digest = body
        self._compare()

    def _compare(self) -> None:
        if self._digest is None or self._made is None or self._announced is None:
            return
        _, (seq, _) = read_sample(self._announced.sample)
        self._admit(why_not_same(seq, self._digest, self._made))

    def _admit(self, refusal: str) -> None:
        if refusal:
            say(f"a program was refused: this host {refusal}")
        self._send(RemoteKind.ADMITTED, msgspec.msgpack.encode(Admission(refusal)))

    # -- workers -----------------------------------------------------------------------------------------------------

    def _on_spawn(self, body: bytes) -> None:
        number, worker_id = messages.unpack_spawn(body)
        self._unborn[number] = worker_id

    def _on_tell(self, body: bytes) -> None:
        number, kind, inner = messages.open_envelope(body)
        if kind is MessageKind.ITERATION and number in self._unborn:
            self._give_birth(number, self._unborn.pop(number), pickle.loads(inner))
            return
        member = self._born.get(number)
        if member is None or self._crew is None:
            return  # it has just ended
        if kind is MessageKind.LEASE:
            self._lease(number, member, inner)
        elif kind is MessageKind.STOP:
            self._crew.stop(member)
        elif kind in (MessageKind.ITERATION, MessageKind.FORGET):
            self._to(member, kind, inner)
        else:
            raise WireError(f"`{kind.name}` is not for a worker on another machine")

    def _to(self, member: WorkerHandle, kind: MessageKind, body: bytes) -> None:
        try:
            member.channel.send(kind, body)
        except OSError:
            pass  # it is dying; the poll reports its departure

    def _give_birth(self, number: int, worker_id: int, iteration: Iteration) -> None:
        assert self._announced is not None
        if self.loaded is None:
            raise WireError("`SPAWN` must follow an admission")
        if self._crew is None:
            context: Any = multiprocessing.get_context("fork")
            self._crew = Crew(LocalBackend(), self.loaded.program, context, iteration, self._keeper.give_back)
            self._watch = Watch(self._announced.stall_timeout_s)
            if self._keeper.current is not None:
                self._crew.share(self._keeper.current)
        self._crew.become(iteration)
        member = self._crew.spawn(worker_id)
        if member is None:
            why = self._crew.refusal or "no process is left there"
            self._gone(AwayEnd(number, 0, f"it could not be started: {why}"))
            return
        self._born[number] = member
        self._names[member.identity.number] = number
        self._leases[number] = {}

    def _lease(self, number: int, member: WorkerHandle, body: bytes) -> None:
        """Passes a lease on, with a slot of this host's ring."""
        header, rest = unpack_lease(body)
        ring, slot, generation = self._keeper.current, -1, -1
        if ring is not None and (taken := ring.take()) is not None:
            slot, generation = taken, ring.generation
            self._leases[number][header.generation] = generation, slot
        head = pack_lease(header.seq, header.generation, generation, slot, LeaseFlag.NONE)
        self._to(member, MessageKind.LEASE, head + bytes(rest))

    def _on_end(self, body: bytes) -> None:
        number = messages.unpack_number(body)
        if number in self._unborn:
            del self._unborn[number]
            self._gone(AwayEnd(number, 0, "ended before it began"))
        member = self._born.get(number)
        if member is not None and self._crew is not None:
            self._crew.kill(member, "ended by its gateway")

    def _look_after(self, crew: Crew) -> None:
        for arrival in crew.poll(0.0):
            self._on_arrival(arrival)
        assert self._watch is not None
        holding = {member.identity.number for number, member in self._born.items() if self._leases.get(number)}
        for suspect in self._watch.look(crew, time.monotonic(), holding):
            crew.kill(suspect.member, suspect.cause, with_stack=True)
        if crew.template_lost:
            say("the template process of a program died")
            self._is_over = True

    def _on_arrival(self, arrival: Arrival) -> None:
        if isinstance(arrival, Departure):
            self._on_departure(arrival)
        elif isinstance(arrival, Message):
            number, frame = self._names[arrival.worker], arrival.frame
            if frame.kind is MessageKind.READY:
                self._on_ready(number, frame, *unpack_ready(frame.body))
            elif frame.kind is MessageKind.FAILED:
                self._on_failed(number, frame.body)
            else:
                if frame.kind is MessageKind.RETURNED:
                    self._free(number, unpack_lease(frame.body)[0].generation)
                self._outbox.append((RemoteKind.SAID, messages.envelope(number, frame.kind, frame.body), None))

    def _on_ready(self, number: int, frame: Frame[MessageKind], header: ReadyHeader, rest: memoryview) -> None:
        self._leases[number].pop(header.generation, None)  # its slot is the payload's from here on
        payload = self._keeper.arrive(header, rest, frame.fds)
        skeleton = payload.skeleton if header.skeleton_bytes else b""  # else it is at the end of the payload
        sent = msgspec.structs.replace(header, ring=-1, slot=-1, place=Place.SLOT, private_bytes=0)
        self._outbox.append((RemoteKind.BATCH, messages.pack_batch(number, sent, skeleton), payload))
        ring = self._keeper.fit(2 * len(self._born) + 2)
        if ring is not None and self._crew is not None:
            self._crew.share(ring)

    def _on_failed(self, number: int, body: bytes) -> None:
        """The gateway hears of it, not the program: whether it fails at home as well is to be seen there."""
        header, error = unpack_lease(body)
        self._free(number, header.generation)
        wrapper, _ = pickle.loads(error)
        text = f"{wrapper.exc_type.__name__}: " + wrapper.exc_msg.strip().rsplit("\n", 1)[-1][:200]
        fault = Fault(number, pack_lease(header.seq, header.generation, -1, -1, LeaseFlag.NONE), text)
        self._outbox.append((RemoteKind.FAULT, msgspec.msgpack.encode(fault), None))

    def _free(self, number: int, generation: int) -> None:
        ring, slot = self._leases[number].pop(generation, (-1, -1))
        if slot >= 0:
            self._keeper.give_back(ring, slot)

    def _on_departure(self, departure: Departure) -> None:
        number = self._names.pop(departure.worker)
        del self._born[number]
        for ring, slot in self._leases.pop(number).values():
            if slot >= 0:
                self._keeper.give_back(ring, slot)
        where, cause = departure.whereabouts, departure.cause
        blames = where.seq >= 0 and "SIGSTOP" not in cause and "gateway" not in cause
        ended = AwayEnd(number, departure.pid, cause, where.seq, where.position, departure.stack, blames)
        self._gone(ended)

    def _gone(self, ended: AwayEnd) -> None:
        self._outbox.append((RemoteKind.GONE, msgspec.msgpack.encode(ended), None))

    # -- batches -----------------------------------------------------------------------------------------------------

    def _pass_on(self) -> None:
        """Sends what the connection takes; the slot of a batch is free when its last byte has left."""
        while True:
            self._channel.flush()
            if self._channel.unsent:
                if self._full_since_s is None:
                    self._full_since_s = time.monotonic()
                return
            if self._sending is not None:
                sent, size = self._sent, self._sending.header.payload_bytes
                self._sent = msgspec.structs.replace(sent, num_bytes=sent.num_bytes + size, batches=sent.batches + 1)
                self._keeper.drop(self._sending)
                self._sending = None
            if not self._outbox:
                self._count_full()
                return
            kind, body, self._sending = self._outbox.popleft()
            self._send(kind, body, None if self._sending is None else _bytes_of(self._sending))


def _bytes_of(payload: Payload) -> memoryview:
    size = payload.header.payload_bytes
    memory: Any = payload.memory
    if payload.ring is not None:
        memory = payload.ring.view(payload.header.slot, size)
    return memoryview(memory)[:size]


def _make_sample(program: Program, sample: bytes, fd: int) -> None:
    """Makes the sample item in a child: what it does to the program, and a crash, stay there."""
    try:
        os.write(fd, made_of(program, sample))
    except StokerError:
        pass
    finally:
        os._exit(0)
