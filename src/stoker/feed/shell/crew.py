"""The processes that serve one loader: a template, its data workers, and what they report.

Effects only: starts, kills, sends, polls. Its callers decide how many workers there are and which one makes which item.
Single-threaded: everything happens inside the training process's calls.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from stoker.core.errors import WireError, WorkerStartError
from stoker.core.processes.forking import at_fork
from stoker.core.slots.ring import Ring
from stoker.feed.program import Iteration, Program, Tier, WorkerIdentity, WorkItem
from stoker.feed.purity.probe import Role
from stoker.feed.scaling import Observation
from stoker.feed.shell.backend import Backend, Child
from stoker.feed.shell.gateway import Gone, HostLoss, Said
from stoker.feed.shell.processes import describe_exit, ended_by
from stoker.feed.state import instructions as do
from stoker.feed.state.ledger import Ledger
from stoker.feed.transport.board import Departure, Whereabouts
from stoker.feed.transport.messages import Channel, Frame, LeaseFlag, MessageKind, pack_lease

_REFUSED_S = 1.0
"""After a failed start, no worker is requested for this long."""
_WITH_TEMPLATE = "its template process died"
MAX_WORKERS = 256
"""Rows of a crew's board; an upper bound for any policy."""


@dataclass(slots=True)
class WorkerHandle:
    """One data worker as the training process sees it."""

    identity: WorkerIdentity
    channel: Channel
    child: Child | None = None
    """Its process, if this process forked it; else the template reports its birth and its death."""
    pid: int = 0
    """0 until the template reports it."""
    draining: bool = False
    gone: bool = False
    """Its socket is closed; only its end is awaited."""
    killed_for: str = ""
    """Why we killed it; empty if we did not."""
    stack: str = ""
    away: bool = False
    """It is on another machine: its process id is not one of this machine, and stays 0 here."""


class Message(msgspec.Struct, gc=False):
    """A frame from a worker."""

    worker: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Severance:
    """A worker's socket is closed: it can't be reached, but may still write to its slots."""

    worker: int


Arrival = Message | Severance | Departure | HostLoss | Said


