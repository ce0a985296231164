"""The protocol between cache nodes: frames with a fixed header, a short body, and page bytes after it.

Pure: bytes to values and back, bounded in every length. Any bytes give a frame or :class:`WireError`, never anything
else, and nothing is ever unpickled. Page bytes follow their DATA body untouched, so that a receiver can take them
straight into the caller's buffer.
"""

from __future__ import annotations

import enum
import math
import struct
from typing import NamedTuple

import msgspec

from stoker.cache.versions import Strength, Version
from stoker.core.errors import WireError
from stoker.wire.framing import Framing
from stoker.wire.secrets import NONCE_BYTES, PROOF_BYTES

MAGIC = 0x5343
PROTOCOL = 1
"""Version of headers, fixed for ever, and the newest protocol after the greeting that this version speaks."""
OLDEST_PROTOCOL = 1
"""The oldest way that it knows; client and worker agree on one as they greet each other (:func:`agreed`)."""
MAX_BODY_BYTES = 256 << 10
"""Most bytes of any frame but DATA and RING."""
MAX_RING_BYTES = 4 << 20
MAX_PAYLOAD_BYTES = 16 << 20
MAX_RANGES = 4096
MAX_RANGE_BYTES = 64 << 20
"""Most bytes of a range, and of all ranges of a request together."""
MAX_PATH_BYTES = 4096
MAX_TEXT_BYTES = 1024
MAX_DESCRIPTION_BYTES = 64 << 10

_HEADER = "<HBBIQ"  # magic, protocol, kind, length of what follows, ring epoch of the sender
DATA = struct.Struct("<IIQQ")  # range number, offset in the range, version digest, object size; payload follows
DATA_HEAD = struct.Struct(_HEADER + DATA.format[1:])
"""Header and fields of a DATA frame, packed at once."""
_READ = struct.Struct("<BBHHHIQ")  # flags, strength, mount, path and token bytes, number of ranges, object size
RANGE = struct.Struct("<QI")  # start, length
_OBJECT = struct.Struct("<BQdHI")  # strength, size, age, bytes of token and description
_MISS = struct.Struct("<IB")
DATA_BYTES = DATA.size


class Kind(enum.IntEnum):
    """What a frame is for."""

    HELLO = 1
    """Client: who I am."""
    CHALLENGE = 2
    """Worker: prove it, over this number."""
    PROOF = 3
    """Client: here, and prove yourself over mine."""
    WELCOME = 4
    """Worker: here; what you should know."""
    REFUSED = 5
    """Worker: no, and why."""
    READ = 16
    """Client: ranges of an object."""
    STAT = 17
    """Client: asks for the metadata of an object."""
    ASK_RING = 18
    ASK_STATUS = 19
    PING = 20
    DATA = 32
    """Worker: bytes of a range."""
    FETCHING = 33
    """Worker: the store is being read; repeated during that."""
    MISS = 34
    """Worker: the rest of this range will not come."""
    OBJECT = 35
    RING = 36
    STATUS = 37
    PONG = 38
    HOT = 39
    """Worker: others hold copies of the chunk of this range; ask those as well."""


class Flag(enum.IntFlag):
    """How a READ is to be served."""

    NONE = 0
    ONLY_IF_CACHED = 1
    """A hedge, or a worker that asks the previous owner: nothing is fetched for it."""
    COPY = 2
    """For a chunk whose owner announced replicas: missing pages are fetched from the owner."""
    PIN = 4
    """From a draining worker: the requested pages stay pinned, until they are unpinned."""


class Reason(enum.IntEnum):
    """Why a range does not come, or a request is refused."""

    NOT_CACHED = 1
    CHANGED = 2
    """The store holds another version than the requested one."""
    NOT_FOUND = 3
    NOT_MOUNTED = 4
    NOT_ALLOWED = 5
    STORE_FAILED = 6
    MALFORMED = 7
    NOT_AUTHENTICATED = 8
    BUSY = 9
    """Too many connections or requests."""
    DRAINING = 10


class Hello(msgspec.Struct, frozen=True):
    """Who a client is; a worker ignores unknown fields, so that later versions may add some.

    Attributes:
        identity: name of the secret.
        node: id of a sender that is a worker.
        process: tells its connections from others'.
        oldest: protocol that it knows.
        newest: protocol that it knows; the first release did not say.
    """

    identity: str
    node: str = ""
    process: str = ""
    oldest: int = 1
    newest: int = 1


class Challenge(msgspec.Struct, frozen=True):
    """Attributes: nonce: fresh, 32 bytes; secret: whether a proof is needed (not on a Unix socket)."""

    nonce: bytes
    secret: bool


