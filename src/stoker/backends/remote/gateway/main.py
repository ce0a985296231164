"""The gateway's loop: what crews ask for goes to hosts, and what workers there make goes into slots.

One thread that never waits for one side, besides those that call hosts. It ends with the training process, whose socket
it holds; hosts end what they have for it when its connections close.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import time

import msgspec

from stoker.backends.remote import messages
from stoker.backends.remote.brokering import BrokerSettings, KnownHost, Wanted
from stoker.backends.remote.caching import ShippedCache, shipped_cache
from stoker.backends.remote.gateway.brokered import BrokerProcess
from stoker.backends.remote.gateway.link import MOST_LOADS, Credentials, HostCall, Link, wake_pipe
from stoker.backends.remote.gateway.party import AwayWorker, HeldSlot, Party
from stoker.backends.remote.gateway.usage import LinkMeter
from stoker.backends.remote.messages import BATCH_HEAD_BYTES, RemoteKind, fingerprint_of
from stoker.backends.ship_records import DIGEST, FAILED, MAKE, PROGRAM, RECORD, SAMPLE
from stoker.cache.settings import CacheSettings
from stoker.core.errors import StokerError, WireError
from stoker.core.processes.parents import die_with, set_name
from stoker.core.saying import say
from stoker.feed.transport.messages import Channel, Frame, MessageKind, unpack_lease
from stoker.wire.certificates import create_certificate
from stoker.wire.framing import Frame as FrameOf
from stoker.wire.framing import FrameHeader, Placing
from stoker.wire.secrets import load_secrets

_TICK_S = 0.25
_PAUSE_S = 1.0
"""A turn that took so long was a pause of this process: silences before it are nobody's."""
_LEAST_TO_TRY = 2
AGAIN_S = 5.0
"""A host that was lost is called again after this."""
MOST_FAULTS = 3
"""A host at which so many items in a row have raised serves no more: it may lack what the program reads."""
_MOST_PROOFS = 8


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a training process starts its gateway with."""

    addresses: tuple[str, ...] = ()
    secret_file: str = ""
    """That these hosts share with the program."""
    broker: BrokerSettings | None = None
    """Who finds hosts, where none are named."""
    workers: int | None = None
    """Workers on other machines for each crew, if their number is fixed."""
    variables: tuple[str, ...] = ()
    """Names of those in its environment that hosts get."""
    packages: tuple[str, ...] = ()
    """That pip installs on hosts."""
    cache: str = ""
    """Settings of the run's cache as JSON; empty without one."""


