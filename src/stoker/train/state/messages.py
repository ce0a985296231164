"""What ranks that hold parts of a state ask each other, and answer."""

from __future__ import annotations

import enum
from typing import TypeVar

import msgspec

from stoker.core.errors import WireError
from stoker.wire.framing import Framing

_MAX_BYTES = 4096


class PartKind(enum.IntEnum):
    """What a frame between such ranks is."""

    ASK = 1
    """For a part, or with an empty name for where the other rank is."""
    PART = 2
    """The bytes of the part follow without further frames."""
    STANDING = 3
    REFUSED = 4


FRAMING = Framing(
    "<HBBIB", 0x5354, 1, PartKind, _MAX_BYTES,
    hints=("; it is no rank of this program", "; install the same stoker on all machines"),
)  # fmt: skip


class RankStanding(msgspec.Struct, frozen=True, array_like=True):
    """Where a rank is in its training.

    Attributes:
        forwards: forward passes for training that it has begun.
        version: changes of its weights: steps of optimizers, and loads.
        is_in_step: whether a forward pass has begun that no optimizer's step has followed yet.
        is_done: whether its program has ended.
    """

    forwards: int = 0
    version: int = 0
    is_in_step: bool = False
    is_done: bool = False


class PartQuestion(msgspec.Struct, frozen=True, array_like=True):
    """What a rank wants of another.

    Attributes:
        name: of the part; empty for the other's standing.
        version: at which both ranks must be.
    """

    name: str
    version: int = 0


class PartHeader(msgspec.Struct, frozen=True, array_like=True):
    """What comes behind it.

    Attributes:
        num_bytes: of the part.
    """

    num_bytes: int


_Record = TypeVar("_Record", bound=msgspec.Struct)


def read(body: bytes, record: type[_Record]) -> _Record:
    """The content of a frame; raises :class:`WireError` for anything else."""
    try:
        return msgspec.msgpack.decode(body, type=record)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"`{record.__name__}` of {len(body)} bytes is malformed: {error}") from None


def pack(kind: PartKind, record: msgspec.Struct) -> bytes:
    """A frame with a record."""
    body = msgspec.msgpack.encode(record)
    return FRAMING.pack(kind, len(body), 0) + body


def refusal(text: str) -> bytes:
    """A frame that says why there is no part."""
    body = text.encode()[:1000]
    return FRAMING.pack(PartKind.REFUSED, len(body), 0) + body