class Proof(msgspec.Struct, frozen=True):
    """Attributes: nonce: the client's, 32 bytes; proof: HMAC over both nonces and the identity."""

    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True):
    """The worker's answer to a client that it lets in.

    Attributes:
        proof: the worker's.
        node: its id.
        clients: how many it serves now.
        draining: it will leave.
        roots: directories of its pages, for a client on this machine that runs as the same user.
        protocol: of what follows; the first release did not say.
    """

    proof: bytes
    node: str
    clients: int
    draining: bool = False
    roots: tuple[str, ...] = ()
    protocol: int = 1


class Refused(NamedTuple):
    """Why, for a program and for a person."""

    reason: Reason
    text: str


class Range(NamedTuple):
    """Bytes ``start`` to before ``start + length`` of an object."""

    start: int
    length: int


class Read(NamedTuple):
    """A request for ranges of one object; ``version`` is None where any that the policy allows will do."""

    mount: str
    path: str
    version: Version | None
    ranges: tuple[Range, ...]
    flags: Flag = Flag.NONE


class Data(NamedTuple):
    """Bytes of a range, from ``offset`` in it; the digest is that of their version."""

    number: int
    offset: int
    digest: int
    object_size: int
    payload: bytes | memoryview


class RangeMiss(NamedTuple):
    """A range that will not be completed."""

    number: int
    reason: Reason


class Hot(NamedTuple):
    """How many workers serve the chunk in which a range begins."""

    number: int
    copies: int


class Stat(NamedTuple):
    """A question about an object; the answer may be so old (0: as old as the worker's own rule lets it be)."""

    mount: str
    path: str
    max_age_ms: int = 0


class Object(NamedTuple):
    """A worker's metadata of an object, its age, and the store's details.

    An age and no time, since the clocks of machines differ.
    """

    version: Version
    age_s: float
    description: bytes = b""


class Blob(NamedTuple):
    """A frame whose body is JSON for others (RING, STATUS) or empty (ASK_RING, ASK_STATUS, PING, PONG, FETCHING)."""

    kind: Kind
    body: bytes = b""


Message = Hello | Challenge | Proof | Welcome | Refused | Read | Data | RangeMiss | Hot | Stat | Object | Blob

_BLOBS = frozenset(
    {
        Kind.RING,
        Kind.STATUS,
        Kind.ASK_RING,
        Kind.ASK_STATUS,
        Kind.PING,
        Kind.PONG,
        Kind.FETCHING,
    }
)
_FILLED = frozenset({Kind.RING, Kind.STATUS})
# Made here, by one thread: msgspec may crash where two threads first decode a type at the same time.
_STRUCTS: dict[Kind, msgspec.msgpack.Decoder[Hello | Challenge | Proof | Welcome]] = {
    Kind.HELLO: msgspec.msgpack.Decoder(Hello), Kind.CHALLENGE: msgspec.msgpack.Decoder(Challenge),
    Kind.PROOF: msgspec.msgpack.Decoder(Proof), Kind.WELCOME: msgspec.msgpack.Decoder(Welcome),
}  # fmt: skip
_KINDS: dict[type[object], Kind] = {
    Hello: Kind.HELLO, Challenge: Kind.CHALLENGE, Proof: Kind.PROOF, Welcome: Kind.WELCOME, Refused: Kind.REFUSED,
    Read: Kind.READ, Data: Kind.DATA, RangeMiss: Kind.MISS, Hot: Kind.HOT, Stat: Kind.STAT, Object: Kind.OBJECT,
}  # fmt: skip
FRAMING = Framing(
    _HEADER, MAGIC, PROTOCOL, Kind, MAX_BODY_BYTES,
    {Kind.DATA: DATA_BYTES + MAX_PAYLOAD_BYTES, Kind.RING: MAX_RING_BYTES, Kind.STATUS: MAX_RING_BYTES},
    hints=("; is this a cache worker's port?", "; run one version of stoker everywhere"),
)  # fmt: skip
"""The note of each header is the epoch of the ring that the sender knows."""
HEADER_BYTES = FRAMING.num_bytes


def agreed(oldest: int, newest: int) -> int | None:
    """The protocol for what follows a greeting: the newest that both know; None if there is none.

    Args:
        oldest: that the other side knows.
        newest: that it knows.
    """
    both = min(newest, PROTOCOL)
    return both if both >= max(oldest, OLDEST_PROTOCOL) else None


