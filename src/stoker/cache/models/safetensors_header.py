"""The header of a safetensors file: which tensors are where. Bounded, and rejected if inconsistent.

Source: the format as https://github.com/huggingface/safetensors describes it: eight bytes with the length of a JSON
object, the object, then the tensors' bytes, with offsets that are counted from there and leave no hole.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import msgspec

from stoker.core.errors import ModelFileError

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""The limit of the format's own reader."""
ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of an element."""


class TensorEntry(NamedTuple):
    """Where a tensor lies.

    Attributes:
        name: of the tensor.
        dtype: as the format names it (``BF16``).
        shape: sizes of its dimensions.
        start: first byte in the file.
        end: byte after the last.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsHeader(NamedTuple):
    """What a file holds.

    Attributes:
        tensors: in the order of their bytes.
        metadata: what the writer noted.
    """

    tensors: tuple[TensorEntry, ...]
    metadata: dict[str, str]


def header_length(first: bytes | memoryview, url: str, size: int) -> int:
    """Bytes of the JSON object.

    Args:
        first: eight bytes of the file.
        url: of the file, for errors.
        size: of the file (bytes).

    Raises:
        ModelFileError: this is no safetensors file.
    """
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if len(first) < LENGTH_BYTES or length > MOST_HEADER_BYTES or LENGTH_BYTES + length > size:
        raise _wrong(url, f"its header must have at most {MOST_HEADER_BYTES:,} bytes and fit into it, got {length:,}")
    return length


def parse_header(text: bytes | memoryview, url: str, size: int) -> SafetensorsHeader:
    """The header's content, checked.

    Args:
        text: the JSON object.
        url: of the file, for errors.
        size: of the file (bytes).

    Raises:
        ModelFileError: it is not what the format asks for.
    """
    try:
        content = msgspec.json.decode(bytes(text), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise _wrong(url, f"its header is not a JSON object: {error}") from None
    metadata: Any = content.pop("__metadata__", None)
    if not isinstance(metadata, dict):
        metadata = {}
    begin = LENGTH_BYTES + len(text)
    tensors = sorted((_entry(name, found, begin, url) for name, found in content.items()), key=_place)
    at = begin
    for tensor in tensors:
        if tensor.start != at:
            raise _wrong(url, f"tensor {tensor.name!r} must begin at byte {at:,}, its header says {tensor.start:,}")
        at = tensor.end
    if at != size:
        raise _wrong(url, f"its tensors must end where the file does, at byte {size:,}, got {at:,}")
    return SafetensorsHeader(
        tuple(tensors), {str(key): str(value) for key, value in cast("dict[object, object]", metadata).items()}
    )


def _place(tensor: TensorEntry) -> tuple[int, int]:
    return tensor.start, tensor.end


def _entry(name: str, found: Any, begin: int, url: str) -> TensorEntry:
    try:
        dtype, shape, (start, end) = found["dtype"], tuple(found["shape"]), found["data_offsets"]
        bits = ITEM_BITS.get(dtype)
        whole = all(isinstance(number, int) and number >= 0 for number in (*shape, start, end))
    except (TypeError, KeyError, ValueError):
        raise _wrong(url, f"tensor {name!r} must have dtype, shape and data_offsets") from None
    if bits is None:
        raise _wrong(url, f"tensor {name!r} is of type {dtype!r}, which is none of {', '.join(ITEM_BITS)}")
    if not whole or (end - start) * 8 != math.prod(shape) * bits:
        raise _wrong(url, f"tensor {name!r} must have the bytes of its shape {shape}, got {start} to {end}")
    return TensorEntry(name, dtype, shape, begin + start, begin + end)


def _wrong(url: str, reason: str) -> ModelFileError:
    return ModelFileError(f"`{url}` must be a safetensors file: {reason}", path=url)
