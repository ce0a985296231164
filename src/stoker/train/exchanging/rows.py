"""The rows of a table's gradient that are not zero, sent by number: they *are* the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def filled_rows(gradient: torch.Tensor) -> torch.Tensor:
    """Numbers of the rows that are not all zero, ascending.

    Args:
        gradient: rows x width.
    """
    return (gradient != 0).any(dim=1).nonzero().flatten()


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