def encode(frame: Message, epoch: int = 0) -> bytes:
    """A frame as bytes; page bytes are copied, see :func:`data_head` for the way around.

    Raises:
        ValueError: the frame is larger than a receiver takes.
    """
    kind = frame.kind if isinstance(frame, Blob) else _KINDS[type(frame)]
    body = _body(frame)
    if len(body) > FRAMING.limit(kind):
        raise ValueError(f"`{kind.name}` frame must be at most {FRAMING.limit(kind)} bytes: {len(body)}")
    return FRAMING.pack(kind, len(body), epoch) + body


def data_head(number: int, offset: int, digest: int, object_size: int, length: int, epoch: int) -> bytes:
    """Header and body of a DATA frame; its ``length`` bytes of payload follow."""
    return DATA_HEAD.pack(MAGIC, PROTOCOL, 32, DATA_BYTES + length, epoch, number, offset, digest, object_size)


def decode_body(kind: Kind, body: bytes | memoryview) -> Message:
    """The frame of a body; raises :class:`WireError` for anything that :func:`encode` does not write."""
    try:
        if kind in _BLOBS:
            if kind not in _FILLED and len(body):
                raise WireError(f"`{kind.name}` frame must be empty, got {len(body)} bytes")
            return Blob(kind, bytes(body))
        if kind in _STRUCTS:
            return _struct(kind, body)
        return _DECODERS[kind](memoryview(body))
    except (struct.error, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"`{kind.name}` frame of {len(body)} bytes is malformed: {error}") from None


def _struct(kind: Kind, body: bytes | memoryview) -> Message:
    frame = _STRUCTS[kind].decode(body)
    if isinstance(frame, (Challenge, Proof)) and len(frame.nonce) != NONCE_BYTES:
        raise WireError(f"`nonce` must be {NONCE_BYTES} bytes, got {len(frame.nonce)}")
    if isinstance(frame, (Proof, Welcome)) and len(frame.proof) != PROOF_BYTES:
        raise WireError(f"`proof` must be {PROOF_BYTES} bytes, got {len(frame.proof)}")
    return frame


def _body(frame: Message) -> bytes:
    match frame:
        case Hello() | Challenge() | Proof() | Welcome():
            return msgspec.msgpack.encode(frame)
        case Refused(reason, text):
            return bytes((reason,)) + _text(text)[:MAX_TEXT_BYTES]
        case Read():
            return _read_body(frame)
        case Data(number, offset, digest, object_size, payload):
            return DATA.pack(number, offset, digest, object_size) + payload
        case RangeMiss(number, reason):
            return _MISS.pack(number, reason)
        case Hot(number, copies):
            return _MISS.pack(number, copies)
        case Stat(mount, path, max_age_ms):
            lengths = len(_text(mount)), len(_text(path))
            return _READ.pack(0, 0, *lengths, 0, 0, max_age_ms) + _text(mount) + _text(path)
        case Object(version, age_s, description):
            token = _text(version.token)
            head = _OBJECT.pack(version.strength, version.size, age_s, len(token), len(description))
            return head + token + description
        case Blob():
            return frame.body


def _read_body(frame: Read) -> bytes:
    if len(frame.ranges) > MAX_RANGES:
        raise ValueError(f"`ranges` must be at most {MAX_RANGES}, got {len(frame.ranges)}")
    head = read_head(frame.mount, frame.path, frame.version, len(frame.ranges), frame.flags)
    return b"".join((head, *(RANGE.pack(start, length) for start, length in frame.ranges)))


def fits(mount: str, path: str, version: Version | None) -> bool:
    """Whether a request may name these; others are for the store alone."""
    token = "" if version is None else version.token
    if len(path) <= MAX_PATH_BYTES // 4 and max(len(mount), len(token)) <= MAX_TEXT_BYTES // 4:
        return True  # a character is four bytes at most
    return len(_text(path)) <= MAX_PATH_BYTES and max(len(_text(mount)), len(_text(token))) <= MAX_TEXT_BYTES


def read_head(mount: str, path: str, version: Version | None, num_ranges: int, flags: Flag = Flag.NONE) -> bytes:
    """The body of a READ up to its ranges, which follow packed as :data:`RANGE`."""
    mount_text, path_text = _text(mount), _text(path)
    token = b"" if version is None else _text(version.token)
    strength = _ANY if version is None else int(version.strength)
    size = 0 if version is None else version.size
    lengths = len(mount_text), len(path_text), len(token)
    if not (lengths[0] <= MAX_TEXT_BYTES and lengths[1] <= MAX_PATH_BYTES and lengths[2] <= MAX_TEXT_BYTES):
        raise ValueError(f"names are bounded, got {lengths[0]} bytes of mount, {lengths[1]} of path, {lengths[2]} more")
    return _READ.pack(int(flags), strength, *lengths, num_ranges, size) + mount_text + path_text + token


