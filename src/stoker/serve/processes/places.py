"""Where the tensors of a batch are in its slot; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.core.slots.ring import align


class Places(NamedTuple):
    """Where tensors begin.

    Attributes:
        offsets: of each, in its slot.
        end: of the last.
    """

    offsets: list[int]
    end: int


def placed(sizes: Sequence[int], used_bytes: int, slot_bytes: int) -> Places | None:
    """Places for tensors of these sizes behind what is used; None where they do not fit."""
    offsets: list[int] = []
    for size in sizes:
        offset = align(used_bytes)
        used_bytes = offset + size
        offsets.append(offset)
    return Places(offsets, used_bytes) if used_bytes <= slot_bytes else None


def array_at(
    memory: npt.NDArray[np.uint8], offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> npt.NDArray[np.generic]:
    """The tensor at a place of a slot; raises ``ValueError`` where it would be outside."""
    size = math.prod(shape) * dtype.itemsize
    if offset < 0 or size < 0 or offset + size > len(memory):
        raise ValueError(f"`place` must be within {len(memory)} bytes, got {size} at {offset}")
    return np.ndarray(shape, dtype, memory, offset)
