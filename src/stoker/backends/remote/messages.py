"""Messages between a gateway and a host, over one encrypted connection for each program.

A worker is named by a number of the gateway's. What it gets and what it says are the frames of ``feed.transport``, in
an envelope with that number; only a batch has a separate form, so that its bytes are received where they belong.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from typing import TypeVar

import msgspec

from stoker.backends.remote.caching import ShippedCache
from stoker.core.errors import WireError
from stoker.feed.transport.messages import (
    MAX_BODY_BYTES,
    READY_BYTES,
    MessageKind,
    Place,
    ReadyHeader,
    unpack_ready_header,
)
from stoker.wire.framing import Framing

PURPOSE = "stoker data workers 1"
"""What the secret is proven for."""
PING_S = 0.5
LOST_S = 2.0
"""A host that was silent for so long is lost: it is pinged four times meanwhile."""
LEASE_S = 10.0
"""A host that has heard nothing for so long ends what it has for that gateway."""
LOAD_S = 120.0
"""How long loading a program and making one item may take."""
_SMALL_BYTES = 1 << 20
_PART_BYTES = 1 << 24


class RemoteKind(enum.IntEnum):
    """What a frame is for; each kind has one direction."""

    HERE = 1
    """To a host: what calls (:class:`Caller`)."""
    PROGRAM = 2
    """To a host: a program follows (:class:`ProgramAhead`)."""
    PART = 3
    """To a host: bytes of it."""
    DIGEST = 4
    """To a host: what a sample item is where the program runs."""
    SPAWN = 5
    """To a host: fork a worker (number, id)."""
    TELL = 6
    """To a host: a frame for a worker."""
    END = 7
    """To a host: end a worker at once."""
    PING = 8
    """To a host: answer."""
    OFFER = 16
    """From a host: what it is (:class:`HostOffer`)."""
    ADMITTED = 17
    """From a host: it has the program, and makes the same item of it; or why not (a :class:`Admission`)."""
    SAID = 18
    """From a host: a frame from a worker."""
    BATCH = 19
    """From a host: a batch (number, header, skeleton, payload)."""
    FAULT = 20
    """From a host: an item could not be made there (:class:`Fault`)."""
    GONE = 21
    """From a host: a worker has ended (:class:`AwayEnd`)."""
    PONG = 22
    """From a host: the answer to PING (:class:`SentSoFar`)."""
    PROGRESS = 23
    """From a host: it gets on with what must be there before it serves (:class:`HostProgress`)."""
    SEND = 24
    """From a host: send the announced program."""
    LOADED = 25
    """From a host: it has loaded the program; call again, and the process that has it answers."""


FRAMING = Framing(
    "<HBBQBxxx", 0x5352, 1, RemoteKind, _SMALL_BYTES,
    limits={RemoteKind.BATCH: MAX_BODY_BYTES, RemoteKind.PART: _PART_BYTES, RemoteKind.TELL: _PART_BYTES},
    hints=("", "; run the same stoker on both machines"),
)  # fmt: skip
PART_BYTES = 1 << 20
_NUMBER = struct.Struct("<I")
_SPAWN = struct.Struct("<II")
_ENVELOPE = struct.Struct("<IB")
BATCH_HEAD_BYTES = _NUMBER.size + READY_BYTES
"""Bytes of a BATCH that tell where its payload belongs."""


class Caller(msgspec.Struct, frozen=True):
    """HERE: the training process's side."""

    stoker: str
    python: str
    machine: str


class HostOffer(msgspec.Struct, frozen=True):
    """OFFER: the host's side."""

    stoker: str
    python: str
    machine: str
    cores: float
    refusal: str = ""
    """Why it does not serve this caller; empty if it does."""
    loaded: bytes = b""
    """Fingerprint of the program that it has loaded; empty for none."""


class ProgramSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What a program's workers are to have on another machine besides the program."""

    environ: dict[str, str] = {}
    """Variables that they have where it runs."""
    packages: tuple[str, ...] = ()
    """That pip installs for them, as pip takes them."""
    cache: ShippedCache | None = None
    """Through which they read stores."""


class ProgramAhead(msgspec.Struct, frozen=True):
    """PROGRAM: bytes, the sample item that is compared, and the silence after which a worker counts as stuck."""

    num_bytes: int
    fingerprint: bytes
    """It stands for the program and :attr:`setting`."""
    sample: bytes
    stall_timeout_s: float
    setting: ProgramSetting