class GatewayLoop:
    """Serves the crews of one training process.

    Args:
        control: socket to it; brings each crew's own.
        settings: hosts, and where the secret is.
    """

    def __init__(self, control: Channel, settings: GatewaySettings) -> None:
        self._control = control
        self._settings = settings
        self._named = {
            address: KnownHost(address=address, name=address, cores=0, certificate=b"")
            for address in settings.addresses
        }
        self._setting = messages.ProgramSetting(
            environ={name: os.environ[name] for name in settings.variables if name in os.environ},
            packages=settings.packages,
            cache=_cache_of(settings.cache) if settings.cache else None,
        )
        self._woken, wake = wake_pipe()
        secrets = load_secrets(settings.secret_file) if settings.secret_file else None
        self._caller = Credentials(secrets, create_certificate(), wake)
        self._broker = BrokerProcess(settings.broker, self._caller.own.der) if settings.broker is not None else None
        self._meter = LinkMeter()
        self._parties: list[Party] = []
        self._idle: list[Link] = []
        self._names: dict[int, tuple[Party, AwayWorker]] = {}
        self._next_name = 0
        self._proofs: dict[bytes, tuple[bytes, bytes]] = {}
        """Sample items by the program that they are of, with what they are on this machine."""
        self._placing = Placing(BATCH_HEAD_BYTES, self._find)
        self._looked_s = time.monotonic()
        self._is_over = False

    def run(self) -> None:
        """Serves until the training process is gone."""
        while not self._is_over:
            self._wait()
            self._serve_control()
            for party in list(self._parties):
                self._serve_party(party)
            for link in [*self._links(), *self._idle]:
                self._serve_link(link)
            self._look(time.monotonic())

    def _links(self) -> list[Link]:
        return [link for party in self._parties for link in party.links.values()]

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        if self._broker is not None and self._broker.fileno() >= 0:
            poll.register(self._broker, select.POLLIN)
        for party in self._parties:
            poll.register(party.channel, _wanted(party.channel.unsent))
            if party.ship is not None:
                poll.register(party.ship, select.POLLIN)
            for worker in party.workers.values():
                if not worker.is_ended:
                    poll.register(worker.channel, _wanted(worker.channel.unsent))
        for link in [*self._links(), *self._idle]:
            if link.channel is not None:
                poll.register(link.channel, _wanted(link.channel.unsent))
        for fd, _ in poll.poll(_TICK_S * 1e3):
            if fd == self._woken:
                os.read(fd, 4096)

    # -- the training process ----------------------------------------------------------------------------------------

    def _serve_control(self) -> None:
        frames = self._control.receive()
        if frames is None:
            self._is_over = True
            return
        for frame in frames:
            crew, ship = frame.fds
            channel = Channel(socket.socket(fileno=crew), blocking=False)
            shipping = socket.socket(fileno=ship)
            shipping.setblocking(False)
            self._parties.append(Party(channel, shipping, pickle.loads(frame.body)))

    def _serve_party(self, party: Party) -> None:
        party.channel.flush()
        frames = party.channel.receive()
        if frames is None:
            self._drop(party)
            return
        for frame in frames:
            if frame.kind is MessageKind.SPAWN:
                number, worker_id = pickle.loads(frame.body)
                self._spawn(party, number, worker_id, frame.fds[0])
            elif frame.kind is MessageKind.END:
                worker = party.workers.get(pickle.loads(frame.body))
                if worker is not None:
                    worker.link.send(RemoteKind.END, messages.pack_number(worker.name))
            elif frame.kind is MessageKind.QUEUE:
                party.queue, party.queues = pickle.loads(frame.body), party.queues + 1
        if party.ship is not None:
            self._read_ship(party, party.ship)
        for worker in list(party.workers.values()):
            if not worker.is_ended:
                self._serve_worker(party, worker)

    def _spawn(self, party: Party, number: int, worker_id: int, fd: int) -> None:
        channel = Channel(socket.socket(fileno=fd), blocking=False)
        link = party.choose()
        if link is None:
            channel.close()
            party.left([(number, 0, "", "no other machine has room for it", -1, -1, "", False, False)])
            return
        name, self._next_name = self._next_name, self._next_name + 1
        worker = party.workers[number] = AwayWorker(number, name, link, channel)
        self._names[name] = party, worker
        link.num_workers += 1
        link.send(RemoteKind.SPAWN, messages.pack_spawn(name, worker_id))

    def _serve_worker(self, party: Party, worker: AwayWorker) -> None:
        try:
            worker.channel.flush()
            worker.settle()
            frames = worker.channel.receive()
        except OSError:
            frames = None
        if frames is None:
            worker.is_ended = True
            worker.link.send(RemoteKind.END, messages.pack_number(worker.name))
            return
        for frame in frames:
            self._tell(party, worker, frame)

    def _tell(self, party: Party, worker: AwayWorker, frame: Frame) -> None:
        body = frame.body
        if frame.kind is MessageKind.RING:
            party.add_ring(frame)
            return
        if frame.kind is MessageKind.STAGE:
            return  # such loaders get no workers elsewhere
        if frame.kind is MessageKind.LEASE:
            party.hold(worker, body)
        worker.link.send(RemoteKind.TELL, messages.envelope(worker.name, frame.kind, body))

    def _drop(self, party: Party) -> None:
        """A crew has closed: nothing is written into its slots from here on, and its socket says so."""
        for link in list(party.links.values()):
            self._part(party, link, keep=link.is_admitted and not party.is_receiving)
        party.void()
        for worker in party.workers.values():
            self._names.pop(worker.name, None)
            worker.close()
        if party.ship is not None:
            party.ship.close()
        self._parties.remove(party)
        party.channel.close()

    def _part(self, party: Party, link: Link, *, keep: bool) -> None:
        """Takes a host from a crew; one that has loaded the program may wait for the next crew with it."""
        del party.links[link.address]
        for worker in party.workers.values():
            if worker.link is link:
                link.send(RemoteKind.END, messages.pack_number(worker.name))
        link.num_workers = 0
        if keep and not link.lost:
            self._idle = [*(other for other in self._idle if not self._replaces(link, other)), link]
        else:
            link.lost = link.lost or "it is not needed any more"
            link.close()

    def _replaces(self, link: Link, other: Link) -> bool:
        if other.address != link.address:
            return False
        other.close()
        return True

    # -- the program -------------------------------------------------------------------------------------------------

    def _read_ship(self, party: Party, ship: socket.socket) -> None:
        """Reads what the template's child sends; its end without a word means that there will be none."""
        is_over = False
        while not is_over:
            try:
                data = ship.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            party.received += data
            is_over = not data
        self._read_records(party)
        if is_over:
            self._end_ship(party)
            if not (party.digest or party.failure):
                self._fail(party, "the process that sends it died")

    def _read_records(self, party: Party) -> None:
        while len(party.received) >= RECORD.size:
            kind, size = RECORD.unpack_from(party.received)
            if len(party.received) < RECORD.size + size:
                return
            body = bytes(memoryview(party.received)[RECORD.size : RECORD.size + size])
            del party.received[: RECORD.size + size]
            self._on_record(party, kind, body)

    def _on_record(self, party: Party, kind: bytes, body: bytes) -> None:
        if kind == PROGRAM:
            party.parcel, party.program = body, fingerprint_of(body, self._setting)
        elif kind == SAMPLE:
            party.sample, party.digest = self._proofs.get(party.program, (body, b""))
            self._call_hosts(party)
            if party.digest or (party.links and all(link.is_admitted for link in party.links.values())):
                self._end_ship(party)  # an item of this program was made here before, or they have made one
            elif party.ship is not None:
                with contextlib.suppress(OSError):  # its end is read next
                    party.ship.send(MAKE)
        elif kind == DIGEST:
            party.digest = body
            self._proofs[party.program] = party.sample, body
            if len(self._proofs) > _MOST_PROOFS:
                del self._proofs[next(iter(self._proofs))]
        elif kind == FAILED:
            self._fail(party, body.decode(errors="replace"))

    def _end_ship(self, party: Party) -> None:
        if party.ship is not None:
            party.ship.close()
            party.ship = None

    def _fail(self, party: Party, why: str) -> None:
        party.failure = why
        for link in [link for link in party.links.values() if not link.is_admitted]:
            self._part(party, link, keep=False)
        party.say(f"this loader's workers stay on this machine: {why}")

    def _call_hosts(self, party: Party) -> None:
        """Gives a crew a link to each host: one that has the program, else a new one."""
        now_s = time.monotonic()
        hosts = self._named if self._broker is None else self._broker.hosts
        for address, host in hosts.items():
            if address in party.links or address in party.refused or party.again_s.get(address, 0.0) > now_s:
                continue
            known = next((x for x in self._idle if (x.address, x.program) == (address, party.program)), None)
            if known is not None:
                self._idle.remove(known)
                party.links[address] = known
            else:
                party.links[address] = Link(address, host.name, party.program, self._call(host, party))
            party.links[address].granted = host.cores or None

    def _call(self, host: KnownHost, party: Party) -> HostCall:
        return HostCall(host, self._caller, party.program)

    def _call_again(self, link: Link, party: Party) -> None:
        """A host has loaded the program, or another rank's gateway has had it loaded."""
        hosts = self._named if self._broker is None else self._broker.hosts
        if link.address not in hosts:
            link.lost = "its processors were taken back"
        elif link.num_loads >= MOST_LOADS:
            link.lost = "its process that had loaded the program is gone, time and again"
        else:
            link.call_again(self._call(hosts[link.address], party))

    # -- hosts -------------------------------------------------------------------------------------------------------

    def _party_of(self, link: Link) -> Party | None:
        return next((party for party in self._parties if party.links.get(link.address) is link), None)

    def _serve_link(self, link: Link) -> None:
        party = self._party_of(link)
        if link.call is not None and link.call.is_over:
            call, link.call = link.call, None
            if call.sock is None:
                link.lost = call.error
            else:
                link.open(call.sock, self._placing)
        channel = link.channel
        if channel is None or link.lost:
            return
        try:
            channel.flush()
            if party is not None and party.parcel and link.cores:
                link.feed(party.parcel)
            before = channel.num_received
            frames = channel.receive()
            while frames:
                for frame in frames:
                    self._on_frame(link, party, frame)
                frames = channel.receive() if not link.lost and link.channel is channel else []
            if channel.num_received > before:
                link.heard_s = time.monotonic()
            if frames is None:
                link.lost = link.lost or "it closed the connection"
        except WireError as error:
            link.lost = f"it sent what it should not: {error.args[0]}"
        except OSError as error:
            link.lost = f"it is gone ({error.strerror or error})"

    def _on_frame(self, link: Link, party: Party | None, frame: FrameOf[RemoteKind]) -> None:
        body = frame.body
        if frame.kind is RemoteKind.OFFER and party is not None:
            offer = messages.read(body, messages.HostOffer)
            if offer.refusal:
                link.lost, link.is_refused = offer.refusal, True
                return
            link.cores = offer.cores
            link.announce(
                messages.ProgramAhead(
                    len(party.parcel), party.program, party.sample, party.stall_timeout_s, self._setting
                )
            )
        elif frame.kind is RemoteKind.SEND:
            link.is_wanted = True
        elif frame.kind is RemoteKind.PROGRESS:
            link.progressed_s = time.monotonic()
            text = messages.read(body, messages.HostProgress).text
            if text and party is not None:
                party.say(f"`{link.name}`: {text}")
        elif frame.kind is RemoteKind.LOADED and party is not None:
            self._call_again(link, party)
        elif frame.kind is RemoteKind.ADMITTED:
            verdict = messages.read(body, messages.Admission)
            link.is_admitted, link.is_refused = not verdict.refusal, bool(verdict.refusal)
            link.lost = verdict.refusal
        elif frame.kind is RemoteKind.BATCH:
            self._on_batch(frame)
        elif frame.kind is RemoteKind.SAID:
            name, kind, inner = messages.open_envelope(body)
            if name in self._names:
                worker = self._names[name][1]
                if kind is MessageKind.RETURNED:
                    _held(worker, unpack_lease(inner)[0].generation)
                worker.tell(kind, inner)
        elif frame.kind is RemoteKind.PONG:
            link.pongs.append((time.monotonic(), messages.read(body, messages.SentSoFar)))
        elif frame.kind is RemoteKind.FAULT:
            self._on_fault(link, messages.read(body, messages.Fault))
        elif frame.kind is RemoteKind.GONE:
            self._on_gone(link, messages.read(body, messages.AwayEnd))

    def _find(self, header: FrameHeader[RemoteKind], head: bytes) -> tuple[int, memoryview] | None:
        """Where the payload of a batch goes, looked up in the leases: a host names no place."""
        if header.kind is not RemoteKind.BATCH:
            return None
        name, ready = messages.unpack_batch(head)
        offset = BATCH_HEAD_BYTES + ready.skeleton_bytes
        if offset + ready.payload_bytes != header.length:
            raise WireError(f"`BATCH` frame has {header.length} bytes, its header says {offset + ready.payload_bytes}")
        if name not in self._names:
            return offset, memoryview(bytearray(ready.payload_bytes))  # its crew is gone: nobody's
        return offset, _lease_of(self._names[name][1], ready.generation).place(ready.payload_bytes)

    def _on_batch(self, frame: FrameOf[RemoteKind]) -> None:
        name, ready = messages.unpack_batch(frame.body)
        if name in self._names:
            worker = self._names[name][1]
            worker.link.num_faults = 0
            _lease_of(worker, ready.generation)
            worker.ready(ready, frame.body[BATCH_HEAD_BYTES : BATCH_HEAD_BYTES + ready.skeleton_bytes])

    def _on_fault(self, link: Link, fault: messages.Fault) -> None:
        """An item failed there: it is made on the program's machine; a host that makes none gets no more of them."""
        if fault.number not in self._names:
            return
        party, worker = self._names[fault.number]
        header, _ = unpack_lease(fault.lease)
        _held(worker, header.generation)
        worker.tell(MessageKind.RETURNED, fault.lease)
        link.num_faults += 1
        text = f"item {header.seq} raised there: {fault.text}"
        if link.num_faults >= MOST_FAULTS:
            link.lost, link.is_refused = f"makes no item any more: {text}", True
        elif link.address not in party.has_faulted:
            party.has_faulted.add(link.address)
            party.say(f"`{link.address}`: {text}; it is made here")

    def _on_gone(self, link: Link, ended: messages.AwayEnd) -> None:
        found = self._names.pop(ended.number, None)
        if found is None:
            return
        party, worker = found
        del party.workers[worker.number]
        link.num_workers -= 1
        worker.flush()
        where = (ended.seq, ended.position, ended.stack, ended.blames)
        party.left([(worker.number, ended.pid, link.name, ended.cause, *where)])
        worker.close()

    # -- time --------------------------------------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        """Finds lost hosts, and calls for what is missing."""
        if now_s - self._looked_s > _PAUSE_S:
            for link in [*self._links(), *self._idle]:
                link.heard_s = now_s
        self._looked_s = now_s
        if self._broker is not None:
            self._look_at_broker(self._broker, now_s)
        for link in [*self._links(), *self._idle]:
            text, party = link.look(now_s), self._party_of(link)
            if text and party is not None:
                party.say(text)
        for link in [link for link in self._idle if link.lost]:
            self._idle.remove(link)
            link.close()
        for party in self._parties:
            for link in list(party.links.values()):
                if link.lost:
                    self._lose(party, link, now_s)
            if party.sample and not party.failure:
                self._call_hosts(party)
                self._send_digest(party)
            if (party.room, party.limit) != party.told:
                party.say()

    def _look_at_broker(self, broker: BrokerProcess, now_s: float) -> None:
        """Says how many workers are wanted, and follows what was granted and taken back."""
        most = max(self._parties, key=lambda party: wanted_of(party, self._settings.workers), default=None)
        wanted = wanted_of(most, self._settings.workers) if most is not None else 0
        queue, queues = (most.queue, most.queues) if most is not None else (None, 0)
        refused = set[str]().union(*(party.refused for party in self._parties))
        links = self._meter.look(now_s, [*self._links(), *self._idle])
        told = Wanted(workers=wanted, refused=tuple(sorted(refused)), links=links, queue=queue, queues=queues)
        broker.look(now_s, told)
        gone, texts = broker.hear(now_s)
        for text in texts:
            for party in self._parties:
                party.say(text)
        for link in [*self._links(), *self._idle]:
            if link.address in broker.hosts:
                link.granted, link.taken_back_s = broker.hosts[link.address].cores, None
            elif link.address in gone and link.taken_back_s is None:
                link.granted, link.taken_back_s = 0, now_s  # no room: its workers are drained
            if link.taken_back_s is not None and (not link.num_workers or now_s - link.taken_back_s > broker.grace_s):
                link.lost = link.lost or "its processors were taken back"

    def _send_digest(self, party: Party) -> None:
        """Sends what was made of the sample here to the hosts that make it too."""
        for link in party.links.values() if party.digest else ():
            if link.num_bytes and not (link.is_admitted or link.has_digest):
                link.has_digest = True
                link.send(RemoteKind.DIGEST, party.digest)

    def _lose(self, party: Party, link: Link, now_s: float) -> None:
        """A host serves no more: one loss, whatever it had. Its connection is closed first: it writes no slot."""
        link.close()
        del party.links[link.address]
        lost = [worker for worker in party.workers.values() if worker.link is link]
        for worker in lost:
            del self._names[worker.name], party.workers[worker.number]
            worker.flush()
        if link.is_refused:
            party.refused.add(link.address)
            party.say(f"`{link.name}` gets no data workers: it {link.lost}")
        elif link.taken_back_s is not None:
            party.say()
        else:
            first = link.address not in party.again_s
            party.again_s[link.address] = now_s + AGAIN_S
            again = f"`{link.name}` can't be used now: {link.lost}; it is called again, and the others go on"
            party.say(*([again] if first or lost else []))
        if lost:  # after the room: the crew would ask for others there
            cause = f"`{link.name}` is lost: {link.lost}"
            party.left([(worker.number, 0, link.name, cause) for worker in lost])
        for worker in lost:
            worker.close()


