"""Messages between the training process and one data worker: a typed fixed header, a small body, raw bytes behind it.

Owns framing and field layout. Does not own what a body means to torch (``pack``) nor the processes (``crew``). The
bytes run over a socketpair between processes of one user that inherited it, so bodies may hold pickles; frames are
still checked, since a dying worker can leave half of one.
"""

from __future__ import annotations

import array
import enum
import os
import select
import socket
import struct
from collections import deque
from dataclasses import dataclass

from stoker.core.errors import WireError

MAGIC = 0x5354
VERSION = 1
MAX_BODY_BYTES = 1 << 36
"""A frame longer than this (64 GiB) is taken for garbage, not for a batch."""

_FRAME = struct.Struct("<HBBBxxxQ")  # magic, version, kind, number of descriptors, padding, body length
FRAME_BYTES = _FRAME.size
_LEASE = struct.Struct("<QIiiI")  # seq, generation, ring, slot, flags
_READY = struct.Struct("<QIiiBxxxQQddddQId")
# seq, generation, ring, slot, place, payload and skeleton bytes, wall_s, cpu_s, idle_s, stamp, private bytes,
# check, stall_s
_MAX_FDS = 16
_FDS_BYTES = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
_RECEIVE_BYTES = 1 << 18
"""Room for what arrives at once, kept by each channel: fresh memory of that size costs 25 us a message."""


class Kind(enum.IntEnum):
    """What a frame is for; the direction is fixed by the kind."""

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
    """To a worker that waits to hear whether its large samples are compared: they are."""
    PIN = 9
    """To a worker: go on as one of the pinned tier, if no random number was drawn (answered by PINNED)."""
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
    """To the training process: whether this worker goes on as one of the pinned tier (pickled)."""
    SPAWN = 32
    """To a template: fork a worker (one descriptor, pickled identity)."""
    SPAWNED = 33
    """From a template: the worker's process id."""
    EXITED = 34
    """From a template: a worker's process id and wait status."""
    SURVEY = 35
    """To a template: fingerprint the program as you hold it."""
    SURVEYED = 36
    """From a template: the fingerprint, empty when there is none."""


class Place(enum.IntEnum):
    """Where the payload of a ready batch lies."""

    SLOT = 0
    """In the leased slot of a ring."""
    OWN_MEMORY = 1
    """In a memfd of its own, whose descriptor comes with the frame."""
    INLINE = 2
    """In the frame itself, behind the skeleton."""


class LeaseFlag(enum.IntFlag):
    """How a lease is to be served."""

    NONE = 0
    DIGEST = 1
    """Also send a digest of the batch (probes, replays)."""
    REPLAY = 2
    """Advance past this item without sending it (it was delivered before the worker died)."""
    INLINE = 4
    """Send no descriptor: the training process has hardly any left to receive it with."""


# Not frozen: that would triple what it costs to make one, of which there are several for each batch.
@dataclass(slots=True)
class Frame:
    """One message: kind, body and the descriptors that came with it."""

    kind: Kind
    body: bytes
    fds: tuple[int, ...] = ()


@dataclass(slots=True)
class LeaseHeader:
    """Fixed part of a LEASE; the pickled index batch follows."""

    seq: int
    generation: int
    ring: int
    """Generation of the ring that holds the slot; -1 for no slot."""
    slot: int
    flags: LeaseFlag

    def pack(self, body: bytes) -> bytes:
        """The body of the LEASE frame."""
        return _LEASE.pack(self.seq, self.generation, self.ring, self.slot, int(self.flags)) + body


@dataclass(slots=True)
class ReadyHeader:
    """Fixed part of a READY; skeleton and (inline) payload follow."""

    seq: int
    generation: int
    ring: int
    slot: int
    place: Place
    payload_bytes: int
    skeleton_bytes: int
    """Length of the skeleton in the frame; 0 when it lies at the end of the payload."""
    wall_s: float
    cpu_s: float
    idle_s: float
    """Time the worker had nothing to do before this item."""
    stamp: float
    """Monotonic time at which the item was finished."""
    private_bytes: int
    """Private memory of the worker when last measured; 0 when not yet."""
    check: int
    """Check of the batch (pinned tier and streams; else 0), compared when a lost worker's work is repeated."""
    stall_s: float = -1.0
    """Part of ``wall_s`` for which the worker could run and had no core; -1.0 where the kernel does not say."""

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


def unpack_ready(body: bytes) -> tuple[ReadyHeader, memoryview]:
    """Header and the rest (skeleton, inline payload) of a READY body; raises :class:`WireError` when inconsistent."""
    try:
        seq, generation, ring, slot, place, *rest_of = _READY.unpack_from(body)
        header = ReadyHeader(seq, generation, ring, slot, Place(place), *rest_of)
    except (struct.error, ValueError) as error:
        raise WireError(f"`READY` frame of {len(body)} bytes is malformed: {error}") from None
    rest = memoryview(body)[READY_BYTES:]
    inline = header.payload_bytes if header.place is Place.INLINE else 0
    if len(rest) != header.skeleton_bytes + inline:
        raise WireError(
            f"`READY` frame of item {header.seq} holds {len(rest)} bytes, its header says "
            f"{header.skeleton_bytes + inline}"
        )
    return header, rest


def encode(kind: Kind, body: bytes = b"", num_fds: int = 0) -> bytes:
    """One frame as bytes; ``num_fds`` descriptors must be sent together with its first byte."""
    return _FRAME.pack(MAGIC, VERSION, kind, num_fds, len(body)) + body