class HostProgress(msgspec.Struct, frozen=True):
    """PROGRESS: a line for people; empty for none."""

    text: str = ""


class Admission(msgspec.Struct, frozen=True):
    """ADMITTED."""

    refusal: str = ""


class Fault(msgspec.Struct, frozen=True):
    """FAULT: the answer to a lease."""

    number: int
    lease: bytes
    """Header of the lease."""
    text: str


class AwayEnd(msgspec.Struct, frozen=True):
    """GONE: where the worker was, if it had an item."""

    number: int
    pid: int
    cause: str
    seq: int = -1
    position: int = -1
    stack: str = ""
    blames: bool = False


class SentSoFar(msgspec.Struct, frozen=True):
    """PONG: what the connection has carried of batches since it began, and for how long others waited meanwhile."""

    num_bytes: int = 0
    batches: int = 0
    full_s: float = 0.0


_S = TypeVar("_S", bound=msgspec.Struct)
_CALL = struct.Struct("<4s32s")
_CALLED = b"SRP1"
CALL_BYTES = _CALL.size
"""Size of what comes first on a new connection, before it is encrypted."""


def fingerprint_of(parcel: bytes, setting: ProgramSetting) -> bytes:
    """What two ranks' programs have in common if one copy of it in memory serves both: 32 bytes."""
    return hashlib.sha256(msgspec.msgpack.encode(setting) + parcel).digest()


def pack_call(fingerprint: bytes) -> bytes:
    """Names the program of a connection: a host may have a process that has loaded it. Proves nothing."""
    return _CALL.pack(_CALLED, fingerprint)


def unpack_call(data: bytes) -> bytes:
    """The fingerprint; empty for bytes that are no call."""
    mark, fingerprint = _CALL.unpack(data)
    return fingerprint if mark == _CALLED else b""


def read(body: bytes, kind: type[_S]) -> _S:
    """A struct of the messages above; raises :class:`WireError` for anything else."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"`{kind.__name__}` of {len(body)} bytes is malformed: {error}") from None


def pack_number(number: int) -> bytes:
    """The body of END."""
    return _NUMBER.pack(number)


def pack_spawn(number: int, worker_id: int) -> bytes:
    """The body of SPAWN."""
    return _SPAWN.pack(number, worker_id)


def unpack_number(body: bytes) -> int:
    """The worker of an END."""
    return _unpack(_NUMBER, body)[0]


def unpack_spawn(body: bytes) -> tuple[int, int]:
    """Number and id of a worker."""
    number, worker_id = _unpack(_SPAWN, body)
    return number, worker_id


def _unpack(form: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) != form.size:
        raise WireError(f"`frame` must be {form.size} bytes, got {len(body)}")
    return form.unpack(body)


def envelope(number: int, kind: MessageKind, body: bytes) -> bytes:
    """The body of TELL or SAID."""
    return _ENVELOPE.pack(number, int(kind)) + body


def open_envelope(body: bytes) -> tuple[int, MessageKind, bytes]:
    """Worker, kind and body of the frame inside; raises :class:`WireError`."""
    try:
        number, kind = _ENVELOPE.unpack_from(body)
        return number, MessageKind(kind), body[_ENVELOPE.size :]
    except (struct.error, ValueError) as error:
        raise WireError(f"`envelope` of {len(body)} bytes is malformed: {error}") from None


def pack_batch(number: int, header: ReadyHeader, skeleton: bytes) -> bytes:
    """The body of a BATCH without its payload."""
    return _NUMBER.pack(number) + header.pack() + skeleton


def unpack_batch(head: bytes) -> tuple[int, ReadyHeader]:
    """Worker and header of the BATCH that begins so; raises :class:`WireError`."""
    if len(head) < BATCH_HEAD_BYTES:
        raise WireError(f"`BATCH` must have {BATCH_HEAD_BYTES} bytes and more, got {len(head)}")
    header = unpack_ready_header(head, _NUMBER.size)
    if header.place is not Place.SLOT:
        raise WireError(f"`BATCH` must be in a slot, got {header.place.name}")
    return _NUMBER.unpack_from(head)[0], header
