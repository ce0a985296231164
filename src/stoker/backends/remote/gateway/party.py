"""One crew as its gateway sees it: its rings, its workers on other machines, and the leases that those have.

A slot belongs to the training process until it is leased, then to the gateway, which alone writes it, until READY or
LEFT is said. No host ever sees a slot: it names the lease, and the gateway knows the place.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import time
from dataclasses import dataclass, field

import msgspec

from stoker.backends.remote.brokering import SeenQueue
from stoker.backends.remote.gateway.link import Link
from stoker.core.errors import WireError
from stoker.feed.transport.messages import (
    Channel,
    Frame,
    LeaseFlag,
    LeaseHeader,
    MessageKind,
    Place,
    ReadyHeader,
    unpack_lease,
)

MAX_BATCH_BYTES = 1 << 33
"""A batch that has no slot gets separate memory, up to this size."""


@dataclass(eq=False, slots=True)
class HeldSlot:
    """A lease of a worker elsewhere: where its batch goes."""

    header: LeaseHeader
    ring: tuple[mmap.mmap, int] | None
    """The ring's memory, and the bytes of one of its slots."""
    fd: int = -1
    target: memoryview | None = None
    """Where the batch is being received."""
    in_slot: bool = False

    def place(self, size_bytes: int) -> memoryview:
        """Where so many bytes go: the slot, or separate memory; asked again, the same."""
        if self.target is not None:
            return self.target
        if size_bytes > MAX_BATCH_BYTES:
            raise WireError(f"`BATCH` must have at most {MAX_BATCH_BYTES} bytes, got {size_bytes}")
        if self.ring is not None and size_bytes <= self.ring[1]:
            memory, slot_bytes = self.ring
            start = self.header.slot * slot_bytes
            self.target = memoryview(memory)[start : start + size_bytes]
            self.in_slot = True
        elif self.header.flags & LeaseFlag.INLINE:
            self.target = memoryview(bytearray(size_bytes))
        else:
            self.fd = os.memfd_create("stoker-batch", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, max(1, size_bytes))
            self.target = memoryview(mmap.mmap(self.fd, max(1, size_bytes)))[:size_bytes]
        return self.target

    def void(self) -> None:
        """Nobody waits for the batch any more, and its slot may be given away."""
        self.ring, self.header.flags = None, LeaseFlag.INLINE


@dataclass(eq=False, slots=True)
class AwayWorker:
    """A worker elsewhere."""

    number: int
    """In its crew."""
    name: int
    """On its link."""
    link: Link
    channel: Channel
    leases: dict[int, HeldSlot] = field(default_factory=dict[int, HeldSlot])
    fds: list[int] = field(default_factory=list[int])
    """Descriptors that are being sent."""
    is_ended: bool = False
    """Its crew has closed its socket."""

    def ready(self, header: ReadyHeader, skeleton: bytes) -> None:
        """Tells the training process that a batch has arrived."""
        held = self.leases.pop(header.generation)
        target, place, fds, tail = held.target, Place.SLOT, (), None
        if held.fd >= 0:
            place, fds = Place.OWN_MEMORY, (held.fd,)
            self.fds.append(held.fd)
        elif not held.in_slot:
            place, tail = Place.INLINE, target
        told = msgspec.structs.replace(
            header,
            ring=held.header.ring,
            slot=held.header.slot,
            place=place,
            stamp=time.monotonic(),  # the other machine's clock means nothing here
            private_bytes=0,
        )
        self.tell(MessageKind.READY, told.pack() + skeleton, fds, tail)

    def tell(self, kind: MessageKind, body: bytes, fds: tuple[int, ...] = (), tail: memoryview | None = None) -> None:
        """Sends a frame to the training process."""
        if self.is_ended:
            return
        try:
            self.channel.send(kind, body, fds, tail)
        except OSError:
            self.is_ended = True  # its end is awaited
        self.settle()

    def flush(self) -> None:
        """Sends what is left."""
        with contextlib.suppress(OSError):
            self.channel.flush()

    def settle(self) -> None:
        """Closes descriptors that were sent."""
        if self.is_ended or not self.channel.unsent:
            for fd in self.fds:
                os.close(fd)
            self.fds.clear()

    def close(self) -> None:
        """Forgets it."""
        for held in self.leases.values():
            if held.fd >= 0:
                os.close(held.fd)
        self.leases.clear()
        self.is_ended = True
        self.settle()
        self.channel.close()


