# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch's collate table and the user's samples are untyped)
"""Builds batches directly in a slot, instead of copying them there afterwards.

Torch's ``default_collate`` stacks samples into a fresh shared-memory segment per batch, which makes large batches slow;
here it stacks into the slot of the current lease. Larger tensors do not even wait for that: each is moved to its row of
the slot as soon as the dataset returns it, while it is in the processor's caches. Its memory is then free for the next
sample, so that a worker is nearly as fast as a program that keeps no sample at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stoker.core.patching import Patches
from stoker.core.slots.writers import SlotWriter
from stoker.feed.torch_private import collating

_WORTH_MOVING_BYTES = 1 << 14
"""Smaller tensors are stacked at the end: moving them one by one costs a few microseconds each."""
_NUMERIC = "biufc"
"""Kinds of NumPy types that ``default_collate`` turns into tensors."""


@dataclass(slots=True)
class _Rows:
    """Room in the slot for one tensor of every sample of the batch."""

    whole: torch.Tensor
    """[samples, *shape of one]"""
    kind: type
    """What the dataset returns there: ``torch.Tensor`` or ``numpy.ndarray``."""


class SlotArena:
    """Puts what ``default_collate`` makes straight into the slot of the current lease."""

    def __init__(self) -> None:
        self._writer: SlotWriter | None = None
        self._installed = False
        self._patches = Patches("batches are stacked where they are handed over")
        self._count = 0
        self._row = 0
        self._leaf = 0
        self._leaves: list[_Rows | None] = []
        self._by_address: dict[int, _Rows] = {}

    def use(self, writer: SlotWriter | None) -> None:
        """Sets where the next batch goes; None for ordinary memory."""
        self._writer = writer
        self._forget()

    def _forget(self) -> None:
        self._leaves.clear()
        self._by_address.clear()
        self._row = 0

    def install(self) -> None:
        """Replaces torch's collation of tensors in this process, unless the user already has."""
        table: dict[Any, Any] = collating.default_collate_fn_map
        if table.get(torch.Tensor) is collating.collate_tensor_fn:
            self._patches.set_item(table, torch.Tensor, self._stack, "torch.utils.data.default_collate_fn_map")
            self._installed = True

    # -- samples, one by one -----------------------------------------------------------------------------------------

    def begin(self, count: int) -> None:
        """Prepares for a batch of up to ``count`` samples; discards what an earlier attempt wrote."""
        self._forget()
        self._count = count if self._installed and self._writer is not None else 0
        if self._writer is not None:
            self._writer.used_bytes = 0

    def keep(self, sample: Any) -> Any:
        """The sample, with its larger tensors moved to the slot; a sample of another form is left as it is."""
        if not self._count:
            return sample
        self._leaf = 0
        kept = self._walk(sample)
        self._row += 1
        if not any(self._leaves):
            self._count = 0  # nothing in such samples is worth moving
        return kept

    def _walk(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor or kind is np.ndarray:
            return self._move(value, kind)
        if kind is tuple or kind is list:
            return kind(self._walk(part) for part in value)
        if kind is dict:
            return {key: self._walk(part) for key, part in value.items()}
        return value

    def _move(self, value: Any, kind: type) -> Any:
        leaf, self._leaf = self._leaf, self._leaf + 1
        if leaf == len(self._leaves) and self._row == 0:
            self._leaves.append(self._room_for(value, kind))
        rows = self._leaves[leaf] if leaf < len(self._leaves) else None
        if rows is None or rows.kind is not kind or self._row >= self._count:
            return value
        source = torch.from_numpy(value) if kind is np.ndarray and _is_plain_array(value) else value
        if type(source) is not torch.Tensor or not _is_plain(source):
            return value
        if source.shape != rows.whole.shape[1:] or source.dtype is not rows.whole.dtype:
            return value
        row = rows.whole[self._row]
        row.copy_(source)
        return row

    def _room_for(self, value: Any, kind: type) -> _Rows | None:
        if kind is np.ndarray:
            if not _is_plain_array(value):
                return None
            value = torch.from_numpy(value)
        if value.nbytes < _WORTH_MOVING_BYTES or not _is_plain(value):
            return None
        whole = self._reserve(value, self._count)
        if whole is None:
            return None
        rows = _Rows(whole, kind)
        self._by_address[whole.data_ptr()] = rows
        return rows

    # -- the batch ---------------------------------------------------------------------------------------------------

    def _stack(self, batch: Any, *, collate_fn_map: object = None) -> torch.Tensor:
        first = batch[0]
        if first.is_nested or first.layout is not torch.strided:
            return collating.collate_tensor_fn(batch)  # raises torch's own explanation
        moved = self._moved(batch)
        if moved is not None:
            return moved
        out = self._reserve(first, len(batch))
        return torch.stack(batch, 0, out=first.new_empty((len(batch), *first.shape)) if out is None else out)

    def _moved(self, batch: Any) -> torch.Tensor | None:
        """The slot's rows as one tensor, if these tensors are exactly those rows, in order; else None."""
        rows = self._by_address.get(batch[0].data_ptr()) if self._by_address else None
        if rows is None or len(batch) > len(rows.whole):
            return None
        address, step, shape, dtype = (
            rows.whole.data_ptr(),
            rows.whole[0].nbytes,
            rows.whole.shape[1:],
            rows.whole.dtype,
        )
        for number, tensor in enumerate(batch):
            if tensor.data_ptr() != address + number * step or tensor.shape != shape or tensor.dtype is not dtype:
                return None
        return rows.whole[: len(batch)]

    def _reserve(self, first: torch.Tensor, count: int) -> torch.Tensor | None:
        """Room in the slot for ``count`` tensors like ``first``, as one; None where there is none."""
        size_bytes = first.nbytes * count
        if self._writer is None or not size_bytes or first.device.type != "cpu" or type(first) is not torch.Tensor:
            return None
        offset = self._writer.reserve(size_bytes)
        if offset is None:
            return None
        raw: Any = self._writer.view
        flat = torch.frombuffer(raw, dtype=torch.uint8, count=size_bytes, offset=offset)
        return flat.view(first.dtype).view((count, *first.shape))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether stacking such tensors just copies them, with nothing to reject or to keep track of."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_neg() or tensor.is_conj())
    )


def _is_plain_array(array: Any) -> bool:
    """Whether ``torch.from_numpy`` accepts it without a warning."""
    return (
        array.dtype.kind in _NUMERIC
        and array.dtype.isnative
        and array.flags.writeable
        and min(array.strides, default=0) >= 0
    )
