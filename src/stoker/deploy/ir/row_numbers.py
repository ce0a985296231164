"""The largest number at each place of a value of row numbers, where places differ: columns of several tables; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.values import IntegerValue, ModelPort

UNREAD = -1
"""In place of the largest number where nothing reads one."""
_MOVES = (op.Concat, op.Reshape, op.Permute, op.Slice)
_Places: TypeAlias = NDArray[np.int64]


def highs_of(value: IntegerValue) -> _Places:
    """The largest number at each place, in the value's shape."""
    highs = np.array(value.highs, np.int64) if value.highs else np.full(value.elements, value.high)
    return highs.reshape(value.shape)


def highs_of_caller(port: ModelPort, value: IntegerValue) -> _Places:
    """The same in the caller's shape."""
    sizes = [port.shape[axis] for axis in port.order]
    return highs_of(value).reshape(sizes).transpose(np.argsort(port.order).astype(int).tolist())


def stated(highs: _Places, *, short: bool = False) -> tuple[int, tuple[int, ...]]:
    """A value's ``high`` and ``highs``; if short, the latter are left out where all places are alike."""
    high = max(0, int(highs.max()))
    alike = bool((highs == high).all())
    return high, () if short and alike else tuple(highs.ravel().tolist())


def moved_highs(operation: op.Operation, values: Mapping[str, IntegerValue]) -> _Places | None:
    """What moves numbers that differ by place leaves at each place; None: it moves none."""
    if not isinstance(operation, _MOVES):
        return None
    sources = [values[name] for name in op.sources_of(operation)]
    if not any(source.highs for source in sources):
        return None
    first, *_ = highs = [highs_of(source) for source in sources]
    match operation:
        case op.Concat():
            return np.concatenate(highs, axis=operation.axis)
        case op.Reshape():
            return first.reshape(values[operation.output].shape)
        case op.Permute():
            return first.transpose(operation.order)
        case op.Slice():
            return first[(slice(None),) * operation.axis + (slice(operation.start, operation.stop, operation.step),)]


def broken_highs(value: IntegerValue) -> Iterator[str]:
    """Rules about ``highs`` that a value breaks, as sentences."""
    if not value.highs:
        return
    if len(value.highs) != value.elements:
        yield f"`{value.name}`: `highs` must have {value.elements} numbers, got {len(value.highs)}"
    if value.low or not UNREAD <= min(value.highs) <= max(0, *value.highs) <= value.high:
        yield f"`{value.name}`: numbers of `highs` must be {UNREAD} to {value.high}, and `low` 0"


def broken_moves(operation: op.Operation, values: Mapping[str, IntegerValue]) -> Iterator[str]:
    """Rules about ``highs`` that an operation breaks."""
    out = values[operation.output]
    if not out.highs:
        return
    moved = moved_highs(operation, values)
    if moved is None and isinstance(operation, _MOVES):
        moved = np.full(out.shape, max(values[name].high for name in op.sources_of(operation)))
    if moved is None or (np.maximum(moved, 0) > np.maximum(highs_of(out), 0)).any():
        yield f"`{out.name}`: `highs` must hold what `{type(operation).__name__}` moves there"