class Crew:
    """A template and its workers.

    Args:
        backend: where they run.
        program: what they run.
        context: ``multiprocessing`` context that starts the template.
        iteration: constants that new workers get first.
        give_back: called, once the processes are gone, with each slot (ring, slot) that they still had.

    Its ledger holds the leases of its workers on behalf of the engine, since they outlive an iteration.

    Raises:
        WorkerStartError: the template could not be started.
    """

    def __init__(
        self,
        backend: Backend,
        program: Program,
        context: Any,
        iteration: Iteration,
        give_back: Callable[[int, int], None] | None = None,
    ) -> None:
        self._template = backend.start(program, context, MAX_WORKERS)
        try:
            self._poller = select.epoll()
        except OSError as error:
            self._template.close()
            raise WorkerStartError(f"data workers can't be waited for: {error}") from error
        self._poller.register(self._template.channel.fileno(), select.EPOLLIN)
        self._gateway = backend.reach(program)
        self._gateway_fd = -1
        self._sample: tuple[int, WorkItem] | None = None
        at_fork(self.abandon)
        self._by_fd: dict[int, int] = {}
        self._by_child_fd: dict[int, int] = {}
        self.members: dict[int, WorkerHandle] = {}
        self._free_rows = list(range(MAX_WORKERS - 1, -1, -1))
        self._next_number = 0
        self._iteration = iteration
        self._ring: Ring | None = None
        self._stage = b""
        self._arrived: list[Arrival] = []
        self._is_complete = False
        self.ledger = Ledger()
        self._give_back = give_back
        self._fingerprint: bytes | None = None
        self.template_lost = False
        self.refusal = ""
        """Why the last worker that was requested could not be started; empty if it could."""
        self._refused_s = 0.0
        self.is_short = False
        """Whether the training process has hardly any descriptors left to receive memory with."""

    def abandon(self) -> None:
        """Closes the poller in a forked child."""
        self._poller.close()

    def fileno(self) -> int:
        """Descriptor that is readable when :meth:`poll` has something."""
        return self._poller.fileno()

    @property
    def template_pid(self) -> int:
        """Process id of the template."""
        return self._template.pid

    def awaited_helpers(self) -> list[int]:
        """The template's process id if it has yet to report a birth or a death, and that of a gateway with workers."""
        here = [member for member in self.members.values() if not (member.away or member.child)]
        awaited = not self.template_lost and any(m.gone or m.killed_for or not m.pid for m in here)
        helpers = [self._template.pid] if awaited else []
        if self._gateway is not None and self._gateway.pid and any(m.away for m in self.members.values()):
            helpers.append(self._gateway.pid)
        return helpers

    def active(self) -> list[WorkerHandle]:
        """Workers that may get leases."""
        return [m for m in self.members.values() if not (m.draining or m.gone)]

    def spawn(self, worker_id: int, *, apart: bool = False) -> WorkerHandle | None:
        """Starts a worker, which can get leases at once; None if the template is gone or no worker can be started now.

        One ``apart`` from the others gets no leases, and leaves after its probe.
        """
        if self.template_lost or not self._free_rows:
            return None
        if self.refusal and time.monotonic() - self._refused_s < _REFUSED_S:
            return None
        identity = self._next_identity(worker_id)
        try:
            channel, child = self._template.spawn(identity)
        except ConnectionError:
            self._lose_template()
            return None
        except OSError as error:
            self._refuse(str(error))
            return None
        self.refusal = ""
        return self._welcome(WorkerHandle(identity, channel, child, draining=apart))

    @property
    def away_room(self) -> int:
        """Workers that other machines would take; none where items also run what was moved out of the program's steps.

        A program's own calls stay on this machine: another processor may round them in another way.
        """
        return self._gateway.room if self._gateway is not None and not self._stage else 0

    @property
    def away_limit(self) -> str:
        """What the links to other machines carry that carry no more; empty while none is full."""
        return self._gateway.limit if self._gateway is not None else ""

    def spawn_away(self, worker_id: int) -> WorkerHandle | None:
        """Starts a worker on another machine; None if there can't be one now."""
        if self._gateway is None or not self._free_rows:
            return None
        # Those that are ending still have their places there.
        if sum(member.away for member in self.members.values()) >= self.away_room:
            return None
        identity = self._next_identity(worker_id)
        try:
            channel = self._gateway.spawn(identity)
        except OSError:
            return None
        return self._welcome(WorkerHandle(identity, channel, away=True))

    def prepare_away(self) -> None:
        """Has other machines load the program, if there are any: workers of this one are not enough."""
        if self._gateway is not None and self._sample is not None and not (self._stage or self.template_lost):
            self._gateway.prepare(self._ship)

    def observed(self, seen: Observation) -> None:
        """Passes on what the queue showed to who divides other machines' processors, if there are any."""
        if self._gateway is not None:
            self._gateway.observed(seen)

    def _ship(self, fd: int) -> None:
        self._template.ship(fd, pickle.dumps((self._iteration, self._sample), 5))

    def _next_identity(self, worker_id: int) -> WorkerIdentity:
        return WorkerIdentity(number=self._next_number, worker_id=worker_id, board_slot=self._free_rows[-1])

    def _welcome(self, member: WorkerHandle) -> WorkerHandle:
        """Adds a new worker and tells it what all know."""
        identity, channel, child = member.identity, member.channel, member.child
        self._free_rows.pop()
        self._next_number += 1
        self._template.board.reset(identity.board_slot)
        at_fork(channel.abandon)
        self.members[identity.number] = member
        if child is not None:
            member.pid = child.pid
            self._by_child_fd[child.fileno()] = identity.number
            self._poller.register(child.fileno(), select.EPOLLIN)
        self._by_fd[channel.fileno()] = identity.number
        self._poller.register(channel.fileno(), select.EPOLLIN)
        self._send(member, MessageKind.ITERATION, pickle.dumps(self._iteration))
        if self._ring is not None:
            self._share(member, self._ring)
        if self._stage:
            self._send(member, MessageKind.STAGE, self._stage)
        return member

    def complete(self) -> None:
        """Starts the template, if that was deferred until the first worker has its work.

        Raises:
            WorkerStartError: it could not be started.
        """
        try:
            self._template.complete()
        except WorkerStartError:
            self.template_lost = True
            raise
        self._is_complete = self._template.is_started

    @property
    def is_reusable(self) -> bool:
        """Whether there is a template, with the dataset as of the creation of this crew."""
        return self._template.is_started and not self.template_lost

    def _refuse(self, why: str) -> None:
        self.refusal, self._refused_s = why, time.monotonic()

    def begin(self, iteration: Iteration) -> None:
        """Sends workers the constants of the next iteration, together with its first lease."""
        self._iteration, body = iteration, pickle.dumps(iteration)
        for member in self.active():
            if iteration.tier is Tier.ELASTIC and self.whereabouts(member).seq >= 0:
                self.stop(member)  # still at a sample that nobody waits for any more, perhaps a long one
            else:
                member.channel.hold(MessageKind.ITERATION, body)

    def forget(self) -> None:
        """Makes workers return the leases that they have not begun."""
        for member in self.active():
            self._send(member, MessageKind.FORGET)

    def share(self, ring: Ring) -> None:
        """Shares a ring with all present and future workers, in place of the earlier one."""
        if ring is self._ring:
            return
        self._ring = ring
        for member in self.active():
            self._share(member, ring)

    def _share(self, member: WorkerHandle, ring: Ring) -> None:
        self._send(
            member, MessageKind.RING, pickle.dumps((ring.generation, ring.slot_bytes, ring.num_slots)), (ring.fd,)
        )

    def stage(self, body: bytes) -> None:
        """Sets what workers do with each batch after collation, from the next item that they begin."""
        self._stage = body
        for member in self.active():
            if not member.away:
                self._send(member, MessageKind.STAGE, body)
            elif body:
                self.stop(member)

    def lease(self, lease: do.Lease) -> None:
        """Sends a lease."""
        member = self.members.get(lease.worker)
        if member is None:
            return  # gone meanwhile: its departure gives the item to another
        flags = LeaseFlag.NONE
        if lease.repeat:
            flags = LeaseFlag.REPLAY
        elif self.is_short:
            flags = LeaseFlag.INLINE
        if lease.digest:
            flags |= LeaseFlag.DIGEST
        if self._sample is None:
            self._sample = lease.seq, lease.work
        head = pack_lease(lease.seq, lease.generation, lease.ring, lease.slot, flags)
        try:
            member.channel.send(MessageKind.LEASE, head + pickle.dumps(lease.work, 5))
        except OSError:
            pass  # it is dying; the poll reports its departure

    def probe(self, member: WorkerHandle, role: Role, work: WorkItem, other: WorkItem | None = None) -> None:
        """Asks a throwaway worker for one side of the differential probe; ``other`` is another item of the order."""
        self._send(member, MessageKind.PROBE, pickle.dumps((role, work, other), 5))

    def let_go_on(self, worker: int) -> None:
        """Lets a worker continue that waits for the decision about its large samples."""
        member = self.members.get(worker)
        if member is not None:
            self._send(member, MessageKind.GO)

    def end(self, worker: int, reason: str) -> None:
        """Kills a worker, unless it is gone: it may have died since it wrote."""
        member = self.members.get(worker)
        if member is not None:
            self.kill(member, reason)

    def pin(self, member: WorkerHandle) -> None:
        """Asks a worker whether it can continue in the pinned tier."""
        self._send(member, MessageKind.PIN)

    def become(self, iteration: Iteration) -> None:
        """Sets the constants for workers started from now on; the present ones have them already."""
        self._iteration = iteration

    def stop(self, member: WorkerHandle) -> None:
        """Tells a worker to finish the leases it has and leave."""
        member.draining = True
        self._send(member, MessageKind.STOP)

    def kill(self, member: WorkerHandle, reason: str, *, with_stack: bool = False) -> None:
        """Ends a worker at once; a :class:`Departure` follows when it is certainly dead."""
        member.killed_for = reason
        if not (member.pid or member.away):
            self._drain_template()
        if with_stack and member.pid:
            with contextlib.suppress(ProcessLookupError):
                member.stack = self._template.dump_stack(member.pid)
        self._end(member)

    def _end(self, member: WorkerHandle) -> None:
        """Kills a worker's process, if it is known and alive."""
        if member.away and self._gateway is not None:
            self._gateway.end(member.identity.number)
        elif member.child is not None:
            member.child.kill()
        elif member.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)

    def _send(self, member: WorkerHandle, kind: MessageKind, body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        try:
            member.channel.send(kind, body, fds)
        except OSError:
            pass  # it is dying; the poll reports its departure

    def poll(self, timeout_s: float) -> list[Arrival]:
        """Returns what has arrived; waits up to ``timeout_s`` for the first of it (0 does not wait)."""
        for member in self.members.values():
            if member.channel.unsent and not member.gone:
                self._flush(member)
        if not (self._is_complete or self.template_lost):
            self.complete()
        if self._gateway is not None and (fd := self._gateway.fileno()) != self._gateway_fd:
            self._gateway_fd = fd
            if fd >= 0:
                self._poller.register(fd, select.EPOLLIN)
        out, self._arrived = self._arrived, []  # kept while a fingerprint was waited for
        for fd, _ in self._poller.poll(timeout_s):
            if (number := self._by_fd.get(fd)) is not None:
                self._read(number, out)
            elif (number := self._by_child_fd.get(fd)) is not None:
                self._reap(self.members[number])
            elif fd == self._gateway_fd:
                self._hear()
            else:
                self._drain_template()
        out += self._arrived
        self._arrived = []
        return out

    def _flush(self, member: WorkerHandle) -> None:
        try:
            member.channel.flush()
        except OSError:
            pass

    def _read(self, number: int, out: list[Arrival]) -> None:
        """Appends what a worker has sent."""
        member = self.members[number]
        try:
            frames = member.channel.receive()
        except WireError as error:
            self.kill(member, str(error))
            frames = None
        if frames is None:
            self._lose_channel(member)
            return
        out.extend(map(functools.partial(Message, number), frames))

    def _lose_channel(self, member: WorkerHandle) -> None:
        """The socket is closed; the process must be dead before its slots are used again."""
        member.gone = True
        self._arrived.append(Severance(member.identity.number))
        fd = member.channel.fileno()
        self._poller.unregister(fd)
        del self._by_fd[fd]
        member.channel.close()
        if not member.killed_for and not member.draining:
            self._end(member)  # it may have closed the socket and live on
        if self.template_lost and member.child is None and not member.away:
            self._depart(member, _WITH_TEMPLATE)

    def _reap(self, member: WorkerHandle) -> None:
        """A worker that this process forked has ended."""
        assert member.child is not None
        fd = member.child.fileno()
        self._poller.unregister(fd)
        del self._by_child_fd[fd]
        self._exited(member, member.child.reap())

    def _drain_template(self) -> None:
        try:
            frames = self._template.channel.receive()
        except (WireError, OSError):
            frames = None
        if frames is None:
            self._lose_template()
            return
        for frame in frames:
            if frame.kind is MessageKind.SURVEYED:
                self._fingerprint = frame.body
                continue
            number, value = pickle.loads(frame.body)
            member = self.members.get(number)
            if member is None:
                continue
            if frame.kind is MessageKind.SPAWNED:
                member.pid = value
            elif frame.kind is MessageKind.EXITED:
                self._exited(member, value)

    def _exited(self, member: WorkerHandle, status: int | str | None) -> None:
        number = member.identity.number
        if isinstance(status, str):  # it was never started
            self._refuse(status)
            member.killed_for = f"not started: {status}"
            status = 0
        self._read_last(member)
        if number in self.members:
            was_killed = not member.killed_for and status is not None and ended_by(status, signal.SIGKILL)
            self._depart(member, member.killed_for or describe_exit(status), was_killed=was_killed)

    def _read_last(self, member: WorkerHandle) -> None:
        """What a worker sent before it died still counts."""
        while not member.gone:
            try:
                frames = member.channel.receive()
            except WireError:
                frames = None
            if not frames:
                self._lose_channel(member)
                return
            self._arrived += [Message(member.identity.number, frame) for frame in frames]

    def _depart(self, member: WorkerHandle, cause: str, *, was_killed: bool = False) -> None:
        where = self._template.board.read(member.identity.board_slot)
        number, pid = self._remove(member), member.pid
        self._arrived.append(Departure(number, pid, member.draining, cause, where, member.stack, was_killed))

    def _remove(self, member: WorkerHandle) -> int:
        number = member.identity.number
        del self.members[number]
        self._free_rows.append(member.identity.board_slot)
        return number

    def _hear(self) -> None:
        """Takes what the gateway says of workers on other machines."""
        assert self._gateway is not None
        heard = self._gateway.hear()
        if heard is None:  # its descriptor is closed, and has left the poller with that
            self._gateway_fd = -1
            away = [number for number, member in self.members.items() if member.away]
            heard = [tuple(Gone(number, 0, "", "its gateway process died") for number in away)] if away else []
        for one in heard:
            self._arrived += [one] if isinstance(one, Said) else self._gone(one)

    def _gone(self, all_gone: tuple[Gone, ...]) -> list[Arrival]:
        """Removes workers that ended for one cause."""
        departures: list[Departure] = []
        for gone in all_gone:
            member = self.members.get(gone.number)
            if member is not None:
                self._read_last(member)
                self._remove(member)
                cause = member.killed_for or gone.cause
                departures.append(gone._replace(cause=cause).departure(expected=member.draining))
        return [HostLoss(tuple(departures))] if departures else []

    def _lose_template(self) -> None:
        """The template died; the kernel kills its workers with it, and we kill the one that we forked."""
        if self.template_lost:
            return
        self.template_lost = True
        self._poller.unregister(self._template.channel.fileno())
        for member in list(self.members.values()):
            if member.child is not None or member.away:  # without a template no other would follow them
                member.killed_for = member.killed_for or _WITH_TEMPLATE
                self._end(member)
            elif member.gone:
                self._depart(member, _WITH_TEMPLATE)

    def ask_fingerprint(self) -> None:
        """Makes the template fingerprint its copy of the program, for :meth:`fingerprint` later."""
        self._fingerprint = None
        try:
            self._template.channel.send(MessageKind.SURVEY)
        except OSError:
            self._lose_template()

    def fingerprint(self, timeout_s: float = 1.0) -> bytes:
        """The requested fingerprint; empty if there is none or the template does not answer in time."""
        deadline = time.monotonic() + timeout_s
        while self._fingerprint is None and not self.template_lost:
            left = deadline - time.monotonic()
            if left <= 0:
                return b""
            self._arrived = self.poll(left)
        return self._fingerprint or b""

    def whereabouts(self, member: WorkerHandle) -> Whereabouts:
        """What a worker is doing now."""
        return self._template.board.read(member.identity.board_slot)

    def dismiss(self) -> None:
        """Makes all processes end, without waiting for them; :meth:`close` must follow."""
        for member in self.members.values():
            member.channel.close()
        self._template.channel.close()

    def close(self) -> None:
        """Ends all processes; returns when they are gone. Does nothing the second time."""
        if self._poller.closed:
            return
        for member in self.members.values():
            if not member.gone:
                member.channel.close()
        if self._gateway is not None:
            self._gateway.close()
        self._template.close()
        self._poller.close()
        self.members.clear()
        for ring, slot in self.ledger.clear():
            if self._give_back is not None:
                self._give_back(ring, slot)
