# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch's storage API is untyped)
"""Splits batches into a skeleton and buffers: one pickle pass that leaves out the bytes of tensors and arrays.

Works for everything that pickles (dicts, named tuples, dataclasses, sparse tensors, user classes): the skeleton is a
pickle in which tensors name an entry of a table instead of holding bytes. The buffers go to a slot, to a separate
memfd, or into the frame; the reader rebuilds views on them without a copy. Strides and overlaps (a view and its base
in one batch) survive.
"""

from __future__ import annotations

import ctypes
import functools
import io
import pickle
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.core.errors import WireError
from stoker.core.slots.ring import ALIGN, align
from stoker.core.slots.writers import SlotWriter
from stoker.feed.torch_private import bytes_of, layout_of_nested, nested_view, parts_of_sparse

_FOREIGN_ORDER = ">" if sys.byteorder == "little" else "<"
_SMALL_ARRAY_BYTES = 512
"""NumPy arrays below this stay in the skeleton: a table entry would cost more."""
_COUNT = struct.Struct("<II")
_PLAIN_DTYPES = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
     torch.uint8, torch.bool, torch.complex64, torch.complex128}
)  # fmt: skip
"""What ``torch.frombuffer`` accepts; other types travel as bytes and are viewed back."""


@dataclass(slots=True)
class _Entry:
    """A range of memory that the batch refers to; ``owner`` keeps it alive until it is copied."""

    address: int
    size_bytes: int
    owner: object

    def head(self, limit_bytes: int) -> Any:
        """The first bytes, without a copy."""
        return (ctypes.c_char * min(self.size_bytes, limit_bytes)).from_address(self.address)


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed batch: where its buffers are now, and the skeleton that refers to them."""

    skeleton: bytes
    entries: list[_Entry]
    buffers: list[int]
    """Entries that are pickle buffers (NumPy arrays), in the order in which unpickling asks for them."""

    @property
    def payload_bytes(self) -> int:
        """Room the buffers need in the worst case, alignment included."""
        return sum(align(entry.size_bytes) + ALIGN for entry in self.entries)


class _Table:
    """The ranges of memory that a batch refers to, collected while it is pickled."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.buffers: list[int] = []

    def take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Keeps a buffer out of the pickle, unless it is small."""
        raw = buffer.raw()
        if raw.nbytes < _SMALL_ARRAY_BYTES:
            return True
        array = np.frombuffer(raw, np.uint8)
        self.buffers.append(len(self.entries))
        self.entries.append(_Entry(int(array.ctypes.data), raw.nbytes, (buffer, array)))
        return False


class _Pickler(pickle.Pickler):
    # The table is a separate object: a pickler that its own callback refers to would keep the batch until the next
    # garbage collection.
    def __init__(self, file: io.BytesIO, table: _Table) -> None:
        super().__init__(file, protocol=5, buffer_callback=table.take_buffer)
        self.entries = table.entries

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is torch.Tensor and obj.layout is torch.strided and obj.device.type == "cpu":
            return self._reduce_tensor(obj)
        if kind is torch.Tensor and obj.device.type == "cpu" and obj.layout in _SPARSE:
            return _reduce_sparse(obj)  # torch's own reduction keeps every rebuilt sparse tensor for later validation
        if kind is torch.UntypedStorage and obj.device.type == "cpu":
            self.entries.append(_Entry(obj.data_ptr(), obj.nbytes(), obj))
            return _rebuild_storage, (len(self.entries) - 1, obj.nbytes())
        if kind is torch.storage.TypedStorage and bytes_of(obj).device.type == "cpu":
            return _rebuild_typed_storage, (bytes_of(obj), obj.dtype)
        if kind is np.ndarray and obj.dtype.byteorder in _FOREIGN_ORDER:  # NumPy's own unpickling swaps these as well
            return obj.astype(obj.dtype.newbyteorder("=")).__reduce_ex__(5)
        return NotImplemented

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.is_nested:
            return _rebuild_nested, (tensor.values(), *layout_of_nested(tensor))
        if tensor.is_quantized or tensor.is_neg() or tensor.is_conj() or (tensor.is_leaf and tensor.grad is not None):
            return NotImplemented  # through its storage, by torch's own reduction
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "a tensor in the batch has requires_grad=True and is not a leaf; autograd does not cross processes, "
                "so detach it in the dataset or collate function: `tensor.detach()`"
            )
        item = tensor.element_size()
        extent = 0
        if tensor.numel():
            extent = item * (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)))
        self.entries.append(_Entry(tensor.data_ptr() if extent else 0, extent, tensor))
        stride = tensor.stride()
        if stride == _plain_strides(tensor.shape):
            stride = None
        arguments = (len(self.entries) - 1, tensor.dtype, tuple(tensor.shape), stride)
        return _rebuild_tensor, (*arguments, True) if tensor.requires_grad else arguments


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _reduce_sparse(tensor: torch.Tensor) -> Any:
    if tensor.layout is torch.sparse_coo:
        return _rebuild_coo, (*parts_of_sparse(tensor), tensor.shape, tensor.is_coalesced())
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    compressed = tensor.crow_indices() if by_row else tensor.ccol_indices()
    plain = tensor.col_indices() if by_row else tensor.row_indices()
    return _rebuild_compressed, (compressed, plain, tensor.values(), tensor.shape, tensor.layout)


def _rebuild_nested(buffer: torch.Tensor, sizes: Any, strides: Any, offsets: Any) -> torch.Tensor:
    return nested_view(buffer, sizes, strides, offsets)


def _rebuild_coo(indices: torch.Tensor, values: torch.Tensor, shape: Any, coalesced: bool) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=False)


def _rebuild_compressed(
    compressed: torch.Tensor, plain: torch.Tensor, values: torch.Tensor, shape: Any, layout: torch.layout
) -> torch.Tensor:
    return torch.sparse_compressed_tensor(compressed, plain, values, shape, layout=layout, check_invariants=False)


def pack(batch: object) -> Packed:
    """Packs a batch; raises what pickling raises (``PicklingError``, ``TypeError`` …) if it can't be sent."""
    file, table = io.BytesIO(), _Table()
    _Pickler(file, table).dump(batch)
    return Packed(file.getvalue(), table.entries, table.buffers)