def wanted_of(party: Party, fixed: int | None) -> int:
    """CPUs that a crew's workers elsewhere could use: those that it has, and as many again for it to try."""
    if not party.sample or party.failure:
        return 0
    return len(party.workers) + max(_LEAST_TO_TRY, len(party.workers)) if fixed is None else fixed


def _cache_of(settings: str) -> ShippedCache | None:
    try:
        return shipped_cache(CacheSettings.from_json(settings))
    except OSError as error:
        say(f"data workers on other machines read stores directly: `{error.filename}`: {error.strerror}")
        return None


def _wanted(unsent: bool) -> int:
    return select.POLLIN | (select.POLLOUT if unsent else 0)


def _lease_of(worker: AwayWorker, generation: int) -> HeldSlot:
    held = worker.leases.get(generation)
    if held is None:
        raise WireError(f"`BATCH` must answer a lease of its worker, got one of {generation}")
    return held


def _held(worker: AwayWorker, generation: int) -> None:
    """A lease that brings nothing."""
    worker.leases.pop(generation, None)


def main(fd: int, parent_pid: int, settings: str) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the training process decides
    die_with(parent_pid)
    set_name(b"stoker_gateway")
    control = Channel(socket.socket(fileno=fd), blocking=False)
    try:
        GatewayLoop(control, msgspec.json.decode(settings, type=GatewaySettings)).run()
    except StokerError as error:
        print(f"stoker: no workers on other machines: {error}", file=sys.stderr)  # noqa: T201