class Decoder:
    """Turns a byte stream (in pieces of any size) and its descriptors into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._fds: deque[int] = deque()

    def feed(self, data: bytes | memoryview, fds: tuple[int, ...] = ()) -> list[Frame]:
        """The frames completed by ``data``; raises :class:`WireError` at the first malformed one."""
        self._fds.extend(fds)
        if self._bytes:
            self._bytes += data
            frames, used = self._parse(self._bytes)
            del self._bytes[:used]
        else:  # as a rule whole frames arrive: they are not collected first
            frames, used = self._parse(data)
            self._bytes += data[used:]
        return frames

    def _parse(self, data: bytes | bytearray | memoryview) -> tuple[list[Frame], int]:
        """The whole frames at the head of ``data``, and how many bytes they are."""
        frames: list[Frame] = []
        start, size = 0, len(data)
        while size - start >= FRAME_BYTES:
            magic, version, kind, num_fds, length = _FRAME.unpack_from(data, start)
            self._check(magic, version, length)
            end = start + FRAME_BYTES + length
            if end > size:
                break
            frames.append(self._frame(kind, num_fds, bytes(memoryview(data)[start + FRAME_BYTES : end])))
            start = end
        return frames, start

    @staticmethod
    def _check(magic: int, version: int, length: int) -> None:
        if magic != MAGIC:
            raise WireError(f"`frame` must begin with {MAGIC:#06x}, got {magic:#06x}")
        if version != VERSION:
            raise WireError(f"`frame` must have version {VERSION}, got {version}; all processes must run one stoker")
        if length > MAX_BODY_BYTES:
            raise WireError(f"`frame` length must be at most {MAX_BODY_BYTES}, got {length}")

    def _frame(self, kind: int, num_fds: int, body: bytes) -> Frame:
        if num_fds > len(self._fds):
            raise WireError(f"`frame` announces {num_fds} descriptors, {len(self._fds)} came")
        try:
            return Frame(Kind(kind), body, tuple(self._fds.popleft() for _ in range(num_fds)) if num_fds else ())
        except ValueError:
            raise WireError(f"`frame` kind {kind} is unknown") from None

    def close(self) -> list[int]:
        """Descriptors received but not yet handed out; the caller closes them."""
        left = list(self._fds)
        self._fds.clear()
        return left


class Channel:
    """One end of a socketpair: sends frames without ever blocking on a full peer, receives whole frames.

    Args:
        sock: a connected ``AF_UNIX`` stream socket; owned by the channel from here on.
        blocking: a worker waits for its peer (True); the training process never does (False): what the socket does
            not take at once is kept and sent by later calls of :meth:`flush`.
    """

    def __init__(self, sock: socket.socket, *, blocking: bool) -> None:
        self.sock = sock
        self.sock.setblocking(blocking)
        self._blocking = blocking
        self._decoder = Decoder()
        self._in = memoryview(bytearray(_RECEIVE_BYTES))
        self._out: deque[tuple[bytes | memoryview, tuple[int, ...]]] = deque()
        self._held = b""

    def fileno(self) -> int:
        """Descriptor to poll."""
        return self.sock.fileno()

    @property
    def unsent(self) -> bool:
        """Whether bytes wait for the peer to read, or for the frame that they go with."""
        return bool(self._out or self._held)

    def hold(self, kind: Kind, body: bytes = b"") -> None:
        """Keeps one frame until the next is sent or :meth:`flush` is called: the peer is woken once for both."""
        self._held += encode(kind, body)

    def send(self, kind: Kind, body: bytes = b"", fds: tuple[int, ...] = (), tail: memoryview | None = None) -> None:
        """Queues one frame (``tail`` continues the body without a copy) and sends what the socket takes.

        ``fds`` are duplicated by the kernel when sent; with a non-blocking channel the caller keeps them open until
        :attr:`unsent` is False. Raises ``OSError`` when the peer is gone.
        """
        length = len(body) + (len(tail) if tail is not None else 0)
        held, self._held = self._held, b""
        self._out.append((held + _FRAME.pack(MAGIC, VERSION, kind, len(fds), length) + body, fds))
        if tail is not None and len(tail):
            self._out.append((tail, ()))
        self.flush()

    def flush(self) -> None:
        """Sends queued bytes until all are sent or the socket is full."""
        if self._held:
            self._out.append((self._held, ()))
            self._held = b""
        while self._out:
            data, fds = self._out[0]
            try:
                if fds:
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                    sent = self.sock.sendmsg([data], ancillary)
                else:
                    sent = self.sock.send(data)
            except (BlockingIOError, InterruptedError):
                return
            if sent == len(data):
                self._out.popleft()
            else:
                self._out[0] = (memoryview(data)[sent:], ())

    def receive(self, *, wait: bool = True) -> list[Frame] | None:
        """Frames that have arrived; None when the peer is gone.

        A blocking channel waits for at least some bytes, unless told not to ``wait``.
        """
        flags = socket.MSG_CMSG_CLOEXEC if wait else socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        try:
            size, ancillary, _, _ = self.sock.recvmsg_into([self._in], _FDS_BYTES, flags)
        except (BlockingIOError, InterruptedError):
            return []
        except ConnectionError:
            return None
        if not size:
            return None
        return self._decoder.feed(self._in[:size], _descriptors_in(ancillary) if ancillary else ())

    def await_frames(self, timeout_s: float) -> None:
        """Returns when there is something to receive, or the peer is gone, or the time is up."""
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        poller.poll(timeout_s * 1e3)

    def abandon(self) -> None:
        """Closes this process's copy (in a forked child), without the destructor closing the number once more."""
        fd = self.sock.detach()
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Closes the socket and every descriptor that nobody took."""
        for fd in self._decoder.close():
            os.close(fd)
        self._out.clear()
        self._held = b""
        self.sock.close()


def _descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return tuple(fds)
