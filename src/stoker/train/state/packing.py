"""Named values as bytes: tensors and numbers of an optimizer's state, for other ranks. Nothing in them is run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor

from stoker.core.errors import WireError
from stoker.train.ring.tensors import memory_of

Plain = int | float | bool | str | None
"""What a state may hold besides tensors."""
_DTYPES = {
    str(each): each
    for each in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip
_LENGTH_BYTES = 4


class PackedValue(msgspec.Struct, frozen=True, array_like=True):
    """One of the values.

    Attributes:
        name: of the value.
        dtype: of a tensor, as torch writes it; empty for another value.
        shape: of a tensor.
        plain: the value itself, if it is no tensor.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    plain: Plain = None


def packed(values: Mapping[str, object]) -> memoryview:
    """Values as bytes: a header, then the tensors one after the other.

    Raises:
        KeyError: a value is neither a dense tensor of a usual dtype nor a number or a text.
    """
    header: list[PackedValue] = []
    parts: list[memoryview] = []
    for name, value in values.items():
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or str(value.dtype) not in _DTYPES:
                raise KeyError(name)
            header.append(PackedValue(name, str(value.dtype), tuple(value.shape)))
            parts.append(memory_of(value.detach().cpu().contiguous()))
        elif value is None or isinstance(value, (int, float, bool, str)):
            header.append(PackedValue(name, plain=value))
        else:
            raise KeyError(name)
    head = msgspec.msgpack.encode(header)
    return memoryview(b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, *parts]))


def unpacked(data: bytearray) -> dict[str, Tensor | Plain]:
    """The values; tensors on the CPU, which share memory with the bytes.

    Raises:
        WireError: the bytes are no such values.
    """
    try:
        start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        found: dict[str, Tensor | Plain] = {}
        for each in msgspec.msgpack.decode(bytes(data[_LENGTH_BYTES:start]), type=list[PackedValue]):
            if not each.dtype:
                found[each.name] = each.plain
                continue
            dtype = _DTYPES[each.dtype]
            count = 1
            for size in each.shape:
                if size < 0:
                    raise ValueError(f"a size of {size}")
                count *= size
            found[each.name] = _tensor_of(data, dtype, count, start).view(each.shape)
            start += count * dtype.itemsize
        if start != len(data):
            raise ValueError(f"{len(data) - start} bytes more")
    except (msgspec.MsgspecError, KeyError, ValueError, RuntimeError) as error:
        raise WireError(f"`values` of {len(data)} bytes are malformed: {error}") from None
    return found


def _tensor_of(data: bytearray, dtype: torch.dtype, count: int, start: int) -> Tensor:
    if not count:
        return torch.empty(0, dtype=dtype)
    if start + count * dtype.itemsize > len(data):
        raise ValueError("a tensor is cut short")
    if start % dtype.itemsize:
        # Values before it are of other widths: a tensor must lie at a multiple of that.
        return torch.frombuffer(data[start : start + count * dtype.itemsize], dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=start)