_ANY = 255
"""In place of a strength: any version will do."""


def _decode_read(body: memoryview) -> Read:
    flags, strength, num_mount, num_path, num_token, num_ranges, size = _READ.unpack_from(body)
    names = num_mount + num_path + num_token
    if num_ranges > MAX_RANGES or num_path > MAX_PATH_BYTES or max(num_mount, num_token) > MAX_TEXT_BYTES:
        raise WireError(f"`READ` is bounded, got {num_ranges} ranges and names of {names} bytes")
    first = _READ.size + names
    if len(body) != first + num_ranges * RANGE.size:
        raise WireError(f"`READ` of {num_ranges} ranges and {names} bytes of names has {len(body)} bytes")
    mount, path, token = _cut(body[_READ.size : first], num_mount, num_path)
    ranges = tuple(Range(start, length) for start, length in RANGE.iter_unpack(body[first:]))
    if any(start + length > 1 << 63 for start, length in ranges) or sum(r.length for r in ranges) > MAX_RANGE_BYTES:
        raise WireError(f"`READ` must ask for at most {MAX_RANGE_BYTES} bytes below 2**63")
    version = None if strength == _ANY else Version(Strength(strength), token, size)
    if version is None and (token or size):
        raise WireError("`READ` of any version must not name one")
    return Read(mount, path, version, ranges, _flags(flags))


def _flags(number: int) -> Flag:
    if number & ~int(Flag.ONLY_IF_CACHED | Flag.COPY | Flag.PIN):
        raise WireError(f"`READ` flags {number:#x} are unknown")
    return Flag(number)


def _decode_stat(body: memoryview) -> Stat:
    flags, strength, num_mount, num_path, num_token, num_ranges, max_age_ms = _READ.unpack_from(body)
    if flags or strength or num_token or num_ranges or len(body) != _READ.size + num_mount + num_path:
        raise WireError(f"`STAT` must name a mount and a path, got {len(body)} bytes")
    if num_path > MAX_PATH_BYTES or num_mount > MAX_TEXT_BYTES:
        raise WireError(f"`STAT` names are bounded, got {num_mount} and {num_path} bytes")
    mount, path, _ = _cut(body[_READ.size :], num_mount, num_path)
    return Stat(mount, path, max_age_ms)


def _cut(names: memoryview, num_mount: int, num_path: int) -> tuple[str, str, str]:
    mount, rest = names[:num_mount], names[num_mount:]
    return _string(mount), _string(rest[:num_path]), _string(rest[num_path:])


def _decode_object(body: memoryview) -> Object:
    strength, size, age_s, num_token, num_description = _OBJECT.unpack_from(body)
    first = _OBJECT.size + num_token
    bounded = num_token <= MAX_TEXT_BYTES and num_description <= MAX_DESCRIPTION_BYTES
    if len(body) != first + num_description or not bounded or not 0.0 <= age_s < math.inf:
        raise WireError(f"`OBJECT` of age {age_s} with a token of {num_token} bytes has {len(body)} bytes")
    version = Version(Strength(strength), _string(body[_OBJECT.size : first]), size)
    return Object(version, age_s, bytes(body[first:]))


def _decode_data(body: memoryview) -> Data:
    number, offset, digest, object_size = DATA.unpack_from(body)
    return Data(number, offset, digest, object_size, body[DATA_BYTES:])


def _decode_miss(body: memoryview) -> RangeMiss:
    number, reason = _MISS.unpack(body)
    return RangeMiss(number, Reason(reason))


def _decode_hot(body: memoryview) -> Hot:
    return Hot(*_MISS.unpack(body))


def _decode_refused(body: memoryview) -> Refused:
    if not 1 <= len(body) <= 1 + MAX_TEXT_BYTES:
        raise WireError(f"`REFUSED` must be 1 to {1 + MAX_TEXT_BYTES} bytes, got {len(body)}")
    return Refused(Reason(body[0]), bytes(body[1:]).decode("utf-8", "replace"))


_DECODERS = {
    Kind.READ: _decode_read, Kind.STAT: _decode_stat, Kind.OBJECT: _decode_object, Kind.DATA: _decode_data,
    Kind.MISS: _decode_miss, Kind.HOT: _decode_hot, Kind.REFUSED: _decode_refused,
}  # fmt: skip


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _string(data: memoryview) -> str:
    return bytes(data).decode("utf-8", "surrogateescape")
