"""What the service, the template, processes with a loaded model and their engines say to each other."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from stoker.core.errors import WireError
from stoker.serve.engine import Interface, TensorSpec
from stoker.wire.framing import Framing

_MAGIC, _PROTOCOL = 0x5E12, 1
_MAX_BYTES = 1 << 20
"""Longest message: tensors are in slots, these are their places."""


class EngineMessage(enum.IntEnum):
    """What a message is for."""

    LOADED = 1
    """The model is loaded: engines can be forked. What it was loaded from, for a process that loads it again."""
    FAILED = 2
    """It cannot be loaded, or an engine cannot be made of it: :class:`Failure`."""
    FORK = 3
    """Make an engine: :class:`Birth`, with its socket and the memory of the slots."""
    FORKED = 4
    """It has begun: :class:`Birth`, with a pidfd; without one if it could not be forked."""
    READY = 5
    """An engine is warm: :class:`Warm`."""
    RUN = 6
    """Compute a batch: :class:`BatchRun`."""
    DONE = 7
    """It is computed: :class:`BatchDone`."""
    BROKEN = 8
    """The model raised: :class:`Failure`; the engine goes on."""
    START = 9
    """Fork a process for a model: an order, with its socket to the service."""
    STARTED = 10
    """It is forked, or cannot be: then its socket is closed."""
    BORN = 11
    """The process for a model has begun: its own pidfd."""
    CHANGED = 12
    """What the model was loaded from is not there any more, or is something else: :class:`Failure`."""


FRAMING = Framing("<HBBII", _MAGIC, _PROTOCOL, EngineMessage, _MAX_BYTES)


class Birth(msgspec.Struct, array_like=True):
    """Which engine, and the size of the slots it is given."""

    number: int
    ring_bytes: int = 0
    slot_bytes: int = 0
    max_batch: int = 1
    budget_s: float = 5.0
    """That measuring its costs may take."""
    behind: bool = False
    """Whether others answer requests meanwhile, which go first."""


class Failure(msgspec.Struct, array_like=True):
    """What went wrong, for people."""

    text: str
    batch: int = -1


class BatchRun(msgspec.Struct, array_like=True):
    """A batch."""

    batch: int
    slot: int
    offsets: list[int]
    """Places of its inputs in the slot, in the order of the interface."""
    shapes: list[tuple[int, ...]]
    used_bytes: int
    """What inputs take of the slot; outputs go behind."""


class BatchDone(msgspec.Struct, array_like=True):
    """The outputs of a batch."""

    batch: int
    took_s: float
    offsets: list[int]
    shapes: list[tuple[int, ...]]


class _Spec(msgspec.Struct, array_like=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    values: tuple[int, int] | None = None
    highs: tuple[int, ...] = ()


class Warm(msgspec.Struct, array_like=True):
    """What an engine takes, and what batches cost it."""

    inputs: list[_Spec]
    outputs: list[_Spec]
    platform: str
    parameters: dict[str, str | int | float | bool]
    costs: list[tuple[int, float]]
    """Samples and seconds."""
    alone: str = ""


class EngineReady(NamedTuple):
    """An engine's interface and measured costs."""

    interface: Interface
    costs: tuple[tuple[int, float], ...]


def warm(interface: Interface, costs: list[tuple[int, float]]) -> bytes:
    """The message of an engine that is ready."""

    def specs(given: tuple[TensorSpec, ...]) -> list[_Spec]:
        return [_Spec(each.name, each.dtype.str, each.shape, each.values, each.highs) for each in given]

    parameters: Mapping[str, Any] = interface.parameters
    inputs, outputs = specs(interface.inputs), specs(interface.outputs)
    return pack(Warm(inputs, outputs, interface.platform, dict(parameters), costs, interface.alone))


def ready_of(body: bytes) -> EngineReady:
    """What that message says."""
    found = unpack(body, Warm)

    def specs(given: list[_Spec]) -> tuple[TensorSpec, ...]:
        try:
            return tuple(
                TensorSpec(each.name, np.dtype(each.dtype), each.shape, each.values, each.highs) for each in given
            )
        except (TypeError, ValueError) as error:
            raise WireError(f"`READY` must name types of NumPy and ranges of them: {error}") from None

    interface = Interface(specs(found.inputs), specs(found.outputs), found.platform, found.parameters, found.alone)
    return EngineReady(interface, tuple(found.costs))


T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Birth, Failure, BatchRun, BatchDone, Warm)
}


def pack(message: msgspec.Struct) -> bytes:
    """The body of a message."""
    return _encoder.encode(message)


def unpack(body: bytes, kind: type[T]) -> T:
    """The message in a body; raises :class:`WireError` for anything else."""
    try:
        return _decoders[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"`{kind.__name__}` cannot be read: {error}") from None
