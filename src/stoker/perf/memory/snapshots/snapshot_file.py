"""Memory snapshots of torch for CUDA (``torch.cuda.memory._dump_snapshot``), read as data of strangers.

A pickle can run any code of the machine that reads it. Here no name is looked up in any module: what remains of the
format are containers, numbers and text, and their form is checked before anything else sees them.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec

from stoker.core.errors import ConfigError

_Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
"""More than any device has, and little enough that sums of millions stay below 2**63."""
_Address = Annotated[int, msgspec.Meta(ge=0)]
_PoolId = tuple[int, int]
_WRITER = "torch.cuda.memory._dump_snapshot"


class SnapshotBlock(msgspec.Struct, frozen=True):
    """A piece of a segment."""

    address: _Address
    size: _Bytes
    state: str
    """``inactive`` if it is free; otherwise a tensor has it, or streams are still to finish with it."""
    requested_size: _Bytes = 0
    frames: list[Any] = []


class SnapshotSegment(msgspec.Struct, frozen=True):
    """Memory that the allocator has from the driver."""

    address: _Address
    total_size: _Bytes
    segment_type: str
    """``small`` or ``large``."""
    blocks: list[SnapshotBlock]
    device: int = 0
    stream: int = 0
    segment_pool_id: _PoolId = (0, 0)
    is_expandable: bool = False


class SnapshotEvent(msgspec.Struct, frozen=True):
    """What the allocator did at one time."""

    action: str
    size: _Bytes = 0
    addr: _Address = 0
    stream: int = 0
    frames: list[Any] = []
    device_free: _Bytes | None = None
    """Bytes of the device that were free when memory ran out; None for all other events."""
    pool_id: _PoolId = (0, 0)


class CudaSnapshot(msgspec.Struct, frozen=True):
    """A process's memory on its CUDA devices, and how it came about."""

    segments: list[SnapshotSegment]
    device_traces: list[list[SnapshotEvent]] = []
    """Events by device, the oldest first; older ones may be lost."""
    allocator_settings: dict[str, Any] = {}


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers, numbers and text, and looks up nothing."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}"[:120])


def is_pickle(path: Path) -> bool:
    """Whether a file is a pickle rather than a program: its name says so, or its first byte does."""
    if path.suffix in (".pickle", ".pkl"):
        return True
    try:
        with path.open("rb") as file:
            return file.read(1) == pickle.PROTO
    except OSError:
        return False


def read_snapshot(path: Path) -> CudaSnapshot:
    """The snapshot in a file; no code runs, whatever the file holds.

    Raises:
        ConfigError: the file cannot be read or is no snapshot.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"`{path}` must be a file that can be read: {error.strerror}") from None
    return parse_snapshot(content, str(path))


def parse_snapshot(content: bytes, name: str) -> CudaSnapshot:
    """The snapshot that the bytes hold; errors as of :func:`read_snapshot`, with ``name`` as their subject."""
    try:
        plain = _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle fails in many ways, MemoryError among them
        words = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"`{name}` must be a pickle of plain data, as {_WRITER} writes it: {words:.200}") from None
    try:
        return msgspec.convert(plain, CudaSnapshot)
    except msgspec.ValidationError as error:
        words = str(error).replace("Expected", "expected", 1).replace(" - at ", " at ")
        raise ConfigError(f"`{name}` must be a snapshot as {_WRITER} writes it: {words:.200}") from None
