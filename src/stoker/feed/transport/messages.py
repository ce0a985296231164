"""Messages between the training process and one data worker: a typed fixed header, a small body, raw bytes after it.

Owns the protocol, not what a body means to torch (``pack``) nor the processes (``crew``). The bytes run over a
socketpair that processes of one user have inherited, so bodies may hold pickles; frames are still checked, since a
dying worker can leave half of one.
"""

from __future__ import annotations

import enum
import socket
import struct

import msgspec

from stoker.core.errors import WireError
from stoker.wire.framing import Frame as FrameOf
from stoker.wire.framing import Framing
from stoker.wire.polled import PolledChannel

MAX_BODY_BYTES = 1 << 36
"""A frame longer than this (64 GiB) is taken for garbage, not for a batch."""

_LEASE = struct.Struct("<QIiiI")
pack_lease = _LEASE.pack
"""Packs the header fields that begin the body of a LEASE. In C, because every lease that is sent calls it."""
_READY = struct.Struct("<QIiiBxxxQQddddQId")
# seq, generation, ring, slot, place, payload and skeleton bytes, wall_s, cpu_s, idle_s, stamp, private bytes,
# check, stall_s


class MessageKind(enum.IntEnum):
    """What a frame is for; each kind has one direction."""

    LEASE = 1
    """To a worker: make this work item."""
    RING = 2
    """To a worker: a ring of slots (one descriptor)."""
    FORGET = 3
    """To a worker: drop the leases that have not begun (the program left the iteration)."""
    ITERATION = 4
    """To a worker: the constants of the next iteration (pickled)."""
    STOP = 5
    """To a worker: finish the current lease and exit."""
    PROBE = 6
    """To a throwaway worker: run the differential probe (pickled)."""
    STAGE = 7
    """To a worker: what to do with each batch after collation (a pickled callable; empty for nothing)."""
    GO = 8
    """To a worker that waits for a decision about its large samples: they are compared."""
    PIN = 9
    """To a worker: become a pinned worker, if no random number was drawn (answered by PINNED)."""
    READY = 16
    """To the training process: a work item is made."""
    FAILED = 17
    """To the training process: user code raised (pickled exception)."""
    ENDED = 18
    """To the training process: this shard of an iterable dataset is exhausted."""
    PROBED = 19
    """To the training process: digests of a probe (pickled)."""
    RETURNED = 20
    """To the training process: a lease that was forgotten before it began; its slot is untouched."""
    RETIRING = 21
    """To the training process: this worker has grown to its memory budget and leaves (private bytes, pickled)."""
    SIZED = 22
    """To the training process: the first sample of a probe is this large (bytes, pickled); its worker waits for GO."""
    PINNED = 23
    """To the training process: whether this worker becomes a pinned worker (pickled)."""
    SPAWN = 32
    """To a template: fork a worker (one descriptor, pickled identity)."""
    SPAWNED = 33
    """From a template: the worker's process id."""
    EXITED = 34
    """From a template: a worker's process id and wait status."""
    SURVEY = 35
    """To a template: send the fingerprint of your copy of the program."""
    SURVEYED = 36
    """From a template: the fingerprint, empty when there is none."""
    SHIP = 37
    """To a template: send your copy of the program through a socket (one descriptor, a pickled sample item)."""
    WANTED = 48
    """To a gateway: serve this crew (two descriptors: requests, and the socket that the program comes through)."""
    END = 49
    """To a gateway: end a worker at once (pickled number)."""
    ROOM = 50
    """From a gateway: the workers that hosts take, and what there is to say about them (pickled)."""
    LEFT = 51
    """From a gateway: workers are certainly gone, all for one cause (pickled)."""
    QUEUE = 52
    """To a gateway: what the queue of its crew showed in a window (pickled)."""


class Place(enum.IntEnum):
    """Where the payload of a ready batch is."""

    SLOT = 0
    """In the leased slot of a ring."""
    OWN_MEMORY = 1
    """In a separate memfd, whose descriptor comes with the frame."""
    INLINE = 2
    """In the frame itself, after the skeleton."""


