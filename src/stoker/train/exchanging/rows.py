"""The rows of a table's gradient that are not zero, sent by number: they *are* the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_SIGNS = {2: -0x7FFF7FFF7FFF8000, 4: -0x7FFFFFFF80000000, 8: -(1 << 63)}
"""The signs of numbers of so many bytes, in eight of them: a negative zero is one, too."""


def filled_rows(gradient: torch.Tensor) -> torch.Tensor:
    """Numbers of the rows that are not all zero, ascending.

    Args:
        gradient: rows x width.
    """
    size = gradient.element_size()
    fits = gradient.shape[1] * size % 8 == 0 and gradient.storage_offset() * size % 8 == 0
    if not (fits and size in _SIGNS and gradient.is_contiguous()):
        return (gradient != 0).any(dim=1).nonzero().flatten()
    # Eight bytes at a time, whatever numbers are in them: half of the time, for a table of 6 MB.
    return gradient.view(torch.int64).bitwise_and(~_SIGNS[size]).amax(dim=1).nonzero().flatten()


def add_rows(
    gradient: torch.Tensor, own: torch.Tensor, parts: Sequence[tuple[torch.Tensor, torch.Tensor]], scale: float
) -> None:
    """Replaces a rank's own rows by the scaled sum of all ranks' rows.

    Rank by rank: each rank's numbers are unique, so the order of each sum is the ranks' order, on every device.

    Args:
        gradient: rows x width, with this rank's own rows.
        own: their numbers.
        parts: of each rank in their order, numbers and rows.
        scale: of each rank's rows.
    """
    gradient.index_fill_(0, own, 0.0)
    for numbers, rows in parts:
        if numbers.shape[0]:
            gradient.index_add_(0, numbers, rows * scale)