def place(packed: Packed, writer: SlotWriter) -> bytes | None:
    """Copies the buffers that are not there yet into ``writer`` and returns the skeleton with its table.

    Overlapping ranges are copied once, so that views stay views. None when the buffers do not fit.
    """
    spans = _merge(packed.entries)
    offsets = [0] * len(packed.entries)
    for address, size_bytes, members in spans:
        offset = writer.offset_of(address, size_bytes)
        if offset is None:
            offset = writer.reserve(size_bytes, address % ALIGN)
            if offset is None:
                return None
            _copy(address, size_bytes, writer.address + offset)
        for member in members:
            offsets[member] = offset + packed.entries[member].address - address
    return _head(packed, offsets) + packed.skeleton


def _head(packed: Packed, offsets: list[int]) -> bytes:
    sizes = (entry.size_bytes for entry in packed.entries)
    table = [number for pair in zip(offsets, sizes, strict=True) for number in pair]
    counts = _COUNT.pack(len(offsets), len(packed.buffers))
    return counts + struct.pack(f"<{len(table)}Q{len(packed.buffers)}I", *table, *packed.buffers)


def _merge(entries: Sequence[_Entry]) -> list[tuple[int, int, list[int]]]:
    """Spans (address, bytes, entries inside) that cover all entries; overlapping or equal ranges share one."""
    spans: list[tuple[int, int, list[int]]] = []
    for number in sorted(range(len(entries)), key=lambda n: entries[n].address):
        entry = entries[number]
        if entry.size_bytes == 0:
            continue
        if spans and entry.address < spans[-1][0] + spans[-1][1]:
            start, size_bytes, members = spans[-1]
            spans[-1] = (start, max(size_bytes, entry.address + entry.size_bytes - start), [*members, number])
        else:
            spans.append((entry.address, entry.size_bytes, [number]))
    return spans


def _copy(source: int, size_bytes: int, target: int) -> None:
    ctypes.memmove(target, source, size_bytes)


class _Context(threading.local):
    """What the rebuild functions of the skeleton being loaded refer to."""

    holder: npt.NDArray[np.uint8] | None = None
    table: tuple[int, ...] = ()
    shared: dict[int, tuple[int, torch.Tensor]] = {}  # noqa: RUF012 - replaced, never changed
    """For entries that overlap others: offset and bytes of the memory that they are all views of."""


_context = _Context()


def unpack(skeleton: bytes | memoryview, holder: npt.NDArray[np.uint8]) -> Any:
    """The batch, as views on ``holder``; raises :class:`WireError` when the table does not fit the holder."""
    body, table, buffers = _read_head(memoryview(skeleton), len(holder))
    previous = _context.holder, _context.table, _context.shared
    _context.holder, _context.table, _context.shared = holder, table, _shared_spans(table, holder)
    try:
        arrays = [holder[table[2 * n] : table[2 * n] + table[2 * n + 1]] for n in buffers]
        return pickle.loads(body, buffers=arrays)
    finally:
        _context.holder, _context.table, _context.shared = previous