class Party:
    """A crew.

    Args:
        channel: requests of the crew.
        ship: what its template sends the program through.
        stall_timeout_s: silence after which a worker counts as stuck.
    """

    def __init__(self, channel: Channel, ship: socket.socket, stall_timeout_s: float) -> None:
        self.channel = channel
        self.ship: socket.socket | None = ship
        self.stall_timeout_s = stall_timeout_s
        self.received = bytearray()
        self.parcel = self.sample = self.digest = b""
        self.program = b""
        """Fingerprint of it; empty until it has come."""
        self.failure = ""
        self.links: dict[str, Link] = {}
        self.again_s: dict[str, float] = {}
        """When a host that was lost is called again."""
        self.refused: set[str] = set()
        self.has_faulted: set[str] = set()
        """Hosts at which an item has raised."""
        self.workers: dict[int, AwayWorker] = {}
        self.told: tuple[int, str] = 0, ""
        self.queue: SeenQueue | None = None
        """What its queue showed last."""
        self.queues = 0
        self._rings: dict[int, tuple[mmap.mmap, int]] = {}

    @property
    def room(self) -> int:
        """Workers that its hosts take."""
        return sum(link.room for link in self.links.values())

    @property
    def limit(self) -> str:
        """What the links carry that carry no more."""
        return "; ".join(link.limit for link in self.links.values() if link.limit)

    def choose(self) -> Link | None:
        """The host for the next worker: the one with most cores left for each."""
        serving = [link for link in self.links.values() if link.num_workers < link.room]
        return max(serving, key=lambda link: (link.room - link.num_workers) / link.room, default=None)

    def say(self, *texts: str) -> None:
        """Tells the crew how much room there is, what links carry, and lines for the user."""
        self.told = self.room, self.limit
        self._send(MessageKind.ROOM, pickle.dumps((*self.told, texts)))

    def left(self, gone: list[tuple[object, ...]]) -> None:
        """Tells the crew of workers that ended for one cause."""
        self._send(MessageKind.LEFT, pickle.dumps(gone))

    def _send(self, kind: MessageKind, body: bytes) -> None:
        try:
            self.channel.send(kind, body)
        except OSError:
            pass  # the crew is gone, as its channel shows

    def add_ring(self, frame: Frame) -> None:
        """Maps a ring of the training process, once for all workers."""
        generation, slot_bytes, num_slots = pickle.loads(frame.body)
        (fd,) = frame.fds
        try:
            if generation not in self._rings:
                self._rings[generation] = mmap.mmap(fd, slot_bytes * num_slots), slot_bytes
        finally:
            os.close(fd)
        for old in [number for number in self._rings if number < generation - 1]:
            del self._rings[old]

    def hold(self, worker: AwayWorker, body: bytes) -> bytes:
        """Notes a lease; returns its work."""
        header, work = unpack_lease(body)
        ring = self._rings.get(header.ring) if header.slot >= 0 else None
        worker.leases[header.generation] = HeldSlot(header, ring)
        return bytes(work)

    @property
    def is_receiving(self) -> bool:
        """Whether a batch is on its way into a slot."""
        return any(lease.in_slot for worker in self.workers.values() for lease in worker.leases.values())

    def void(self) -> None:
        """Gives all slots up."""
        for worker in self.workers.values():
            for lease in worker.leases.values():
                lease.void()
        self._rings.clear()