class LeaseFlag(enum.IntFlag):
    """How to serve a lease."""

    NONE = 0
    DIGEST = 1
    """Also send a digest of the batch (probes, replays)."""
    REPLAY = 2
    """Advance past this item without sending it (it was delivered before the worker died)."""
    INLINE = 4
    """Send no descriptor: the training process has hardly any left to receive it with."""


FRAMING = Framing(
    "<HBBQBxxx", 0x5354, 2, MessageKind, MAX_BODY_BYTES, hints=("", "; all processes must run the same stoker")
)
Frame = FrameOf[MessageKind]


class Channel(PolledChannel[MessageKind]):
    """One end of the socketpair: a worker waits for its peer (``blocking``), the training process never does."""

    def __init__(self, sock: socket.socket, *, blocking: bool) -> None:
        super().__init__(sock, FRAMING, blocking=blocking)


# Structs are made without a call into Python; there are several of them for each batch.
class LeaseHeader(msgspec.Struct, gc=False):
    """Fixed part of a LEASE; the pickled index batch follows."""

    seq: int
    generation: int
    ring: int
    """Generation of the ring that holds the slot; -1 for no slot."""
    slot: int
    flags: LeaseFlag

    def pack(self, body: bytes) -> bytes:
        """The body of the LEASE frame."""
        return pack_lease(self.seq, self.generation, self.ring, self.slot, self.flags) + body


class ReadyHeader(msgspec.Struct, gc=False):
    """Fixed part of a READY; skeleton and (inline) payload follow."""

    seq: int
    generation: int
    ring: int
    slot: int
    place: Place
    payload_bytes: int
    skeleton_bytes: int
    """Length of the skeleton in the frame; 0 when it is at the end of the payload."""
    wall_s: float
    cpu_s: float
    idle_s: float
    """Time the worker had nothing to do before this item."""
    stamp: float
    """Monotonic time at which the item was finished."""
    private_bytes: int
    """Private memory of the worker when last measured; 0 before that."""
    check: int
    """Checksum of the batch (pinned tier and streams; else 0), compared when a lost worker's work is repeated."""
    stall_s: float = -1.0
    """Part of ``wall_s`` for which the worker could run and had no core; -1.0 if the kernel does not report it."""

    def pack(self) -> bytes:
        """The fixed bytes of the READY body."""
        return _READY.pack(
            self.seq, self.generation, self.ring, self.slot, int(self.place), self.payload_bytes,
            self.skeleton_bytes, self.wall_s, self.cpu_s, self.idle_s, self.stamp, self.private_bytes, self.check,
            self.stall_s,
        )  # fmt: skip


READY_BYTES = _READY.size


def unpack_lease(body: bytes) -> tuple[LeaseHeader, memoryview]:
    """Header and index bytes of a LEASE body; raises :class:`WireError` when it is too short or has unknown flags."""
    try:
        seq, generation, ring, slot, flags = _LEASE.unpack_from(body)
        return LeaseHeader(seq, generation, ring, slot, LeaseFlag(flags)), memoryview(body)[_LEASE.size :]
    except (struct.error, ValueError) as error:
        raise WireError(f"`LEASE` frame of {len(body)} bytes is malformed: {error}") from None


def unpack_ready_header(body: bytes, offset: int = 0) -> ReadyHeader:
    """The header of a READY, of which no more need be there; raises :class:`WireError` for anything else."""
    try:
        seq, generation, ring, slot, place, *rest_of = _READY.unpack_from(body, offset)
        return ReadyHeader(seq, generation, ring, slot, Place(place), *rest_of)
    except (struct.error, ValueError) as error:
        raise WireError(f"`READY` frame of {len(body)} bytes is malformed: {error}") from None


def unpack_ready(body: bytes) -> tuple[ReadyHeader, memoryview]:
    """Header and the rest (skeleton, inline payload) of a READY body; raises :class:`WireError` when inconsistent."""
    header = unpack_ready_header(body)
    rest = memoryview(body)[READY_BYTES:]
    inline = header.payload_bytes if header.place is Place.INLINE else 0
    if len(rest) != header.skeleton_bytes + inline:
        raise WireError(
            f"`READY` frame of item {header.seq} holds {len(rest)} bytes, its header says "
            f"{header.skeleton_bytes + inline}"
        )
    return header, rest