def _shared_spans(table: tuple[int, ...], holder: npt.NDArray[np.uint8]) -> dict[int, tuple[int, torch.Tensor]]:
    if len(table) <= 2:
        return {}
    ranges = sorted((table[2 * n], table[2 * n + 1], n) for n in range(len(table) // 2) if table[2 * n + 1])
    shared: dict[int, tuple[int, torch.Tensor]] = {}
    group: list[int] = []
    start = end = 0
    for offset, size_bytes, number in [*ranges, (1 << 62, 0, -1)]:
        if offset < end:
            group.append(number)
            end = max(end, offset + size_bytes)
            continue
        if len(group) > 1:
            raw: Any = holder
            whole = torch.frombuffer(raw, dtype=torch.uint8, count=end - start, offset=start)
            shared.update(dict.fromkeys(group, (start, whole)))
        group, start, end = [number], offset, offset + size_bytes
    return shared


@functools.lru_cache(maxsize=64)
def _table_form(num_entries: int, num_buffers: int) -> struct.Struct:
    return struct.Struct(f"<{2 * num_entries}Q{num_buffers}I")


def _read_head(view: memoryview, size_bytes: int) -> tuple[memoryview, tuple[int, ...], tuple[int, ...]]:
    try:
        num_entries, num_buffers = _COUNT.unpack_from(view)
        form = _table_form(num_entries, num_buffers)
        numbers = form.unpack_from(view, _COUNT.size)
    except (struct.error, MemoryError, OverflowError) as error:
        raise WireError(f"skeleton of {len(view)} bytes is malformed: {error}") from None
    table, buffers = numbers[: 2 * num_entries], numbers[2 * num_entries :]
    for offset, length in zip(table[::2], table[1::2], strict=True):
        if offset + length > size_bytes:
            raise WireError(f"batch names bytes {offset} to {offset + length}, its memory has {size_bytes}")
    if any(number >= num_entries for number in buffers):
        raise WireError(f"batch names a buffer beyond its {num_entries} entries")
    return view[_COUNT.size + form.size :], table, buffers


def _plain_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a fresh tensor; contiguous tensors may have others in dimensions of size 0 or 1."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _rebuild_storage(number: int, size_bytes: int) -> torch.UntypedStorage:
    return _rebuild_tensor(number, torch.uint8, (size_bytes,), None).untyped_storage()


def _rebuild_typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _rebuild_tensor(
    number: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...] | None,
    requires_grad: bool = False,
) -> torch.Tensor:
    offset, size_bytes = _context.table[2 * number], _context.table[2 * number + 1]
    if size_bytes == 0:
        tensor = torch.empty_strided(shape, stride or _plain_strides(shape), dtype=dtype)
    else:
        tensor = _view(number, offset, size_bytes, dtype)
        tensor = tensor.view(shape) if stride is None else tensor.as_strided(shape, stride)
    return tensor.requires_grad_() if requires_grad else tensor


def _view(number: int, offset: int, size_bytes: int, dtype: torch.dtype) -> torch.Tensor:
    if number in _context.shared:
        start, whole = _context.shared[number]
        if (offset - start) % dtype.itemsize == 0:
            return whole[offset - start : offset - start + size_bytes].view(dtype)
    holder: Any = _context.holder
    if dtype in _PLAIN_DTYPES:
        return torch.frombuffer(holder, dtype=dtype, count=size_bytes // dtype.itemsize, offset=offset)
    return torch.frombuffer(holder, dtype=torch.uint8, count=size_bytes, offset=offset).view(dtype)


_PLAIN_LEAVES = (str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device)


def is_plain(batch: object, depth: int = 8) -> bool:
    """Whether a copy equals the batch in every respect: plain tensors in built-in containers, no sharing."""
    kind = type(batch)
    if kind in _PLAIN_LEAVES:
        return True
    if isinstance(batch, torch.Tensor):
        plain = kind is torch.Tensor and batch.layout is torch.strided and batch.device.type == "cpu"
        return plain and not batch.requires_grad and not batch.is_nested and batch.is_contiguous() and _owns(batch)
    if depth and kind in (list, tuple):
        return all(is_plain(value, depth - 1) for value in batch)  # type: ignore[attr-defined]
    if depth and kind is dict:
        return all(is_plain(part, depth - 1) for pair in batch.items() for part in pair)  # type: ignore[attr-defined]
    return False


def _owns(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def digest(batch: object) -> bytes:
    """16 bytes that are equal for equal batches: structure, types, strides and every byte."""
    packed = pack(batch)
    state = blake2b(packed.skeleton, digest_size=16)
    for entry in packed.entries:
        if entry.size_bytes:
            state.update(entry.head(entry.size_bytes))
    return state.digest()
